"""Writes the kernel of windows of planes whose points have weights. A block has tiles of planes. It loads each position
that their windows see once, into rows of shared memory that have the padding, too. A thread computes a strip of
``tile_h`` rows of ``tile_w`` neighbouring outputs::

    for each vector of the block's tiles:    x_tile[y, line, c:c+n] = X[plane, y0 + line, x0 + c:c+n]
    w_regs = W[plane, …]                                        # the filter, the same for all outputs of a plane
    barrier
    for each row of the input that the strip sees:
        x_near[:] = x_tile[y, own_y*stride + row, own_x*stride:…]                    # in aligned vectors
        for each row q of the strip that sees it, for s in unrolled(window), for p in unrolled(tile_w):
            acc[q, p] += x_near[p*stride + s*dilation] * w_regs[r, s]
        Y[plane, y0 + q, x0 + p] = epilogue(acc[q, p])          # of the row q that is complete

Where rows of outputs are not made of aligned vectors, outputs go through shared memory, so that neighbouring lanes
store neighbouring elements.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Binary, Cast, Expr, Load, Var, index, logical_and, minimum
from ....ir.rewrite import free_variables
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME
from ...problems.plane_window import PlaneWindow
from ...space.columns import Size
from ...tile.accumulation import register_dtype
from ...tile.delinearize import axis_indices, delinearize
from ...tile.load_analysis import always_holds, flat_offset
from ...tile.masked_loads import MaskedLoad, conjuncts, replace_masked_loads
from ...tile.names import NameSupply
from ...tile.pieces import lanes_of_piece
from ...tile.register_loads import RegisterLoad, allocate_registers, load_registers
from ...tile.stage_body import scalar_at

VECTOR_BYTES = 16
"""Bytes of the widest access of the hardware."""

_ROW_TILE, _COLUMN_TILE, _LINE, _COLUMN = "row_tile#", "column_tile#", "line#", "column#"
"""The variables of a position of any tile; no variable of a kernel has these names."""


@dataclass(frozen=True, slots=True)
class PlaneWindowSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_w``, ``tile_h`` and ``row_tiles`` are knobs. ``tiles_w``, ``tiles_h``: the tiles of a plane. ``strips_w``,
    ``strips_h``: the strips of a tile. ``threads``: threads of a block, one for each strip and perhaps idle ones.
    ``rows``: rows of the input that the windows of a tile span. ``load_width``: how many positions are loaded at once.
    ``lead``: how many positions of a row in shared memory lie before the first one that a window sees, so that these
    loads are aligned. ``pitch``: positions of such a row. ``loads``: vectors that a thread loads. ``near_width``: how
    many positions are read from shared memory at once. ``near``: positions that a thread reads of a row. ``staged``:
    whether outputs go through shared memory. ``blocks``: thread blocks. ``shared_bytes``: shared memory of a block.
    ``registers``: estimated registers of a thread. ``resident``: how many blocks a multiprocessor runs at once, by that
    estimate.
    """

    tile_w: Size
    tile_h: Size
    row_tiles: Size
    tiles_w: Size
    tiles_h: Size
    strips_w: Size
    strips_h: Size
    threads: Size
    rows: Size
    load_width: Size
    lead: Size
    pitch: Size
    loads: Size
    near_width: Size
    near: Size
    staged: Size
    blocks: Size
    shared_bytes: Size
    registers: Size
    resident: Size

    @property
    def tile_columns(self) -> Size:
        """Columns of outputs of a tile."""
        return self.strips_w * self.tile_w

    @property
    def tile_rows(self) -> Size:
        """Rows of outputs of a tile."""
        return self.strips_h * self.tile_h

    @property
    def strips(self) -> Size:
        """Strips of a block."""
        return self.row_tiles * self.strips_h * self.strips_w


def accumulator_dtype(problem: PlaneWindow) -> DType:
    """Return the dtype in which windows are reduced."""
    return register_dtype(problem.reduction.tensor.dtype)


def aligned_vectors(problem: PlaneWindow, tile_columns: int) -> tuple[int, int]:
    """Return how many positions of a row may be loaded at once, and how many positions ahead of the first one the
    vectors begin, where tiles have so many columns of outputs."""
    offset = flat_offset(problem.sliding_loads[0].load)
    assert offset is not None  # see ``plane_window_of``
    width = VECTOR_BYTES // min(m.load.dtype.bytes for m in problem.sliding_loads)
    while width > 1:
        lead = int(offset.constant) % width
        loads = (position_load(problem, m, tile_columns, lead) for m in problem.sliding_loads)
        if all(lanes_of_piece(m, _COLUMN, width) == width for m in loads):
            return width, lead
        width //= 2
    return 1, 0


def position_load(
    problem: PlaneWindow, masked: MaskedLoad, tile_columns: int, lead: int, tile_rows: int = 1
) -> MaskedLoad:
    """Return what loads a position of a tile: at column ``_COLUMN`` of row ``_LINE`` of shared memory. Its mask has
    also what only outputs beyond the last ones see."""
    at: dict[str, Expr] = {a.name: index(0) for a in problem.reduction.reduce_axes if a.extent == 1}
    at |= problem.width.at(Var(_COLUMN_TILE) * tile_columns, Var(_COLUMN) - lead)
    moving = [problem.width]
    if problem.height is not None:
        at |= problem.height.at(Var(_ROW_TILE) * tile_rows, Var(_LINE))
        moving.append(problem.height)
    names = {a.name for w in moving for a in (w.axis, w.window) if a is not None}
    terms = conjuncts(masked.mask)
    for i, extent in zip(masked.load.indices, masked.load.buffer.shape, strict=True):
        if free_variables(i) & names:
            terms.extend((i >= 0, i < extent))
    load = Load(masked.load.buffer, tuple(scalar_at(i, at) for i in masked.load.indices))
    return MaskedLoad(load, logical_and(*dict.fromkeys(scalar_at(t, at) for t in terms)), masked.other)


def plane_window_kernel(problem: PlaneWindow, sizes: PlaneWindowSizes) -> Kernel:
    """Return the kernel of one setting."""
    return _PlaneWindowKernelWriter(problem, sizes).kernel()


class _PlaneWindowKernelWriter:
    def __init__(self, problem: PlaneWindow, sizes: PlaneWindowSizes) -> None:
        self.problem = problem
        self.sizes = sizes
        buffers = (*problem.workload.inputs, problem.reduction.tensor, *(s.tensor for s in problem.outputs))
        axes = (*problem.reduction.axes, *problem.reduction.reduce_axes)
        self.names = NameSupply({b.name for b in buffers} | {a.name for a in axes})
        self.w = Writer()
        self.tile_axes = (*problem.plane_axes, Axis(_ROW_TILE, sizes.tiles_h))
        self.fixed: dict[str, Expr] = {a.name: index(0) for a in problem.reduction.reduce_axes if a.extent == 1}

    def kernel(self) -> Kernel:
        problem, w, s = self.problem, self.w, self.sizes
        bounds = [
            (self.names.fresh("block"), s.blocks, HardwareAxis.GRID_X),
            (self.names.fresh("thread"), s.threads, HardwareAxis.THREAD),
        ]
        with w.launch(KERNEL_NAME, bounds, min_blocks=s.resident) as (block, thread):
            first_tile = block // s.tiles_w * s.row_tiles
            self.column_tile = block % s.tiles_w
            tiles = self._load_tiles(first_tile, thread)
            strip = minimum(thread, index(s.strips - 1)) if s.strips < s.threads else thread
            y, own_y, own_x = delinearize(strip, (s.row_tiles, s.strips_h, s.strips_w))
            at = self._point_of(first_tile + y)
            weights = self._load_fixed(at)
            w.barrier()
            results = self._allocate_results()
            self._compute(at, (y, own_y, own_x), tiles, weights, results, thread)
            if s.staged:
                w.barrier()
                self._store_results(first_tile, thread, results)
        outputs = tuple(dict.fromkeys(problem.workload.output_buffers))
        return Kernel(KERNEL_NAME, problem.workload.inputs, outputs, (), w.finish())

    def _point_of(self, tile: Expr) -> dict[str, Expr]:
        """Return the axes at the first output of a tile."""
        problem, s = self.problem, self.sizes
        at = {**self.fixed, **axis_indices(tile, self.tile_axes)}
        row_tile = at.pop(_ROW_TILE)
        if problem.height is not None:
            at[problem.height.axis.name] = row_tile * s.tile_rows
        return {**at, problem.width.axis.name: self.column_tile * s.tile_columns}

    def _unrolled(self, name: str, extent: int) -> AbstractContextManager[Var]:
        return self.w.loop(self.names.fresh(name), extent, LoopKind.UNROLLED)

    def _lanes(self, lanes: int) -> AbstractContextManager[Var]:
        return self.w.loop(self.names.fresh("v"), lanes, LoopKind.VECTORIZED)

    # --- loads

    def _load_tiles(self, first_tile: Expr, thread: Expr) -> dict[MaskedLoad, Buffer]:
        """Load all positions of the block's tiles into shared memory, [tile, row, column] for each sliding load."""
        problem, w, s = self.problem, self.w, self.sizes
        vectors = s.pitch // s.load_width
        items, registers = s.row_tiles * s.rows * vectors, {}
        for masked in problem.sliding_loads:
            needed = self._needed(position_load(problem, masked, s.tile_columns, s.lead, s.tile_rows))
            registers[masked] = allocate_registers(w, self.names, needed, (s.loads,), _COLUMN, s.load_width)

        def place(n: Expr) -> tuple[Expr, Expr, Expr, Expr | None]:
            item = n * s.threads + thread
            y, line, vector = delinearize(item, (s.row_tiles, s.rows, vectors))
            return y, line, vector * s.load_width, item < items if items % s.threads else None

        with self._unrolled("n", s.loads) as n:
            y, line, column, exists = place(n)
            here = {**self.fixed, **axis_indices(first_tile + y, self.tile_axes)}
            here |= {_COLUMN_TILE: self.column_tile, _LINE: line, _COLUMN: column}
            with w.when(exists):
                for register in registers.values():
                    load_registers(w, self.names, register, (n,), here, _COLUMN, s.load_width)
        tiles: dict[MaskedLoad, Buffer] = {}
        for masked in problem.sliding_loads:
            name, shape = f"{masked.load.buffer.name}_tile", (s.row_tiles, s.rows, s.pitch)
            tiles[masked] = w.allocate(self.names.fresh(name), shape, masked.load.dtype, MemoryScope.SHARED)
        with self._unrolled("n", s.loads) as n:
            y, line, column, exists = place(n)
            with w.when(exists):
                for masked, register in registers.items():
                    with self._lanes(s.load_width) as v:
                        w.store(tiles[masked], (y, line, column + v), register.value((n,), v))
        return tiles

    def _needed(self, masked: MaskedLoad) -> MaskedLoad:
        """``masked`` with only those of its conditions that fail at some position of some tile."""
        s = self.sizes
        axes = [*self.tile_axes, Axis(_COLUMN_TILE, s.tiles_w), Axis(_LINE, s.rows), Axis(_COLUMN, s.pitch)]
        terms = [t for t in conjuncts(masked.mask) if not always_holds(t, axes)]
        return MaskedLoad(masked.load, logical_and(*terms) if terms else None, masked.other)

    def _load_fixed(self, at: Mapping[str, Expr]) -> dict[MaskedLoad, tuple[RegisterLoad, tuple[Axis, ...]]]:
        """Load what is the same for all outputs of a plane, for every point of the window. Return it with the axes of
        the reduction that index it."""
        problem, w = self.problem, self.w
        fixed: dict[MaskedLoad, tuple[RegisterLoad, tuple[Axis, ...]]] = {}
        for masked in problem.fixed_loads:
            axes = problem.reduce_axes_of(masked)
            registers = allocate_registers(w, self.names, masked, [a.extent for a in axes], "", 1)
            fixed[masked] = (registers, axes)
            with ExitStack() as loops:
                indices = [loops.enter_context(self._unrolled(f"{a.name}_u", a.extent)) for a in axes]
                here = {**at, **{a.name: i for a, i in zip(axes, indices, strict=True)}}
                load_registers(w, self.names, registers, indices, here, "", 1)
        return fixed

    # --- arithmetic

    def _compute(
        self,
        at: Mapping[str, Expr],
        place: tuple[Expr, Expr, Expr],
        tiles: Mapping[MaskedLoad, Buffer],
        weights: Mapping[MaskedLoad, tuple[RegisterLoad, tuple[Axis, ...]]],
        results: Mapping[str, Buffer],
        thread: Expr,
    ) -> None:
        """Compute the thread's strip. ``at`` is the first output of its tile, and ``place`` is (tile, row, column) of
        the strip among those of the block."""
        problem, w, s = self.problem, self.w, self.sizes
        width, height = problem.width, problem.height
        y, own_y, own_x = place
        strip = {**at, width.axis.name: at[width.axis.name] + own_x * s.tile_w}
        if height is not None:
            strip[height.axis.name] = at[height.axis.name] + own_y * s.tile_h
        first_line = own_y * (s.tile_h * (height.stride if height is not None else 1))
        skipped = s.lead // s.near_width * s.near_width
        first_column = own_x * (s.tile_w * width.stride) + skipped
        acc = w.allocate(
            self.names.fresh(f"{problem.reduction.name}_acc"),
            (s.tile_h, s.tile_w),
            accumulator_dtype(problem),
            MemoryScope.REGISTER,
        )
        for line in range(height.positions(s.tile_h) if height is not None else 1):
            reading = self._consumers(line)
            if not reading:
                continue
            near: dict[MaskedLoad, Buffer] = {}
            for masked, tile in tiles.items():
                name = self.names.fresh(f"{masked.load.buffer.name}_near")
                near[masked] = w.allocate(name, (s.near,), tile.dtype, MemoryScope.REGISTER)
                for k in range(0, s.near, s.near_width):
                    with self._lanes(s.near_width) as v:
                        value = Load(tile, (y, first_line + line, first_column + k + v))
                        w.store(near[masked], (k + v,), value)
            for q, r in reading:
                row = dict(strip)
                if height is not None:
                    row[height.axis.name] = strip[height.axis.name] + q
                    assert height.window is not None
                    row[height.window.name] = index(r)
                self._accumulate(row, near, s.lead - skipped, weights, acc, q, begun=r > 0)
                if r == problem.window_height - 1:
                    self._finish_row(row, place, q, acc, results, thread)

    def _consumers(self, line: int) -> list[tuple[int, int]]:
        """The rows of a strip that row ``line`` of the input contributes to, each with the row of its window."""
        height = self.problem.height
        if height is None:
            return [(0, 0)]
        pairs = [(q, r) for q in range(self.sizes.tile_h) for r in range(height.window_points)]
        return [(q, r) for q, r in pairs if height.stride * q + height.dilation * r == line]

    def _accumulate(
        self,
        at: Mapping[str, Expr],
        near: Mapping[MaskedLoad, Buffer],
        first: int,
        weights: Mapping[MaskedLoad, tuple[RegisterLoad, tuple[Axis, ...]]],
        acc: Buffer,
        q: int,
        *,
        begun: bool,
    ) -> None:
        """Accumulate a row of the input into row ``q`` of ``acc``. The strip's first output sees ``near`` from
        ``first`` on."""
        problem, width = self.problem, self.problem.width
        for point in range(width.window_points):
            with self._unrolled("p", self.sizes.tile_w) as p:
                here = {**at, width.axis.name: at[width.axis.name] + p}
                if width.window is not None:
                    here[width.window.name] = index(point)
                position = p * width.stride + (first + point * width.dilation)
                values: dict[MaskedLoad, Expr] = {m: Load(buffer, (position,)) for m, buffer in near.items()}
                values |= {m: h.value([here[a.name] for a in axes], index(0)) for m, (h, axes) in weights.items()}
                term = scalar_at(replace_masked_loads(problem.reduction.body, values), here)
                wide = term if term.dtype == acc.dtype else Cast(term, acc.dtype)
                to = (index(q), p)
                sum_ = Binary(problem.combine, Load(acc, to), wide) if begun or point else wide
                self.w.store(acc, to, sum_)

    # --- outputs

    def _allocate_results(self) -> dict[str, Buffer]:
        """Allocate shared memory for outputs by name, where they go through it: those of all tiles, row by row."""
        s, found = self.sizes, {}
        shape = (s.row_tiles * s.tile_rows * self._columns,)
        for stage in self.problem.outputs if s.staged else ():
            name = self.names.fresh(f"{stage.name}_tile")
            found[stage.name] = self.w.allocate(name, shape, stage.tensor.dtype, MemoryScope.SHARED)
        return found

    @property
    def _columns(self) -> int:
        """Columns that a tile has outputs for."""
        return min(int(self.sizes.tile_columns), self.problem.width.axis.extent)

    def _finish_row(
        self,
        at: Mapping[str, Expr],
        place: tuple[Expr, Expr, Expr],
        q: int,
        acc: Buffer,
        results: Mapping[str, Buffer],
        thread: Expr,
    ) -> None:
        """Store row ``q`` of the strip: outputs to memory in vectors, or one by one to shared memory."""
        problem, w, s, column = self.problem, self.w, self.sizes, self.problem.width.axis
        y, own_y, own_x = place
        exists = [] if s.strips == s.threads else [thread < s.strips]
        if problem.height is not None and problem.height.axis.extent % s.tile_rows:
            exists.append(at[problem.height.axis.name] < problem.height.axis.extent)
        for stage in problem.outputs:
            width = 1 if s.staged else store_width(problem, stage.tensor.dtype, int(s.tile_w))
            for p in range(0, s.tile_w, width):
                inside = list(exists)
                if s.tiles_w * s.tile_columns > column.extent:
                    inside.append(at[column.name] + p < column.extent)
                with w.when(logical_and(*inside) if inside else None), self._lanes(width) as v:
                    here = {**at, column.name: at[column.name] + p + v}
                    value = Load(acc, (index(q), p + v))

                    def loaded(load: Load, value: Load = value) -> Expr:
                        if load.buffer.name != problem.reduction.name:
                            return load
                        return value if value.dtype == load.dtype else Cast(value, load.dtype)

                    found = scalar_at(stage.body, here, loaded)
                    if s.staged:
                        row = y * s.tile_rows + (own_y * s.tile_h + q)
                        w.store(results[stage.name], (row * self._columns + (own_x * s.tile_w + p + v),), found)
                    else:
                        w.store(stage.tensor, tuple(here[a.name] for a in problem.reduction.axes), found)

    def _store_results(self, first_tile: Expr, thread: Expr, results: Mapping[str, Buffer]) -> None:
        """Store outputs from shared memory: neighbouring lanes neighbours, by vectors where those of the block are
        contiguous and aligned."""
        problem, w, s = self.problem, self.w, self.sizes
        column, height = problem.width.axis, problem.output_height
        elements = s.row_tiles * s.tile_rows * self._columns
        contiguous = s.tiles_w == 1 and height % s.tile_rows == 0
        for stage in problem.outputs:
            width = VECTOR_BYTES // stage.tensor.dtype.bytes if contiguous else 1
            while elements % width:
                width //= 2
            items = elements // width
            with self._unrolled("n", -(-items // s.threads)) as n:
                item = n * s.threads + thread
                exists = [item < items] if items % s.threads else []
                if contiguous:
                    with w.when(logical_and(*exists) if exists else None), self._lanes(width) as v:
                        flat = first_tile * (s.tile_rows * self._columns) + item * width + v
                        to = tuple(axis_indices(flat, problem.reduction.axes).values())
                        w.store(stage.tensor, to, Load(results[stage.name], (item * width + v,)))
                    continue
                y, line, place = delinearize(item, (s.row_tiles, s.tile_rows, self._columns))
                at = self._point_of(first_tile + y)
                at[column.name] = at[column.name] + place
                exists += [at[column.name] < column.extent] if s.tiles_w * self._columns > column.extent else []
                if problem.height is not None:
                    row = problem.height.axis.name
                    at[row] = at[row] + line
                    exists += [at[row] < height] if height % s.tile_rows else []
                with w.when(logical_and(*exists) if exists else None):
                    to = tuple(at[a.name] for a in problem.reduction.axes)
                    w.store(stage.tensor, to, Load(results[stage.name], (item,)))


def store_width(problem: PlaneWindow, dtype: DType, tile_w: int) -> int:
    """Return how many of the ``tile_w`` neighbouring outputs of a thread are stored at once, where they do not go
    through shared memory: aligned ones that are all inside or outside."""
    width = VECTOR_BYTES // dtype.bytes
    while tile_w % width or problem.width.axis.extent % width:
        width //= 2
    return width
