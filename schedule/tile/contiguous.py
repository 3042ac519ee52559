"""Indices of vectors whose elements are contiguous along the last axis."""

from collections.abc import Sequence

from ...ir.expr import Expr, Ramp


def contiguous_vector(indices: Sequence[Expr], lanes: int) -> tuple[Expr, ...]:
    """Return the indices of ``lanes`` elements that are neighbours along the last axis, from the element at ``indices``
    on."""
    return tuple(indices) if lanes == 1 else (*indices[:-1], Ramp(indices[-1], 1, lanes))
