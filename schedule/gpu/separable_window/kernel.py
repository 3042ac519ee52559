"""Writes the kernel of windows of planes. A block has tiles of ``tile_h`` rows of outputs. Its threads load columns of
the input, which neighbouring lanes find beside each other, and reduce them along the height. Windows of what that
gives, in shared memory, are reduced along the width::

    for each column k of the tile:   x_regs[r] = X[plane, y0 + r, x0 + k]         # all rows, those of padding too
                                     x_lines[q/lanes, k, q%lanes] = max(x_regs[q], ..., x_regs[q + 6])
    barrier
    for each line, for some columns: near[k] = x_lines[line, x*tile_w + k, :]
                                     result[line, x*tile_w + p, :] = max(near[p], ..., near[p + 6])
    barrier
    for each line and column:        Y[plane, y0 + q, x0 + p] = epilogue(result[q/lanes, p, q%lanes])

Elements of rows below each other share a word of shared memory. Lanes that reduce along the width have lines of their
own, whose pitch is odd, so that they find them in different banks.

Where tiles have whole rows, what a block stores is contiguous, so that it may be stored in aligned vectors: the results
are then in shared memory as they are stored. Columns of the padding are not loaded.

What a tile reads of a plane is contiguous there as well, so that one bulk copy may bring it to shared memory, where
threads load columns from. Once all of them are reduced, results take its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ....core.dtypes import INDEX, DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import BinaryOp, Expr, Load, Select, Var, const, index, maximum, minimum
from ....ir.gpu.bulk_copy import BulkCopy
from ....ir.gpu.mbarrier import MbarrierInit, MbarrierWait
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.functions import cast
from ....te.region import Region
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.separable_window import SeparableWindow
from ...problems.window_steps import WindowSteps, steps_along
from ...space.columns import Size
from ...tile.accumulation import register_dtype
from ...tile.delinearize import axis_indices, delinearize
from ...tile.masked_loads import MaskedLoad, conjuncts
from ...tile.names import FreshNameWriter
from ...tile.register_loads import RegisterLoad, allocate_registers, bounded, load_registers, without_kept_conditions
from ...tile.stage_body import scalar_at
from ..window_parts import Values, reduce_parts, store_output

WORD_BYTES = 4
"""Bytes of a bank of shared memory."""
BULK_BYTES = 16
"""What the size and the addresses of a bulk copy are multiples of."""


@dataclass(frozen=True, slots=True)
class SeparableWindowSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_h``, ``tile_w``, ``row_tiles`` and ``threads`` are knobs. ``store_width``: outputs that
    a thread stores at once. ``tiles_h``, ``tiles_w``: the tiles of a plane. ``tile_columns``: columns of a tile.
    ``rows``, ``positions``: rows and columns of the input that the windows of a tile span. ``margin``: how many of
    these columns lie in the padding, at the left. ``loaded``: how many columns that follow are loaded. ``lines``: lines
    of words that a block has of its tiles. ``near``: positions that a thread reads for its ``tile_w`` outputs.
    ``row_lanes``: neighbouring lanes that store a row. ``staged``: elements of the input that are copied for a tile, 0
    where threads load from global memory. ``blocks``: thread blocks. ``shared_bytes``: shared memory of a block.
    ``registers``: estimated registers of a thread. ``resident``: how many blocks a multiprocessor runs at once, by that
    estimate.
    """

    tile_h: Size
    tile_w: Size
    row_tiles: Size
    threads: Size
    store_width: Size
    tiles_h: Size
    tiles_w: Size
    tile_columns: Size
    rows: Size
    positions: Size
    margin: Size
    loaded: Size
    lines: Size
    near: Size
    row_lanes: Size
    staged: Size
    blocks: Size
    shared_bytes: Size
    registers: Size
    resident: Size


def accumulator_dtype(problem: SeparableWindow) -> DType:
    """Return the dtype in which windows are reduced."""
    return register_dtype(problem.reduction.tensor.dtype)


def line_dtype(problem: SeparableWindow) -> DType:
    """Return the dtype of what is reduced along the height: that of the result, where no step rounds."""
    exact = problem.combine in (BinaryOp.MIN, BinaryOp.MAX)
    return problem.reduction.tensor.dtype if exact else accumulator_dtype(problem)


def column_dtype(problem: SeparableWindow) -> DType:
    """Return the dtype in which columns are reduced."""
    return line_dtype(problem) if columns_at_once(problem) > 1 else accumulator_dtype(problem)


def columns_at_once(problem: SeparableWindow) -> int:
    """Return how many columns a thread reduces at once: two where an instruction takes two elements of 16 bits."""
    dtype = line_dtype(problem)
    return 2 if dtype.is_float and dtype.bits == 16 else 1


def word_lanes(problem: SeparableWindow) -> int:
    """Return how many elements of rows below each other share a word of shared memory."""
    return max(1, WORD_BYTES // line_dtype(problem).bytes)


def loaded_columns(problem: SeparableWindow, positions: int) -> range:
    """Return the columns of the input that are loaded, of those that the windows of whole rows span: all but those that
    lie in the padding. They are as many as threads reduce at once, or a multiple."""

    sliding, axes = problem.sliding_loads, (*problem.reduction.axes, *problem.reduction.reduce_axes)
    at = problem.width.at(index(0), Var(_POSITION))
    box = {a.name: (0, a.extent - 1) for a in axes}

    def is_inside(position: int) -> bool:
        region = Region({**box, _POSITION: (position, position)})
        masks = ([scalar_at(term, at) for term in conjuncts(m.mask)] for m in sliding)
        return any(not any(region.where(term, True).is_empty for term in terms) for terms in masks)

    inside = [p for p in range(positions) if is_inside(p)] or [0]
    at_once = columns_at_once(problem)
    count = -(-(inside[-1] + 1 - inside[0]) // at_once) * at_once
    first = min(inside[0], positions - count)
    return range(first, first + count)


def separable_window_kernel(problem: SeparableWindow, sizes: SeparableWindowSizes) -> Kernel:
    """Return the kernel of one setting."""
    return _SeparableWindowKernelWriter(problem, sizes).kernel()


class _SeparableWindowKernelWriter:
    def __init__(self, problem: SeparableWindow, sizes: SeparableWindowSizes) -> None:
        self.problem = problem
        self.sizes = sizes
        self.w = FreshNameWriter(problem.names)
        self.lanes = word_lanes(problem)
        self.tile_axes = (*problem.plane_axes, Axis(problem.height.axis.name, sizes.tiles_h))

    def kernel(self) -> Kernel:
        problem, w, s = self.problem, self.w, self.sizes
        bounds = [("block", s.blocks, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        name = problem.reduction.name
        with w.launch(KERNEL_NAME, bounds, min_blocks=s.resident) as (block, thread):
            tile, first = block // s.tiles_w * s.row_tiles, block % s.tiles_w * s.tile_columns
            lines = self._allocate_lines(f"{name}_lines", s.positions, line_dtype(problem))
            results = self._allocate_results()
            arrived = self._copy_tiles(tile, thread, results) if s.staged else None
            self._fill_margins(tile, thread, lines)
            if arrived is not None:
                w.emit(MbarrierWait(arrived, index(0), index(0)))
            self._reduce_columns(tile, first, thread, lines, results)
            w.barrier()
            self._reduce_lines(thread, lines, results)
            w.barrier()
            if s.store_width > 1:
                self._store_vectors(tile, thread, results)
            else:
                self._store_outputs(tile, first, thread, results)
        return kernel_of(problem.workload, w.finish())

    def _allocate_lines(self, name: str, columns: int, dtype: DType) -> Buffer:
        """Allocate shared memory for [line, column, lane], with an odd number of columns."""
        shape = (self.sizes.lines, columns | 1, self.lanes)
        return self.w.allocate(name, shape, dtype, MemoryScope.SHARED)

    def _allocate_results(self) -> Buffer:
        """Allocate shared memory for results: [line, column, lane], or [element] as they are stored, where copied tiles
        are before them."""
        problem, s, name = self.problem, self.sizes, f"{self.problem.reduction.name}_tile"
        if s.store_width == 1:
            return self._allocate_lines(name, s.tile_columns, line_dtype(problem))
        shape = (s.row_tiles * max(s.staged, s.tile_h * problem.width.axis.extent),)
        return self.w.allocate(name, shape, line_dtype(problem), MemoryScope.SHARED)

    def _copy_tiles(self, tile: Expr, thread: Expr, staged: Buffer) -> Buffer:
        """Start to copy what the block's tiles read, each tile by a thread. Return the mbarrier at which it arrives."""
        w, s, (masked,) = self.w, self.sizes, self.problem.sliding_loads
        arrived = w.allocate("arrived", (1,), INDEX, MemoryScope.SHARED)
        with w.when(thread < 1):
            w.emit(MbarrierInit(arrived, index(0), s.row_tiles))
        w.barrier()
        source = masked.load.buffer
        with w.when(thread < s.row_tiles):
            begin = delinearize(self._staged_begin(self._point_of(tile + thread)), source.shape)
            w.emit(BulkCopy(staged, (thread * s.staged,), source, begin, s.staged, arrived, index(0)))
        return arrived

    def _staged_begin(self, at: Mapping[str, Expr]) -> Expr:
        """Return which element of the input is the first one that is copied for the tile at ``at``: an aligned one, no
        later than what the tile loads first, and as much earlier as lets the copy lie inside the input."""
        (masked,) = self.problem.sliding_loads
        chunk = BULK_BYTES // masked.load.dtype.bytes
        first = self._place(masked, at, index(0), index(self.sizes.margin))
        last = masked.load.buffer.elements - self.sizes.staged
        return minimum(maximum(first, index(0)) // chunk, index(last // chunk)) * chunk

    def _place(self, masked: MaskedLoad, at: Mapping[str, Expr], row: Expr, column: Expr) -> Expr:
        """Return the number of the element of the input that the tile at ``at`` has at a ``row`` and a ``column``."""
        problem, load = self.problem, masked.load
        height, width = problem.height.at(at[problem.height.axis.name], row), problem.width.at(index(0), column)
        place = sum((i * n for i, n in zip(load.indices, load.buffer.strides, strict=True)), start=index(0))
        return scalar_at(place, {**at, **height, **width})

    def _allocate_word(self, dtype: DType) -> Buffer:
        """Allocate registers for what a word of shared memory has."""
        name = f"{self.problem.reduction.name}_word"
        return self.w.allocate(name, (self.lanes,), dtype, MemoryScope.REGISTER)

    def _point_of(self, tile: Expr) -> dict[str, Expr]:
        """Return the axes at the first row of a tile, but for that of the width."""
        at = {**axis_indices(tile, self.tile_axes), **self.problem.unit_axes}
        row = self.problem.height.axis.name
        return {**at, row: at[row] * self.sizes.tile_h}

    def _reduced(self, steps: WindowSteps, name: str, values: Buffer) -> Values:
        """Reduce windows of ``values``, [position, lane]. Return a function from the number of a window and a lane to
        its value."""
        lanes, dtype = values.shape[1], values.dtype

        def position(place: int, v: Expr) -> Expr:
            return Load(values, (index(place), v))

        return reduce_parts(self.w, steps, self.problem.combine, position, name=name, dtype=dtype, lanes=lanes)

    # --- along the height

    def _fill_margins(self, tile: Expr, thread: Expr, lines: Buffer) -> None:
        """Write what columns are reduced to that lie in the padding."""
        problem, w, s, lanes = self.problem, self.w, self.sizes, self.lanes
        margin, per_tile, dtype = s.positions - s.loaded, s.tile_h // self.lanes, column_dtype(problem)
        if margin == 0:
            return
        others: dict[MaskedLoad, Expr] = {m: m.other or const(0, m.load.dtype) for m in problem.sliding_loads}
        steps, at_once = steps_along(problem.height, 1, problem.combine), columns_at_once(problem)
        with w.shared_out("n", s.row_tiles * margin, s.threads, thread, LoopKind.UNROLLED) as item:
            y, place = item // margin, item % margin
            position = Select(place < s.margin, place, place + s.loaded) if s.margin else place + s.loaded
            name, shape = f"{problem.reduction.name}_terms", (problem.height.positions(1), at_once)
            terms = w.allocate(name, shape, dtype, MemoryScope.REGISTER)
            term = problem.term(others, self._point_of(tile + y), dtype)
            for r, n in product(range(problem.height.positions(1)), range(at_once)):
                w.store(terms, (index(r), index(n)), term)
            value = self._reduced(steps, f"{problem.reduction.name}_margin", terms)(0, index(0))
            word = self._allocate_word(lines.dtype)
            for v in range(lanes):
                w.store(word, (index(v),), cast(value, word.dtype))
            for line in range(per_tile):
                with w.vectorized("v", self.lanes) as lane:
                    w.store(lines, (y * per_tile + line, position, lane), Load(word, (lane,)))

    def _reduce_columns(self, tile: Expr, first: Expr, thread: Expr, lines: Buffer, staged: Buffer) -> None:
        """Reduce all columns of the block's tiles along the height. Where tiles are copied, ``staged`` has them."""
        problem, w, s = self.problem, self.w, self.sizes
        name, steps = problem.reduction.name, steps_along(problem.height, s.tile_h, problem.combine)
        at_once = columns_at_once(problem)
        apart, per_tile = s.loaded // at_once, s.tile_h // self.lanes
        with w.shared_out("n", s.row_tiles * apart, s.threads, thread, LoopKind.UNROLLED) as item:
            y, positions = item // apart, [item % apart + (s.margin + n * apart) for n in range(at_once)]
            at = self._point_of(tile + y)
            begin = y * s.staged - self._staged_begin(at) if s.staged else None
            terms = self._load_columns(at, first, positions, None if begin is None else (staged, begin))
            reduced = self._reduced(steps, f"{name}_column", terms)
            for line in range(per_tile):
                for n, position in enumerate(positions):
                    word = self._allocate_word(lines.dtype)
                    for v in range(self.lanes):
                        value = reduced(line * self.lanes + v, index(n))
                        w.store(word, (index(v),), cast(value, word.dtype))
                    with w.vectorized("v", self.lanes) as lane:
                        w.store(lines, (y * per_tile + line, position, lane), Load(word, (lane,)))

    def _load_columns(
        self, at: Mapping[str, Expr], first: Expr, positions: Sequence[Expr], staged: tuple[Buffer, Expr] | None
    ) -> Buffer:
        """Load columns of a tile. Return what of them is reduced, in registers: [row, column]. ``staged``: where the
        input is in shared memory, as (buffer, what is added to the number of an element), if it is."""
        problem, w, s, dtype = self.problem, self.w, self.sizes, column_dtype(self.problem)
        registers: dict[MaskedLoad, RegisterLoad] = {}
        for masked in problem.sliding_loads:
            column = allocate_registers(w, masked, (s.rows, len(positions)), "", 1)
            registers[masked] = RegisterLoad(masked, column.buffer, vector=False)
        row, anywhere = problem.height.axis.name, self._anywhere()
        for n, position in enumerate(positions):
            for r in range(s.rows):
                here, any_row = (
                    {**point, **problem.height.at(point[row], index(r)), **problem.width.at(x, k)}
                    for point, x, k in ((at, first, position), anywhere)
                )
                for masked, register in registers.items():
                    load = self._needed(masked, any_row)
                    if staged is not None:
                        place = self._place(masked, at, index(r), position) + staged[1]
                        load = replace(load, load=Load(staged[0], (place,)))
                    needed = RegisterLoad(load, register.buffer, vector=False)
                    load_registers(w, needed, (index(r), index(n)), here, "", 1)
        name, shape = f"{problem.reduction.name}_terms", (s.rows, len(positions))
        terms = w.allocate(name, shape, dtype, MemoryScope.REGISTER)
        for r in range(s.rows):
            with w.vectorized("v", len(positions)) as v:
                loaded: dict[MaskedLoad, Expr] = {m: Load(b.buffer, (index(r), v)) for m, b in registers.items()}
                w.store(terms, (index(r), v), problem.term(loaded, at, dtype))
        return terms

    def _anywhere(self) -> tuple[dict[str, Expr], Expr, Expr]:
        """Return the point, the first column and the position of any column of any tile."""
        problem, s = self.problem, self.sizes
        at = self._point_of(index(0)) | {a.name: Var(a.name) for a in problem.plane_axes}
        at[problem.height.axis.name] = Var(problem.height.axis.name) * s.tile_h
        return at, Var(_TILE) * s.tile_columns, Var(_POSITION)

    def _needed(self, masked: MaskedLoad, anywhere: Mapping[str, Expr]) -> MaskedLoad:
        """Return ``masked`` with a mask also for what only outputs beyond the last ones read, and without conditions
        that hold at every point that ``anywhere`` stands for."""
        problem, s = self.problem, self.sizes
        moving = {a.name for a in (problem.height.axis, problem.width.axis, *problem.reduction.reduce_axes)}
        axes = [*self.tile_axes, Axis(_TILE, s.tiles_w), Axis(_POSITION, s.positions)]
        return without_kept_conditions(bounded(masked, moving), anywhere, axes)

    # --- along the width

    def _reduce_lines(self, thread: Expr, lines: Buffer, results: Buffer) -> None:
        """Reduce the windows of all lines along the width."""
        problem, w, s, name = self.problem, self.w, self.sizes, self.problem.reduction.name
        steps = steps_along(problem.width, s.tile_w, problem.combine)
        with w.shared_out("n", s.lines * (s.tile_columns // s.tile_w), s.threads, thread, LoopKind.UNROLLED) as item:
            line, x = item % s.lines, item // s.lines
            shape = (s.near, self.lanes)
            near = w.allocate(f"{name}_near", shape, lines.dtype, MemoryScope.REGISTER)
            for k in range(s.near):
                with w.vectorized("v", self.lanes) as v:
                    w.store(near, (index(k), v), Load(lines, (line, x * (s.tile_w * problem.width.stride) + k, v)))
            reduced = self._reduced(steps, f"{name}_line", near)
            for p in range(s.tile_w):
                if s.store_width > 1:
                    self._store_results(line, x, p, reduced, results)
                    continue
                with w.vectorized("v", self.lanes) as v:
                    w.store(results, (line, x * s.tile_w + p, v), reduced(p, v))

    def _store_results(self, line: Expr, x: Expr, p: int, reduced: Values, results: Buffer) -> None:
        """Put output ``p`` of a thread, in all rows of a line, where it is stored from."""
        s, extent = self.sizes, self.problem.width.axis.extent
        column = x * s.tile_w + p
        with self.w.when(column < extent if s.tile_columns - s.tile_w + p >= extent else None):
            for v in range(self.lanes):
                self.w.store(results, ((line * self.lanes + v) * extent + column,), reduced(p, index(v)))

    # --- outputs

    def _store_vectors(self, tile: Expr, thread: Expr, results: Buffer) -> None:
        """Store the outputs of the block's tiles, which have whole rows of them, by vectors of neighbours."""
        problem, w, s = self.problem, self.w, self.sizes
        elements = s.tile_h * problem.width.axis.extent
        with w.shared_out("n", s.row_tiles * elements // s.store_width, s.threads, thread, LoopKind.UNROLLED) as item:
            with w.vectorized("v", s.store_width) as v:
                here = axis_indices(tile * elements + item * s.store_width + v, problem.reduction.axes)
                store_output(w, problem, problem.outputs[0], here, Load(results, (item * s.store_width + v,)))

    def _store_outputs(self, tile: Expr, first: Expr, thread: Expr, results: Buffer) -> None:
        """Store all outputs of the block's tiles, rows by neighbouring lanes."""
        problem, w, s = self.problem, self.w, self.sizes
        row, column = problem.height.axis, problem.width.axis
        lines_at_once, per_tile = s.threads // s.row_lanes, s.tile_h // self.lanes
        x, y = thread % s.row_lanes, thread // s.row_lanes
        with w.unrolled("n", -(-s.lines // lines_at_once)) as n:
            line = n * lines_at_once + y
            at = self._point_of(tile + line // per_tile)
            with w.when(line < s.lines if s.lines % lines_at_once else None):
                for p in range(-(-s.tile_columns // s.row_lanes)):
                    place = x + p * s.row_lanes
                    here = {**at, column.name: first + place}
                    inside = [place < s.tile_columns] if (p + 1) * s.row_lanes > s.tile_columns else []
                    inside += [here[column.name] < column.extent] if s.tiles_w * s.tile_columns > column.extent else []
                    with w.when(*inside):
                        word = self._allocate_word(results.dtype)
                        with w.vectorized("v", self.lanes) as v:
                            w.store(word, (v,), Load(results, (line, place, v)))
                        for below in range(self.lanes):
                            here[row.name] = at[row.name] + (line % per_tile * self.lanes + below)
                            with w.when(here[row.name] < row.extent if row.extent % s.tile_h else None):
                                for stage in problem.outputs:
                                    store_output(w, problem, stage, here, Load(word, (index(below),)))


_TILE, _POSITION = "tile#", "position#"
"""The variables of a column anywhere; no variable of a kernel has these names."""
