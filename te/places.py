"""Places: the sums of axes that indices are functions of, such as ``y + r`` of ``min(max(y + r - 1, 0), 9)``."""

from collections.abc import Iterator
from dataclasses import replace

from ..core.dtypes import INDEX
from ..ir.expr import Expr, rebuild
from ..ir.linear_form import LinearForm, affine_form
from ..ir.rewrite import loads_of


def place_of(i: Expr) -> LinearForm | None:
    """Return the sum of axes that an index is a function of, without a constant; None where there is no single one."""
    if loads_of(i):
        return None
    places = {replace(form, constant=0) for form in _sums(i)}
    return places.pop() if len(places) == 1 else None


def window_place_of(i: Expr, reduced: set[str]) -> LinearForm | None:
    """Return the sum of axes, one of them ``reduced``, that an index is a function of, and not the sum itself; None
    where it is anything else."""
    place = None if affine_form(i) is not None else place_of(i)
    return place if place is not None and len(place.terms) > 1 and reduced & set(place.variables) else None


def moved_place(e: Expr, place: LinearForm, to: LinearForm) -> Expr:
    """``e`` with ``to`` for the sum ``place``."""
    form = affine_form(e) if e.dtype == INDEX else None
    if form is not None:
        return e if form.is_constant else (form - place + to).to_expr()
    return rebuild(e, [moved_place(child, place, to) for child in e.children])


def _sums(e: Expr) -> Iterator[LinearForm]:
    """Yield the largest sums of axes in an expression."""
    form = affine_form(e) if e.dtype == INDEX else None
    if form is not None:
        yield from [] if form.is_constant else [form]
        return
    for child in e.children:
        yield from _sums(child)
