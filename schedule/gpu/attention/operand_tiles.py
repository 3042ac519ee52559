"""Q, K and V in shared memory. All of them are rows of contiguous elements; 64 columns of all rows of a tile follow one
another, swizzled, before the next 64 columns. TMA loads such columns as one box, and fills up with zeros."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import Expr, Load, Var, index
from ....ir.gpu.mbarrier import MbarrierArriveExpectTx
from ....ir.gpu.tma import TmaLoad
from ....ir.gpu.wgmma import SWIZZLE_128B, SWIZZLE_128B_ELEMENTS
from ....ir.rewrite import free_variables, substitute
from ...tile.names import FreshNameWriter


def column_atoms(columns: int) -> int:
    """Return how many times 64 columns, a row of the swizzle, hold so many."""
    return -(-columns // SWIZZLE_128B_ELEMENTS)


@dataclass(frozen=True, slots=True)
class OperandTiles:
    """Tiles of ``rows`` rows of what ``load`` reads, in ``buffer``: (stage, 64 columns, row, column). ``row_axis`` and
    ``column_axis`` are the axes of the problem along them."""

    w: FreshNameWriter
    buffer: Buffer
    load: Load
    row_axis: str
    column_axis: str
    columns: int

    @property
    def loaded_bytes(self) -> int:
        """How many bytes TMA loads for a tile."""
        _, _, rows, side = self.buffer.shape
        return column_atoms(self.columns) * rows * side * self.buffer.dtype.bytes

    def copy(self, stage: Expr, at: Mapping[str, Expr], full: Buffer) -> None:
        """Write the loads of the tile that begins at ``at`` (axis -> index), which arrive at ``full[stage]``."""
        _, _, rows, side = self.buffer.shape
        box = tuple(
            rows if i == Var(self.row_axis) else side if i == Var(self.column_axis) else 1 for i in self.load.indices
        )
        first = at.get(self.column_axis)
        for atom in range(column_atoms(self.columns)):
            column = index(atom * side)
            here = {**at, self.column_axis: column if first is None else first + column}
            corner = tuple(substitute(i, here) for i in self.load.indices)
            to = (stage, index(atom), index(0), index(0))
            self.w.emit(TmaLoad(self.buffer, to, self.load.buffer, corner, box, full, stage, True))


def copy_tiles(
    w: FreshNameWriter, tiles: Sequence[OperandTiles], stage: Expr, at: Mapping[str, Expr], full: Buffer
) -> None:
    """Write the loads of several tiles that begin at ``at``, and expect all their bytes at ``full[stage]``."""
    w.emit(MbarrierArriveExpectTx(full, stage, sum(t.loaded_bytes for t in tiles)))
    for t in tiles:
        t.copy(stage, at, full)


def allocate_tiles(
    w: FreshNameWriter, name: str, load: Load, axes: tuple[str, str], rows: int, columns: int, stages: int, widest: int
) -> OperandTiles:
    """Tiles with room for ``widest`` columns, of which ``columns`` are loaded. ``axes`` are those along rows and
    columns."""
    side, atoms = SWIZZLE_128B_ELEMENTS, column_atoms(widest)
    layout = Layout((atoms * rows * side, rows * side, side, 1), SWIZZLE_128B)
    shape = (stages, atoms, rows, side)
    buffer = w.allocate(name, shape, load.buffer.dtype, MemoryScope.SHARED, layout)
    return OperandTiles(w, buffer, load, *axes, columns)


def can_load(load: Load, row_axis: str, column_axis: str) -> bool:
    """Return whether TMA can load such tiles: the columns are contiguous, rows begin at multiples of 16 bytes, and each
    index is one of the two axes or depends on none of them."""
    tensor, axes = load.buffer, (Var(row_axis), Var(column_axis))
    if load.mask is not None or not 2 <= len(tensor.shape) <= 5 or load.indices[-1] != Var(column_axis):
        return False
    if any(stride * tensor.dtype.bytes % 16 for stride in tensor.strides[:-1]):
        return False
    touching = [i for i in load.indices if free_variables(i) & {row_axis, column_axis}]
    return len(touching) == 2 and set(touching) == set(axes)
