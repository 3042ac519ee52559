"""Tiles of operands whose rows begin anywhere, in shared memory.

cp.async copies aligned vectors. A row is copied with the vectors that it begins and ends in, so that it lies behind as
many elements as it has between the last aligned place and its beginning. Tiles begin at multiples of eight rows and
columns, so that the same rows of all tiles are shifted alike. With vectors of 8 elements:

    memory           . . . . . a b c|d e f g h i j k|l m n o .   tile_k = 8, shift 5
    shared memory    . . . . . a b c|d e f g h i j k             columns 5 to 12 are a to h

What lies outside of a row becomes zeros. Nothing outside of the tensor is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ....ir.buffer import Buffer
from ....ir.build import Writer
from ....ir.expr import Broadcast, Expr, Load, Ramp, Select, index, logical_and, maximum, minimum
from ....ir.gpu.async_copy import CopyAsync
from ....ir.rewrite import substitute
from ....te.functions import equal, negated
from ...problems.gemm import Gemm, Operand
from ...tile.load_analysis import flat_offset
from ..unaligned_loads import flat_index, flat_view, vector_elements, whole_vectors


@dataclass(frozen=True, slots=True)
class ShiftedRows:
    """Rows along the axis ``column`` of the operand that ``load`` reads, one for each place of the axis ``row``. The
    axes have ``extents``, that of rows first."""

    load: Load
    row: str
    column: str
    extents: tuple[int, int]

    @property
    def vector(self) -> int:
        """Elements of a vector."""
        return vector_elements(self.load.buffer)

    def copy(
        self,
        w: Writer,
        target: Buffer,
        to: tuple[Expr, ...],
        corner: Mapping[str, Expr],
        row: Expr,
        vector: Expr,
    ) -> None:
        """Start the copy of a vector of a row of the tile that begins at ``corner`` (axis -> index) to the owner and
        stage ``to``, unless it is the last one of the tensor and has a part of a vector (``copy_rest``)."""
        place, (rows, columns) = corner[self.row] + row, self.extents
        begin = self._vector_at(place, corner) + vector * self.vector
        behind = self._flat(place, index(columns)) - begin
        present = Select(place < rows, minimum(maximum(behind, index(0)), index(self.vector)), index(0))
        tensor = flat_view(self.load.buffer)
        whole = whole_vectors(tensor)
        is_rest = logical_and(equal(begin, whole), equal(place, rows - 1))
        with w.when(negated(is_rest) if whole < tensor.elements else None):
            at = (*to, row, vector * self.vector)
            w.emit(CopyAsync(target, at, tensor, (begin,), self.vector, present=present))

    def copy_rest(
        self, w: Writer, target: Buffer, to: tuple[Expr, ...], corner: Mapping[str, Expr], lane: Expr
    ) -> None:
        """Load and store the last elements of the tensor that are no whole vector, where the tile has them: each of as
        many lanes as a vector has elements takes one. Tools that check memory take a copy of a part of a vector for one
        of all of it."""
        tensor, last = flat_view(self.load.buffer), self.extents[0] - 1
        whole = whole_vectors(tensor)
        if whole == tensor.elements:
            return
        row, column = last - corner[self.row], whole - self._vector_at(index(last), corner)
        here = [row >= 0, row < target.shape[-2], column >= 0, column < target.shape[-1], lane < self.vector]
        with w.when(*here):
            left = self._flat(index(last), index(self.extents[1])) - whole
            w.store(target, (*to, row, column + lane), Load(tensor, (lane + whole,), lane < left))

    def _vector_at(self, place: Expr, corner: Mapping[str, Expr]) -> Expr:
        """Return where the vector begins that a row has its first element of a tile in."""
        return self._flat(place, corner[self.column]) // self.vector * self.vector

    def elements(self, tile: Buffer, at: tuple[Expr, ...], row: Expr, column: Expr, count: int) -> Load:
        """Return the load of ``count`` neighbours of a row of the tile at the owner and stage ``at``."""
        column = column + self._flat(row, index(0)) % self.vector
        if count == 1:
            return Load(tile, (*at, row, column))
        return Load(tile, (*(Broadcast(i, count) for i in (*at, row)), Ramp(column, 1, count)))

    def _flat(self, row: Expr, column: Expr) -> Expr:
        at = {self.row: row, self.column: column}
        return flat_index(self.load.buffer, (substitute(i, at) for i in self.load.indices))


def shifted_rows_of(p: Gemm, operand: Operand) -> ShiftedRows | None:
    """Return the rows of A or B of ``p`` that begin anywhere; None where they are whole vectors that ldmatrix reads."""
    if operand.load is None or is_for_ldmatrix(p, operand):
        return None
    extents = {"m": p.m.extent, "n": p.n.extent, "k": p.k.extent}
    own = "m" if operand is p.a else "n"
    row, column = (own, "k") if operand.k == 1 else ("k", own)
    return ShiftedRows(operand.load, row, column, (extents[row], extents[column]))


def can_shift(operand: Operand) -> bool:
    """Return whether an operand is a load whose places in memory are known: a plain matrix."""
    load = operand.load
    return load is not None and load.mask is None and load.buffer.layout is None and flat_offset(load) is not None


def is_for_ldmatrix(p: Gemm, operand: Operand) -> bool:
    """Return whether ldmatrix reads an operand: 16-bit elements in rows of whole vectors, those of A along ``k``."""
    assert operand.load is not None
    along_m = operand is p.a and operand.k != 1
    return operand.load.buffer.dtype.bytes == 2 and not along_m and is_in_vectors(p, operand)


def is_in_vectors(p: Gemm, operand: Operand) -> bool:
    """Return whether rows of A or B of ``p``, along ``k`` or along its own axis, are whole vectors."""
    if in_whole_vectors(operand, p.k.extent, operand.k, operand.row):
        return True
    own = p.m if operand is p.a else p.n
    return in_whole_vectors(operand, own.extent, operand.row, operand.k)


def in_whole_vectors(operand: Operand, extent: int, inner: int, outer: int) -> bool:
    """Return whether the elements of a row are contiguous, and rows begin and end at whole vectors. ``inner`` and
    ``outer`` are the elements from one element of a row to the next, and from one row to the next."""
    assert operand.load is not None
    start, vector = flat_offset(operand.load), vector_elements(operand.load.buffer)
    even = extent % vector == 0 and outer % vector == 0
    return inner == 1 and even and start is not None and start.constant % vector == 0
