"""Indices of vectors whose elements are contiguous, along the last axis or along the last axes."""

from collections.abc import Sequence

from ...ir.expr import Binary, BinaryOp, Broadcast, Expr, Ramp, index


def contiguous_vector(indices: Sequence[Expr], lanes: int) -> tuple[Expr, ...]:
    """Return the indices of ``lanes`` elements that are neighbours along the last axis, from the element at ``indices``
    on."""
    return tuple(indices) if lanes == 1 else (*indices[:-1], Ramp(indices[-1], 1, lanes))


def contiguous_over(flat: Expr, extents: Sequence[int], lanes: int) -> tuple[Expr, ...]:
    """Return the row-major indices along axes of ``extents`` of ``lanes`` elements, from the flat index ``flat`` on."""
    rest: Expr = Ramp(flat, 1, lanes)
    indices: list[Expr] = []
    for extent in reversed(extents[1:]):
        divisor = Broadcast(index(extent), lanes)
        indices.append(Binary(BinaryOp.MOD, rest, divisor))
        rest = Binary(BinaryOp.FLOORDIV, rest, divisor)
    return (rest, *reversed(indices))
