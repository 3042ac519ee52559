"""Writes the launches of a column-wise reduction.

The first launch does this (see ``rows`` for its first line):

    every thread: accumulate the vectors of its rows in registers, and write elementwise outputs that read no result
    lanes of a warp that have the same columns: combine their states by shuffles (not where vectors are shifted)
    every warp (every thread, where vectors are shifted): store its states in shared memory; barrier
    one thread for each column: combine the states of the warps, then
        no splits:      write the outputs
        cluster:        exchange states through shared memory; each CTA writes its share of the columns
        second launch:  store the states in workspace, from where the second launch combines them
    with other elementwise outputs (and no splits), every thread: read its rows again, and write these outputs
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, ClusterLoad, Expr, Load, Shuffle, ShuffleMode, index
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Workload
from ...problems.columnwise import ColumnwiseProblem
from ...tile.accumulation import store_state
from ...tile.contiguous import contiguous_vector
from .rows import ThreadRows, prefetch_rows, tile_of
from .sizes import ColumnwiseSizes
from .writer import ColumnwiseWriter, State

NEIGHBOURS = 128
"""Where so many threads of a CTA stand next to each other along the columns, they need nearly all of the cache lines
that short loads touch. Sums of columns of odd pitches take an H200 2 to 5 % less if those bring whole lines; with 32
threads, 2 to 9 % more."""
SECOND_THREADS_X = 32
"""How many columns a CTA of the second launch has, one for each lane of a warp."""


def columnwise_kernel(workload: Workload, problem: ColumnwiseProblem, sizes: ColumnwiseSizes[int]) -> Kernel:
    """Return the kernel of one setting, which must be legal (see ``space``)."""
    writer = ColumnwiseWriter(workload, problem, sizes)
    partials = _workspace(writer)
    _write_first_launch(writer, partials)
    if partials:
        _write_second_launch(writer, partials)
    return Kernel(
        name=writer.name("columns"),
        inputs=workload.inputs,
        outputs=workload.output_buffers,
        workspace=tuple(b for state in partials for b in state),
        body=writer.w.finish(),
    )


def _workspace(writer: ColumnwiseWriter) -> list[State]:
    """Global memory for the states of all splits, [splits, columns of all matrices]; empty without a second launch."""
    s, p = writer.sizes, writer.problem
    if s.splits == 1 or s.in_cluster:
        return []
    shape = (s.splits, p.outer_count * p.column_count)
    return [
        tuple(Buffer(writer.name(f"partials{n}_{k}"), shape, d) for k, d in enumerate(how.state_dtypes))
        for n, how in enumerate(writer.accumulations)
    ]


def _write_first_launch(writer: ColumnwiseWriter, partials: Sequence[State]) -> None:
    s, p = writer.sizes, writer.problem
    clustered = s.splits > 1 and s.in_cluster
    grid = p.outer_count * -(-p.column_count // s.columns_per_cta) * (1 if clustered else s.splits)
    bounds = [(writer.name("block"), grid, HardwareAxis.GRID_X)]
    if clustered:
        bounds.append((writer.name("rank"), s.splits, HardwareAxis.CLUSTER))
    bounds.append((writer.name("t"), s.threads, HardwareAxis.THREAD))
    evict_first = [] if p.later_outputs else [b.name for b in p.inputs]
    lines = [b.name for b in p.inputs] if s.threads_x >= NEIGHBOURS else []
    with writer.w.launch(
        writer.name("columns"), bounds, min_blocks=s.min_ctas_per_sm, evict_first=evict_first, prefetch_lines=lines
    ) as variables:
        block, thread = variables[0], variables[-1]
        split: Expr = variables[1] if clustered else block % s.splits if s.splits > 1 else index(0)
        if not clustered:
            prefetch_rows(writer, block, grid, thread)
        outer, first_column = tile_of(writer, block)
        rows = ThreadRows(writer, outer, first_column, split, thread)
        tile = ColumnTile(
            writer, outer, first_column, thread, warp_states(writer, rows.accumulated(), rows.shift(), thread)
        )
        if clustered:
            tile.write_from_cluster(split)
        elif partials:
            tile.store_partials(partials, split)
        else:
            tile.write()
        if p.later_outputs:
            rows.write_elements(tile.results_of_thread())


def warp_states(writer: ColumnwiseWriter, states: Sequence[State], shift: Expr, thread: Expr) -> list[State]:
    """Return the states of all warps in shared memory, each [warps of a column, columns of the CTA]. Vectors that are
    shifted leave the states of all threads there, see ``cell_of``; ``shift`` is that of the thread."""
    s, w = writer.sizes, writer.w
    if not s.shifted:
        _combine_lanes(writer, states)
    warps = -(-s.threads // max(s.threads_x, WARP_LANES))
    shape = (s.threads_y, s.vector, s.threads_x + 1) if s.shifted else (warps, s.columns_per_cta)
    shared = [
        tuple(
            w.allocate(writer.name(f"warp_state{n}_{k}"), shape, b.dtype, MemoryScope.SHARED)
            for k, b in enumerate(state)
        )
        for n, state in enumerate(states)
    ]
    if s.shifted:
        with w.unrolled(writer.name("cell_v"), s.vector) as v:
            cell_indices = cell_of(s, thread // s.threads_x, thread % s.threads_x * s.vector + v - shift)
            for state, cells in zip(states, shared, strict=True):
                for buffer, cell in zip(state, cells, strict=True):
                    w.store(cell, cell_indices, Load(buffer, (v,)))
        w.barrier(SyncScope.BLOCK)
        return list(shared)
    lane = thread % max(s.threads_x, WARP_LANES)
    with w.when(lane < s.threads_x if s.threads_x < WARP_LANES else None):
        for state, cells in zip(states, shared, strict=True):
            for buffer, cell in zip(state, cells, strict=True):
                indices = (thread // max(s.threads_x, WARP_LANES), lane * s.vector)
                w.store(
                    cell, contiguous_vector(indices, s.vector), Load(buffer, contiguous_vector((index(0),), s.vector))
                )
    w.barrier(SyncScope.BLOCK)
    return list(shared)


def cell_of(s: ColumnwiseSizes[int], y: Expr, slot: Expr) -> tuple[Expr, ...]:
    """Return where the state of column ``slot`` of the CTA is in shared memory, for ``y``, one of those that share the
    column. Lanes of a warp that have shifted vectors store columns ``vector`` apart, which are next to each other
    there. The first vector may begin up to ``vector - 1`` columns in front of the CTA's."""
    if not s.shifted:
        return (y, slot)
    number = slot + s.vector
    return (y, number % s.vector, number // s.vector)


def _combine_lanes(writer: ColumnwiseWriter, states: Sequence[State]) -> None:
    """Combine the states of lanes that have the same columns. These lanes are ``threads_x`` apart."""
    s, w = writer.sizes, writer.w
    for distance in (d for d in (16, 8, 4, 2, 1) if d >= s.threads_x):
        with w.unrolled(writer.name(f"lanes_{distance}"), s.vector) as v:
            for n, (how, state) in enumerate(zip(writer.accumulations, states, strict=True)):
                own = [Load(b, (v,)) for b in state]
                names = [writer.name(f"other{n}_{k}_{distance}") for k in range(len(state))]
                other = [w.allocate(a, (), b.dtype, MemoryScope.REGISTER) for a, b in zip(names, state, strict=True)]
                for buffer, load in zip(other, own, strict=True):
                    w.store(buffer, (), Shuffle(ShuffleMode.XOR, load, index(distance)))
                store_state(w, state, (v,), how.combine(own, [Load(b, ()) for b in other]))


@dataclass(frozen=True, slots=True)
class ColumnTile:
    """The columns of a CTA, from ``first_column`` on, once the states of its warps are in ``shared`` memory."""

    writer: ColumnwiseWriter
    outer: Expr
    first_column: Expr
    thread: Expr
    shared: Sequence[State]

    def write(self) -> None:
        """Write the outputs of every column."""

        def write(slot: Expr, column: Expr) -> None:
            self.writer.write_outputs(self._states_of(slot), self.outer, column)

        self._each_column("output", self.first_column, write)

    def results_of_thread(self) -> dict[str, Buffer]:
        """Return what each reduction gives for the columns of the thread, in registers: one element a column."""
        writer, s, w = self.writer, self.writer.sizes, self.writer.w
        results = {
            r.tensor.name: w.allocate(writer.name(f"result{n}"), (s.vector,), r.tensor.dtype, MemoryScope.REGISTER)
            for n, r in enumerate(writer.problem.reductions)
        }
        with w.unrolled(writer.name("result_v"), s.vector) as v:
            states = self._states_of(self.thread % s.threads_x * s.vector + v, "result_state")
            for buffer, how, state in zip(results.values(), writer.accumulations, states, strict=True):
                w.store(buffer, (v,), how.result([Load(b, ()) for b in state]))
        return results

    def store_partials(self, partials: Sequence[State], split: Expr) -> None:
        """Store the states of every column in workspace."""
        writer = self.writer

        def store(slot: Expr, column: Expr) -> None:
            for cells, state in zip(partials, self._states_of(slot), strict=True):
                for cell, buffer in zip(cells, state, strict=True):
                    indices = (split, self.outer * writer.problem.column_count + column)
                    writer.w.store(cell, indices, Load(buffer, ()))

        self._each_column("output", self.first_column, store)

    def write_from_cluster(self, rank: Expr) -> None:
        """Combine the states of all CTAs of the cluster. Each CTA writes the outputs of its share of the columns."""
        writer, s, w = self.writer, self.writer.sizes, self.writer.w
        share = s.columns_per_cta // s.splits

        def keep(slot: Expr, _: Expr) -> None:
            for cells, state in zip(self.shared, self._states_of(slot), strict=True):
                for cell, buffer in zip(cells, state, strict=True):
                    w.store(cell, cell_of(s, index(0), slot), Load(buffer, ()))

        def gather(number: Expr, _: Expr) -> None:
            slot = rank * share + number
            states = []
            for n, cells in enumerate(self.shared):
                at = cell_of(s, index(0), slot)
                of_cta = [[ClusterLoad(c, at, index(b)) for c in cells] for b in range(s.splits)]
                states.append(writer.combined("cluster_state", n, of_cta[0], of_cta[1:]))
                for buffer in states[-1]:
                    w.emit(ClusterLoadWait(Load(buffer, ())))
            writer.write_outputs(states, self.outer, self.first_column + slot)

        self._each_column("keep", self.first_column, keep)
        w.barrier(SyncScope.CLUSTER)
        self._each_column("gather", self.first_column + rank * share, gather, share)
        w.barrier(SyncScope.CLUSTER)

    def _states_of(self, slot: Expr, name: str = "column_state") -> list[list[Buffer]]:
        """Return the state of every reduction for column ``slot`` of the CTA, from all its warps."""
        found: list[list[Buffer]] = []
        for n, cells in enumerate(self.shared):
            sharing = [cell_of(self.writer.sizes, index(y), slot) for y in range(cells[0].shape[0])]
            of_warp = [[Load(c, at) for c in cells] for at in sharing]
            found.append(self.writer.combined(name, n, of_warp[0], of_warp[1:]))
        return found

    def _each_column(self, name: str, first: Expr, body: Callable[[Expr, Expr], None], count: int = 0) -> None:
        """``body`` for each of the CTA's columns, or for ``count`` of them from ``first`` on, each by one thread.

        ``body`` is given the number of the column, counted from ``first``, and the column itself.
        """
        s, w, columns = self.writer.sizes, self.writer.w, self.writer.problem.column_count
        count = count or s.columns_per_cta
        with w.loop(self.writer.name(f"{name}_step"), -(-count // s.threads)) as step:
            slot = step * s.threads + self.thread
            conditions = [slot < count] if count % s.threads else []
            if columns % s.columns_per_cta:
                conditions.append(first + slot < columns)
            with w.when(*conditions):
                body(slot, first + slot)


def _write_second_launch(writer: ColumnwiseWriter, partials: Sequence[State]) -> None:
    """Combine the states of all splits, which the first launch has left in ``partials``.

    A CTA takes ``SECOND_THREADS_X`` columns. ``second_threads_y`` threads share a column, and the first of them
    combines what they found.
    """
    s, w, p = writer.sizes, writer.w, writer.problem
    total = p.outer_count * p.column_count
    bounds = [
        (writer.name("second_block"), -(-total // SECOND_THREADS_X), HardwareAxis.GRID_X),
        (writer.name("second_t"), SECOND_THREADS_X * s.second_threads_y, HardwareAxis.THREAD),
    ]
    with w.launch(writer.name("columns_end"), bounds) as (block, thread):
        flat_column = block * SECOND_THREADS_X + thread % SECOND_THREADS_X
        exists = flat_column < total if total % SECOND_THREADS_X else None
        states = [writer.combined("second_state", n, how.identity, []) for n, how in enumerate(writer.accumulations)]
        y, step = thread // SECOND_THREADS_X, writer.name("second_step")
        with w.when(exists), w.shared_out(step, s.splits, s.second_threads_y, y, LoopKind.UNROLLED) as split:
            for how, state, cells in zip(writer.accumulations, states, partials, strict=True):
                partial = [Load(c, (split, flat_column)) for c in cells]
                store_state(w, state, (), how.combine([Load(b, ()) for b in state], partial))
        shared = _second_shared(writer, states, thread)
        with w.when(thread < SECOND_THREADS_X if s.second_threads_y > 1 else None, exists):
            ended = []
            for n, cells in enumerate(shared):
                of_thread = [[Load(c, (index(y), thread)) for c in cells] for y in range(s.second_threads_y)]
                ended.append(writer.combined("second_result", n, of_thread[0], of_thread[1:]))
            outer = flat_column // p.column_count if p.outer_count > 1 else index(0)
            column = flat_column % p.column_count if p.outer_count > 1 else flat_column
            writer.write_outputs(ended, outer, column)


def _second_shared(writer: ColumnwiseWriter, states: Sequence[State], thread: Expr) -> list[State]:
    """Return the states of the second launch's threads in shared memory, each [threads of a column, columns]."""
    s, w = writer.sizes, writer.w
    shared = [
        tuple(
            w.allocate(
                writer.name(f"second_shared{n}_{k}"),
                (s.second_threads_y, SECOND_THREADS_X),
                b.dtype,
                MemoryScope.SHARED,
            )
            for k, b in enumerate(state)
        )
        for n, state in enumerate(states)
    ]
    for state, cells in zip(states, shared, strict=True):
        for buffer, cell in zip(state, cells, strict=True):
            w.store(cell, (thread // SECOND_THREADS_X, thread % SECOND_THREADS_X), Load(buffer, ()))
    w.barrier(SyncScope.BLOCK)
    return list(shared)
