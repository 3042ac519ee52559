"""Q, K and V in shared memory. All of them are rows of contiguous elements; 64 columns of all rows of a tile follow one
another, swizzled, before the next 64 columns. TMA loads such columns as one box, and fills up with zeros.

Rows of K and V may be in pages that a table names: ``K[table[b, n // 16], n % 16, k]``. Each page is a box then, and
the thread that loads looks up its number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Var, index, minimum
from ....ir.gpu.ldmatrix import StoreMatrix
from ....ir.gpu.mbarrier import MbarrierArriveExpectTx
from ....ir.gpu.tma import TmaLoad
from ....ir.gpu.wgmma import SWIZZLE_128B, SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.rewrite import free_variables, loads_of, map_expr, substitute
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter
from ..gemm.mainloop import WarpRoles
from ..gemm.sizes import WARPGROUP_WARPS

WARP_ROWS = WGMMA_M // WARPGROUP_WARPS
"""How many rows a warp has of the 64 of its warpgroup."""


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
    last_row: Expr

    @property
    def loaded_bytes(self) -> int:
        """How many bytes TMA loads for a tile."""
        _, _, rows, side = self.buffer.shape
        return column_atoms(self.columns) * rows * side * self.buffer.dtype.bytes

    def copy(self, stage: Expr, at: Mapping[str, Expr], full: Buffer) -> None:
        """Write the loads of the tile that begins at ``at`` (axis -> index), which arrive at ``full[stage]``."""
        _, _, rows, side = self.buffer.shape
        page = page_rows(self.load, self.row_axis)
        rows_of_box = rows if page is None else min(rows, page)
        places = self._pages(at, rows // rows_of_box, rows_of_box) if page is not None else [self.load.indices]
        box = tuple(
            side if i == Var(self.column_axis) else rows_of_box if self._is_along_rows(i) else 1
            for i in self.load.indices
        )
        first = at.get(self.column_axis)
        for number, indices in enumerate(places):
            for atom in range(column_atoms(self.columns)):
                column = index(atom * side)
                here = {**at, self.column_axis: column if first is None else first + column}
                corner = tuple(substitute(i, here) for i in indices)
                to = (stage, index(atom), index(number * rows_of_box), index(0))
                self.w.emit(TmaLoad(self.buffer, to, self.load.buffer, corner, box, full, stage, True))

    def _is_along_rows(self, i: Expr) -> bool:
        """Return whether neighbouring rows are neighbours along the dimension with the index ``i``."""
        return i == Var(self.row_axis) or _remainder(i, self.row_axis) is not None

    def _pages(self, at: Mapping[str, Expr], count: int, rows: int) -> list[tuple[Expr, ...]]:
        """Look up the pages of ``count`` boxes of ``rows`` rows; the indices where each begins. Boxes behind the last
        row read its page."""
        w = self.w
        table = next(n for n, i in enumerate(self.load.indices) if _is_looked_up(i, self.row_axis))
        numbers = w.allocate("pages", (count,), int32, MemoryScope.REGISTER)
        places = []
        for number in range(count):
            row = at[self.row_axis] + number * rows
            indices = list(self.load.indices)
            found = substitute(indices[table], {**at, self.row_axis: minimum(row, self.last_row)})
            w.store(numbers, (index(number),), Cast(found, int32))
            indices[table] = Cast(Load(numbers, (index(number),)), INDEX)
            places.append(tuple(substitute(i, {self.row_axis: row}) for i in indices))
        return places


def copy_tiles(
    w: FreshNameWriter, tiles: Sequence[OperandTiles], stage: Expr, at: Mapping[str, Expr], full: Buffer
) -> None:
    """Write the loads of several tiles that begin at ``at``, and expect all their bytes at ``full[stage]``."""
    w.emit(MbarrierArriveExpectTx(full, stage, sum(t.loaded_bytes for t in tiles)))
    for t in tiles:
        t.copy(stage, at, full)


def allocate_tiles(
    w: FreshNameWriter,
    name: str,
    load: Load,
    axes: tuple[str, str],
    rows: int,
    columns: int,
    stages: int,
    widest: int,
    last_row: Expr,
) -> OperandTiles:
    """Tiles with room for ``widest`` columns, of which ``columns`` are loaded. ``axes`` are those along rows and
    columns, and ``last_row`` is the last place of the former."""
    side, atoms = SWIZZLE_128B_ELEMENTS, column_atoms(widest)
    layout = Layout((atoms * rows * side, rows * side, side, 1), SWIZZLE_128B)
    shape = (stages, atoms, rows, side)
    buffer = w.allocate(name, shape, load.buffer.dtype, MemoryScope.SHARED, layout)
    return OperandTiles(w, buffer, load, *axes, columns, last_row)


def store_fragments(
    w: FreshNameWriter,
    roles: WarpRoles,
    registers: Buffer,
    columns: int,
    tile: Buffer,
    at: tuple[Expr, Expr],
    first_row: Expr,
) -> None:
    """Store what a thread holds of 64 rows and so many ``columns``, as wgmma leaves it, to ``tile`` from the row
    ``first_row`` on. ``at`` are its stage and its first 64 columns. Matrices of 8 by 8 are stored two below one
    another, two such pairs at once where there are so many columns left."""
    row = first_row + roles.warp % WARPGROUP_WARPS * WARP_ROWS + roles.lane // 8 % 2 * 8 + roles.lane % 8
    for first in range(0, columns, 16):
        stage, atom, column = at[0], at[1] + first // SWIZZLE_128B_ELEMENTS, index(first % SWIZZLE_128B_ELEMENTS)
        if first + 16 <= columns:
            to = (stage, atom, row, column + roles.lane // 16 * 8)
            w.emit(StoreMatrix(tile, to, registers, (index(first // 2),), 4))
        else:
            w.emit(StoreMatrix(tile, (stage, atom, row, column), registers, (index(first // 2),), 2))


def v_is_of_keys(p: Attention) -> bool:
    """Return whether a row of V is the beginning of that of the same key in K."""
    same = tuple(substitute(i, {"d": Var("k")}) for i in p.v.indices) == p.key.indices
    return p.v.buffer == p.key.buffer and p.v.mask == p.key.mask and same and p.d.extent <= p.k.extent


def can_load(load: Load, row_axis: str, column_axis: str) -> bool:
    """Return whether TMA can load such tiles: the columns are contiguous, rows begin at multiples of 16 bytes, and each
    index is one of the two axes or depends on none of them. Rows may also be in pages of some multiple of 8."""
    tensor, axes = load.buffer, (Var(row_axis), Var(column_axis))
    if load.mask is not None or not 2 <= len(tensor.shape) <= 5 or load.indices[-1] != Var(column_axis):
        return False
    if any(stride * tensor.dtype.bytes % 16 for stride in tensor.strides[:-1]):
        return False
    touching = [i for i in load.indices if free_variables(i) & {row_axis, column_axis}]
    return (len(touching) == 2 and set(touching) == set(axes)) or page_rows(load, row_axis) is not None


def page_rows(load: Load, row_axis: str) -> int | None:
    """Return how many rows a page has, where the rows of ``load`` are in pages whose numbers are looked up; None where
    they are not. Eight rows are what the swizzle repeats after."""
    touching = [i for i in load.indices if row_axis in free_variables(i)]
    sizes = [size for i in touching if (size := _remainder(i, row_axis)) is not None]
    looked_up = [i for i in touching if _is_looked_up(i, row_axis)]
    if len(touching) != 2 or len(sizes) != 1 or len(looked_up) != 1 or sizes[0] % 8:
        return None
    page = Var(row_axis) // sizes[0]
    alone = map_expr(looked_up[0], lambda e: Var("page#") if e == page else e)
    own = next(n for n, i in enumerate(load.indices) if _remainder(i, row_axis) is not None)
    return sizes[0] if row_axis not in free_variables(alone) and load.buffer.shape[own] == sizes[0] else None


def _remainder(i: Expr, row_axis: str) -> int | None:
    """Return the divisor where ``i`` is the remainder of the row."""
    if isinstance(i, Binary) and i.op is BinaryOp.MOD and i.a == Var(row_axis) and isinstance(i.b, Const):
        return int(i.b.value)
    return None


def _is_looked_up(i: Expr, row_axis: str) -> bool:
    """Return whether ``i`` is looked up in a table by the row."""
    return any(row_axis in free_variables(load) for load in loads_of(i))
