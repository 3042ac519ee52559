"""Functions of one or two floats that are written with several operators of graphs."""

import math
from collections.abc import Callable

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from .rule import RULES, Emitter, NodeMaker, Rule, cast, need, number, operand, rule


def _n(b: NodeMaker, x: Value, value: float) -> Value:
    return number(b, value, x.dtype)


def _plus(b: NodeMaker, x: Value, value: float) -> Value:
    return b.node("add", x, _n(b, x, value))


def _times(b: NodeMaker, x: Value, value: float) -> Value:
    return b.node("mul", x, _n(b, x, value))


def _with_sign(b: NodeMaker, magnitude: Value, x: Value) -> Value:
    return b.node("where", b.node("lt", x, _n(b, x, 0.0)), b.node("neg", magnitude), magnitude)


def _sinh(b: NodeMaker, x: Value) -> Value:
    """(u + u / (u + 1)) / 2 where u = exp(x) - 1; far from 0 it is exp(|x|) / 2 with the sign of x."""
    a = b.node("abs", x)
    u = b.node("expm1", b.node("minimum", a, _n(b, x, 8.0)))
    near = _times(b, b.node("add", u, b.node("div", u, _plus(b, u, 1.0))), 0.5)
    far = b.node("sub", _times(b, b.node("exp", a), 0.5), _times(b, b.node("exp", b.node("neg", a)), 0.5))
    return _with_sign(b, b.node("where", b.node("lt", a, _n(b, x, 8.0)), near, far), x)


def _cosh(b: NodeMaker, x: Value) -> Value:
    return _times(b, b.node("add", b.node("exp", x), b.node("exp", b.node("neg", x))), 0.5)


def _asinh(b: NodeMaker, x: Value) -> Value:
    """log1p(a + a² / (1 + sqrt(a² + 1))) with the sign of x, where a = |x|; log(2a) where a² would overflow."""
    a = b.node("abs", x)
    small = b.node("minimum", a, _n(b, x, 1e4))
    square = b.node("square", small)
    below = _plus(b, b.node("sqrt", _plus(b, square, 1.0)), 1.0)
    near = b.node("log1p", b.node("add", small, b.node("div", square, below)))
    far = _plus(b, b.node("log", a), math.log(2.0))
    return _with_sign(b, b.node("where", b.node("lt", a, _n(b, x, 1e4)), near, far), x)


def _acosh(b: NodeMaker, x: Value) -> Value:
    """log1p(t + sqrt(2t + t²)) where t = x - 1; log(2x) where t² would overflow."""
    t = _plus(b, x, -1.0)
    small = b.node("minimum", t, _n(b, x, 1e4))
    root = b.node("sqrt", b.node("mul", small, _plus(b, small, 2.0)))
    near = b.node("log1p", b.node("add", small, root))
    far = _plus(b, b.node("log", x), math.log(2.0))
    return b.node("where", b.node("lt", x, _n(b, x, 1e4)), near, b.node("where", b.node("ne", x, x), x, far))


def _atanh(b: NodeMaker, x: Value) -> Value:
    """log1p(2x / (1 - x)) / 2."""
    return _times(b, b.node("log1p", b.node("div", _times(b, x, 2.0), b.node("sub", _n(b, x, 1.0), x))), 0.5)


def _asin(b: NodeMaker, x: Value) -> Value:
    one = _n(b, x, 1.0)
    other = b.node("sqrt", b.node("mul", b.node("sub", one, x), b.node("add", one, x)))
    return b.node("atan", b.node("div", x, other))


def _acos(b: NodeMaker, x: Value) -> Value:
    """2 atan(sqrt((1 - x) / (1 + x)))"""
    one = _n(b, x, 1.0)
    ratio = b.node("div", b.node("sub", one, x), b.node("add", one, x))
    return _times(b, b.node("atan", b.node("sqrt", ratio)), 2.0)


COMPOUND: dict[str, Callable[[NodeMaker, Value], Value]] = {
    "sinh": _sinh, "cosh": _cosh, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "asin": _asin, "acos": _acos,
    "log10": lambda b, x: _times(b, b.node("log", x), 1.0 / math.log(10.0)),
}  # fmt: skip
"""Functions of a float."""


def _of_float(function: Callable[[NodeMaker, Value], Value]) -> Rule:
    return lambda b, x: function(b, cast(b, x, b.dtype))


# No kernel class takes the stages of asin: torch's own kernel is faster than its steps.
RULES.update({f"aten.{name}.default": _of_float(function) for name, function in COMPOUND.items() if name != "asin"})


@rule("i0.default", "special_i1.default")
def _bessel(b: Emitter, x: Value) -> Value:
    x = cast(b, x, b.dtype)
    scaled = b.node("i1e" if "i1" in b.target else "i0e", x)
    return b.node("mul", b.node("exp", b.node("abs", x)), scaled)


@rule("polygamma.default")
def _polygamma(b: Emitter, order: int, x: Value) -> Value:
    need(order == 0, "further derivatives")
    return b.node("digamma", cast(b, x, b.dtype))


@rule("angle.default")
def _angle(b: Emitter, x: Value) -> Value:
    """Return that of a real number: π below 0, and NaN of NaN."""
    x = cast(b, x, b.dtype)
    below = b.node("where", b.node("lt", x, _n(b, x, 0.0)), _n(b, x, math.pi), _n(b, x, 0.0))
    return b.node("where", b.node("ne", x, x), x, below)


@rule("ldexp.Tensor")
def _ldexp(b: Emitter, x: Value, exponent: Value) -> Value:
    return b.node("mul", cast(b, x, b.dtype), b.node("exp2", cast(b, exponent, b.dtype)))


@rule("hypot.default")
def _hypot(b: Emitter, x: Value, y: Value) -> Value:
    squares = (b.node("square", cast(b, v, b.dtype)) for v in (x, y))
    return b.node("sqrt", b.node("add", *squares))


@rule("xlogy.Tensor")
def _xlogy(b: Emitter, x: Value, y: Value) -> Value:
    """x log(y), 0 where x is 0 and y is no NaN."""
    x, y = cast(b, x, b.dtype), cast(b, y, b.dtype)
    nothing = b.node("logical_and", b.node("eq", x, _n(b, x, 0.0)), b.node("eq", y, y))
    return b.node("where", nothing, _n(b, x, 0.0), b.node("mul", x, b.node("log", y)))


def remainder(b: NodeMaker, x: Value, y: Value, down: bool) -> Value:
    """Return the remainder of floats: with the sign of ``y`` where quotients are rounded ``down``, else with that of
    ``x``."""
    quotient = b.node("floor" if down else "trunc", b.node("div", x, y))
    none = b.node("eq", quotient, _n(b, x, 0.0))  # 0 times an infinite divisor would be NaN
    rest = b.node("where", none, x, b.node("sub", x, b.node("mul", quotient, y)))
    # A quotient that was rounded up to a whole number is one too far: the rest then has the wrong sign.
    product = b.node("mul", rest, y if down else x)
    step = y if down else _with_sign(b, b.node("abs", y), x)
    return b.node("where", b.node("lt", product, _n(b, x, 0.0)), b.node("add", rest, step), rest)


def _divisor(b: Emitter, y: object) -> int:
    """Return a number that integers are divided by. Raises NoRule for one that is not known, or not positive."""
    found = y
    if isinstance(y, Value):
        known = b.known(y)
        found = int(known.ravel()[0]) if known is not None and known.size == 1 else None
    need(isinstance(found, int) and 0 < found < 1 << 31, "a divisor that is not known")
    assert isinstance(found, int)
    return found


@rule("remainder.Scalar", "remainder.Tensor", "fmod.Scalar", "fmod.Tensor")
def _remainder(b: Emitter, x: Value, y: object) -> Value:
    down = "remainder" in b.target
    if b.dtype.is_float:
        return remainder(b, operand(b, x, b.dtype), operand(b, y, b.dtype), down)
    need(down and x.dtype == b.dtype, "integers of another kind")
    return b.node("modulo", x, divisor=_divisor(b, y))


@rule("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default", "floor_divide.Scalar")
def _rounded_quotient(b: Emitter, x: Value, y: object, *, rounding_mode: str | None = "floor") -> Value:
    if b.dtype.is_float:
        quotient = b.node("div", operand(b, x, b.dtype), operand(b, y, b.dtype))
        return quotient if rounding_mode is None else b.node(rounding_mode, quotient)
    need(rounding_mode == "floor" and x.dtype == b.dtype, "integers of another kind")
    return b.node("floor_divide", x, divisor=_divisor(b, y))


@rule("round.decimals")
def _round(b: Emitter, x: Value, *, decimals: int) -> Value:
    need(b.dtype.is_float and abs(decimals) < 30, "another form of round")
    return _times(b, b.node("round", _times(b, x, 10.0**decimals)), 10.0**-decimals)


def _with_sign_of_zero(b: NodeMaker, x: Value) -> Value:
    """Return what is below 0 where ``x`` is, or is -0."""
    return b.node("where", b.node("eq", x, _n(b, x, 0.0)), b.node("reciprocal", x), x)


@rule("copysign.Tensor", "copysign.Scalar")
def _copysign(b: Emitter, x: Value, y: object) -> Value:
    return _with_sign(b, b.node("abs", cast(b, x, b.dtype)), _with_sign_of_zero(b, operand(b, y, b.dtype)))


@rule("signbit.default")
def _signbit(b: Emitter, x: Value) -> Value:
    need(not x.dtype.is_bool, "a bool")
    if x.dtype.is_float:
        x = _with_sign_of_zero(b, x)
    return b.node("lt", x, number(b, 0, x.dtype))


def of_integers(b: NodeMaker, x: Value, y: Value, what: str, divisor: int = 0) -> Value:
    """Return the ``quotient`` of integers towards 0, the remainder with the sign of the dividend (``fmod``), or that
    with the sign of the divisor (``remainder``), by float64, whose quotients of integers under 2^53 are exact when
    rounded. Integers of 64 bits are divided by a positive ``divisor`` that is known."""
    need(x.dtype.is_integer and x.dtype == y.dtype, "two dtypes")
    if x.dtype.bits > 32:
        need(divisor > 0 and what != "fmod", "integers of so many bits")
        if what == "remainder":
            return b.node("modulo", x, divisor=divisor)
        size = b.node("floor_divide", b.node("abs", x), divisor=divisor)
        return b.node("where", b.node("lt", x, _n(b, x, 0)), b.node("neg", size), size)
    first, second = cast(b, x, DTYPES["float64"]), cast(b, y, DTYPES["float64"])
    quotient = b.node("floor" if what == "remainder" else "trunc", b.node("div", first, second))
    found = quotient if what == "quotient" else b.node("sub", first, b.node("mul", quotient, second))
    return cast(b, found, x.dtype)
