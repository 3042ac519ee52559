"""Writes convolutions by Winograd's minimal filtering, F(2 x 2, 3 x 3).

A tile of 2 x 2 output pixels d sees 4 x 4 pixels of the image. With the matrices below

    V = B^T d B     of each tile of the image and each channel      16 numbers, by 32 additions
    U = G g G^T     of each filter g and each channel               16 numbers, once for constant filters
    M = sum over channels of V * U, number by number                16 matrix products of tiles and filters
    Y = A^T M A     of each tile and each filter                    4 pixels, by 24 additions

so that 16 multiplications do what takes 36 in place. The kernel:

    parallel for each task, a block of tiles and filters:
      V of its tiles and all channels
      for each panel of nr filters:
        for each of the 16 points, for each register tile of mr tiles:
          M = V * U                                                  # the micro-kernel of ``cpu.gemm``
        for each tile: Y, and what is computed from it

V and the M of a panel stay in the second-level cache. A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural
Networks", 2016; the names of the matrices are theirs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, Ramp, Select, Var, const, index, logical_and, minimum
from ....ir.stmt import Kernel, LoopKind
from ....te.workload import Axis, Workload
from ...problems.gemm import Gemm
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from ..gemm.im2col import fields_of
from ..gemm.kernel import BlockedGemmWriter, CpuGemmSetting, RegisterTile
from ..gemm.packing import WHOLE, BlockedOperand, OperandPanel, below, lanes_below
from ..gemm.pixel_rows import PLANE, PixelRows, pixel_rows_of

TAPS, TILE = 3, 2
"""Places of the window and output pixels of a tile, along both dimensions."""
SEEN = TILE + TAPS - 1
"""Pixels of the image that a tile sees, along both dimensions."""
POINTS = SEEN * SEEN

Matrix = tuple[tuple[float, ...], ...]
IMAGE: Matrix = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
"""B^T."""
FILTER: Matrix = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
"""G."""
OUTPUT: Matrix = ((1, 1, 1, 0), (0, 1, -1, -1))
"""A^T."""


@dataclass(frozen=True, slots=True)
class TileRows:
    """Rows of the products: tiles of 2 x 2 output pixels of ``images``, row by row."""

    images: PixelRows
    planes: int

    @property
    def extents(self) -> tuple[int, int, int]:
        """Images, and tiles of each along its height and width."""
        return (self.planes, -(-self.images.positions[1] // TILE), -(-self.images.positions[2] // TILE))

    @property
    def count(self) -> int:
        planes, rows, columns = self.extents
        return planes * rows * columns

    def pixel(self, tile: Expr, y: Expr, x: Expr, channel: Expr, lanes: int) -> Expr:
        """``lanes`` channels of one of the 4 x 4 pixels that a tile sees; zeros beyond the image and its channels."""
        r, (plane, row, column) = self.images, delinearize(tile, self.extents)
        at = (row * TILE + y + r.lower[1], column * TILE + x + r.lower[2])
        terms = list[Expr]()
        for place, tiles, lower, extent in zip(at, self.extents[1:], r.lower[1:], r.extents[1:], strict=True):
            if lower < 0:
                terms.append(Broadcast(place >= 0, lanes))
            if (tiles - 1) * TILE + SEEN + lower > extent:
                terms.append(Broadcast(place < extent, lanes))
        if r.channels % lanes:
            terms.append(lanes_below(channel, r.channels, lanes))
        value = r.load(plane, (index(0), *at), Ramp(channel, 1, lanes))
        return Select(logical_and(*terms), value, Broadcast(const(0, value.dtype), lanes)) if terms else value


def tile_rows_of(workload: Workload) -> tuple[Gemm, TileRows] | None:
    """``workload`` as such products; None where it is no convolution of floats with a window of 3 x 3 that moves pixel
    by pixel, or not one of images with channels last. Rows are tiles, and ``k`` counts channels. Operands are those of
    the convolution, on ``k`` over the places of the window with all channels each."""
    p, rows = pixel_rows_of(workload) or (None, None)
    if p is None or rows is None or rows.grouped or rows.dimensions != 2:
        return None
    if rows.taps != (1, TAPS, TAPS) or rows.dilations != (1, 1, 1) or rows.strides != (1, 1, 1):
        return None
    tiles = TileRows(rows, p.batch[-1].extent if p.batch else 1)
    return replace(p, m=Axis("m", tiles.count), k=Axis("k", rows.channels), batch=()), tiles


def lower_winograd(p: Gemm, name: str, setting: CpuGemmSetting, tiles: TileRows) -> Kernel:
    """Return the kernel of one setting for ``p`` as ``tile_rows_of`` gives it. ``kc`` is all of ``k``, and tasks
    transform the tiles (``pack_a``)."""
    return WinogradWriter(p, setting, tiles).kernel(name)


class WinogradWriter(BlockedGemmWriter):
    """Tasks go through the points of each panel of filters, and transform their sums."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, tiles: TileRows) -> None:
        super().__init__(p, s, taken=(PLANE,))
        self.tiles = tiles
        self.a = TransformedTiles(**fields_of(self.a), tiles=tiles)
        self.b = TransformedFilters(**fields_of(self.b))
        self.accumulating_output = None

    def register_tiles(
        self, packed: Mapping[str, Buffer], batch: Mapping[str, Expr], k_block: Expr, task: tuple[Expr, Expr]
    ) -> None:
        w, s, (first, first_panel) = self.w, self.s, (task[0] * self.s.tiles, task[1] * self.s.panels)
        for writer, j in self.each_panel(task[1]):
            sums = w.allocate("products", (POINTS, s.tiles, s.mr, writer.s.nr), self.dtype, MemoryScope.LOCAL)
            writer.partial_sums = sums
            with w.loop("point", POINTS) as point, self.each("tile", self.a, task[0], s.tiles) as i:
                a = self.a.panel(packed["m"], batch, first, i, k_block)
                b = self.b.panel(packed["n"], batch, first_panel, j, k_block)
                a, b = (replace(o, prefix=(point, *o.prefix)) for o in (a, b))
                t = RegisterTile(batch, k_block, (i, j), a.first, b.first, a, b, self._next_filters(b, point))
                accumulators = writer.zero_accumulators()
                writer.micro_kernel(accumulators, t)
                writer.move_accumulators(accumulators, replace(t, indices=(point, i)))
            with self.each("tile", self.a, task[0], s.tiles) as i, w.loop("row", s.mr) as row:
                with w.when(below((first + i) * s.mr + row, self.tiles.count, s.mr)):
                    writer._outputs((first + i) * s.mr + row, b.first, sums, (i, row))

    def _next_filters(self, b: OperandPanel, point: Expr) -> OperandPanel | None:
        """Return what is read after ``b``: the same panel at the next point, or the next panel at the first one."""
        if self.b.packing != WHOLE:
            return None
        following = minimum(b.prefix[1] + (point + 1) // POINTS, index(self.b.panels - 1))
        return replace(b, prefix=((point + 1) % POINTS, following))

    def _outputs(self, tile: Expr, column: Expr, sums: Buffer, at: tuple[Expr, Expr]) -> None:
        """The output pixels of a tile, from ``column`` on. Its sums are at ``at`` of each point."""
        w, lanes = self.w, self.s.lanes
        (plane, *corner), positions = delinearize(tile, self.tiles.extents), self.tiles.images.positions[1:]
        with w.unrolled("v", self.s.vectors) as v:
            found = _transformed(
                w, OUTPUT, SEEN, lanes, lambda y, x: Load(sums, (y * SEEN + x, *at, Ramp(v * lanes, 1, lanes)))
            )
            first = column + v * lanes
            inside = lanes_below(first, self.p.n.extent, lanes) if self.masked else None
            with w.unrolled("y", TILE) as y, w.unrolled("x", TILE) as x:
                pixel = [tile_at * TILE + i for tile_at, i in zip(corner, (y, x), strict=True)]
                edges = [below(i, extent, TILE) for i, extent in zip(pixel, positions, strict=True)]
                here = {PLANE: plane, "m": pixel[0] * positions[1] + pixel[1], "n": first}
                with w.when(edges[0]), w.when(edges[1]):
                    self.store_results(here, Load(found, (y, x, Var("n") - first)), inside)


@dataclass(frozen=True, slots=True)
class TransformedOperand(BlockedOperand):
    """An operand with a packed panel for each point, of ``size`` tiles or filters in all channels."""

    def allocate_block(self, w: FreshNameWriter, name: str, panels: int) -> Buffer:
        return w.allocate(name, self.shape(panels), self.operand.body.dtype, MemoryScope.LOCAL)

    def shape(self, panels: int) -> tuple[int, ...]:
        """Return the shape of ``panels`` packed panels of each point."""
        return (POINTS, panels, *self.panel_shape(self.kc))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformedTiles(TransformedOperand):
    """The left operand."""

    tiles: TileRows

    def pack_block(
        self, w: FreshNameWriter, buffer: Buffer, at: Mapping[str, Expr], first: Expr, panels: int, k0: Expr
    ) -> None:
        lanes = self.lanes
        with w.loop("packed_tile", panels) as j, w.loop("row", self.size) as i:
            tile = minimum((first + j) * self.size + i, index(self.tiles.count - 1))
            with w.loop("vector", -(-self.kc // lanes)) as v:
                found = _transformed(w, IMAGE, SEEN, lanes, lambda y, x: self.tiles.pixel(tile, y, x, v * lanes, lanes))
                _store_points(w, found, buffer, (j, i, Ramp(v * lanes, 1, lanes)))


@dataclass(frozen=True, slots=True)
class TransformedFilters(TransformedOperand):
    """The right operand."""

    def pack_whole(self, w: FreshNameWriter, name: str) -> Buffer:
        buffer = Buffer(w.fresh(name), self.shape(self.panels), self.operand.body.dtype)
        with w.loop("packed", self.panels, LoopKind.PARALLEL) as panel:
            self._pack(w, buffer, panel, panel)
        return buffer

    def pack_block(
        self, w: FreshNameWriter, buffer: Buffer, at: Mapping[str, Expr], first: Expr, panels: int, k0: Expr
    ) -> None:
        with w.loop("packed_panel", panels) as j, w.when(below(first + j, self.panels, panels)):
            self._pack(w, buffer, first + j, j)

    def _pack(self, w: FreshNameWriter, buffer: Buffer, panel: Expr, to: Expr) -> None:
        lanes, extent = self.lanes, self.axis.extent
        with w.loop("step", self.kc) as k, w.loop("vector", self.size // lanes) as v:
            first = self.begin(panel) + v * lanes

            def tap(y: Expr, x: Expr) -> Expr:
                here = {"n": first, "k": (y * TAPS + x) * self.kc + k}
                value = vector_at(self.operand.body, here, "n", lanes)
                inside = lanes_below(first, extent, lanes) if self.reaches_beyond else None
                return value if inside is None else Select(inside, value, Broadcast(const(0, value.dtype), lanes))

            _store_points(w, _transformed(w, FILTER, TAPS, lanes, tap), buffer, (to, k, Ramp(v * lanes, 1, lanes)))


def _store_points(w: FreshNameWriter, points: Buffer, buffer: Buffer, at: Sequence[Expr]) -> None:
    """The 4 x 4 vectors of ``points`` to ``at`` of each point of ``buffer``."""
    lanes = points.shape[-1]
    with w.unrolled("y", SEEN) as y, w.unrolled("x", SEEN) as x:
        w.store(buffer, (y * SEEN + x, *at), Load(points, (y, x, Ramp(index(0), 1, lanes))))


def _transformed(
    w: FreshNameWriter, matrix: Matrix, side: int, lanes: int, value: Callable[[Expr, Expr], Expr]
) -> Buffer:
    """``matrix`` times a square of ``side`` x ``side`` vectors times the transposed ``matrix``, in registers. Each
    ``value`` of the square is computed once."""
    rows, all_lanes = len(matrix), Ramp(index(0), 1, lanes)
    first = value(index(0), index(0))
    square = w.allocate("square", (side, side, lanes), first.dtype, MemoryScope.REGISTER)
    with w.unrolled("y", side) as y, w.unrolled("x", side) as x:
        w.store(square, (y, x, all_lanes), value(y, x))
    half = w.allocate("half", (rows, side, lanes), first.dtype, MemoryScope.REGISTER)
    with w.unrolled("x", side) as x:
        for i, coefficients in enumerate(matrix):
            terms = [Load(square, (index(y), x, all_lanes)) for y in range(side)]
            w.store(half, (index(i), x, all_lanes), _combined(coefficients, terms))
    whole = w.allocate("whole", (rows, rows, lanes), first.dtype, MemoryScope.REGISTER)
    with w.unrolled("y", rows) as y:
        for i, coefficients in enumerate(matrix):
            terms = [Load(half, (y, index(x), all_lanes)) for x in range(side)]
            w.store(whole, (y, index(i), all_lanes), _combined(coefficients, terms))
    return whole


def _combined(coefficients: Sequence[float], terms: Sequence[Expr]) -> Expr:
    """Return the sum of ``terms`` times their ``coefficients``, which are 0, or plus or minus one common factor."""
    used = [(c, t) for c, t in zip(coefficients, terms, strict=True) if c]
    used.sort(key=lambda item: item[0] < 0)  # the first is positive
    total = reduce(lambda a, b: (1.0, a[1] + b[1] if b[0] > 0 else a[1] - b[1]), used)[1]
    factor = abs(used[0][0])
    return total if factor == 1 else total * Broadcast(const(factor, total.dtype), total.lanes)
