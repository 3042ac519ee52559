"""The program of a column form: threads walk down the reduced axes with a vector of columns each, then meet.

A block takes ``width * vector`` columns and one of ``splits`` parts of the reduced axes; its ``depth`` threads of a
column take every ``depth``-th row of the part, several of them under way at once. What they found meets in the
registers of a warp and in shared memory; parts of different blocks meet in a cluster, or through workspace in a second
launch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import WARP_LANES, ClusterLoad, Expr, Load, Shuffle, ShuffleMode, Var, index, logical_and, minimum
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.linear_form import affine_form
from ....ir.stmt import HardwareAxis, Kernel, LoopKind, Stmt
from ....te.workload import Workload
from ...problems.columnwise import ColumnForm, column_axis, outer_axis, over_axis
from ...problems.rowwise import Reduced
from ...tile.accumulation import Accumulation
from ...tile.contiguous import run_of
from ...tile.delinearize import digits
from ...tile.names import stem
from ...tile.stage_body import value_at
from ..l2_prefetch import L2Prefetch

CLUSTER, LAUNCH = "cluster", "launch"
"""Where the parts of a reduction meet: in the shared memory of a cluster, or in a second launch."""

RUNS, TURNS = "runs", "turns"
"""How rows are dealt to the parts: a run of neighbours to each, or ``depth`` to each in turn."""

FINAL_WIDTH = 32
"""Columns of a block of the second launch."""


@dataclass(frozen=True, slots=True)
class ColumnSetting:
    """``vector``: columns of a thread. ``width`` and ``depth``: threads of a block along the columns and along the
    reduced axes. ``unroll``: rows that a thread has under way. ``splits``: parts of the reduced axes, dealt in RUNS or
    TURNS, which ``join`` in a CLUSTER or a second LAUNCH (of no meaning for one part). ``final_depth``: threads of a
    column in the second launch. ``resident``: blocks that a multiprocessor must have room for (0: no matter; the
    compiler then saves registers for as many as it likes, and loads fewer rows at once). ``ahead``: how many blocks,
    the first, ask for their rows ahead of the wait for earlier launches."""

    vector: int
    width: int
    depth: int
    unroll: int
    splits: int
    deal: str = RUNS
    join: str = LAUNCH
    final_depth: int = 8
    resident: int = 0
    ahead: int = 0

    @property
    def threads(self) -> int:
        return self.width * self.depth

    @property
    def columns(self) -> int:
        """Of a block."""
        return self.width * self.vector

    @property
    def entries(self) -> int:
        """Of a column in a block's shared memory: one for each warp that works on it."""
        return -(-self.threads // max(self.width, WARP_LANES))


def column_kernel(workload: Workload, form: ColumnForm, setting: ColumnSetting) -> Kernel:
    """The kernel of one setting. The setting must be legal (see the sketch)."""
    program = _Program(workload, form, setting)
    body = program.written()
    return Kernel(
        name=program.name("columns"),
        inputs=workload.inputs,
        outputs=workload.output_buffers,
        workspace=tuple(b for parts in program.parts for b in parts),
        body=body,
    )


@dataclass
class _Program:
    workload: Workload
    form: ColumnForm
    setting: ColumnSetting
    w: Writer = field(default_factory=Writer)

    def __post_init__(self) -> None:
        self.tensors = frozenset(b.name for b in (*self.workload.inputs, *self.workload.output_buffers))
        self.hows = [Accumulation(r.reducer, r.body.dtype, r.tensor.dtype) for r in self.form.reductions]
        self.parts: list[tuple[Buffer, ...]] = []
        s = self.setting
        if s.splits > 1 and s.join == LAUNCH:
            shape = (s.splits, self.form.outer_count * self.form.column_count)
            self.parts = [
                tuple(Buffer(self.name(f"parts{n}_{k}"), shape, d) for k, d in enumerate(how.dtypes))
                for n, how in enumerate(self.hows)
            ]

    def name(self, base: str) -> str:
        return stem(base, self.tensors)

    def written(self) -> Stmt:
        s, w = self.setting, self.w
        clustered = s.splits > 1 and s.join == CLUSTER
        blocks_across = -(-self.form.column_count // s.columns)
        grid = self.form.outer_count * blocks_across * (1 if clustered else s.splits)
        bounds = [(self.name("block"), grid, HardwareAxis.GRID_X)]
        if clustered:
            bounds.append((self.name("rank"), s.splits, HardwareAxis.CLUSTER))
        bounds.append((self.name("t"), s.threads, HardwareAxis.THREAD))
        evict_first = [b.name for b in self.form.held]
        with w.launch(self.name("columns"), bounds, min_blocks=s.resident, evict_first=evict_first) as variables:
            block, thread = variables[0], variables[-1]
            part: Expr = variables[1] if clustered else block % s.splits if s.splits > 1 else index(0)
            if not clustered:
                self.ask_ahead(block, grid, thread)
            outer, first = self.tile_of(block)
            sums = self.walk(outer, first, part, thread)
            found = self.meet(sums, thread)
            if clustered:
                self.join_cluster(found, outer, first, part, thread)
            else:
                self.columns_of("give", thread, first, lambda slot, c: self.give(found, outer, slot, c, part))
        if self.parts:
            self.second_launch()
        return w.finish()

    # --- a thread's own rows

    def tile_of(self, block: Expr) -> tuple[Expr, Expr]:
        """The kept axes before the reduced ones, and the first column, of a block."""
        s, blocks_across = self.setting, -(-self.form.column_count // self.setting.columns)
        tile = block if s.splits == 1 or s.join == CLUSTER else block // s.splits
        if self.form.outer_count == 1:
            return index(0), tile * s.columns
        return tile // blocks_across, tile % blocks_across * s.columns

    def ask_ahead(self, block: Expr, blocks: int, thread: Expr) -> None:
        """The first rows of all threads of a block."""
        s, form = self.setting, self.form
        *_, shortest, _ = self.part(index(0), index(0))
        if form.column_count % s.columns or shortest < s.depth * s.unroll:
            return

        def place(at: Expr, number: Expr) -> tuple[Expr, ...]:
            outer, first = self.tile_of(at)
            begin, step, *_ = self.part(at % s.splits if s.splits > 1 else index(0), number % s.depth)
            row = begin + number // s.depth * step
            return (*digits(outer, form.outer), *digits(row, form.over), *digits(first, form.columns))

        ask = L2Prefetch(self.w, (thread, s.threads), (block, blocks), s.ahead)
        for n, b in enumerate(form.held):
            ask.own(self.name(f"asked{n}"), b, s.depth * s.unroll, s.columns, place)

    def walk(self, outer: Expr, first: Expr, part: Expr, thread: Expr) -> list[list[Buffer]]:
        """What each thread finds: for each reduction the numbers of its state, a vector of columns each."""
        s, w, form = self.setting, self.w, self.form
        sums = [
            [
                w.allocate(self.name(f"sum{n}_{k}"), (s.vector,), d, MemoryScope.REGISTER)
                for k, d in enumerate(how.dtypes)
            ]
            for n, how in enumerate(self.hows)
        ]
        with w.loop(self.name("start"), s.vector, LoopKind.UNROLLED) as v:
            for buffers, how in zip(sums, self.hows, strict=True):
                for buffer, neutral in zip(buffers, how.neutral, strict=True):
                    w.store(buffer, (v,), neutral)
        column = first + thread % s.width * s.vector
        begin, step, stop, shortest, longest = self.part(part, thread // s.width)
        whole = shortest // (s.depth * s.unroll)
        with w.when(column < form.column_count if form.column_count % s.columns else None):
            if whole:
                with w.loop(self.name("walk"), whole) as n:
                    self.some_rows("walk", sums, outer, column, begin + n * (step * s.unroll), step, None)
            left = -(-longest // s.depth) - whole * s.unroll
            if left > 0:
                with w.loop(self.name("rest"), -(-left // s.unroll)) as n:
                    rows = begin + (n + whole) * (step * s.unroll)
                    self.some_rows("rest", sums, outer, column, rows, step, stop)
        return sums

    def part(self, part: Expr, down: Expr) -> tuple[Expr, int, Expr, int, int]:
        """The rows of a thread, the ``down``-th of its column: its first, how far apart they are, where its part ends,
        and how many rows parts have at least and at most."""
        s, count = self.setting, self.form.over_count
        if s.deal == TURNS:
            apart = s.depth * s.splits
            most = -(-count // apart) * s.depth
            return part * s.depth + down, apart, index(count), count // apart * s.depth, most
        share = -(-count // s.splits)
        shortest = count - (s.splits - 1) * share
        begin = part * share
        stop = begin + share if shortest == share else minimum(begin + share, index(count))
        return begin + down, s.depth, stop, shortest, share

    def some_rows(
        self,
        name: str,
        sums: Sequence[Sequence[Buffer]],
        outer: Expr,
        column: Expr,
        rows: Expr,
        step: int,
        end: Expr | None,
    ) -> None:
        """``unroll`` rows, ``step`` apart, loaded and then taken in; only those before ``end``."""
        s, w, form = self.setting, self.w, self.form
        own = {
            b.name: w.allocate(self.name(f"{name}_own{n}"), (s.unroll, s.vector), b.dtype, MemoryScope.REGISTER)
            for n, b in enumerate(form.held)
        }
        with w.loop(self.name(f"{name}_load"), s.unroll, LoopKind.UNROLLED) as u:
            row = rows + u * step
            with w.when(None if end is None else row < end):
                for b in form.held:
                    place = (*digits(outer, form.outer), *digits(row, form.over), *digits(column, form.columns))
                    w.store(own[b.name], run_of((u, index(0)), s.vector), Load(b, run_of(place, s.vector)))
        with w.loop(self.name(f"{name}_take"), s.unroll, LoopKind.UNROLLED) as u:
            row = rows + u * step
            with w.when(None if end is None else row < end):
                with w.loop(self.name(f"{name}_v"), s.vector, LoopKind.UNROLLED) as v:
                    at = self.at(outer, column, v) | {over_axis(n): i for n, i in enumerate(digits(row, form.over))}
                    for reduced, how, buffers in zip(form.reductions, self.hows, sums, strict=True):
                        value = self.value(reduced, at, own, u, v)
                        new = how.taken([Load(b, (v,)) for b in buffers], value, row)
                        for buffer, number in reversed(list(zip(buffers, new, strict=True))):
                            w.store(buffer, (v,), number)

    def value(self, reduced: Reduced, at: Mapping[str, Expr], own: Mapping[str, Buffer], u: Expr, v: Expr) -> Expr:
        def loaded(load: Load) -> Expr:
            last = affine_form(load.indices[-1]) if load.indices else None
            if load.buffer.name in own and last == affine_form(Var(column_axis(len(self.form.columns) - 1))):
                return Load(own[load.buffer.name], (u, v))
            return load

        return value_at(reduced.body, at, loaded)

    def at(self, outer: Expr, column: Expr, v: Expr) -> dict[str, Expr]:
        """Where the kept axes stand."""
        columns = digits(column, self.form.columns)
        columns = (*columns[:-1], columns[-1] + v)
        return {outer_axis(n): i for n, i in enumerate(digits(outer, self.form.outer))} | {
            column_axis(n): i for n, i in enumerate(columns)
        }

    # --- the threads of a column

    def meet(self, sums: Sequence[Sequence[Buffer]], thread: Expr) -> list[tuple[Buffer, ...]]:
        """Every warp's sums in shared memory: for each number of a state, [entries, columns]."""
        s, w = self.setting, self.w
        self.across_lanes(sums)
        shared = [
            tuple(
                w.allocate(self.name(f"met{n}_{k}"), (s.entries, s.columns), b.dtype, MemoryScope.SHARED)
                for k, b in enumerate(buffers)
            )
            for n, buffers in enumerate(sums)
        ]
        lane = thread % max(s.width, WARP_LANES)
        with w.when(lane < s.width if s.width < WARP_LANES else None):
            for buffers, cells in zip(sums, shared, strict=True):
                for buffer, cell in zip(buffers, cells, strict=True):
                    place = (thread // max(s.width, WARP_LANES), lane * s.vector)
                    w.store(cell, run_of(place, s.vector), Load(buffer, run_of((index(0),), s.vector)))
        w.barrier(SyncScope.BLOCK)
        return shared

    def across_lanes(self, sums: Sequence[Sequence[Buffer]]) -> None:
        """The lanes of a warp that have the same columns add up what they found."""
        s, w = self.setting, self.w
        for distance in (d for d in (16, 8, 4, 2, 1) if d >= s.width):
            with w.loop(self.name(f"lanes_{distance}"), s.vector, LoopKind.UNROLLED) as v:
                for n, (how, buffers) in enumerate(zip(self.hows, sums, strict=True)):
                    mine = [Load(b, (v,)) for b in buffers]
                    names = [self.name(f"lane{n}_{k}_{distance}") for k in range(len(buffers))]
                    theirs = [
                        w.allocate(a, (), b.dtype, MemoryScope.REGISTER) for a, b in zip(names, buffers, strict=True)
                    ]
                    for buffer, load in zip(theirs, mine, strict=True):
                        w.store(buffer, (), Shuffle(ShuffleMode.XOR, load, index(distance)))
                    new = how.combined(mine, [Load(b, ()) for b in theirs])
                    for buffer, value in reversed(list(zip(buffers, new, strict=True))):
                        w.store(buffer, (v,), value)

    def columns_of(
        self, name: str, thread: Expr, first: Expr, body: Callable[[Expr, Expr], None], only: int = 0
    ) -> None:
        """``body`` for each of the block's columns (or the first ``only`` of them) by one thread: number, column."""
        s, w = self.setting, self.w
        count = only or s.columns
        with w.loop(self.name(f"{name}_turn"), -(-count // s.threads)) as turn:
            slot = turn * s.threads + thread
            conditions = [slot < count] if count % s.threads else []
            if self.form.column_count % s.columns:
                conditions.append(first + slot < self.form.column_count)
            with w.when(logical_and(*conditions) if conditions else None):
                body(slot, first + slot)

    def state(self, name: str, n: int, first: Sequence[Expr], others: Sequence[Sequence[Expr]]) -> list[Buffer]:
        """The state that partial ones of reduction ``n`` make together, in registers."""
        w, how = self.w, self.hows[n]
        found = [w.allocate(self.name(f"{name}{n}_{k}"), (), d, MemoryScope.REGISTER) for k, d in enumerate(how.dtypes)]
        for buffer, value in zip(found, first, strict=True):
            w.store(buffer, (), value)
        for other in others:
            new = how.combined([Load(b, ()) for b in found], other)
            for buffer, value in reversed(list(zip(found, new, strict=True))):
                w.store(buffer, (), value)
        return found

    def down(self, shared: Sequence[tuple[Buffer, ...]], slot: Expr) -> list[list[Buffer]]:
        """What the threads of column ``slot`` of this block found together."""
        found: list[list[Buffer]] = []
        for n, cells in enumerate(shared):
            rows = [[Load(c, (index(y), slot)) for c in cells] for y in range(self.setting.entries)]
            found.append(self.state("down", n, rows[0], rows[1:]))
        return found

    def give(self, shared: Sequence[tuple[Buffer, ...]], outer: Expr, slot: Expr, column: Expr, part: Expr) -> None:
        """The column's results, or its part of them to workspace."""
        found = self.down(shared, slot)
        if not self.parts:
            self.finish(found, outer, column)
            return
        for cells, buffers in zip(self.parts, found, strict=True):
            for cell, buffer in zip(cells, buffers, strict=True):
                self.w.store(cell, (part, outer * self.form.column_count + column), Load(buffer, ()))

    def finish(self, found: Sequence[Sequence[Buffer]], outer: Expr, column: Expr) -> None:
        """The outputs of one column."""
        results = {
            r.tensor.name: how.finished([Load(b, ()) for b in buffers])
            for r, how, buffers in zip(self.form.reductions, self.hows, found, strict=True)
        }
        at = self.at(outer, column, index(0))
        place = (*digits(outer, self.form.outer), *digits(column, self.form.columns))
        for output in self.form.outputs:
            value = value_at(output.body, at, lambda load: results.get(load.buffer.name, load))
            self.w.store(output.tensor, place, value)

    # --- the parts

    def join_cluster(
        self, shared: Sequence[tuple[Buffer, ...]], outer: Expr, first: Expr, rank: Expr, thread: Expr
    ) -> None:
        """Each block of a cluster finishes its share of the columns from what all of them found."""
        s, w = self.setting, self.w

        def keep(slot: Expr, _: Expr) -> None:
            for cells, buffers in zip(shared, self.down(shared, slot), strict=True):
                for cell, buffer in zip(cells, buffers, strict=True):
                    w.store(cell, (index(0), slot), Load(buffer, ()))

        def gather(number: Expr, _: Expr) -> None:
            slot = rank * (s.columns // s.splits) + number
            found = []
            for n, cells in enumerate(shared):
                blocks = [[ClusterLoad(c, (index(0), slot), index(b)) for c in cells] for b in range(s.splits)]
                found.append(self.state("peers", n, blocks[0], blocks[1:]))
                for buffer in found[-1]:
                    w.emit(ClusterLoadWait(Load(buffer, ())))
            self.finish(found, outer, first + slot)

        self.columns_of("keep", thread, first, keep)
        w.barrier(SyncScope.CLUSTER)
        mine = s.columns // s.splits
        self.columns_of("gather", thread, first + rank * mine, gather, mine)
        w.barrier(SyncScope.CLUSTER)

    def second_launch(self) -> None:
        """Adds up the parts in workspace."""
        s, w = self.setting, self.w
        total = self.form.outer_count * self.form.column_count
        threads = FINAL_WIDTH * s.final_depth
        bounds = [
            (self.name("end_block"), -(-total // FINAL_WIDTH), HardwareAxis.GRID_X),
            (self.name("end_t"), threads, HardwareAxis.THREAD),
        ]
        with w.launch(self.name("columns_end"), bounds) as (block, thread):
            place = block * FINAL_WIDTH + thread % FINAL_WIDTH
            down = thread // FINAL_WIDTH
            real = place < total if total % FINAL_WIDTH else None
            states = [self.state("end", n, how.neutral, []) for n, how in enumerate(self.hows)]
            with w.when(real), w.loop(self.name("end_walk"), -(-s.splits // s.final_depth), LoopKind.UNROLLED) as turn:
                part = turn * s.final_depth + down
                with w.when(part < s.splits if s.splits % s.final_depth else None):
                    for how, found, cells in zip(self.hows, states, self.parts, strict=True):
                        new = how.combined([Load(b, ()) for b in found], [Load(c, (part, place)) for c in cells])
                        for buffer, value in reversed(list(zip(found, new, strict=True))):
                            w.store(buffer, (), value)
            shared = self.end_shared(states, thread)
            conditions = [thread < FINAL_WIDTH] if s.final_depth > 1 else []
            with w.when(
                logical_and(*conditions, *([real] if real is not None else [])) if conditions or real else None
            ):
                ended = []
                for n, cells in enumerate(shared):
                    rows = [[Load(c, (index(y), thread)) for c in cells] for y in range(s.final_depth)]
                    ended.append(self.state("ended", n, rows[0], rows[1:]))
                outer = place // self.form.column_count if self.form.outer_count > 1 else index(0)
                column = place % self.form.column_count if self.form.outer_count > 1 else place
                self.finish(ended, outer, column)

    def end_shared(self, states: Sequence[Sequence[Buffer]], thread: Expr) -> list[tuple[Buffer, ...]]:
        """The states of the second launch in shared memory: [final depth, columns]."""
        s, w = self.setting, self.w
        shared = [
            tuple(
                w.allocate(self.name(f"end_met{n}_{k}"), (s.final_depth, FINAL_WIDTH), b.dtype, MemoryScope.SHARED)
                for k, b in enumerate(buffers)
            )
            for n, buffers in enumerate(states)
        ]
        for buffers, cells in zip(states, shared, strict=True):
            for buffer, cell in zip(buffers, cells, strict=True):
                w.store(cell, (thread // FINAL_WIDTH, thread % FINAL_WIDTH), Load(buffer, ()))
        w.barrier(SyncScope.BLOCK)
        return shared
