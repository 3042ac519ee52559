"""Operations of StableHLO and CHLO on single elements."""

import math

from ...graph.graph import Value
from ..aten.compound import COMPOUND, of_integers, remainder
from ..aten.rule import cast, need
from .call import RULES, HloCall, Rule, rule

_SAME = {
    "abs": "abs", "add": "add", "ceil": "ceil", "cosine": "cos", "exponential": "exp",
    "exponential_minus_one": "expm1", "floor": "floor", "log": "log", "log_plus_one": "log1p", "logistic": "sigmoid",
    "multiply": "mul", "negate": "neg", "round_nearest_even": "round", "rsqrt": "rsqrt", "select": "where",
    "atan2": "atan2", "sign": "sign", "sine": "sin", "sqrt": "sqrt", "subtract": "sub", "tan": "tan", "tanh": "tanh",
    "chlo.erf": "erf", "chlo.square": "square", "chlo.tan": "tan", "chlo.erfc": "erfc", "chlo.erf_inv": "erfinv",
    "chlo.lgamma": "lgamma", "chlo.digamma": "digamma", "chlo.bessel_i1e": "i1e",
}  # fmt: skip
"""Operations that are one of ours on the same operands."""


def _same(op: str) -> Rule:
    return lambda c: c.node(op, *c.narrowed())


def _compound(name: str) -> Rule:
    return lambda c: COMPOUND[name](c, c.inputs[0])


RULES.update({name if "." in name else f"stablehlo.{name}": _same(op) for name, op in _SAME.items()})
RULES.update({f"chlo.{name}": _compound(name) for name in COMPOUND})


@rule("maximum", "minimum")
def _extreme(c: HloCall) -> Value:
    """The neutral element leaves the other operand: reductions begin with it."""
    neutral = -math.inf if c.op.endswith("maximum") else math.inf
    for x, y in (c.inputs, reversed(c.inputs)):
        if x.dtype.is_float and c.number(y) == neutral:
            return x
    return c.node(c.op.rpartition(".")[2], *c.narrowed())


@rule("divide")
def _divide(c: HloCall) -> Value:
    x, y = c.narrowed()
    divisor = c.number(y)
    if x.dtype.is_integer:
        return of_integers(c, x, y, "quotient", int(divisor or 0))
    total = c.made(x, "sum")
    if total is not None and divisor is not None and c.source(total).elements == divisor * x.elements:
        return c.node("mean", c.source(total), **total.attributes)
    window = c.made(x, "mul")  # the sum of a window is its mean times the number of its elements
    if window is not None and c.number(c.source(window, 1)) == divisor:
        mean = c.source(window)
        order = c.made(mean, "permute")
        if c.made(mean if order is None else c.source(order), "average_pool"):
            return mean
    return c.node("div", x, y)


@rule("remainder")
def _remainder(c: HloCall) -> Value:
    x, y = c.narrowed()
    return remainder(c, x, y, False) if x.dtype.is_float else of_integers(c, x, y, "fmod")


@rule("power")
def _power(c: HloCall) -> Value:
    x, y = c.narrowed()
    need(x.dtype.is_float, "powers of integers")
    return c.node("square", x) if c.number(y) == 2.0 else c.node("pow", x, y)


@rule("select")
def _select(c: HloCall) -> Value:
    condition = c.number(c.inputs[0])
    return c.node("where", *c.narrowed()) if condition is None else c.inputs[1 if condition else 2]


@rule("clamp")
def _clamp(c: HloCall) -> Value:
    low, x, high = c.narrowed()
    return c.node("minimum", c.node("maximum", x, low), high)


_DIRECTIONS = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


@rule("compare")
def _compare(c: HloCall) -> Value:
    need(c.get("compare_type", "NOTYPE") != "TOTALORDER", "a total order")
    return c.node(_DIRECTIONS[c.get("comparison_direction")], *c.narrowed())


_BOOLEAN = {"and": "logical_and", "or": "logical_or", "xor": "ne", "not": "logical_not"}


@rule(*_BOOLEAN)
def _boolean(c: HloCall) -> Value:
    need(c.dtype.is_bool, "bits of integers")
    return c.node(_BOOLEAN[c.op.rpartition(".")[2]], *c.narrowed())


@rule("convert")
def _convert(c: HloCall) -> Value:
    return cast(c, c.inputs[0], c.dtype)


@rule("optimization_barrier")
def _barrier(c: HloCall) -> list[Value]:
    return list(c.inputs)


@rule("is_finite")
def _is_finite(c: HloCall) -> Value:
    size = c.node("abs", c.inputs[0])
    return c.node("lt", size, c.scalar(math.inf, size.dtype))


@rule("cbrt")
def _cbrt(c: HloCall) -> Value:
    x = c.inputs[0]
    root = c.node("pow", c.node("abs", x), c.scalar(1 / 3, x.dtype))
    return c.node("mul", c.node("sign", x), root)
