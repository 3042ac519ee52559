"""Operands with unaligned rows, which a producer warpgroup brings to shared memory without a copy of them.

TMA loads rows that begin at multiples of 16 bytes alone. The threads of the producer load aligned vectors of others to
registers, shift them by funnel shifts, and store them to the stage as TMA would have:

    load what is inside of the tensor of a part of the stage          (many loads are under way at once)
    wait until the stage is empty
    store it, load and store the further parts
    fence it for wgmma, and arrive at the full barrier of the stage   (each warp)

Eight lanes load 128 bytes of a row. Rows that a thread loads are 16 apart, so that all its vectors are shifted by
equally many bytes. Elements outside of the tensor are zeros. Elements of float32 are loaded one by one, and rounded to
TF32 as they are stored.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Broadcast, Expr, Load, Ramp, Var, index, logical_and, minimum
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.bulk_copy import Prefetch
from ....ir.gpu.tma import TmaPrefetch
from ....ir.gpu.wgmma import LINE_BYTES
from ....ir.rewrite import substitute
from ....te.functions import cast
from ...problems.gemm import Gemm
from ..tma_view import ending_at, operand_view
from ..unaligned_loads import UnalignedVector, flat_index, flat_view, vector_elements, whole_vectors
from .k_atoms import row_depth
from .mma_atom import is_packed, splitting
from .operand_stages import OperandStages
from .repack import ROW_ALIGNMENT_BYTES, has_uneven_rows, uneven_operands

PREFETCHED_FILLS = 3
"""So many fills ahead, lines are prefetched into L2: threads wait for what they load."""
LINE_VECTORS = LINE_BYTES // ROW_ALIGNMENT_BYTES
SMALL_SHARE = 8
"""A tensor of at most one of so many parts of the largest one is small."""


@dataclass(frozen=True, slots=True)
class RowBox:
    """Rows of 128 bytes for a stage: from ``target`` (indices) of ``stages`` on, of which the last two are a row and a
    place in it.

    They lie ``pitch`` elements apart in ``tensor``, of one dimension, the first of them at ``begin``. ``inside``: how
    many rows, and how many elements of each, are inside of the tensor from there on.
    """

    tensor: Buffer
    begin: Expr
    pitch: int
    rows: int
    inside: tuple[Expr, Expr]
    stages: Buffer
    target: tuple[Expr, ...]

    @property
    def vectors(self) -> int:
        """How many vectors a thread loads."""
        return -(-self.rows * LINE_VECTORS // WARPGROUP_THREADS)

    def parts(self, vectors: int) -> "Iterator[RowBox]":
        """Yield the box in parts of which a thread loads so many vectors at most."""
        most = vectors * WARPGROUP_THREADS // LINE_VECTORS
        for row in range(0, self.rows, most):
            inside, (*outer, place, column) = (self.inside[0] - row, self.inside[1]), self.target
            begin, target = self.begin + row * self.pitch, (*outer, place + row, column)
            yield replace(self, begin=begin, rows=min(most, self.rows - row), inside=inside, target=target)


Part: TypeAlias = list[RowBox]
"""Boxes of which a thread loads all vectors before it stores the first of them."""


class ShiftedStages(OperandStages):
    """One operand in shared memory whose rows are unaligned in memory. No load of TMA brings it."""

    __slots__ = ()

    def load(
        self, w: Writer, fill: Expr, k_atom: int, at: Mapping[str, Expr], full: Buffer, places: int | None = None
    ) -> None:
        """Issue nothing: threads copy (``load_part``, ``store_part``)."""

    def arriving_bytes(self, at: Mapping[str, Expr]) -> int | Expr:
        return 0

    def spared_bytes(self, places: int) -> int:
        return 0

    def prefetch(self, at: Mapping[str, Expr]) -> Iterator[TmaPrefetch]:
        yield from ()

    def boxes(self, fill: Expr, k_atom: int, at: Mapping[str, Expr]) -> Iterator[RowBox]:
        """Yield what a k atom of the stage of ``fill`` consists of, which begins at ``at`` (axis -> index)."""
        atom, groups = (fill % self.buffer.shape[0], index(k_atom)), self.buffer.shape[2] // len(self.loads)
        for number, load in enumerate(self.loads):
            if self.along_k:
                yield self._row_box(load, at, self.axis, self.extent, (*atom, index(number * self.extent), index(0)))
                continue
            for n in range(groups):
                corner = {**at, self.axis: at[self.axis] + n * self.buffer.shape[-1]}
                target = (*atom, index(number * groups + n), index(0), index(0))
                yield self._row_box(load, corner, "k", self.buffer.shape[-2], target)

    def _row_box(self, load: Load, at: Mapping[str, Expr], outer: str, rows: int, target: tuple[Expr, ...]) -> RowBox:
        """Return the box of ``rows`` indices of the axis ``outer`` that begins at ``at``, of the rows that ``load``
        reads."""
        tensor, corner = load.buffer, [substitute(i, at) for i in load.indices]
        begin = flat_index(tensor, corner)
        row = load.indices.index(Var(outer))
        inside = (tensor.shape[row] - corner[row], tensor.shape[-1] - corner[-1])
        return RowBox(flat_view(tensor), begin, tensor.strides[row], rows, inside, self.buffer, target)


def can_shift(gemm: Gemm) -> bool:
    """Return whether threads can copy the operands whose rows are uneven: plain matrices of 16-bit floats, or of
    float32 that becomes TF32. Where A comes from registers, each lane would have to release what it has read."""
    special = (gemm.window, gemm.b_window, gemm.groups, gemm.dynamic)
    if splitting(gemm).planes > 1 or gemm.a_in_registers or any(part is not None for part in special):
        return False
    loads = [o.load for o in (gemm.a, *gemm.all_b) if o.load is not None]
    return all(load.dtype.is_float and load.dtype.bits in (16, 32) and _is_whole(gemm, load) for load in loads)


def copied_first(gemm: Gemm) -> tuple[Buffer, ...]:
    """Return the tensors with uneven rows that a first launch copies even where threads shift those of others: the
    small ones, which many tiles read."""
    uneven = uneven_operands(gemm, as_views=True)
    most = max((tensor.bytes for tensor in uneven), default=0)
    return tuple(tensor for tensor in uneven if SMALL_SHARE * tensor.bytes <= most)


def is_shifted(gemm: Gemm, axis: str, repacked: int) -> bool:
    """Return whether threads copy the operand along ``axis``: A, or all B."""
    operands, copied = (gemm.a,) if axis == "m" else gemm.all_b, {tensor.name for tensor in copied_first(gemm)}
    views = [operand_view(o.load).buffer for o in operands if o.load is not None and not is_packed(gemm, o)]
    return not repacked and any(has_uneven_rows(view) and view.name not in copied for view in views)


def _is_whole(gemm: Gemm, load: Load) -> bool:
    """Return whether a load reads all elements of a tensor that lies row after row."""
    view = operand_view(load)
    return view.buffer.layout is None and ending_at(view, {"k": row_depth(gemm)}) == view


def parts_of(boxes: Iterable[RowBox], held: int) -> list[Part]:
    """Return the boxes in parts, in their order. A thread holds so many vectors of a part at most."""
    parts = list[Part]()
    for box in (part for whole in boxes for part in whole.parts(held)):
        if not parts or sum(b.vectors for b in parts[-1]) + box.vectors > held:
            parts.append([])
        parts[-1].append(box)
    return parts


def registers_of(w: Writer, part: Part) -> Buffer:
    """Return registers for the vectors of a thread, [vectors, 8]."""
    shape = (sum(box.vectors for box in part), _width(part[0]))
    return w.allocate("moved", shape, part[0].tensor.dtype, MemoryScope.REGISTER)


def load_part(w: Writer, part: Part, moved: Buffer, thread: Expr) -> None:
    """The ``thread`` of a warpgroup loads its vectors of a part."""
    first, width = 0, _width(part[0])
    for box in part:
        with w.unrolled("vector", box.vectors) as n:
            row, column = _place(n, thread, width)
            vector = UnalignedVector(box.tensor, box.begin + row * box.pitch + column, column, box.inside[1])
            w.store(moved, (n + first, Ramp(index(0), 1, width)), vector.load(_has_row(box, row)))
        first += box.vectors


def prefetch_rows(w: Writer, part: Part, ahead: int, thread: Expr) -> None:
    """Prefetch the lines of 128 bytes that rows of a part reach ``ahead`` elements further along k."""
    for box in part:
        with w.unrolled("line", -(-box.rows // WARPGROUP_THREADS)) as n:
            row, end = n * WARPGROUP_THREADS + thread, box.inside[1]
            last = minimum(index(ahead + LINE_VECTORS * _width(box)), end) - 1
            with w.when(row < box.rows if box.rows % WARPGROUP_THREADS else None, row < box.inside[0], end > ahead):
                w.emit(Prefetch(box.tensor, (box.begin + row * box.pitch + last,), 1))


def store_part(w: Writer, part: Part, moved: Buffer, thread: Expr) -> None:
    """Store what ``load_part`` has loaded."""
    first = 0
    for box in part:
        width = _width(box)
        with w.unrolled("vector", box.vectors) as n:
            row, column = _place(n, thread, width)
            with w.when(row < box.rows if box.rows * LINE_VECTORS % WARPGROUP_THREADS else None):
                held = Load(moved, (n + first, Ramp(index(0), 1, width)))
                w.store(box.stages, _at(box, row, Ramp(column, 1, width)), cast(held, box.stages.dtype))
        first += box.vectors
        _store_rest(w, box, thread)


def _store_rest(w: Writer, box: RowBox, thread: Expr) -> None:
    """Copy the last elements of a tensor that are no whole vector, one by one. The vector of one more would end beyond
    it."""
    width, whole = _width(box), whole_vectors(box.tensor)
    if whole == box.tensor.elements:
        return
    with w.when(box.begin + ((box.rows - 1) * box.pitch + (LINE_VECTORS * width - 1)) >= whole):
        with w.loop("vector", box.vectors) as n, w.loop("element", width) as element:
            row, column = _place(n, thread, width)
            place, flat = column + element, box.begin + row * box.pitch + column + element
            with w.when(flat >= whole, _has_row(box, row), place < box.inside[1]):
                w.store(box.stages, _at(box, row, place), cast(Load(box.tensor, (flat,)), box.stages.dtype))


def _width(box: RowBox) -> int:
    return vector_elements(box.tensor)


def _place(n: Expr, thread: Expr, width: int) -> tuple[Expr, Expr]:
    """Return the row and the first element of the ``n``-th vector of a thread."""
    row = n * (WARPGROUP_THREADS // LINE_VECTORS) + thread // LINE_VECTORS
    return row, thread % LINE_VECTORS * width


def _has_row(box: RowBox, row: Expr) -> Expr:
    """Return whether the box has a row, inside of the tensor."""
    there = row < box.inside[0]
    return logical_and(there, row < box.rows) if box.rows * LINE_VECTORS % WARPGROUP_THREADS else there


def _at(box: RowBox, row: Expr, place: Expr) -> tuple[Expr, ...]:
    """Return the indices of a place of a row in the stages."""
    *outer, first, _ = box.target
    indices = (*outer, first + row)
    return (*(Broadcast(i, place.lanes) for i in indices), place) if place.lanes > 1 else (*indices, place)
