"""Operands that boxes cannot be copied from, copied first to where they can: rows at multiples of 16 bytes, with zeros
up to there."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....ir.buffer import Buffer
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, index, logical_and
from ....ir.stmt import HardwareAxis
from ...problems.gemm import Gemm, Operand
from ...tile.names import FreshNameWriter

PIECE_BYTES = 16
THREADS = 256
"""Of a block, each of which copies a piece: several at once took an H200 1 to 8 us longer than 33, for 67 MB."""


def uneven_operands(p: Gemm) -> tuple[Buffer, ...]:
    """Tensors that are multiplied, with rows that do not begin at multiples of 16 bytes, as copies of boxes want."""
    loads = {o.load.buffer.name: o.load.buffer for o in (p.a, *p.all_b) if o.load is not None}
    return tuple(b for b in loads.values() if any(s * b.dtype.bytes % PIECE_BYTES for s in b.strides[:-1]))


def repack(w: FreshNameWriter, p: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """The same product on tensors with even rows, and those of them that are workspace: a launch fills them first."""
    uneven = uneven_operands(p)
    if not uneven:
        return p, ()
    copies = {tensor.name: _padded(w, tensor) for tensor in uneven}
    _copy(w, [(tensor, copies[tensor.name]) for tensor in uneven])

    def moved(operand: Operand) -> Operand:
        load = operand.load
        if load is None or load.buffer.name not in copies:
            return operand
        return replace(operand, load=Load(copies[load.buffer.name], load.indices))

    others = tuple(replace(o, b=moved(o.b)) for o in p.others)
    return replace(p, a=moved(p.a), b=moved(p.b), others=others), tuple(copies.values())


def _padded(w: FreshNameWriter, tensor: Buffer) -> Buffer:
    run = PIECE_BYTES // tensor.dtype.bytes
    shape = (*tensor.shape[:-1], -(-tensor.shape[-1] // run) * run)
    return Buffer(w.fresh(f"{tensor.name}_even"), shape, tensor.dtype)


def _copy(w: FreshNameWriter, pairs: Sequence[tuple[Buffer, Buffer]]) -> None:
    """One launch for all of them, each with blocks of its own, from the last rows to the first: those are multiplied
    first, and still in the second-level cache then."""
    pairs, run = pairs[::-1], PIECE_BYTES // pairs[0][1].dtype.bytes
    counts = [-(-copy.elements // (run * THREADS)) for _, copy in pairs]
    bounds = [("even_block", sum(counts), HardwareAxis.GRID_X), ("even_thread", THREADS, HardwareAxis.THREAD)]
    with w.launch("even_rows", bounds) as (block, thread):
        for number, (tensor, copy) in enumerate(pairs):
            first = sum(counts[:number])
            own = [Compare(CompareOp.GE, block, index(first))] if first else []
            own += [Compare(CompareOp.LT, block, index(first + counts[number]))] if number < len(pairs) - 1 else []
            with w.when(logical_and(*own) if own else None):
                piece = (block - first) * THREADS + thread
                with w.when(piece < copy.elements // run if copy.elements % (run * THREADS) else None):
                    _copy_piece(w, tensor, copy, piece, run)


def _copy_piece(w: FreshNameWriter, tensor: Buffer, copy: Buffer, piece: Expr, run: int) -> None:
    across = copy.shape[-1] // run
    *outer, _ = copy.shape
    row, place = piece // across, list[Expr]()
    for n, extent in enumerate(outer):
        below = prod(outer[n + 1 :])
        place.append(extent - 1 - (row // below % extent if n else row // below))
    columns = Ramp(piece % across * run, 1, run)
    spread = [Broadcast(i, run) for i in place]
    with w.when(piece % across < tensor.shape[-1] // run):
        w.store(copy, (*spread, columns), Load(tensor, (*spread, columns)))
    with w.when(piece % across >= tensor.shape[-1] // run):
        inside = Compare(CompareOp.LT, columns, Broadcast(index(tensor.shape[-1]), run))
        w.store(copy, (*spread, columns), Load(tensor, (*spread, columns), inside))
