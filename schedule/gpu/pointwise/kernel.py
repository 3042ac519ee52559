"""Writes the kernel of a pointwise problem. A thread computes ``unroll`` vectors, and loads all inputs of all of them
first:

    for u in unrolled(unroll):  x_regs[u, :] = X[vector (block*unroll + u)*threads + thread]
    for u in unrolled(unroll):  Y[vector …] = f(x_regs[u, :])

A block computes a tile of ``unroll * threads`` vectors. A persistent block computes one tile after the other.

Rows of odd lengths may be shared out by warps instead: a warp takes ``unroll`` elements a lane of one row, 32 apart, so
that a thread takes the indices of its row apart once, and neighbouring lanes access neighbouring elements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    WARP_LANES,
    Binary,
    BinaryOp,
    Const,
    Expr,
    Load,
    Select,
    Var,
    conjunction,
    const,
    index,
    logical_and,
    maximum,
    minimum,
    rebuild,
)
from ....ir.rewrite import loads_of
from ....ir.stmt import HardwareAxis, Kernel
from ....te.functions import equal, negated
from ....te.workload import Axis, Stage
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.pointwise import Pointwise
from ...space.columns import Size
from ...tile.delinearize import axis_indices
from ...tile.load_analysis import flat_offset
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.names import FreshNameWriter
from ...tile.pieces import lanes_of_piece
from ...tile.register_loads import RegisterLoad, allocate_registers, depends_on, load_registers
from ...tile.runs import CHUNK_BYTES, Run, runs_of
from ...tile.stage_body import scalar_at
from ..l2_prefetch import L2Prefetch


@dataclass(frozen=True, slots=True)
class PointwiseSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``vector_width``, ``unroll`` and ``threads`` are the knobs. ``row_parts``: the parts of a row that warps take, 0
    where rows do not matter. ``vectors``: all vectors of an output. ``tiles``: tiles of ``unroll * threads`` vectors,
    the last one perhaps not full. ``blocks``: thread blocks. ``loaded_bytes``: bytes that a thread loads before it
    computes. ``accesses``: how often threads access memory. ``registers``: estimated registers of a thread.
    ``shared_bytes``: shared memory of a block, 0. ``resident``: how many blocks a multiprocessor runs at once, by that
    estimate. ``prefetching_ctas``: how many blocks of the launch may run while the launch before it ends; only those
    prefetch.
    """

    vector_width: Size
    unroll: Size
    threads: Size
    row_parts: Size
    vectors: Size
    tiles: Size
    blocks: Size
    loaded_bytes: Size
    accesses: Size
    registers: Size
    shared_bytes: Size
    resident: Size
    prefetching_ctas: Size


MOST_SPREAD = 2
"""Where elements of a vector are loaded one by one from a buffer with up to so many elements for each of an output,
others need the rest of the cache line. Larger buffers may be read at far places."""


SHARED_BY = 8
"""Inputs with one element for so many outputs, or fewer, are prefetched into L2 as a whole, at the start of the launch.
Larger ones hold up what blocks load: settings that prefetch both halves of interleaved columns of 4096x8190 take an
H200 38 us and more, and those that prefetch none take 34."""
ROW_VARIABLE, COLUMN_VARIABLE = "row#", "column#"
"""A row of the outputs and a column of it, in loads that are not yet at a point."""


def pointwise_kernel(problem: Pointwise, sizes: PointwiseSizes, *, evict_first: bool) -> Kernel:
    """Return the kernel of one setting. ``evict_first``: buffers as large as an output need not stay in caches."""
    return _PointwiseKernelWriter(problem, sizes, evict_first).kernel()


def is_own_element(problem: Pointwise, masked: MaskedLoad) -> bool:
    """Return whether a load of a problem on a single axis has the offset of the output element."""
    output = problem.output_offset_load
    same = masked.load.indices == output.indices and masked.load.buffer.shape == output.buffer.shape
    same &= depends_on(masked, problem.lane_axis.name)
    return problem.row > 0 and problem.dynamic is None and masked.mask is None and same


def runs_of_vector(problem: Pointwise, masked: MaskedLoad, width: int) -> tuple[Run, ...]:
    """Return the runs in which the ``width`` elements of a vector mostly follow each other in the buffer. They are the
    same element, or elements of 16 bits that two aligned chunks hold. There are none where each element is loaded
    alone, or where all vectors, or pieces of them, are aligned."""
    dtype, lane = masked.load.dtype, problem.lane_axis.name
    loaded_index = any(loads_of(i) for i in masked.load.indices)
    if not problem.scattered or problem.dynamic is not None or loaded_index or is_own_element(problem, masked):
        return ()
    if width == 1 or masked.load.buffer.elements < width or not depends_on(masked, lane):
        return ()
    if lanes_of_piece(masked, lane, width) > 1:
        return ()
    found: tuple[Run, ...] = ()
    if not problem.row:
        found = runs_of(masked, lane, width, {a.name: a.extent for a in problem.axes})
    elif problem.row >= width and _depends_on_row_and_column(problem, masked):
        extents = {ROW_VARIABLE: problem.elements // problem.row, COLUMN_VARIABLE: problem.row}
        in_row = _in_row(problem, masked, Var(ROW_VARIABLE), Var(COLUMN_VARIABLE))
        found = runs_of(in_row, COLUMN_VARIABLE, width, extents)
    vectors = dtype.is_float and dtype.bits == 16 and width * dtype.bytes % CHUNK_BYTES == 0
    return found if vectors or not any(run.stride for run in found) else ()


class _PointwiseKernelWriter:
    def __init__(self, problem: Pointwise, sizes: PointwiseSizes, evict_first: bool) -> None:
        self.problem = problem
        self.sizes = sizes
        self.tile_vectors: int = sizes.unroll * sizes.threads
        buffers = (*problem.workload.inputs, *(s.tensor for s in problem.stages))
        self.evict_first = tuple(b.name for b in self._large(buffers)) if evict_first else ()
        most = MOST_SPREAD * problem.stages[0].tensor.elements
        near = (b.name for b in problem.workload.inputs if b.elements <= most)
        self.prefetch_lines = tuple(near) if problem.scattered else ()
        self.w = FreshNameWriter({b.name for b in buffers} | {a.name for a in problem.axes})
        self.vector_unit = problem.element_unit // sizes.vector_width
        """A number that divides how many vectors of an output a call has."""
        self.vector_end: Expr = index(sizes.vectors)
        self.tile_end: Expr | None = None
        """How many vectors and tiles a call has; None where there are as many tiles as ``sizes`` says."""
        if problem.dynamic is not None:
            self.vector_end = problem.dynamic * self.vector_unit
            self.tile_end = (self.vector_end + (self.tile_vectors - 1)) // self.tile_vectors

    def _large(self, buffers: tuple[Buffer, ...]) -> list[Buffer]:
        """Return the buffers as large as an output; smaller ones are read again and again."""
        return [b for b in buffers if b.elements >= self.problem.stages[0].tensor.elements]

    def kernel(self) -> Kernel:
        problem, w, s = self.problem, self.w, self.sizes
        count = None if self.tile_end is None else minimum(self.tile_end, index(s.blocks))
        bounds = [("block", s.blocks, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        with w.launch(
            KERNEL_NAME, bounds, count=count, evict_first=self.evict_first, prefetch_lines=self.prefetch_lines
        ) as (block, thread):
            self._prefetch(block, thread, following=False)
            tiles_per_block, last = -(-s.tiles // s.blocks), s.blocks - 1
            if tiles_per_block == 1:
                self._tile(block, thread, exact=True)
            else:
                with w.loop("trip", tiles_per_block) as trip:
                    with w.when(None if self.tile_end is None else trip < (self.tile_end - block + last) // s.blocks):
                        self._tile(trip * s.blocks + block, thread, exact=s.tiles % s.blocks == 0)
            self._rest(block, thread)
        return kernel_of(problem.workload, w.finish())

    def _prefetch(self, block: Expr, thread: Expr, *, following: bool) -> None:
        """Prefetch into L2 what a tile loads at the offset of its outputs. At the start of the launch that is the
        block's own tile, and all of the much smaller inputs. ``following``: it is the tile of the block that takes this
        one's slot later."""
        problem, s = self.problem, self.sizes
        if self.vector_unit % self.tile_vectors or s.row_parts:
            return
        output_offset = flat_offset(problem.output_offset_load)
        first_blocks = min(s.prefetching_ctas, s.blocks)
        prefetch = L2Prefetch(self.w, (thread, s.threads), (block, s.tiles), first_blocks, count=self.tile_end)
        for masked in problem.distinct_loads:

            def first_element(tile: Expr, _: Expr, load: Load = masked.load) -> tuple[Expr, ...]:
                at = self._point(tile * self.tile_vectors)
                return tuple(scalar_at(i, at) for i in load.indices)

            name, source = "prefetch", masked.load.buffer
            same_offset = output_offset is not None and flat_offset(masked.load) == output_offset
            if is_own_element(problem, masked) or (masked.mask is None and same_offset):
                elements = self.tile_vectors * s.vector_width
                if following:
                    prefetch.following(name, source, 1, elements, first_element, s.prefetching_ctas)
                else:
                    prefetch.own(name, source, 1, elements, first_element)
            elif source.elements * SHARED_BY <= problem.stages[0].tensor.elements and not following:
                prefetch.all(name, source)

    def _tile(self, tile: Expr, thread: Expr, *, exact: bool) -> None:
        """Load and compute the vectors of ``tile``. ``exact``: the tile exists for every value of the variables."""
        problem, w, s = self.problem, self.w, self.sizes
        lane = problem.lane_axis.name
        loaded = {
            masked: allocate_registers(w, masked, (s.unroll,), lane, s.vector_width)
            for masked in problem.distinct_loads
        }
        runs = {masked: runs_of_vector(problem, masked, s.vector_width) for masked in loaded}
        with w.unrolled("u", s.unroll) as u:
            vector, inside = self._place(tile, thread, u, exact)
            for masked, of_load in runs.items():
                if of_load:
                    self._load_runs(loaded[masked], of_load, u, vector)
            with w.when(inside):
                for masked, registers in loaded.items():
                    if runs[masked]:
                        continue
                    if not s.row_parts and is_own_element(problem, masked):
                        with w.vectorized("v", s.vector_width) as v:
                            place = vector * s.vector_width + v
                            w.store(registers.buffer, (u, v), Load(_as_one_dimension(masked.load.buffer), (place,)))
                        continue
                    if s.row_parts:
                        in_row = _in_row(problem, registers.masked, *self._row_and_column(tile, thread, u))
                        registers = replace(registers, masked=in_row)
                    if not self._load_from_two_rows(registers, u, vector):
                        load_registers(w, registers, (u,), self._point(vector), lane, s.vector_width)
        if any(runs.values()):
            with w.unrolled("u", s.unroll) as u:
                vector, inside = self._place(tile, thread, u, exact)
                with w.when(inside):
                    for masked, of_load in runs.items():
                        if of_load:
                            self._load_beside_runs(loaded[masked], of_load, u, vector)
        if s.blocks == s.tiles:
            self._prefetch(tile, thread, following=True)
        with w.unrolled("u", s.unroll) as u:
            vector, inside = self._place(tile, thread, u, exact)
            with w.when(inside):
                for stage in problem.stages:
                    self._compute(stage, loaded, u, self._point(vector))

    def _rest(self, block: Expr, thread: Expr) -> None:
        """Compute the elements behind the last whole vector, one by each of the first threads of the last block."""
        w, s, problem = self.w, self.sizes, self.problem
        rest = problem.elements % s.vector_width if problem.dynamic is None else 0
        if rest:
            at = {problem.lane_axis.name: thread + (problem.elements - rest)}
            with w.when(equal(block, s.blocks - 1), thread < rest):
                for stage in problem.stages:
                    indices = tuple(scalar_at(i, at) for i in problem.output_indices)
                    w.store(stage.tensor, indices, scalar_at(stage.body, at))

    def _run_begin(self, run: Run, vector: Expr) -> tuple[dict[str, Expr], Expr]:
        """Return the point at which a vector begins, and the index along the run of its last element in the same
        row."""
        at, row, phases, lane = self._point(vector), self.problem.row, run.phases, self.problem.lane_axis.name
        if row:
            at = {
                ROW_VARIABLE: at[lane] // row,
                COLUMN_VARIABLE: vector * (self.sizes.vector_width // phases) % (row // phases) * phases,
            }
        if phases > 1:
            at[run.axis] = at[COLUMN_VARIABLE if row else lane] // phases
        last = at[run.axis] + (run.lanes - 1)
        return at, minimum(last, index(row // phases - 1)) if row else last

    def _load_runs(self, registers: RegisterLoad, runs: Sequence[Run], u: Expr, vector: Expr) -> None:
        """Load all elements of a vector as if those of each run were contiguous, from places inside the buffer. There
        is no branch, so that all loads of a thread are under way at once: vectors that do not exist are loaded too."""
        w, flat = self.w, _as_one_dimension(registers.masked.load.buffer)
        phases = runs[0].phases
        for phase in range(phases):
            run = next((r for r in runs if r.phase == phase), None)
            if run is None:
                with w.unrolled("v", self.sizes.vector_width // phases) as v:
                    w.store(registers.buffer, (u, v * phases + phase), _other(registers.masked))
                continue
            at, last = self._run_begin(run, vector)
            offset = run.offset(at)
            if run.masked.mask is not None:
                inside = run.all_inside(at, last)
                offset = offset if inside is None else Select(inside, offset, index(0))
            offset = minimum(maximum(offset, index(0)), index(run.last_offset))
            if run.stride == 1 and phases == 1:
                with w.vectorized("v", run.lanes) as v:
                    w.store(registers.buffer, (u, v), Load(flat, (offset + v,)))
                continue
            lanes = run.lanes if run.stride else 1
            loaded = w.allocate(f"{flat.name}_run", (lanes,), flat.dtype, MemoryScope.REGISTER)
            with w.vectorized("v", lanes) as v:
                w.store(loaded, (v,), Load(flat, (offset + v,)))
            with w.unrolled("v", run.lanes) as v:
                place = v * run.stride if run.stride >= 0 else run.lanes - 1 - v
                w.store(registers.buffer, (u, v * phases + phase), Load(loaded, (place,)))

    def _load_beside_runs(self, registers: RegisterLoad, runs: Sequence[Run], u: Expr, vector: Expr) -> None:
        """Load the elements of a vector that are not contiguous with the first one of their run, each alone."""
        w, row, masked, lane = self.w, self.problem.row, registers.masked, self.problem.lane_axis.name
        tests: list[Expr] = []
        for run in runs:
            at, last = self._run_begin(run, vector)
            inside = run.all_inside(at, last)
            tests += [test for test in (inside, run.in_buffer(at)) if test is not None]
        outside = None
        if len(runs) == 1 and runs[0].masked.mask is not None:
            outside = runs[0].all_outside(*self._run_begin(runs[0], vector))
        at, _ = self._run_begin(runs[0], vector)
        width = self.sizes.vector_width
        if tests:
            with w.when(negated(logical_and(*tests))):
                if masked.other is not None:
                    with w.vectorized("v", width) as v:
                        w.store(registers.buffer, (u, v), masked.other)
                with w.when(None if outside is None else negated(outside)):
                    if row:
                        self._load_of_row(registers, u, vector, 0)
                    else:
                        with w.unrolled("v", width) as v:
                            self._load_element(registers, masked, (u, v), {**at, lane: at[lane] + v})
        if row:
            with w.when(at[COLUMN_VARIABLE] > row - width):
                self._load_of_row(registers, u, vector, 1)

    def _load_from_two_rows(self, registers: RegisterLoad, u: Expr, vector: Expr) -> bool:
        """Load a vector that may reach from one row of the outputs into the next: elements of the first row, and those
        of the second one. So only two elements have their indices taken apart, and not each of them. False where that
        is no gain, or where a load depends on more than row and column."""
        problem, s = self.problem, self.sizes
        if not problem.scattered or not registers.vector or s.vector_width == 1 or problem.row < s.vector_width:
            return False
        if not _depends_on_row_and_column(problem, registers.masked):
            return False
        if lanes_of_piece(registers.masked, problem.lane_axis.name, s.vector_width) > 1:
            return False
        for n in (0, 1):
            self._load_of_row(registers, u, vector, n)
        return True

    def _load_of_row(self, registers: RegisterLoad, u: Expr, vector: Expr, n: int) -> None:
        """Load those elements of a vector that belong to the row in which it begins (``n`` is 0), or to the next
        one."""
        w, s, row = self.w, self.sizes, self.problem.row
        begin = vector * s.vector_width
        first, column = begin // row, begin % row
        with w.unrolled("v", s.vector_width) as step:
            # The element that belongs to the row wherever any does comes first, so that others share its address.
            v = s.vector_width - 1 - step if n else step
            with w.when(column + v >= row if n else column + v < row):
                in_row = _in_row(self.problem, registers.masked, first + n, column + v - n * row)
                self._load_element(registers, in_row, (u, v), {})

    def _load_element(
        self, registers: RegisterLoad, masked: MaskedLoad, indices: tuple[Expr, ...], at: Mapping[str, Expr]
    ) -> None:
        """Load one element at a point, or ``other`` where its mask is false."""
        if masked.mask is not None:
            self.w.store(registers.buffer, indices, _other(masked))
        with self.w.when(None if masked.mask is None else scalar_at(masked.mask, at)):
            self.w.store(registers.buffer, indices, scalar_at(masked.load, at))

    def _place(self, tile: Expr, thread: Expr, u: Expr, exact: bool) -> tuple[Expr, Expr | None]:
        """Return the number of a thread's vector, and the condition that this vector exists (None: it always does)."""
        s, row = self.sizes, self.problem.row
        if not s.row_parts:
            return self._vector(tile, thread, u, exact)
        warps, parts = s.threads // WARP_LANES, self.problem.elements // row * s.row_parts
        number, column = self._row_and_column(tile, thread, u)
        inside = [column < row] if row % (s.unroll * WARP_LANES) else []
        inside += [tile * warps + thread // WARP_LANES < parts] if parts % warps else []
        return number * row + column, conjunction(*inside)

    def _row_and_column(self, tile: Expr, thread: Expr, u: Expr) -> tuple[Expr, Expr]:
        """Return where element number ``u`` of a thread is, where warps share out rows."""
        s = self.sizes
        part = tile * (s.threads // WARP_LANES) + thread // WARP_LANES
        column = part % s.row_parts * (s.unroll * WARP_LANES) + u * WARP_LANES + thread % WARP_LANES
        return part // s.row_parts, column

    def _vector(self, tile: Expr, thread: Expr, u: Expr, exact: bool) -> tuple[Expr, Expr | None]:
        """Return the number of a vector, and the condition that this vector exists (None: it always does)."""
        number = tile * self.tile_vectors + u * self.sizes.threads + thread
        whole = exact and self.vector_unit % self.tile_vectors == 0
        return number, None if whole else number < self.vector_end

    def _point(self, vector: Expr) -> dict[str, Expr]:
        """Return the point of the axes at which a vector begins."""
        lane, width = self.problem.lane_axis, self.sizes.vector_width
        in_vectors = [Axis(a.name, a.extent // width) if a == lane else a for a in self.problem.axes]
        at = dict(axis_indices(vector, in_vectors))
        if lane.name in at:
            at[lane.name] = at[lane.name] * width
        return at

    def _compute(
        self, stage: Stage, loaded: Mapping[MaskedLoad, RegisterLoad], u: Expr, at: Mapping[str, Expr]
    ) -> None:
        w, lane = self.w, self.problem.lane_axis.name
        with w.vectorized("v", self.sizes.vector_width) as v:
            values = {given: loaded[masked].value((u,), v) for given, masked in self.problem.loads.items()}
            here = {**at, lane: at[lane] + v} if lane in at else dict(at)
            value = scalar_at(replace_masked_loads(stage.body, values), here)
            if self.problem.row and self.problem.dynamic is None:
                w.store(_as_one_dimension(stage.tensor), (here[lane],), value)
            else:
                w.store(stage.tensor, tuple(scalar_at(i, here) for i in self.problem.output_indices), value)


def _other(masked: MaskedLoad) -> Expr:
    return masked.other or const(0, masked.load.dtype)


def _as_one_dimension(buffer: Buffer) -> Buffer:
    return replace(buffer, shape=(buffer.elements,))


def _depends_on_row_and_column(problem: Pointwise, masked: MaskedLoad) -> bool:
    """Return whether a load of a problem on a single axis depends on the row of the outputs and the column alone."""
    return not depends_on(_in_row(problem, masked, index(0), index(0)), problem.lane_axis.name)


def _in_row(problem: Pointwise, masked: MaskedLoad, row: Expr, column: Expr) -> MaskedLoad:
    """``masked`` at a ``column`` of a ``row`` of the outputs, as far as it depends on these alone."""
    flat, extent = Var(problem.lane_axis.name), problem.row
    load = _at_row(masked.load, flat, extent, row, column)
    assert isinstance(load, Load)
    mask = None if masked.mask is None else _at_row(masked.mask, flat, extent, row, column)
    return MaskedLoad(load, mask, masked.other)


def _at_row(e: Expr, flat: Var, row: int, number: Expr, column: Expr) -> Expr:
    """``e``, in which ``flat`` is divided by ``row``, at row ``number`` and at a ``column`` of it."""
    match e:
        case Binary(op=op, a=Var(name=name), b=Const(value=value)) if name == flat.name and value == row:
            if op in (BinaryOp.MOD, BinaryOp.FLOORDIV):
                return column if op is BinaryOp.MOD else number
    return rebuild(e, [_at_row(c, flat, row, number, column) for c in e.children]) if e.children else e
