"""Pieces of a vector whose elements a load reads together: from contiguous aligned places, under one condition.

With 500 elements a row, pairs of elements are aligned, and both or none of them are inside:

    lanes_of_piece(select(j >= 6 and j < 506, X[i, j - 6]), "j", 8)    ->    2

The elements of a vector may be read in another order than they have in memory, and several may be the same one:

    span_of(X[i, (j + 64) % 128], "j", 8)    ->    8 elements, in their order
    span_of(X[i, j // 2], "j", 8)            ->    4 elements, each of them twice
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.bounds import loop_range
from ...ir.expr import Const, Expr, Load, Var, conjunction, index
from ...ir.linear_form import LinearForm, linear_form
from ...ir.rewrite import free_variables, substitute
from ...ir.simplify import simplify
from .load_analysis import conditions_inside
from .masked_loads import MaskedLoad, conjuncts
from .stage_body import scalar_at

LANE, _PIECE = Var("lane#"), Var("piece#")


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
    at, ranges = {axis: _PIECE * lanes + LANE}, {LANE.name: loop_range(lanes)}
    if any(LANE.name in free_variables(simplify(scalar_at(c, at), ranges)) for c in conjuncts(masked.mask)):
        return False
    offset: Expr = index(0)
    for i, stride in zip(masked.load.indices, masked.load.buffer.strides, strict=True):
        offset = offset + scalar_at(i, at) * stride
    form = linear_form(simplify(offset, ranges))
    first = form.without((LANE,))
    if form.coefficient(LANE.name) != 1 or any(LANE.name in free_variables(atom) for atom in first.terms):
        return False
    return not aligned or all(c % lanes == 0 for c in (first.constant, *first.terms.values()))


@dataclass(frozen=True, slots=True)
class LoadedSpan:
    """The neighbours in memory that a load reads for all elements of a vector: ``count`` of them. The first one stands
    ``before`` elements in front of that which it reads for element ``lowest``, so that they are aligned if they can be.

    ``mask``: the condition, on the axes, that they are inside the tensor, the same for all elements; None where they
    always are. ``begins_with_vector``: the index of the first one is where the vector begins along the axis.
    ``places``: which of the neighbours belongs to an element of the vector, both counted from 0.
    """

    lowest: int
    count: int
    before: int = 0
    mask: Expr | None = None
    begins_with_vector: bool = False
    places: LinearForm = LinearForm({LANE: 1})

    def place(self, element: Expr) -> Expr:
        """Return ``places`` at an element of the vector."""
        return substitute(self.places.to_expr(), {LANE.name: element})


def span_of(load: Load, axis: str, lanes: int, extents: Mapping[str, int]) -> LoadedSpan | None:
    """Return the neighbours along the last dimension that ``load`` reads for ``lanes`` elements along ``axis``, from a
    multiple of that number on. None where they are more than ``lanes``, and where some may be outside the tensor while
    others are not. ``extents``: those of all axes."""
    at, ranges = {axis: _PIECE * lanes + LANE}, {LANE.name: loop_range(lanes)}
    mask = conjunction(*conditions_inside(load, extents))
    same = [*load.indices[:-1], *([] if mask is None else [mask])]
    if any(LANE.name in free_variables(simplify(scalar_at(e, at), ranges)) for e in same):
        return None
    form = linear_form(simplify(scalar_at(load.indices[-1], at), ranges))
    moving = form.only(atom for atom in form.terms if free_variables(atom) == {LANE.name})
    fixed = form.without(moving.terms)
    if any(LANE.name in free_variables(atom) for atom in fixed.terms):
        return None
    places = [_constant(substitute(moving.to_expr(), {LANE.name: index(n)})) for n in range(lanes)]
    low, count = min(places), max(places) - min(places) + 1
    width, before = 1 << (count - 1).bit_length(), 0
    aligned = all(c % width == 0 for c in (load.buffer.shape[-1], *fixed.terms.values()))
    if aligned and (first := (fixed.constant + low) % width) + count <= width:
        before, count = first, width
    begins = fixed + (low - before) == LinearForm({_PIECE: lanes})
    found = LoadedSpan(places.index(low), count, before, mask, begins, moving - (low - before))
    return found if count <= lanes else None


def _constant(e: Expr) -> int:
    found = simplify(e, {})
    assert isinstance(found, Const)
    return int(found.value)
