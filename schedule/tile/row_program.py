"""The program of a row form: who holds which columns, one pass over memory, reductions in between.

Columns are taken in vectors. A row that is no whole number of vectors is cut at the multiples of a vector in memory:
whole vectors from the first of them on, as many in every row, and the few columns before and after singly ("edges").
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...core.dtypes import int64
from ...ir.affine import affine_of
from ...ir.buffer import Buffer, Scope
from ...ir.build import Writer
from ...ir.expr import (
    WARP_LANES,
    Compare,
    CompareOp,
    Expr,
    Load,
    Select,
    Var,
    index,
    logical_and,
    minimum,
    walk,
)
from ...ir.gpu import AwaitArrivals, BulkCopy, InitArrivals, Level
from ...ir.rewrite import substitute
from ...ir.stmt import HardwareAxis, Kernel, LoopKind, Stmt
from ...te.workload import Workload
from .accumulate import Accumulation
from .digits import digits
from .names import stem
from .pointwise import value_at
from .reduce import Team, team_reduce, team_scratch
from .row_form import Reduced, RowForm, column_axis, row_axis
from .runs import run_of

REGISTERS, SHARED, MEMORY = "registers", "shared", "memory"
"""Where a row stays between the passes over it; from memory it is read again."""


@dataclass(frozen=True, slots=True)
class RowSetting:
    """``vector``: elements of an access. ``lanes``: threads of one row in a block. ``teams``: rows of a block at once.
    ``cluster``: blocks of a row. ``hold``: REGISTERS, SHARED or MEMORY. ``stages``: rows under way to shared memory
    for each team. ``blocks``: of the whole launch (clusters: of all their blocks) where each takes many rows in
    turn; 0: a block for every ``teams`` rows. ``unroll``: vectors of a thread at a time, from memory. ``min_blocks``:
    blocks that must fit on a multiprocessor (0: whatever the compiler makes of it)."""

    vector: int
    lanes: int
    teams: int
    cluster: int = 1
    hold: str = REGISTERS
    stages: int = 0
    blocks: int = 0
    unroll: int = 4
    min_blocks: int = 0


@dataclass(frozen=True, slots=True)
class RowShape:
    """How a row is shared out: ``vectors`` whole vectors of it, ``share`` of them for each block of its cluster,
    ``chunks`` for each thread; ``edges`` single columns for the first threads."""

    columns: int
    vector: int
    lanes: int
    cluster: int

    @property
    def edges(self) -> int:
        return self.columns - self.vectors * self.vector

    @property
    def vectors(self) -> int:
        whole = self.columns % self.vector == 0
        return self.columns // self.vector if whole else (self.columns - self.vector + 1) // self.vector

    @property
    def share(self) -> int:
        return -(-self.vectors // self.cluster)

    @property
    def chunks(self) -> int:
        return -(-self.share // self.lanes)


def row_kernel(workload: Workload, form: RowForm, setting: RowSetting) -> Kernel:
    """The kernel of one setting. The setting must be legal (see the sketch)."""
    program = _Program(workload, form, setting)
    return Kernel(
        name=program.name("rows"),
        inputs=workload.inputs,
        outputs=workload.output_buffers,
        workspace=(),
        body=program.written(),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the grid as a thread sees it: its number (``at``, inside the tensors), and whether it is to be
    written (None: certainly)."""

    at: Expr
    real: Expr | None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """``vector`` columns from ``column`` on: number ``within`` of the block's, in the registers' ``slot``."""

    slot: Expr
    within: Expr
    column: Expr


@dataclass
class _Program:
    workload: Workload
    form: RowForm
    setting: RowSetting
    w: Writer = field(default_factory=Writer)
    results: dict[str, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.setting
        self.shape = RowShape(self.form.column_count, s.vector, s.lanes, s.cluster)
        self.tensors = frozenset(b.name for b in (*self.workload.inputs, *self.workload.output_buffers))
        self.thread = Var(self.name("t"))
        self.rank: Expr = Var(self.name("rank")) if s.cluster > 1 else index(0)
        self.team = Team(self.thread, s.lanes, s.teams, s.cluster)
        self.raw: dict[str, Buffer] = {}
        self.edge: dict[str, Buffer] = {}

    def name(self, base: str) -> str:
        return stem(base, self.tensors)

    # --- the launch

    def written(self) -> Stmt:
        s, rows = self.setting, self.form.row_count
        threads = s.lanes * s.teams
        grid = s.blocks // s.cluster if s.blocks else -(-rows // s.teams)
        bounds = [(self.name("block"), grid, HardwareAxis.GRID_X)]
        if s.cluster > 1:
            bounds.append((self.name("rank"), s.cluster, HardwareAxis.CLUSTER))
        bounds.append((self.name("t"), threads, HardwareAxis.THREAD))
        streamed = [b.name for b in (*self.form.held, *(c.tensor for c in self.form.wide))]
        with self.w.launch(self.name("rows"), bounds, min_blocks=s.min_blocks, streamed=streamed) as variables:
            if s.hold == SHARED:
                self.ring(variables[0], grid)
            else:
                self.once(variables[0])
            if s.cluster > 1:
                self.w.barrier(Level.CLUSTER)
        return self.w.finish()

    def once(self, block: Expr) -> None:
        """A block takes ``teams`` rows and is done."""
        s, rows = self.setting, self.form.row_count
        at = block * s.teams + self.team.number if s.teams > 1 else block
        row = _Row(at, None)
        if rows % s.teams:
            row = _Row(minimum(at, index(rows - 1)), at < rows)
        scratch = self.scratches(1)
        self.declare()
        if s.hold == REGISTERS:
            with self.chunks(row, "load") as chunk:
                self.load_chunk(row, chunk)
        self.load_edges(row)
        self.passes(row, scratch, None)

    def scratches(self, slots: int) -> list[tuple[Buffer, ...]]:
        return [
            team_scratch(self.w, self.name(f"state{n}"), self.team, accumulation(r).dtypes, slots)
            for n, r in enumerate(self.form.reductions)
        ]

    def ring(self, block: Expr, grid: int) -> None:
        """A block takes rows in turn; the next ``stages`` of each team are on their way to shared memory. Teams of less
        than a warp take the rows of their warp as one."""
        s, w, rows = self.setting, self.w, self.form.row_count
        group = max(s.lanes, WARP_LANES)
        groups, together = s.lanes * s.teams // group, group // s.lanes
        number = self.thread // group if groups > 1 else index(0)
        step = grid * groups * together
        first = (block * groups + number) * together
        size = together * self.shape.columns if together > 1 else self.shape.share * s.vector
        rings = {
            t.name: w.allocate(self.name(f"ring{n}"), (groups, s.stages, size), t.dtype, Scope.SHARED)
            for n, t in enumerate(self.form.held)
        }
        arrivals = w.allocate(self.name("arrivals"), (groups * s.stages,), int64, Scope.SHARED)
        scratch = self.scratches(2)
        leads = Compare(CompareOp.EQ, self.thread % group, index(0))

        def start(at: Expr, stage: Expr) -> None:
            row = _Row(at, None)
            column = self.first_vector(row)
            if s.cluster > 1:
                column = column + self.rank * (self.shape.share * s.vector)
            for t in self.form.held:
                source = (*self.rows_at(row), *digits(column, self.form.columns))
                w.emit(
                    BulkCopy(
                        rings[t.name], (number, stage, index(0)), t, source, size, arrivals, number * s.stages + stage
                    )
                )

        with w.when(leads), w.loop(self.name("init"), s.stages, LoopKind.UNROLLED) as k:
            w.emit(InitArrivals(arrivals, number * s.stages + k, len(rings)))
        w.barrier(Level.BLOCK)
        with w.when(leads), w.loop(self.name("fill"), s.stages, LoopKind.UNROLLED) as k:
            with w.when(first + k * step < rows):
                start(first + k * step, k)
        self.declare()
        with w.loop(self.name("round"), -(-rows // step)) as turn:
            at = first + turn * step
            with w.when(at < rows if rows % step else None):
                stage = turn % s.stages
                w.emit(AwaitArrivals(arrivals, number * s.stages + stage, turn // s.stages % 2))
                inside = self.thread % group // s.lanes if together > 1 else index(0)
                row = _Row(at + inside if together > 1 else at, None)
                with self.chunks(row, "load") as chunk:
                    begin = inside * self.shape.columns + chunk.within * s.vector
                    for t in self.form.held:
                        place = (number, stage, begin)
                        w.store(self.raw[t.name], self.own(chunk), Load(rings[t.name], run_of(place, s.vector)))
                self.load_edges(row)
                w.barrier(Level.WARP if group == WARP_LANES else Level.BLOCK)
                with w.when(logical_and(leads, at + s.stages * step < rows)):
                    start(at + s.stages * step, stage)
                self.passes(row, scratch, turn % 2)

    # --- the row in registers

    def declare(self) -> None:
        """Registers for the thread's part of the row."""
        chunks = self.setting.unroll if self.setting.hold == MEMORY else self.shape.chunks
        for n, tensor in enumerate(self.form.held):
            self.raw[tensor.name] = self.w.allocate(
                self.name(f"own{n}"), (chunks, self.setting.vector), tensor.dtype, Scope.REGISTER
            )
            if self.shape.edges:
                self.edge[tensor.name] = self.w.allocate(self.name(f"edge{n}"), (), tensor.dtype, Scope.REGISTER)

    def load_chunk(self, row: _Row, chunk: _Chunk) -> None:
        for tensor in self.form.held:
            value = Load(tensor, (*self.rows_at(row), *self.run(chunk)))
            self.w.store(self.raw[tensor.name], self.own(chunk), value)

    def load_edges(self, row: _Row) -> None:
        if self.shape.edges:
            with self.w.when(self.has_edge()):
                for tensor in self.form.held:
                    self.w.store(self.edge[tensor.name], (), Load(tensor, (*self.rows_at(row), self.edge_column(row))))

    # --- places

    def rows_at(self, row: _Row) -> tuple[Expr, ...]:
        return digits(row.at, self.form.rows)

    def run(self, chunk: _Chunk) -> tuple[Expr, ...]:
        """The column indices of a whole chunk."""
        return run_of(digits(chunk.column, self.form.columns), self.setting.vector)

    def own(self, chunk: _Chunk) -> tuple[Expr, ...]:
        """Where a chunk stands in registers."""
        return run_of((chunk.slot, index(0)), self.setting.vector)

    def first_vector(self, row: _Row) -> Expr:
        """The column of the row's first vector; a whole number of vectors from the start of the tensor."""
        if not self.shape.edges:
            return index(0)
        v, start = self.setting.vector, row.at * self.shape.columns
        return (start + (v - 1)) // v * v - start

    def has_edge(self) -> Expr:
        mine: Expr = self.team.place < self.shape.edges
        if self.setting.cluster > 1:
            mine = logical_and(mine, Compare(CompareOp.EQ, self.rank, index(0)))
        return mine

    def edge_column(self, row: _Row) -> Expr:
        """The single column of the first threads: before the first vector, or after the last."""
        place = self.team.place
        before = place < self.first_vector(row)
        return Select(
            before, place, minimum(place, index(self.shape.edges - 1)) + self.shape.vectors * self.setting.vector
        )

    @contextmanager
    def chunks(self, row: _Row, name: str, part: Expr | None = None) -> Iterator[_Chunk]:
        """A block of statements for each of the thread's chunks, or for those of one ``part`` of them."""
        s, shape = self.setting, self.shape
        count = shape.chunks if part is None else s.unroll
        with self.w.loop(self.name(f"{name}_i"), count, LoopKind.UNROLLED) as i:
            number: Expr = i if part is None else part * s.unroll + i
            within = number * s.lanes + self.team.place
            vector = self.rank * shape.share + within if s.cluster > 1 else within
            padded = shape.chunks if part is None else -(-shape.chunks // s.unroll) * s.unroll
            conditions: list[Expr] = []
            if padded * s.lanes != shape.share:
                conditions.append(within < shape.share)
            if shape.share * s.cluster != shape.vectors:
                conditions.append(vector < shape.vectors)
            with self.w.when(logical_and(*conditions) if conditions else None):
                yield _Chunk(i, within, self.first_vector(row) + vector * s.vector)

    @contextmanager
    def held_chunks(self, row: _Row, name: str) -> Iterator[_Chunk]:
        """``chunks`` whose columns are in registers: loaded for each part of them where the row stays in memory."""
        if self.setting.hold != MEMORY:
            with self.chunks(row, name) as chunk:
                yield chunk
            return
        with self.w.loop(self.name(f"{name}_part"), -(-self.shape.chunks // self.setting.unroll)) as part:
            with self.chunks(row, f"{name}_load", part) as chunk:
                self.load_chunk(row, chunk)
            with self.chunks(row, name, part) as chunk:
                yield chunk

    # --- the passes

    def passes(self, row: _Row, scratch: Sequence[Sequence[Buffer]], slot: Expr | None) -> None:
        for n, reduced in enumerate(self.form.reductions):
            self.reduce(row, n, reduced, scratch[n], slot)
        if self.form.wide:
            self.write(row)
        if self.form.narrow:
            self.write_narrow(row)

    def reduce(self, row: _Row, n: int, reduced: Reduced, scratch: Sequence[Buffer], slot: Expr | None) -> None:
        how, w, s = accumulation(reduced), self.w, self.setting
        width = min(s.vector, _PARTS) if self.shape.chunks * s.vector > _PARTS else 1
        parts = [w.allocate(self.name(f"part{n}_{k}"), (width,), d, Scope.REGISTER) for k, d in enumerate(how.dtypes)]
        with w.loop(self.name(f"start{n}"), width, LoopKind.UNROLLED) as i:
            for part, neutral in zip(parts, how.neutral, strict=True):
                w.store(part, (i,), neutral)

        def take(place: Expr, at: Mapping[str, Expr], value: Expr) -> None:
            new = how.taken([Load(p, (place,)) for p in parts], value, at.get(column_axis(0), index(0)))
            for part, number in reversed(list(zip(parts, new, strict=True))):
                w.store(part, (place,), number)

        with self.held_chunks(row, f"reduce{n}") as chunk:
            beside = self.load_beside(row, chunk, f"reduce{n}", [reduced.body])
            with self.lanes(f"reduce{n}_v") as v:
                at = self.at(row, chunk, v)
                take(v % width if width > 1 else index(0), at, self.value(reduced.body, at, chunk, v, beside))
        if self.shape.edges:
            with w.when(self.has_edge()):
                at = self.at(row, None, index(0))
                take(index(0), at, self.value(reduced.body, at, None, index(0), {}))
        self.results[reduced.tensor.name] = self.meet(n, how, parts, scratch, slot)

    def meet(
        self, n: int, how: Accumulation, parts: Sequence[Buffer], scratch: Sequence[Buffer], slot: Expr | None
    ) -> Expr:
        """The result that a team's parts make together."""
        w = self.w
        state = [w.allocate(self.name(f"found{n}_{k}"), (), d, Scope.REGISTER) for k, d in enumerate(how.dtypes)]
        for value, part in zip(state, parts, strict=True):
            w.store(value, (), Load(part, (index(0),)))
        for k in range(1, parts[0].shape[0]):
            new = how.combined([Load(v, ()) for v in state], [Load(p, (index(k),)) for p in parts])
            for value, number in reversed(list(zip(state, new, strict=True))):
                w.store(value, (), number)
        team_reduce(w, self.name(f"team{n}"), self.team, state, how.combined, scratch, slot)
        return how.finished([Load(v, ()) for v in state])

    def write(self, row: _Row) -> None:
        w, s = self.w, self.setting
        bodies = [c.body for c in self.form.wide]
        with self.held_chunks(row, "write") as chunk:
            beside = self.load_beside(row, chunk, "write", bodies)
            new = [
                w.allocate(self.name(f"new{n}"), (s.vector,), c.tensor.dtype, Scope.REGISTER)
                for n, c in enumerate(self.form.wide)
            ]
            with self.lanes("write_v") as v:
                at = self.at(row, chunk, v)
                for buffer, body in zip(new, bodies, strict=True):
                    w.store(buffer, (v,), self.value(body, at, chunk, v, beside))
            with w.when(row.real):
                for buffer, c in zip(new, self.form.wide, strict=True):
                    whole = Load(buffer, run_of((index(0),), s.vector))
                    w.store(c.tensor, (*self.rows_at(row), *self.run(chunk)), whole)
        if self.shape.edges:
            real = self.has_edge() if row.real is None else logical_and(self.has_edge(), row.real)
            with w.when(real):
                at = self.at(row, None, index(0))
                for c in self.form.wide:
                    value = self.value(c.body, at, None, index(0), {})
                    w.store(c.tensor, (*self.rows_at(row), self.edge_column(row)), value)

    def write_narrow(self, row: _Row) -> None:
        conditions: list[Expr] = [Compare(CompareOp.EQ, self.team.place, index(0))]
        if self.setting.cluster > 1:
            conditions.append(Compare(CompareOp.EQ, self.rank, index(0)))
        if row.real is not None:
            conditions.append(row.real)
        with self.w.when(logical_and(*conditions)):
            at = dict(zip(map(row_axis, range(len(self.form.rows))), self.rows_at(row), strict=True))
            for c in self.form.narrow:
                self.w.store(c.tensor, self.rows_at(row), self.value(c.body, at, None, index(0), {}))

    # --- values

    @contextmanager
    def lanes(self, name: str) -> Iterator[Expr]:
        """A block of statements for each element of a vector."""
        if self.setting.vector == 1:
            yield index(0)
            return
        with self.w.loop(self.name(name), self.setting.vector, LoopKind.UNROLLED) as v:
            yield v

    def at(self, row: _Row, chunk: _Chunk | None, v: Expr) -> Mapping[str, Expr]:
        """Where the axes stand: at element ``v`` of a chunk, or at the thread's edge column."""
        if chunk is None:
            columns: tuple[Expr, ...] = (self.edge_column(row),)
        else:
            columns = digits(chunk.column, self.form.columns)
            columns = (*columns[:-1], columns[-1] + v)
        places = dict(zip(map(row_axis, range(len(self.form.rows))), self.rows_at(row), strict=True))
        return places | dict(zip(map(column_axis, range(len(columns))), columns, strict=True))

    def load_beside(self, row: _Row, chunk: _Chunk, name: str, bodies: Sequence[Expr]) -> Mapping[Load, Buffer]:
        """What ``bodies`` read beside the row, in registers."""
        read = {e for body in bodies for e in walk(body) if isinstance(e, Load)}
        found: dict[Load, Buffer] = {}
        rows = dict(zip(map(row_axis, range(len(self.form.rows))), self.rows_at(row), strict=True))
        for n, load in enumerate(self.form.beside):
            if load in read:
                buffer = self.w.allocate(
                    self.name(f"{name}_beside{n}"), (self.setting.vector,), load.dtype, Scope.REGISTER
                )
                leading = [substitute(i, rows) for i in load.indices[: len(load.indices) - len(self.form.columns)]]
                self.w.store(
                    buffer, run_of((index(0),), self.setting.vector), Load(load.buffer, (*leading, *self.run(chunk)))
                )
                found[load] = buffer
        return found

    def value(
        self, body: Expr, at: Mapping[str, Expr], chunk: _Chunk | None, v: Expr, beside: Mapping[Load, Buffer]
    ) -> Expr:
        """``body`` with what it loads taken from registers."""

        def loaded(load: Load) -> Expr:
            name = load.buffer.name
            if name in self.results:
                return self.results[name]
            if load in beside:
                return Load(beside[load], (v,))
            if name in self.raw and affine_of(load.indices[-1]) == affine_of(
                Var(column_axis(len(self.form.columns) - 1))
            ):
                return Load(self.raw[name], (chunk.slot, v)) if chunk else Load(self.edge[name], ())
            return load

        return value_at(body, at, loaded)


_PARTS = 4
"""Accumulators of a thread: so many additions are under way at once."""


def accumulation(reduced: Reduced) -> Accumulation:
    return Accumulation(reduced.reducer, reduced.body.dtype, reduced.tensor.dtype)
