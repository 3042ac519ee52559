"""Writes the launch of a column-wise kernel that reads its elements once, where they fit registers.

    every thread: load the vectors of its rows into registers, and copy others to shared memory
    for each reduction
        every thread: accumulate its rows, and leave what it found in shared memory; barrier
        lanes of a warp: combine the cells of a group; CTAs that share rows exchange what they found; barrier
        every thread: load the results of its columns
    write the outputs of each vector, and those of each group

Rows that are not kept in registers are loaded a few at a time by every pass, from shared memory or from global memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from types import MappingProxyType

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import (
    Binary,
    ClusterLoad,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    conjunction,
    index,
    logical_and,
    maximum,
    minimum,
    rebuild,
)
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from ....ir.rewrite import loads_of
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.functions import cast, equal, negated
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.columnwise import ColumnwiseProblem, has_reduced_axis, outer_axis, reduced_axis
from ...problems.row_axes import column_axis
from ...problems.rowwise import ReducedTensor
from ...tile.accumulation import register_dtype, store_state
from ...tile.contiguous import contiguous_vector
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter
from ...tile.reciprocals import with_reciprocals
from ...tile.stage_body import scalar_at
from ..block_reduce import butterfly, halvings
from .persistent_sizes import PersistentSizes

_ELEMENT = "element#"
"""The variable that counts the elements of a vector in bodies; no variable of a kernel has this name."""
UNROLLED_CELLS = 16
"""So many cells a lane combines in an unrolled loop."""

Loaded = Mapping[str, Buffer]
"""Registers of inputs by name: a slot for each row, and in it an element for each column."""


def persistent_kernel(workload: Workload, problem: ColumnwiseProblem, sizes: PersistentSizes[int]) -> Kernel:
    """Return the kernel of one setting, which must be legal (see ``persistent``)."""
    s, w = sizes, FreshNameWriter([b.name for b in (*workload.inputs, *(t.tensor for t in workload.stages))])
    bounds = [("block", s.blocks // s.cluster_size, HardwareAxis.GRID_X)]
    if s.cluster_size > 1:
        bounds.append(("rank", s.cluster_size, HardwareAxis.CLUSTER))
    bounds.append(("t", s.threads, HardwareAxis.THREAD))
    written = [c.tensor for c in problem.elementwise_outputs] if s.cluster_size == 1 else []
    evict_first = [b.name for b in (*problem.inputs, *written)] if s.again_rows == 0 else []
    groups = problem.outer_count * problem.column_count // problem.member_count
    partials = [
        Buffer(w.fresh(f"partials{n}"), (groups, s.splits), r.accumulation.accumulator_dtype)
        for n, r in enumerate(problem.reductions if s.in_grid else ())
    ]
    with w.launch(KERNEL_NAME, bounds, min_blocks=s.min_ctas_per_sm, evict_first=evict_first) as variables:
        tile: tuple[Expr, Expr] = (variables[0], variables[1] if s.cluster_size > 1 else index(0))
        if s.in_grid:
            tile = variables[0] // s.splits, variables[0] % s.splits
        _Tile(problem, sizes, w, *tile, variables[-1], partials).write()
    return kernel_of(workload, w.finish(), tuple(partials))


@dataclass
class _Tile:
    """What the threads of a CTA do with its columns.

    ``block``: the number of the tile. ``rank``: which part of its rows the CTA has. ``partials``: what each reduction
    found in each split, in global memory, [groups of all tiles, splits]; none without a barrier of the grid.
    ``kept`` and ``buffered``: rows of the thread in registers and in shared memory. ``results``: what each reduction
    gives for the columns of the thread, in registers. ``totals``: the same for all groups of the tile, in shared
    memory. ``of_columns``: column loads, in registers.
    """

    problem: ColumnwiseProblem
    sizes: PersistentSizes[int]
    w: Writer
    block: Expr
    rank: Expr
    thread: Expr
    partials: Sequence[Buffer]
    kept: Loaded = field(default_factory=dict)
    buffered: Loaded = field(default_factory=dict)
    results: dict[str, Buffer] = field(default_factory=dict)
    totals: dict[str, Buffer] = field(default_factory=dict)
    of_columns: dict[Load, Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s, p = self.sizes, self.problem
        self.x, self.y = self.thread % s.threads_x, self.thread // s.threads_x
        across = -(-p.column_count // s.columns_per_cta)
        self.outer = self.block // across if p.outer_count > 1 else index(0)
        self.first_column = (self.block % across if p.outer_count > 1 else self.block) * s.columns_per_cta
        self.row = self.rank * s.rows_per_cta + self.y
        self.start = (self.outer * p.reduced_count + self.row) * p.column_count
        self.shift = self.start % s.vector if s.shifted else index(0)
        self.column = self.first_column + self.x * s.vector - self.shift
        self.end = minimum(self.first_column + s.columns_per_cta, index(p.column_count))

    def write(self) -> None:
        """Everything that a CTA does."""
        s, p = self.sizes, self.problem
        bodies = [c.body for c in p.elementwise_outputs]
        cells = self._allocate_cells()
        self._load_rows()
        for n, reduction in enumerate(p.reductions):
            self._load_columns([reduction.body])
            self._accumulate(n, reduction, cells[n])
            if n == len(p.reductions) - 1:  # while other threads still reduce
                self._load_columns(bodies)
            self.w.barrier()
            self._combine_groups(n, reduction, cells[n])
            self._load_results(n, reduction)
        if s.cluster_size > 1:
            # Others may still read this CTA's shared memory. A barrier at the end would wait for the writes as well.
            self.w.barrier(SyncScope.CLUSTER)
        if bodies:
            self._write_elements()
        if p.outputs:
            self._write_groups()

    # --- which elements a thread has

    @property
    def _has_cells(self) -> Expr | None:
        """Whether the thread has a place in the tile; None where all have."""
        s = self.sizes
        return self.thread < s.threads_x * s.threads_y if s.threads > s.threads_x * s.threads_y else None

    def _has_columns(self) -> Expr | None:
        """Whether the thread has columns; None where all have."""
        conditions = [] if self._has_cells is None else [self._has_cells]
        if self.sizes.shifted:
            conditions.append(self.column < self.end)
        elif self.problem.column_count % self.sizes.columns_per_cta:
            conditions.append(self.column < self.problem.column_count)
        return conjunction(*conditions)

    def _each_slot(
        self, name: str, begin: Expr, count: int, stop: Expr | None, body: Callable[[Expr, Expr], None]
    ) -> None:
        """``body`` for each of ``count`` rows of the thread from its row ``begin`` on: it is given a number, counted
        from there, and the row. Where ``stop`` is given, only for rows below it."""
        s = self.sizes
        with self.w.unrolled(name, count) as i:
            row = self.row + (begin + i) * s.threads_y
            with self.w.when(None if stop is None else row < stop):
                body(i, row)

    def _parts(self, first: int, last: int) -> Iterator[tuple[range, Expr | None]]:
        """Yield those of the thread's rows ``first`` to ``last`` that all threads have, and then the others with where
        the rows of the CTA end."""
        s, count = self.sizes, self.problem.reduced_count
        of_all = (count - (s.splits - 1) * s.rows_per_cta) // s.threads_y
        stop = minimum((self.rank + 1) * s.rows_per_cta, index(count)) if s.splits > 1 else index(count)
        for part, end in ((range(first, min(of_all, last)), None), (range(max(of_all, first), last), stop)):
            if part:
                yield part, end

    def _batches(self, name: str, first: int, last: int) -> Iterator[tuple[str, int, Expr, Expr | None]]:
        """Write loops over the thread's rows ``first`` to ``last``, ``unroll`` at a time. Yield in each of them a name,
        how many rows there are, the first one, and where rows end, if some may not exist."""
        s = self.sizes
        for number, (part, stop) in enumerate(self._parts(first, last)):
            whole = len(part) // s.unroll
            if whole:
                with self.w.loop(f"{name}{number}_batch", whole) as n:
                    yield f"{name}{number}", s.unroll, n * s.unroll + part.start, stop
            if len(part) % s.unroll:
                yield f"{name}{number}_end", len(part) % s.unroll, index(part.start + whole * s.unroll), stop

    def _load_rows(self) -> None:
        """Load the rows that registers keep, and copy those that shared memory keeps."""
        s, w, inputs = self.sizes, self.w, self.problem.inputs
        if s.kept_rows:
            self.kept = self._allocate_rows("kept", s.kept_rows, inputs)
        if s.buffered_rows:
            shape = (s.buffered_rows, s.threads_x * s.threads_y, s.vector)
            self.buffered = {
                b.name: w.allocate(f"buffered_{b.name}", shape, b.dtype, MemoryScope.SHARED) for b in inputs
            }
        with w.when(self._has_columns()):
            if s.buffered_rows:
                for name, count, begin, stop in self._batches("copy", s.kept_rows, s.kept_rows + s.buffered_rows):
                    self._each_slot(name, begin, count, stop, partial(self._copy_row, begin))
                w.emit(CopyAsyncCommit())
            for part, stop in self._parts(0, s.kept_rows):
                begin = index(part.start)
                self._each_slot("load", begin, len(part), stop, partial(self._load_row, self.kept, begin))
            if s.buffered_rows:
                w.emit(CopyAsyncWait(0))

    def _copy_row(self, begin: Expr, number: Expr, row: Expr) -> None:
        """Start to copy the thread's vector of a row to shared memory."""
        for b in self.problem.inputs:
            there = (begin + number - self.sizes.kept_rows, self.thread, index(0))
            source = self._element(row, index(0))
            self.w.emit(CopyAsync(self.buffered[b.name], there, b, source, self.sizes.vector))

    def _read_back(self, loaded: Loaded, begin: Expr, number: Expr, _: Expr) -> None:
        """Load the thread's vector of a row from shared memory."""
        for name, registers in loaded.items():
            there = contiguous_vector((begin + number - self.sizes.kept_rows, self.thread, index(0)), self.sizes.vector)
            here = contiguous_vector((number, index(0)), self.sizes.vector)
            self.w.store(registers, here, Load(self.buffered[name], there))

    def _each_row(self, name: str, inputs: Sequence[Buffer], body: Callable[[Loaded, Expr, Expr], None]) -> None:
        """``body`` for each row of the thread, with the registers that have it, its slot there, and its number.
        ``inputs``: what is loaded of rows that registers do not keep."""
        s = self.sizes

        def of_registers(first: int, number: Expr, row: Expr) -> None:
            body(self.kept, number + first, row)

        with self.w.when(self._has_columns()):
            for part, stop in self._parts(0, s.kept_rows):
                self._each_slot(name, index(part.start), len(part), stop, partial(of_registers, part.start))
            on_chip = s.kept_rows + s.buffered_rows
            for each, count, begin, stop in self._batches(name, s.kept_rows, on_chip):
                loaded = self._allocate_rows(each, count, inputs)
                self._each_slot(f"{each}_load", begin, count, stop, partial(self._read_back, loaded, begin))
                self._each_slot(each, begin, count, stop, partial(body, loaded))
            for each, count, begin, stop in self._batches(f"{name}_again", on_chip, s.rows_per_thread):
                loaded = self._allocate_rows(each, count, inputs)
                self._each_slot(f"{each}_load", begin, count, stop, partial(self._load_row, loaded, index(0)))
                self._each_slot(each, begin, count, stop, partial(body, loaded))

    def _element(self, row: Expr, element: Expr) -> tuple[Expr, ...]:
        """Return the indices of an element of the thread's vector in the inputs, at a row."""
        s, p = self.sizes, self.problem
        if not s.shifted:
            columns = delinearize(self.column + element, p.columns)
            return (*delinearize(self.outer, p.outer), *delinearize(row, p.reduced), *columns)
        # Written like this, all terms but the quotient are provably multiples of the vector.
        begin = self.start // s.vector * s.vector + (row - self.row) * p.column_count
        return delinearize(begin + self.first_column + self.x * s.vector + element, (*p.outer, *p.reduced, *p.columns))

    def _axes(self, row: Expr | None, element: Expr) -> dict[str, Expr]:
        """Axis -> its index, at an element of the thread's vector, of a row or of none."""
        s, p = self.sizes, self.problem
        if s.shifted:  # some elements belong to other rows, and nobody needs what is computed of them
            columns = delinearize(minimum(maximum(self.column + element, index(0)), self.end - 1), p.columns)
        elif p.columns[-1] % s.vector:
            columns = delinearize(self.column + element, p.columns)
        else:
            *leading, last = delinearize(self.column, p.columns)
            columns = (*leading, last + element)
        rows = () if row is None else delinearize(row, p.reduced)
        return (
            {outer_axis(n): i for n, i in enumerate(delinearize(self.outer, p.outer))}
            | {reduced_axis(n): i for n, i in enumerate(rows)}
            | {column_axis(n): i for n, i in enumerate(columns)}
            | {_ELEMENT: element}
        )

    # --- registers

    def _allocate_rows(self, name: str, count: int, inputs: Sequence[Buffer]) -> Loaded:
        shape = (count, self.sizes.vector)
        return {
            b.name: self.w.allocate(f"{name}_rows{n}", shape, b.dtype, MemoryScope.REGISTER)
            for n, b in enumerate(inputs)
        }

    def _vector(self, name: str, dtype: DType) -> Buffer:
        """Registers for one element a column."""
        return self.w.allocate(name, (self.sizes.vector,), dtype, MemoryScope.REGISTER)

    @contextmanager
    def _elements(self, name: str) -> Iterator[Expr]:
        """A block of statements for each element of a vector."""
        with self.w.unrolled(name, self.sizes.vector) as v:
            yield v

    def _load_row(self, loaded: Loaded, first: Expr, number: Expr, row: Expr) -> None:
        """Load the thread's vector of a row into slot ``first`` plus ``number``."""
        for b in self.problem.inputs:
            if b.name in loaded:
                self._move_vector(loaded[b.name], (first + number,), b, row, load=True)

    def _move_vector(self, registers: Buffer, at: tuple[Expr, ...], tensor: Buffer, row: Expr, *, load: bool) -> None:
        """Load a vector of a row into registers, or store it from there."""
        s = self.sizes
        if self.problem.columns[-1] % s.vector == 0:
            there = contiguous_vector(self._element(row, index(0)), s.vector)
            here = contiguous_vector((*at, index(0)), s.vector)
            self._move(registers, here, tensor, there, load=load)
            return
        own = [self.first_column <= self.column, self.column + s.vector <= self.end]
        whole = logical_and(*own) if s.shifted and not load else None
        with self.w.when(whole), self.w.vectorized(f"{registers.name}_v", s.vector) as v:
            self._move(registers, (*at, v), tensor, self._element(row, v), load=load)
        if whole is not None:
            with self.w.when(negated(whole)), self._elements(f"{registers.name}_own") as v:
                column = self.column + v
                with self.w.when(self.first_column <= column, column < self.end):
                    self._move(registers, (*at, v), tensor, self._element(row, v), load=load)

    def _move(
        self, registers: Buffer, here: tuple[Expr, ...], tensor: Buffer, there: tuple[Expr, ...], *, load: bool
    ) -> None:
        if load:
            self.w.store(registers, here, Load(tensor, there))
        else:
            self.w.store(tensor, there, Load(registers, here))

    def _load_columns(self, bodies: Sequence[Expr]) -> None:
        """Load what bodies need of each column, where it is not there yet."""
        wanted = {e for body in bodies for e in loads_of(body)}
        for n, load in enumerate(self.problem.column_loads):
            if load in wanted and load not in self.of_columns:
                buffer = self.of_columns[load] = self._vector(f"of_column{n}", load.dtype)
                with self.w.when(self._has_columns()):
                    self._load_column(f"of_column{n}_v", buffer, load)

    def _load_column(self, name: str, buffer: Buffer, load: Load) -> None:
        s, p = self.sizes, self.problem
        if p.columns[-1] % s.vector == 0:
            self._load_vector(buffer, load, self._axes(None, index(0)))
            return
        with self._elements(name) as v:
            axes = self._axes(None, v)
            self.w.store(buffer, (v,), Load(load.buffer, tuple(scalar_at(i, axes) for i in load.indices)))

    # --- reductions

    def _allocate_cells(self) -> list[Buffer]:
        """Shared memory for the cells of each reduction, [threads_y, pitch]. Those of equal dtypes share it."""
        dtypes = [r.accumulation.accumulator_dtype for r in self.problem.reductions]
        shape = (self.sizes.threads_y, self.sizes.pitch)
        found = {d: self.w.allocate(f"cells_{d}", shape, d, MemoryScope.SHARED) for d in dict.fromkeys(dtypes)}
        return [found[d] for d in dtypes]

    def _accumulate(self, n: int, reduction: ReducedTensor, cells: Buffer) -> None:
        """Accumulate the thread's rows, and leave what they make in its cells."""
        s, w, how = self.sizes, self.w, reduction.accumulation
        body = self._hoisted(f"reduce{n}", reduction.body)
        state = self._vector(f"accumulator{n}", how.accumulator_dtype)
        with self._elements(f"identity{n}_v") as v:
            w.store(state, (v,), how.identity[0])

        def accumulate(loaded: Loaded, slot: Expr, row: Expr) -> None:
            vectors = self._row_vectors([body], row)
            with self._elements(f"reduce{n}_v") as v:
                value = self._value(body, self._axes(row, v), loaded, slot, vectors)
                store_state(w, [state], (v,), how.accumulate([Load(state, (v,))], value, index(0)))

        self._each_row(f"reduce{n}", self._inputs_of([reduction.body]), accumulate)
        if s.cells < s.vector:  # all columns of the thread belong to one group
            for number in range(1, s.vector):
                values = [[Load(state, (index(at),))] for at in (0, number)]
                store_state(w, [state], (index(0),), how.combine(*values))
        with w.when(self._has_cells):
            if s.shifted:
                with self._elements(f"cell{n}_v") as v:
                    w.store(cells, (self.y, self.x * s.vector + (s.vector - self.shift) + v), Load(state, (v,)))
                return
            here = contiguous_vector((index(0),), s.cells)
            w.store(cells, contiguous_vector((self.y, self.x * s.cells), s.cells), Load(state, here))

    def _combine_groups(self, n: int, reduction: ReducedTensor, cells: Buffer) -> None:
        """Combine the cells of each group, and what all CTAs that share the rows have of it."""
        s, w = self.sizes, self.w
        dtype, shape = reduction.accumulation.accumulator_dtype, (s.groups,)
        totals = self.totals[reduction.tensor.name] = w.allocate(f"totals{n}", shape, dtype, MemoryScope.SHARED)

        def cell(group: Expr, number: Expr) -> Expr:
            first = group * s.group_cells + s.shifted * s.vector
            return Load(cells, (number // s.group_cells, first + number % s.group_cells))

        def of_split(group: Expr, number: Expr) -> Expr:
            last = index(self.partials[n].shape[0] - 1)  # a tile may have groups that do not exist
            return Load(self.partials[n], (minimum(self._number_of(group), last), number))

        count = s.threads_y * s.group_cells
        if s.in_grid:
            self._combine(f"group{n}", reduction, count, cell, self.partials[n])
            w.emit(GridBarrierArrive())
            w.emit(GridBarrierWait())
            self._combine(f"grid{n}", reduction, s.splits, of_split, totals)
        elif s.splits > 1:
            own = w.allocate(f"own{n}", shape, dtype, MemoryScope.SHARED)
            self._combine(f"group{n}", reduction, count, cell, own)
            w.barrier(SyncScope.CLUSTER)
            self._combine_cluster(n, reduction, own, totals)
        else:
            self._combine(f"group{n}", reduction, count, cell, totals)
        w.barrier()

    def _number_of(self, group: Expr) -> Expr:
        """Return the number of a group of the tile among those of all tiles."""
        p = self.problem
        return self.outer * (p.column_count // p.member_count) + self.first_column // p.member_count + group

    def _group_exists(self, group: Expr) -> list[Expr]:
        """Return whether a group of the tile exists, as conditions; none where all do."""
        p = self.problem
        if p.column_count % self.sizes.columns_per_cta == 0:
            return []
        return [self.first_column // p.member_count + group < p.column_count // p.member_count]

    def _combine(
        self, name: str, reduction: ReducedTensor, count: int, term: Callable[[Expr, Expr], Expr], found: Buffer
    ) -> None:
        """Combine ``count`` terms of each group of the tile, given the group and a number, and store what they make in
        shared memory, or for this CTA in global memory."""
        s, w, how, helper = self.sizes, self.w, reduction.accumulation, self.thread % self.sizes.helpers
        at_once, each = s.threads // s.helpers, -(-count // s.helpers)
        kind = LoopKind.UNROLLED if each <= UNROLLED_CELLS else LoopKind.SERIAL
        with w.loop(f"{name}_step", -(-s.groups // at_once)) as step:
            group = step * at_once + self.thread // s.helpers
            conditions = [group < s.groups] if s.groups % at_once else []
            exists = conjunction(*conditions)
            state = w.allocate(name, (), found.dtype, MemoryScope.REGISTER)
            w.store(state, (), how.identity[0])
            with w.when(exists), w.loop(f"{name}_term", each, kind) as i:
                number = i * s.helpers + helper
                with w.when(number < count if count % s.helpers else None):
                    store_state(w, [state], (), how.combine([Load(state, ())], [term(group, number)]))
            butterfly(w, name, [state], how.combine, halvings(s.helpers))
            if s.helpers > 1:
                conditions.insert(0, equal(helper, 0))
            there: tuple[Expr, ...] = (group,)
            if found.scope != MemoryScope.SHARED:
                there = (self._number_of(group), self.rank)
                conditions += self._group_exists(group)
            with w.when(*conditions):
                w.store(found, there, Load(state, ()))

    def _combine_cluster(self, n: int, reduction: ReducedTensor, own: Buffer, totals: Buffer) -> None:
        """Combine what all CTAs of the cluster have found of each group, in their order."""
        s, w, how = self.sizes, self.w, reduction.accumulation
        with self._each_group(f"cluster{n}") as group:
            state = w.allocate(f"cluster_state{n}", (), totals.dtype, MemoryScope.REGISTER)
            of_ranks: list[Sequence[Expr]] = [[ClusterLoad(own, (group,), index(n))] for n in range(s.cluster_size)]
            w.store(state, (), reduce(how.combine, of_ranks)[0])
            w.emit(ClusterLoadWait(Load(state, ())))
            w.store(totals, (group,), Load(state, ()))

    @contextmanager
    def _each_group(self, name: str) -> Iterator[Expr]:
        """A block of statements for each group of the tile, each done by one thread."""
        with self.w.shared_out(f"{name}_step", self.sizes.groups, self.sizes.threads, self.thread) as group:
            yield group

    def _load_results(self, n: int, reduction: ReducedTensor) -> None:
        """Load what the reduction gives for the columns of the thread."""
        s, w, how, name = self.sizes, self.w, reduction.accumulation, reduction.tensor.name
        members = self.problem.member_count
        result = self.results[name] = self._vector(f"result{n}", how.accumulator_dtype)
        if members == 1 and not s.shifted:
            here = contiguous_vector((index(0),), s.vector)
            w.store(result, here, Load(self.totals[name], contiguous_vector((self.x * s.vector,), s.vector)))
            return
        with self._elements(f"result{n}_v") as v:
            first = self.x * s.vector
            group = first // members if s.cells < s.vector else (first + v) // members
            if s.shifted:
                group = minimum(maximum(first + v - self.shift, index(0)), index(s.groups - 1))
            w.store(result, (v,), Load(self.totals[name], (group,)))

    # --- outputs

    def _write_elements(self) -> None:
        outputs = self.problem.elementwise_outputs
        bodies = [self._hoisted(f"write{n}", c.body) for n, c in enumerate(outputs)]

        def write(loaded: Loaded, slot: Expr, row: Expr) -> None:
            new = [self._vector(f"output{n}", c.tensor.dtype) for n, c in enumerate(outputs)]
            vectors = self._row_vectors(bodies, row)
            with self._elements("write_v") as v:
                axes = self._axes(row, v)
                for buffer, body in zip(new, bodies, strict=True):
                    self.w.store(buffer, (v,), self._value(body, axes, loaded, slot, vectors))
            for buffer, c in zip(new, outputs, strict=True):
                self._move_vector(buffer, (), c.tensor, row, load=False)

        self._each_row("write", self._inputs_of([c.body for c in outputs]), write)

    def _write_groups(self) -> None:
        """The outputs of each group, by the first CTA of those that share its rows."""
        s, p = self.sizes, self.problem
        first = self.first_column // p.member_count
        with (
            self.w.when(equal(self.rank, 0) if s.splits > 1 else None),
            self._each_group("output") as group,
            self.w.when(*self._group_exists(group)),
        ):
            columns, outer = delinearize(first + group, p.result_axes), delinearize(self.outer, p.outer)
            axes = {outer_axis(n): i for n, i in enumerate(outer)} | {column_axis(n): i for n, i in enumerate(columns)}
            results = {
                r.tensor.name: r.accumulation.result([Load(self.totals[r.tensor.name], (group,))]) for r in p.reductions
            }
            for output in p.outputs:
                value = scalar_at(output.body, axes, lambda load: results.get(load.buffer.name, load))
                self.w.store(output.tensor, (*outer, *columns), value)

    # --- values

    def _inputs_of(self, bodies: Sequence[Expr]) -> list[Buffer]:
        """Return the inputs that bodies read."""
        names = {e.buffer.name for body in bodies for e in loads_of(body)}
        return [b for b in self.problem.inputs if b.name in names]

    def _row_vectors(self, bodies: Sequence[Expr], row: Expr) -> Mapping[Load, Buffer]:
        """Load the vectors of a row that bodies need besides inputs. What is not contiguous has none."""
        vectors: dict[Load, Buffer] = {}
        wanted = {e for body in bodies for e in loads_of(body)}
        for n, load in enumerate(self.problem.other_loads):
            if (
                load in wanted
                and self.problem.is_contiguous(load)
                and self.problem.columns[-1] % self.sizes.vector == 0
            ):
                vectors[load] = self._vector(f"of_row{n}", load.dtype)
                self._load_vector(vectors[load], load, self._axes(row, index(0)))
        return vectors

    def _load_vector(self, buffer: Buffer, load: Load, axes: Mapping[str, Expr]) -> None:
        """Load a vector that begins at ``axes``."""
        at = contiguous_vector([scalar_at(i, axes) for i in load.indices], self.sizes.vector)
        self.w.store(buffer, contiguous_vector((index(0),), self.sizes.vector), Load(load.buffer, at))

    def _value(
        self,
        body: Expr,
        axes: Mapping[str, Expr],
        loaded: Loaded,
        slot: Expr,
        vectors: Mapping[Load, Buffer] = MappingProxyType({}),
    ) -> Expr:
        """``body`` at ``axes``, with inputs, results, ``vectors`` and what belongs to a column taken from registers."""
        element = Var(_ELEMENT)
        how = {r.tensor.name: r.accumulation for r in self.problem.reductions}

        def from_registers(load: Load) -> Expr:
            name = load.buffer.name
            if name in self.results:
                return how[name].result([Load(self.results[name], (element,))])
            if load in self.of_columns or load in vectors:
                return Load(self.of_columns.get(load) or vectors[load], (element,))
            return Load(loaded[name], (slot, element)) if name in loaded and self.problem.is_element(load) else load

        return scalar_at(body, axes, from_registers)

    def _hoisted(self, name: str, body: Expr) -> Expr:
        """``body`` with what is the same for all rows computed once for each column of the thread, in registers."""
        computed: dict[Expr, Buffer] = {}

        def hoisted(e: Expr) -> Expr:
            if isinstance(e, Binary | Unary) and e.dtype.is_float and not has_reduced_axis(e):
                dtype = register_dtype(e.dtype)
                if e not in computed:
                    computed[e] = self._vector(f"{name}_column{len(computed)}", dtype)
                there = Load(computed[e], (Var(_ELEMENT),))
                return cast(there, e.dtype)
            if isinstance(e, Select):  # a branch that is not taken may not be computed
                return Select(hoisted(e.condition), e.then, e.otherwise)
            return rebuild(e, [hoisted(c) for c in e.children]) if e.children else e

        found = hoisted(with_reciprocals(body, has_reduced_axis))
        for n, (e, buffer) in enumerate(computed.items()):
            with self.w.when(self._has_columns()), self._elements(f"{name}_column{n}_v") as v:
                value = self._value(e, self._axes(None, v), {}, index(0))
                self.w.store(buffer, (v,), cast(value, buffer.dtype))
        return found
