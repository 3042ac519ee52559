"""Writes the frame of the kernels of windows of planes whose points have weights. A block has tiles of planes. It loads
each position that their windows see once, into rows of shared memory that have the padding, too::

    for each vector of the block's tiles:    x_tile[y, line, c:c+n] = X[plane, y0 + line, x0 + c:c+n]
    load the filters
    barrier
    compute strips of tile_h rows of tile_w neighbouring outputs from x_tile           # ``multiply_add``, ``toeplitz``

Where windows see several planes, the rows of a tile are those of all planes that its ``tile_d`` planes of outputs see.

Where rows of outputs are not made of aligned vectors, outputs go through shared memory, so that neighbouring lanes
store neighbouring elements.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, Var, conjunction, index
from ....ir.stmt import Kernel
from ....te.workload import Axis, Stage
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.plane_window import PlaneWindow
from ...space.columns import Size
from ...tile.accumulation import register_dtype
from ...tile.delinearize import axis_indices, delinearize
from ...tile.load_analysis import flat_offset
from ...tile.masked_loads import MaskedLoad, conjuncts
from ...tile.names import FreshNameWriter
from ...tile.pieces import are_together
from ...tile.register_loads import RegisterLoad, allocate_registers, bounded, load_registers, without_kept_conditions
from ...tile.stage_body import scalar_at
from ..launch_axes import warp_axes
from ..window_parts import store_output

VECTOR_BYTES = 16
"""Bytes of the widest access of the hardware."""

_PLANE_TILE, _ROW_TILE, _COLUMN_TILE = "plane_tile#", "row_tile#", "column_tile#"
_PLANE, _LINE, _COLUMN = "plane#", "line#", "column#"
"""The variables of a position of any tile; no variable of a kernel has these names."""


@dataclass(frozen=True, slots=True)
class PlaneWindowSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_w``, ``tile_h``, ``tile_d``, ``row_tiles``, ``mma`` and ``shared_filter`` are knobs. ``tiles_w``,
    ``tiles_h``: the tiles of a plane. ``strips_w``, ``strips_h``: the strips of each of the ``tile_d`` planes of
    outputs of a tile. ``threads``: threads of a block, one for each strip
    and perhaps idle ones; with ``mma`` a warp for each sixteen strips of a tile, or with ``shared_filter`` of all tiles
    of a block. ``k_steps``: how many matrix instructions an output takes for each row of its window, 0 without them.
    ``looped``: whether the rows of a filter are loaded one after the other.
    ``plane_rows``: rows of a plane of the input that the windows of a tile span. ``rows``: those of all planes that
    they span. ``load_width``: how many positions are loaded at once.
    ``lead``: how many positions of a row in shared memory lie before the first one that a window sees, so that these
    loads are aligned. ``pitch``: positions of such a row. ``loads``: vectors that a thread loads. ``near_width``: how
    many positions are read from shared memory at once. ``near``: positions that a thread reads of a row. ``staged``:
    whether outputs go through shared memory. ``blocks``: thread blocks. ``shared_bytes``: shared memory of a block.
    ``registers``: estimated registers of a thread. ``resident``: how many blocks a multiprocessor runs at once, by that
    estimate.
    """

    tile_w: Size
    tile_h: Size
    tile_d: Size
    row_tiles: Size
    mma: Size
    shared_filter: Size
    tiles_w: Size
    tiles_h: Size
    strips_w: Size
    strips_h: Size
    threads: Size
    k_steps: Size
    looped: Size
    plane_rows: Size
    rows: Size
    load_width: Size
    lead: Size
    pitch: Size
    load_lines: Size
    load_planes: Size
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
        """Rows of outputs of a plane of a tile."""
        return self.strips_h * self.tile_h

    @property
    def planes(self) -> Size:
        """Planes of the input that a tile sees."""
        return self.rows // self.plane_rows

    @property
    def tile_strips(self) -> Size:
        """Strips of a tile."""
        return self.tile_d * self.strips_h * self.strips_w

    @property
    def strips(self) -> Size:
        """Strips of a block."""
        return self.row_tiles * self.tile_strips


def accumulator_dtype(problem: PlaneWindow) -> DType:
    """Return the dtype in which windows are reduced; the widest, where there are several."""
    return max((register_dtype(r.tensor.dtype) for r in problem.reductions), key=lambda dtype: dtype.bits)


def aligned_vectors(problem: PlaneWindow, tile_columns: int, most_lead: int = VECTOR_BYTES) -> tuple[int, int]:
    """Return how many positions of a row may be loaded at once, and how many positions ahead of the first one the
    vectors begin, ``most_lead`` at most, where tiles have so many columns of outputs."""
    offset = flat_offset(problem.sliding_loads[0].load)
    assert offset is not None  # see ``plane_window_of``
    width = VECTOR_BYTES // min(m.load.dtype.bytes for m in problem.sliding_loads)
    while width > 1:
        lead = int(offset.constant) % width
        loads = (position_load(problem, m, tile_columns, lead) for m in problem.sliding_loads)
        if lead <= most_lead and all(are_together(m, _COLUMN, width, aligned=True) for m in loads):
            return width, lead
        width //= 2
    return 1, 0


def position_load(
    problem: PlaneWindow, masked: MaskedLoad, tile_columns: int, lead: int, tile_rows: int = 1, tile_d: int = 1
) -> MaskedLoad:
    """Return what loads a position of a tile: at column ``_COLUMN`` of row ``_LINE`` of plane ``_PLANE`` of shared
    memory. Its mask has also what only outputs beyond the last ones see."""
    at = {
        **problem.unit_axes,
        **problem.width.at(Var(_COLUMN_TILE) * tile_columns, Var(_COLUMN) - lead),
        **problem.height.at(Var(_ROW_TILE) * tile_rows, Var(_LINE)),
        **problem.depth.at(Var(_PLANE_TILE) * tile_d, Var(_PLANE)),
    }
    mask = bounded(masked, {name for w in problem.moving for name in w.names}).mask

    def there(load: Load) -> Load:
        return replace(load, indices=tuple(scalar_at(i, at) for i in load.indices))

    other = there(masked.other) if isinstance(masked.other, Load) else masked.other
    terms = dict.fromkeys(scalar_at(t, at) for t in conjuncts(mask))
    return MaskedLoad(there(masked.load), conjunction(*terms), other)


class PlaneWindowWriter(ABC):
    """Writes the launch of one setting. A subclass says what threads compute."""

    def __init__(self, problem: PlaneWindow, sizes: PlaneWindowSizes) -> None:
        self.problem = problem
        self.sizes = sizes
        self.w = FreshNameWriter(problem.names)
        planes = problem.plane_axes
        if sizes.shared_filter:
            planes = (*problem.filter_axes, *(a for a in planes if a not in problem.filter_axes))
        tiles_d = problem.depth.axis.extent // sizes.tile_d
        self.tile_axes = (*planes, Axis(_PLANE_TILE, tiles_d), Axis(_ROW_TILE, sizes.tiles_h))

    def kernel(self) -> Kernel:
        """Return the kernel."""
        problem, w, s = self.problem, self.w, self.sizes
        bounds = warp_axes(s.blocks, s.threads // WARP_LANES)
        with w.launch(KERNEL_NAME, bounds, min_blocks=s.resident) as (block, warp, lane):
            thread = warp * WARP_LANES + lane
            self.first_tile, self.column_tile = block // s.tiles_w * s.row_tiles, block % s.tiles_w
            tiles = self._load_tiles(thread)
            self._place(warp, lane)
            if not s.looped:
                self._load_filter(None)
            w.barrier()
            self.results = self._allocate_results()
            self._compute(tiles)
            if s.staged:
                w.barrier()
                self._store_results(thread)
        return kernel_of(problem.workload, w.finish())

    def _compute(self, tiles: Mapping[MaskedLoad, Buffer]) -> None:
        """Go through the rows of the input that a strip sees. Each is multiplied for all rows of the strip that see it,
        unless filters are so large that their rows are loaded one after the other."""
        s, height, window_depth = self.sizes, self.problem.height, self.problem.depth.window_points
        window_height = height.window_points
        if not s.looped:
            for line, reading in height.consumers(s.tile_h).items():
                for plane in range(window_depth):
                    rows = [(q, plane * window_height + r) for q, r in reading]
                    here = self._line(index(plane), index(line))
                    self._multiply_line(tiles, here, [(q, index(r), r > 0) for q, r in rows])
                for q in (q for q, r in reading if r == window_height - 1):
                    self._finish_row(q)
            return
        self._clear()
        with self.w.loop("r", self.problem.window_rows) as row:
            self._load_filter(row)
            own_plane, own_row = delinearize(row, (window_depth, window_height))
            for q in range(s.tile_h):
                line_seen = self._line(own_plane, own_row * height.dilation + q * height.stride)
                self._multiply_line(tiles, line_seen, [(q, row, True)])
        for q in range(s.tile_h):
            self._finish_row(q)

    def _line(self, plane: Expr, line: Expr) -> Expr:
        """Return the row of a tile that is row ``line`` of the ``plane``-th plane that a window sees."""
        found: Expr = plane * (self.problem.depth.dilation * self.sizes.plane_rows) + line
        return found

    @abstractmethod
    def _place(self, warp: Expr, lane: Expr) -> None:
        """Find out which strip is that of a thread, or which ones are those of its warp. Allocate accumulators."""

    @abstractmethod
    def _load_filter(self, row: Expr | None) -> None:
        """Load the filter, or a row of it."""

    @abstractmethod
    def _clear(self) -> None:
        """Let accumulators have the value of a sum of nothing."""

    @abstractmethod
    def _multiply_line(
        self, tiles: Mapping[MaskedLoad, Buffer], line: Expr, reading: Sequence[tuple[int, Expr, bool]]
    ) -> None:
        """Multiply row ``line`` of the input for some rows of the strip: (row of the strip, row of the window, whether
        its accumulators have a value)."""

    @abstractmethod
    def _finish_row(self, q: int) -> None:
        """Hand the outputs of row ``q`` of the strip to ``_store_output``."""

    def _first_line(self, own_z: Expr, own_y: Expr) -> Expr:
        """Return the first row of a tile that the strips at (plane, row) of strips see."""
        s, depth, height = self.sizes, self.problem.depth, self.problem.height
        return own_z * int(depth.stride * s.plane_rows) + own_y * int(s.tile_h * height.stride)

    def _at_row(self, at: Mapping[str, Expr], row: Expr | None) -> dict[str, Expr]:
        """Return ``at`` with a row of the window."""
        return dict(at) if row is None else {**at, **axis_indices(row, self.problem.row_axes)}

    def _tile_axes_at(self, y: Expr) -> dict[str, Expr]:
        """Return ``tile_axes`` at tile ``y`` of the block. Where the tiles of a block are neighbours along one of them,
        those of the first tile are divided once for all."""
        last = next((a for a in reversed(self.tile_axes) if a.extent > 1), None)
        if last is None or last.extent % self.sizes.row_tiles:
            return dict(axis_indices(self.first_tile + y, self.tile_axes))
        at = dict(axis_indices(self.first_tile, self.tile_axes))
        return {**at, last.name: at[last.name] + y}

    def _point_of(self, y: Expr) -> dict[str, Expr]:
        """Return the axes at the first output of tile ``y`` of the block."""
        problem, s = self.problem, self.sizes
        at = {**problem.unit_axes, **self._tile_axes_at(y)}
        first = (at.pop(_PLANE_TILE) * s.tile_d, at.pop(_ROW_TILE) * s.tile_rows, self.column_tile * s.tile_columns)
        return {**at, **{w.axis.name: i for w, i in zip(problem.moving, first, strict=True)}}

    def _moved(self, at: Mapping[str, Expr], own_z: Expr, row: Expr, column: Expr) -> dict[str, Expr]:
        """Return ``at`` with an output of a tile instead of its first one."""
        places = zip(self.problem.moving, (own_z, row, column), strict=True)
        return {**at, **{w.axis.name: at[w.axis.name] + place for w, place in places}}

    # --- loads

    def _load_tiles(self, thread: Expr) -> dict[MaskedLoad, Buffer]:
        """Load all positions of the block's tiles into shared memory, [tile, row, column] for each sliding load. A
        thread has the same column and row of several planes, or the same column of several rows of each, or several
        columns of each row, so that what lies between its loads is constant."""
        problem, w, s = self.problem, self.w, self.sizes
        vectors = s.pitch // s.load_width
        pieces, steps = -(-vectors // s.threads), -(-s.plane_rows // s.load_lines)
        own: tuple[Expr, ...] = (index(0), index(0), thread)
        if pieces == 1:
            own = delinearize(thread, (max(2, s.load_planes), s.load_lines, vectors))

        def place(n: Expr) -> tuple[tuple[Expr, Expr, Expr, Expr], list[Expr]]:
            y = n // (steps * pieces) * s.load_planes + (own[0] if s.load_planes > 1 else 0)
            line = n // pieces % steps * s.load_lines + own[1]
            vector = n % pieces * s.threads + own[2]
            active = s.load_planes * s.load_lines * vectors
            exists = [thread < active] if pieces == 1 and active < s.threads else []
            exists += [vector < vectors] if pieces > 1 and vectors % s.threads else []
            exists += [line < s.plane_rows] if s.plane_rows % s.load_lines else []
            exists += [y < s.row_tiles * s.planes] if s.row_tiles * s.planes % s.load_planes else []
            return (*delinearize(y, (s.row_tiles, s.planes)), line, vector * s.load_width), exists

        registers: dict[MaskedLoad, RegisterLoad] = {}
        for masked in problem.sliding_loads:
            needed = self._needed(position_load(problem, masked, s.tile_columns, s.lead, s.tile_rows, s.tile_d))
            registers[masked] = allocate_registers(w, needed, (s.loads,), _COLUMN, s.load_width)
        with w.unrolled("n", s.loads) as n:
            (y, plane, line, column), exists = place(n)
            here = {**problem.unit_axes, **self._tile_axes_at(y)}
            here |= {_COLUMN_TILE: self.column_tile, _PLANE: plane, _LINE: line, _COLUMN: column}
            for register in registers.values():
                masked, around = register.masked, exists
                if not isinstance(masked.other, Load):  # one condition for all
                    masked, around = replace(masked, mask=conjunction(*exists, *conjuncts(masked.mask))), []
                with w.when(*around):
                    load_registers(w, replace(register, masked=masked), (n,), here, _COLUMN, s.load_width)
        tiles: dict[MaskedLoad, Buffer] = {}
        for masked in problem.sliding_loads:
            name, shape = f"{masked.load.buffer.name}_tile", (s.row_tiles, s.rows, s.pitch)
            tiles[masked] = w.allocate(name, shape, masked.load.dtype, MemoryScope.SHARED)
        with w.unrolled("n", s.loads) as n:
            (y, plane, line, column), exists = place(n)
            with w.when(*exists):
                for masked, register in registers.items():
                    with w.vectorized("v", s.load_width) as v:
                        to = (y, plane * s.plane_rows + line if s.planes > 1 else line, column + v)
                        w.store(tiles[masked], to, register.value((n,), v))
        return tiles

    def _needed(self, masked: MaskedLoad) -> MaskedLoad:
        """Return ``masked`` with only those of its conditions that fail at some position of some tile."""
        s = self.sizes
        axes = [*self.tile_axes, Axis(_COLUMN_TILE, s.tiles_w), Axis(_PLANE, s.planes)]
        axes += [Axis(_LINE, s.plane_rows), Axis(_COLUMN, s.pitch)]
        return without_kept_conditions(masked, {}, axes)

    # --- outputs

    def _allocate_results(self) -> dict[str, Buffer]:
        """Allocate shared memory for outputs by name, where they go through it: those of all tiles, row by row."""
        s, found = self.sizes, {}
        shape = (s.row_tiles * s.tile_d * s.tile_rows * self._columns,)
        for stage in self.problem.outputs if s.staged else ():
            name = f"{stage.name}_tile"
            found[stage.name] = self.w.allocate(name, shape, stage.tensor.dtype, MemoryScope.SHARED)
        return found

    @property
    def _columns(self) -> int:
        """Columns that a tile has outputs for."""
        return min(int(self.sizes.tile_columns), self.problem.width.axis.extent)

    def _store_output(
        self,
        stage: Stage,
        at: Mapping[str, Expr],
        place: tuple[Expr, Expr, Expr],
        width: int,
        value: Callable[[str, Expr], Load],
        exists: Sequence[Expr],
    ) -> None:
        """Store ``width`` neighbouring outputs of a stage, where all that ``exists`` says holds. ``at`` is the first of
        them, ``place`` its (tile, row, column) among those of the block, where the rows are those of all planes of a
        tile, and ``value`` gives a reduction by name and lane."""
        problem, w, s, column = self.problem, self.w, self.sizes, self.problem.width.axis
        y, row, first = place
        inside = list(exists)
        if problem.height.axis.extent % s.tile_rows:
            inside.append(at[problem.height.axis.name] < problem.height.axis.extent)
        if s.tiles_w * s.tile_columns > column.extent:
            inside.append(at[column.name] < column.extent)
        with w.when(*inside), w.vectorized("v", width) as v:
            here = {**at, column.name: at[column.name] + v}
            reduced = {r.name: value(r.name, v) for r in problem.reductions}
            if s.staged:
                to = (y * (s.tile_d * s.tile_rows) + row) * self._columns + (first + v)
                w.store(self.results[stage.name], (to,), problem.output(stage, here, reduced))
            else:
                store_output(w, problem, stage, here, reduced)

    def _store_results(self, thread: Expr) -> None:
        """Store outputs from shared memory: neighbouring lanes neighbours, by vectors where those of the block are
        contiguous and aligned."""
        problem, w, s = self.problem, self.w, self.sizes
        column, row = problem.width.axis, problem.height.axis
        elements = s.row_tiles * s.tile_d * s.tile_rows * self._columns
        contiguous = s.tiles_w == 1 and row.extent % s.tile_rows == 0 and not s.shared_filter
        contiguous &= s.tile_d == 1 or s.tiles_h == 1
        for stage in problem.outputs:
            width = VECTOR_BYTES // stage.tensor.dtype.bytes if contiguous else 1
            while elements % width:
                width //= 2
            items = elements // width
            with w.unrolled("n", -(-items // s.threads)) as n:
                item = n * s.threads + thread
                exists = [item < items] if items % s.threads else []
                if contiguous:
                    with w.when(*exists), w.vectorized("v", width) as v:
                        flat = self.first_tile * (s.tile_d * s.tile_rows * self._columns) + item * width + v
                        to = tuple(axis_indices(flat, problem.axes).values())
                        w.store(stage.tensor, to, Load(self.results[stage.name], (item * width + v,)))
                    continue
                y, plane, line, place = delinearize(item, (s.row_tiles, s.tile_d, s.tile_rows, self._columns))
                at = self._moved(self._point_of(y), plane, line, place)
                exists += [at[column.name] < column.extent] if s.tiles_w * self._columns > column.extent else []
                exists += [at[row.name] < row.extent] if row.extent % s.tile_rows else []
                with w.when(*exists):
                    to = tuple(at[a.name] for a in problem.axes)
                    w.store(stage.tensor, to, Load(self.results[stage.name], (item,)))


def store_width(problem: PlaneWindow, dtype: DType, tile_w: int) -> int:
    """Return how many of the ``tile_w`` neighbouring outputs of a thread are stored at once, where they do not go
    through shared memory: aligned ones that are all inside or outside."""
    width = VECTOR_BYTES // dtype.bytes
    while tile_w % width or problem.width.axis.extent % width:
        width //= 2
    return width
