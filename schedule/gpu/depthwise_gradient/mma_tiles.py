"""Writes what a warp computes of a tile of the gradient with matrix instructions, where columns are neighbours in
memory.

Sixteen rows of the image and eight rows of the gradient meet in up to nine rows of the filter. For each tap ``s`` of
its columns a matrix instruction multiplies all of them, along sixteen columns::

    D[s][i, j] += sum over k of A[i, k] * B[k, j]      A[i, k] = X[y0 + i, x0 + k + s]    B[k, j] = d[y0 + j, x0 + k]

    G[r, s] = sum over j of D[s][r + j, j]

Which columns a lane has for ``k`` does not matter, as long as both have the same ones. A lane takes ``tile_w``
neighbours, which it loads from memory as they lie; displaced by ``s`` they are the same registers, or pairs of halves
of neighbouring ones. Eight rows further down, the second half of A is the first one::

    load rows 0 to 15 of the image, and rows 0 to 7 of the gradient
    for each step:    load the next eight rows of both; multiply; move rows to the registers of those before
"""

from collections.abc import Mapping, Sequence
from itertools import product

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, Var, const, index
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.mma import Mma
from ....te.workload import Axis
from ...problems.depthwise_gradient import MMA_ROWS, DepthwiseGradient
from ...space.columns import Ints
from ...tile.delinearize import delinearize
from ...tile.masked_loads import MaskedLoad
from ...tile.names import FreshNameWriter
from ...tile.register_loads import RegisterLoad, allocate_registers, bounded
from .tiles import COLUMN_TILE, DepthwiseGradientSizes, load_row, seen

COLUMN_LANES = 4
"""Lanes of a warp that have neighbouring columns of one row."""
_ROW = "lane_row#"
_IMAGE_SLOTS, _GRADIENT_SLOTS = 3, 2
"""Rows of a lane in registers, the last of which is being loaded."""


class MmaTileWriter:
    """Writes the products of tiles of warps. ``axes``: those that number images, channels and the tiles of lanes."""

    def __init__(
        self, problem: DepthwiseGradient, sizes: DepthwiseGradientSizes, w: FreshNameWriter, axes: Sequence[Axis]
    ) -> None:
        self.problem, self.s, self.w = problem, sizes, w
        self.axes = [*axes, Axis(_ROW, sizes.tile_h + MMA_ROWS)]
        height, width = problem.height, problem.width
        ragged = {height.axis.name} if height.axis.extent % sizes.tile_h else set[str]()
        ragged |= {width.axis.name} if width.axis.extent % (COLUMN_LANES * sizes.tile_w) else set[str]()
        self.pixels = self._allocate(bounded(problem.pixels, height.names | width.names), _IMAGE_SLOTS, sizes.near)
        self.gradients = self._allocate(bounded(problem.gradients, ragged), _GRADIENT_SLOTS, sizes.tile_w)
        self.fragment = w.allocate("fragment", (8,), problem.pixels.load.dtype, MemoryScope.REGISTER)
        self.acc = w.allocate("acc", (width.window_points, 4), float32, MemoryScope.REGISTER)
        for at in product(*map(range, self.acc.shape)):
            w.store(self.acc, tuple(map(index, at)), const(0, float32))

    def _allocate(self, masked: MaskedLoad, slots: int, positions: int) -> RegisterLoad:
        return allocate_registers(self.w, masked, (slots,), self.problem.lanes.name, positions)

    def multiply(self, at: Mapping[str, Expr], lane: Expr) -> None:
        """Add what a tile of the warp contributes to the accumulators. ``at``: where the tile and its channel are."""
        s, here = self.s, {**at, COLUMN_TILE: at[COLUMN_TILE] * COLUMN_LANES + lane % COLUMN_LANES}
        row = lane // COLUMN_LANES
        for slot in range(_IMAGE_SLOTS - 1):
            self._load_pixels(here, row + slot * MMA_ROWS, slot)
        self._load_gradients(here, row, 0)
        steps = s.tile_h // MMA_ROWS
        with self.w.loop("step", steps) as step:
            goes_on = step + 1 < steps
            with self.w.when(goes_on):
                self._load_pixels(here, row + (step + 2) * MMA_ROWS, _IMAGE_SLOTS - 1)
                self._load_gradients(here, row + (step + 1) * MMA_ROWS, _GRADIENT_SLOTS - 1)
            groups = range(0, s.tile_w, COLUMN_LANES)
            for first, point in product(groups, range(self.problem.width.window_points)):
                self._multiply(first, point)
            with self.w.when(goes_on):
                for registers in (self.pixels, self.gradients):
                    self._move(registers.buffer)

    def _load_pixels(self, at: Mapping[str, Expr], row: Expr, slot: int) -> None:
        """Load row ``row`` of the image, counted from the first one that the tile sees."""
        s = self.s
        place = seen(self.problem, s.tile_w, s.lead, s.tile_h, Var(_ROW))
        load_row(self.w, self.pixels, slot, place, s.near, {**at, _ROW: row}, self.axes)

    def _load_gradients(self, at: Mapping[str, Expr], row: Expr, slot: int) -> None:
        """Load row ``row`` of the tile."""
        s = self.s
        place = seen(self.problem, s.tile_w, 0, s.tile_h, Var(_ROW))
        load_row(self.w, self.gradients, slot, place, s.tile_w, {**at, _ROW: row}, self.axes)

    def _move(self, registers: Buffer) -> None:
        """Move rows to the registers of those before them."""
        slots, positions = registers.shape
        for slot in range(slots - 1):
            with self.w.unrolled("position", positions) as position:
                self.w.store(registers, (index(slot), position), Load(registers, (index(slot + 1), position)))

    def _multiply(self, first: int, point: int) -> None:
        """Multiply the rows at hand, for tap ``point`` of the columns, along the lanes' columns from ``first`` on."""
        w, pixels, atom = self.w, self.pixels.buffer, self.problem.atom
        assert atom is not None
        for rows, half, pair in product(range(2), repeat=3):
            source = (index(rows), index(self.s.lead + first + point + 2 * half + pair))
            w.store(self.fragment, (index(2 * (rows + 2 * half) + pair),), Load(pixels, source))
        b, d = (index(0), index(first)), (index(point), index(0))
        w.emit(Mma(atom.name, self.acc, d, self.fragment, (index(0),), self.gradients.buffer, b))

    def leave(self, of_warps: Buffer, warp: Expr, lane: Expr) -> None:
        """Leave the sums of the warp's tiles in shared memory: [warp, tap, 0]."""
        w, width = self.w, self.problem.width.window_points
        shape = (of_warps.shape[0], width, 2 * MMA_ROWS, MMA_ROWS)
        products = w.allocate("products", shape, float32, MemoryScope.SHARED)
        for point, rows, pair in product(range(width), range(2), range(2)):
            row, column = lane // COLUMN_LANES + rows * MMA_ROWS, lane % COLUMN_LANES * 2 + pair
            value = Load(self.acc, (index(point), index(2 * rows + pair)))
            w.store(products, (warp, index(point), row, column), value)
        w.barrier(SyncScope.WARP)
        with w.shared_out("tap", self.problem.taps, WARP_LANES, lane) as tap:
            r, point_of = delinearize(tap, (self.problem.height.window_points, width))
            total = w.allocate("band", (), float32, MemoryScope.REGISTER)
            w.store(total, (), const(0, float32))
            with w.unrolled("j", MMA_ROWS) as j:
                w.store(total, (), Load(total, ()) + Load(products, (warp, point_of, r + j, j)))
            w.store(of_warps, (warp, tap, index(0)), Load(total, ()))


def products_bytes(problem: DepthwiseGradient, warps: Ints) -> Ints:
    """Return the shared memory that warps leave their products in."""
    found: Ints = warps * (problem.width.window_points * 2 * MMA_ROWS * MMA_ROWS * float32.bytes)
    return found
