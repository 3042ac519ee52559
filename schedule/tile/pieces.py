"""Pieces of a vector whose elements a load reads together: from contiguous aligned places, under one condition.

With 500 elements a row, pairs of elements are aligned, and both or none of them are inside:

    lanes_of_piece(select(j >= 6 and j < 506, X[i, j - 6]), "j", 8)    ->    2
"""

from ...ir.bounds import loop_range
from ...ir.expr import Expr, Var, index
from ...ir.linear_form import linear_form
from ...ir.rewrite import free_variables
from ...ir.simplify import simplify
from .masked_loads import MaskedLoad, conjuncts
from .stage_body import scalar_at

_LANE, _PIECE = Var("lane#"), Var("piece#")


def lanes_of_piece(masked: MaskedLoad, axis: str, lanes: int) -> int:
    """Return how many neighbours along ``axis``, from a multiple of that number on, a load reads together. It is a
    power of two that divides ``lanes``, and 1 where each element is loaded alone."""
    together = lanes & -lanes
    while together > 1 and not are_together(masked, axis, together, aligned=True):
        together //= 2
    return together


def are_together(masked: MaskedLoad, axis: str, lanes: int, *, aligned: bool) -> bool:
    """Return whether ``lanes`` neighbours along ``axis``, from a multiple of that number on, are contiguous and share
    each condition of the mask. ``aligned``: and whether the offset of the first one is a multiple of ``lanes``."""
    at, ranges = {axis: _PIECE * lanes + _LANE}, {_LANE.name: loop_range(lanes)}
    if any(_LANE.name in free_variables(simplify(scalar_at(c, at), ranges)) for c in conjuncts(masked.mask)):
        return False
    offset: Expr = index(0)
    for i, stride in zip(masked.load.indices, masked.load.buffer.strides, strict=True):
        offset = offset + scalar_at(i, at) * stride
    form = linear_form(simplify(offset, ranges))
    first = form.without((_LANE,))
    if form.coefficient(_LANE.name) != 1 or any(_LANE.name in free_variables(atom) for atom in first.terms):
        return False
    return not aligned or all(c % lanes == 0 for c in (first.constant, *first.terms.values()))
