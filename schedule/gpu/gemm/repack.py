"""Operands whose rows TMA cannot load are repacked first: a launch copies them to rows at multiples of 16 bytes.

The rest of each row is filled with zeros. Constant operands have a launch of their own. Threads may bring operands to
shared memory instead (``shifted_rows``).

No view of a tensor spares the copy. One of every eighth row of 16-bit elements has a stride that TMA takes, but its
rows still begin between multiples of 16 bytes, and no box of TMA may (``ir.gpu.tma``).
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....core.precision import IEEE
from ....ir.buffer import Buffer
from ....ir.expr import Broadcast, Expr, Load, Ramp, index
from ....ir.stmt import HardwareAxis
from ...problems.gemm import Gemm, Operand
from ...tile.names import FreshNameWriter
from ..tma_view import operand_view
from ..unaligned_loads import flat_view
from .mma_atom import find_atom, is_packed
from .pack import pack

ROW_ALIGNMENT_BYTES = 16
"""Rows begin at multiples of so many bytes, and a thread copies so many."""
THREADS = 256
"""Threads of a CTA, each of which copies one vector. Several vectors for each took an H200 1 to 8 us longer than the 33
that 67 MB take."""


def uneven_operands(gemm: Gemm, *, as_views: bool = False) -> tuple[Buffer, ...]:
    """Return the tensors that are multiplied and have rows that TMA cannot load: not at multiples of 16 bytes. Operands
    that are packed are not among them. ``as_views``: whether their shapes are those that TMA sees (``operand_view``).
    """
    operands = [o for o in (gemm.a, *gemm.all_b) if o.load is not None]
    if find_atom(gemm) is not None:
        operands = [o for o in operands if not is_packed(gemm, o)]
    loads = [load for o in operands if (load := _loaded(gemm, o, as_views)) is not None]
    tensors = {load.buffer.name: load.buffer for load in loads}
    return tuple(t for t in tensors.values() if has_uneven_rows(t))


def as_stored(gemm: Gemm) -> Gemm:
    """Return the product of operands that are multiplied as they lie in memory: none is packed for wgmma."""
    return replace(gemm, precision=IEEE)


def has_uneven_rows(tensor: Buffer) -> bool:
    """Return whether rows of a tensor begin elsewhere than at multiples of 16 bytes."""
    return any(s * tensor.dtype.bytes % ROW_ALIGNMENT_BYTES for s in tensor.strides[:-1])


def repack(
    w: FreshNameWriter, gemm: Gemm, *, as_views: bool = False, only: Sequence[Buffer] | None = None
) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Return the same product on tensors with aligned rows, and those of them that are workspace. A launch fills these
    first. Nothing is written where all rows are aligned already. Operands that must be K-major or are split are
    packed. ``as_views``: as in ``uneven_operands``. ``only``: which of the tensors are repacked, if not all."""
    uneven = uneven_operands(gemm, as_views=as_views) if only is None else only
    gemm, packed = pack(w, gemm) if find_atom(gemm) is not None else (gemm, ())
    if not uneven:
        return gemm, packed
    copies = {tensor.name: _aligned(w, tensor) for tensor in uneven}
    for constant in (True, False):
        own = [(tensor, copies[tensor.name]) for tensor in uneven if gemm.is_constant(tensor) == constant]
        if own:
            _write_launch(w, own, gemm.inputs)

    def replaced(operand: Operand) -> Operand:
        load = _loaded(gemm, operand, as_views)
        if load is None or load.buffer.name not in copies:
            return operand
        return replace(operand, load=Load(copies[load.buffer.name], load.indices))

    others = tuple(replace(o, b=replaced(o.b)) for o in gemm.others)
    return replace(gemm, a=replaced(gemm.a), b=replaced(gemm.b), others=others), (*packed, *copies.values())


def repack_views(w: FreshNameWriter, gemm: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """As ``repack``, for operands that TMA loads."""
    return repack(w, gemm, as_views=True)


def _loaded(gemm: Gemm, operand: Operand, as_view: bool) -> Load | None:
    """Return the load of an operand, as TMA sees it if it is wanted so. Images seen through a window stay as they
    are."""
    seen = gemm.a if gemm.window is not None else gemm.b if gemm.b_window is not None else None
    if operand.load is None or not as_view or operand == seen:
        return operand.load
    return operand_view(operand.load)


def _aligned(w: FreshNameWriter, tensor: Buffer) -> Buffer:
    """Workspace for a copy of ``tensor`` with aligned rows."""
    vector = ROW_ALIGNMENT_BYTES // tensor.dtype.bytes
    shape = (*tensor.shape[:-1], -(-tensor.shape[-1] // vector) * vector)
    return Buffer(w.fresh(f"{tensor.name}_repacked"), shape, tensor.dtype)


def _write_launch(w: FreshNameWriter, pairs: Sequence[tuple[Buffer, Buffer]], inputs: Sequence[Buffer]) -> None:
    """One launch copies these tensors, each with CTAs of its own; what is not one of ``inputs`` is a view of one. It
    goes from the last rows to the first: those are multiplied first, and are still in L2 then."""
    pairs, width = pairs[::-1], ROW_ALIGNMENT_BYTES // pairs[0][1].dtype.bytes
    ctas = [-(-copy.elements // (width * THREADS)) for _, copy in pairs]
    axes = [("repack_cta", sum(ctas), HardwareAxis.GRID_X), ("repack_thread", THREADS, HardwareAxis.THREAD)]
    with w.launch(w.fresh("even_rows"), axes) as (cta, thread):
        for number, (tensor, copy) in enumerate(pairs):
            first = sum(ctas[:number])
            own = [cta >= first] if first else []
            own += [cta < first + ctas[number]] if number < len(pairs) - 1 else []
            with w.when(*own):
                vector = (cta - first) * THREADS + thread
                with w.when(vector < copy.elements // width if copy.elements % (width * THREADS) else None):
                    _copy_vector(w, tensor, copy, vector, width, tensor not in inputs)


def _copy_vector(w: FreshNameWriter, tensor: Buffer, copy: Buffer, vector: Expr, width: int, is_view: bool) -> None:
    """Copy ``width`` neighbours of a row, those beyond its end as zeros. Rows are counted from the last one. A launch
    knows the tensor of a view in the shape that was declared, or as one dimension."""
    vectors_of_row = copy.shape[-1] // width
    *outer, _ = copy.shape
    row, indices = vector // vectors_of_row, list[Expr]()
    for n, extent in enumerate(outer):
        below = prod(outer[n + 1 :])
        indices.append(extent - 1 - (row // below % extent if n else row // below))
    columns = Ramp(vector % vectors_of_row * width, 1, width)
    rows = [Broadcast(i, width) for i in indices]
    source, place = tensor, (*rows, columns)
    if is_view:
        source = flat_view(tensor)
        begin = sum((i * stride for i, stride in zip(indices, tensor.strides, strict=False)), columns.base)
        place = (Ramp(begin, 1, width),)
    with w.when(vector % vectors_of_row < tensor.shape[-1] // width):
        w.store(copy, (*rows, columns), Load(source, place))
    with w.when(vector % vectors_of_row >= tensor.shape[-1] // width):
        inside = columns < Broadcast(index(tensor.shape[-1]), width)
        w.store(copy, (*rows, columns), Load(source, place, inside))
