"""Conditions without which a term of a reduction changes nothing."""

from collections.abc import Iterator

from ..ir.expr import Binary, BinaryOp, Cast, Const, Expr, Logic, LogicOp, Select, const, rebuild
from .functions import all_of
from .workload import Reducer, Stage


def conditions_of_terms(stage: Stage) -> Iterator[Expr]:
    """Yield conditions that all terms of a reduction have that change it: those of selects whose other value is its
    identity. Of a sum these may be factors, whose product is 0 for finite numbers, and conditions as numbers, 1 or
    0."""
    if stage.reducer is not None and not stage.reducer.is_position:
        yield from _conditions(stage.body, identity(stage), stage.reducer is Reducer.SUM)


def _conditions(e: Expr, value: float, products: bool) -> Iterator[Expr]:
    match e:
        case Cast(value=condition) if condition.dtype.is_bool:
            yield from conjuncts(condition) if products else ()
        case Cast(value=inner):
            yield from _conditions(inner, value, products)
        case Binary(op=BinaryOp.MUL, a=a, b=b) if products:
            yield from _conditions(a, value, products)
            yield from _conditions(b, value, products)
        case Select(condition=condition, then=then, otherwise=otherwise):
            other = otherwise.value if isinstance(otherwise, Cast) else otherwise
            if isinstance(other, Const) and other.value == value:
                yield from conjuncts(condition)
                yield from _conditions(then, value, products)


def identity(stage: Stage) -> float:
    """Return the number from which a reduction starts."""
    dtype = stage.tensor.dtype
    match stage.reducer:
        case Reducer.SUM:
            return 0
        case Reducer.PROD:
            return 1
    lowest = stage.reducer is Reducer.MAX
    if dtype.is_float:
        return float("-inf") if lowest else float("inf")
    return dtype.integer_range[0 if lowest else 1]


def conjuncts(condition: Expr) -> Iterator[Expr]:
    """Yield the conditions of which all must hold."""
    if isinstance(condition, Logic) and condition.op is LogicOp.AND:
        yield from conjuncts(condition.a)
        yield from conjuncts(condition.b)
    else:
        yield condition


def without_condition(e: Expr, condition: Expr) -> Expr:
    """``e`` where ``condition`` is known to hold: no select asks for it, nor is it cast to a number."""
    if isinstance(e, Cast) and e.value.dtype.is_bool and condition in (found := list(conjuncts(e.value))):
        left = [c for c in found if c != condition]
        return Cast(all_of(*left), e.type) if left else const(1, e.type)
    if isinstance(e, Select) and condition in (found := list(conjuncts(e.condition))):
        left, then = [c for c in found if c != condition], without_condition(e.then, condition)
        return Select(all_of(*left), then, e.otherwise) if left else then
    return rebuild(e, [without_condition(child, condition) for child in e.children]) if e.children else e
