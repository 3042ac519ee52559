"""Which keys a query sees: conditions of attention that bound them, and others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...ir.expr import Compare, CompareOp, Expr, Logic, LogicOp, Unary, UnaryOp, Var
from ...ir.linear_form import LinearForm, affine_form, linear_form
from ...ir.rewrite import free_variables, loads_of
from ...te.functions import any_of, negated


@dataclass(frozen=True, slots=True)
class KeyBound:
    """A condition on which keys a query sees: ``n`` is at most one of ``limits`` where it is ``upper``, else at least
    one of them. They are linear forms of ``m``, the axes of the batch, and what is loaded for a member of the batch,
    such as the length of a sequence."""

    upper: bool
    limits: tuple[LinearForm, ...]

    @property
    def condition(self) -> Expr:
        """The condition as an expression."""
        op = CompareOp.LE if self.upper else CompareOp.GE
        return any_of(*(Compare(op, Var("n"), limit.to_expr()) for limit in self.limits))


def conjuncts(condition: Expr) -> Iterator[Expr]:
    """Yield the conditions that must all hold where ``condition`` does, with negations moved into comparisons."""
    match condition:
        case Logic(op=LogicOp.AND, a=a, b=b):
            yield from conjuncts(a)
            yield from conjuncts(b)
        case Unary(op=UnaryOp.NOT, value=Compare(op=op, a=a, b=b)) if op in _NEGATED:
            yield Compare(_NEGATED[op], a, b)
        case Unary(op=UnaryOp.NOT, value=Logic(op=LogicOp.OR, a=a, b=b)):
            yield from conjuncts(negated(a))
            yield from conjuncts(negated(b))
        case Unary(op=UnaryOp.NOT, value=Unary(op=UnaryOp.NOT, value=value)):
            yield from conjuncts(value)
        case _:
            yield condition


_NEGATED = {
    CompareOp.LT: CompareOp.GE,
    CompareOp.LE: CompareOp.GT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.GE: CompareOp.LT,
}
"""The negation of a comparison of whole numbers."""


def split_masks(masks: Sequence[Expr]) -> tuple[tuple[KeyBound, ...], tuple[Expr, ...]]:
    """Masks that bound ``n`` by linear forms, and all others; each once."""
    bounds: dict[KeyBound, None] = {}
    conditions: dict[Expr, None] = {}
    for mask in masks:
        bound = _bound(mask)
        if bound is None:
            conditions[mask] = None
        else:
            bounds[bound] = None
    return tuple(bounds), tuple(conditions)


def hides_nothing(bound: KeyBound, last_n: Expr) -> bool:
    """Return whether an upper bound lets every query see the last key."""
    beyond = (affine_form(limit.to_expr() - last_n) for limit in bound.limits)
    return bound.upper and any(form is not None and form.is_constant and form.constant >= 0 for form in beyond)


def _bound(mask: Expr) -> KeyBound | None:
    """Return the bound that ``mask`` is: a comparison, or one of several that bound ``n`` from the same side."""
    if isinstance(mask, Logic) and mask.op is LogicOp.OR:
        first, second = _bound(mask.a), _bound(mask.b)
        if first is None or second is None or first.upper is not second.upper:
            return None
        return KeyBound(first.upper, (*first.limits, *second.limits))
    if not isinstance(mask, Compare) or not mask.a.dtype.is_integer or mask.op not in _NEGATED:
        return None
    a, b = linear_form(mask.a), linear_form(mask.b)
    opaque = {e for form in (a, b) for e in form.terms if not isinstance(e, Var)}
    if any(not loads_of(e) or free_variables(e) & {"m", "n"} for e in opaque):
        return None
    # the mask is: form >= 0
    form = b - a if mask.op in (CompareOp.LT, CompareOp.LE) else a - b
    form = form + (-1) if mask.op in (CompareOp.LT, CompareOp.GT) else form
    coefficient = form.coefficient("n")
    if coefficient not in (1, -1):
        return None
    rest = form.without((Var("n"),))
    return KeyBound(coefficient == -1, (rest if coefficient == -1 else rest.scaled(-1),))
