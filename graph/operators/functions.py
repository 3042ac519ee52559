"""Functions of one element, activations among them."""

import math

import numpy as np

from ...ir.expr import Expr
from ...te import build as te
from ...te.erf import erf
from ...te.operators.maps import MAPS
from ...te.operators.parameter import Parameter, Values
from .attributes import Real, real
from .operator import Array
from .pointwise import NUMBERS, pointwise


def _log1p(x: Expr) -> Expr:
    """log(1 + x). What the sum loses of a small x is put back: log(w) * x / (w - 1), where w = 1 + x is rounded."""
    w = x + 1.0
    return te.select(te.equal(w, 1.0), x, te.log(w) * (x / (w - 1.0)))


_EXPM1_TERMS, _EXPM1_TERMS_DOUBLE = 10, 18
"""Terms of the series up to 0.5: the first that is left out is below a rounding of float32, of float64."""


def _expm1(x: Expr) -> Expr:
    """exp(x) - 1. Near 0 it is the series x + x² (1/2! + x/3! + x²/4! + …), and far from 0 the plain difference."""
    count = _EXPM1_TERMS_DOUBLE if x.dtype.bits == 64 else _EXPM1_TERMS
    series: Expr = te.constant(1.0 / math.factorial(count), x.dtype)
    for n in reversed(range(2, count)):
        series = series * x + 1.0 / math.factorial(n)
    return te.select(te.absolute(x) < 0.5, x + x * x * series, te.exp(x) - 1.0)


def _sign(x: Expr) -> Expr:
    return te.select(x > 0, te.constant(1, x.dtype), te.select(x < 0, te.constant(-1, x.dtype), x))


def _softplus(x: Expr, v: Values) -> Expr:
    beta, threshold = real(v, "beta"), real(v, "threshold")
    return te.select(x * beta > threshold, x, _log1p(te.exp(x * beta)) * (1.0 / beta))


def _softplus_numpy(x: Array, v: Values) -> Array:
    beta, threshold = real(v, "beta"), real(v, "threshold")
    return np.where(x * beta > threshold, x, np.log1p(np.exp(np.minimum(x * beta, 700.0))) / beta)


def _elu(x: Expr, v: Values) -> Expr:
    alpha, scale, inner = (real(v, n) for n in ("alpha", "scale", "input_scale"))
    return te.select(x > 0, x * scale, _expm1(x * inner) * (alpha * scale))


def _elu_numpy(x: Array, v: Values) -> Array:
    alpha, scale, inner = (real(v, n) for n in ("alpha", "scale", "input_scale"))
    return np.where(x > 0, x * scale, np.expm1(np.minimum(x * inner, 1.0)) * (alpha * scale))


def _sigmoid_numpy(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _number(name: str, meaning: str, default: float) -> Parameter:
    return Parameter(name, meaning, Real(), default)


def _hard(x: Expr) -> Expr:
    return te.minimum(te.maximum(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)


def _mish(x: Expr) -> Expr:
    """x * tanh(log(1 + exp(x))) = x * (u² + 2u) / (u² + 2u + 2) where u = exp(x); beyond 20 that is x."""
    u = te.exp(te.minimum(x, 20.0))
    n = u * (u + 2.0)
    return te.select(x > 20.0, x, x * (n / (n + 2.0)))


def _tan(x: Expr) -> Expr:
    return te.sin(x) / te.cos(x)


_ATAN_TERMS, _ATAN_TERMS_DOUBLE = 9, 20
"""Terms of the series, up to tan(π/8): the first that is left out is below a rounding of float32, of float64."""


def _atan(x: Expr) -> Expr:
    """Return the arctangent. With a = |x|, the rules atan(a) = π/2 - atan(1/a) and atan(a) = π/4 + atan((a - 1) / (a +
    1)) leave an argument of at most tan(π/8). The series t - t³/3 + t⁵/5 - … takes few terms for it."""
    a = te.absolute(x)
    high, low = a > math.tan(3 * math.pi / 8), a > math.tan(math.pi / 8)
    t = te.select(high, -1.0 / a, te.select(low, (a - 1.0) / (a + 1.0), a))
    base = te.select(high, te.constant(math.pi / 2, x.dtype), te.select(low, te.constant(math.pi / 4, x.dtype), 0.0))
    found = base + _atan_series(t)
    return te.select(x < 0, -found, found)


def _atan_series(t: Expr) -> Expr:
    """Return the arctangent of what is at most tan(π/8)."""
    z = t * t
    count = _ATAN_TERMS_DOUBLE if t.dtype.bits == 64 else _ATAN_TERMS
    series: Expr = te.constant((-1.0) ** (count - 1) / (2 * count - 1), t.dtype)
    for n in reversed(range(count - 1)):
        series = series * z + (-1.0) ** n / (2 * n + 1)
    return series * t


_PI_ROUNDED = {32: math.pi - float(np.float32(math.pi)), 64: 1.2246467991473532e-16}
"""What a float of so many bits loses of π (of float64: the sine of it)."""


def _atan2(y: Expr, x: Expr) -> Expr:
    """Return the angle of (x, y). The arctangent of the shorter side over the longer one is that to the nearest axis:
    up to π/8 by the series, and beyond by atan(r) = π/4 + atan((r - 1) / (r + 1)). A -0 counts as less than 0. Each
    part is written once, so that the expression stays small."""

    def below(v: Expr) -> Expr:
        return te.select(te.equal(v, 0.0), 1.0 / v, v) < 0

    def number(condition: Expr, yes: float, no: float) -> Expr:
        return te.select(condition, te.constant(yes, x.dtype), te.constant(no, x.dtype))

    up, across = te.absolute(y), te.absolute(x)
    long, short = te.maximum(up, across), te.minimum(up, across)
    far = short > long * math.tan(math.pi / 8)
    base = number(far, 1.0, 0.0)
    finite = te.minimum(long, 1e38)  # 0 times infinity would be NaN
    series = number(far, math.pi / 4, 0.0) + _atan_series((short - base * finite) / (long + base * short))
    # Sides that are both 0, or both infinite, have no quotient.
    found = te.select(te.equal(up, across), number(te.equal(up, 0.0), 0.0, math.pi / 4), series)
    rounded = _PI_ROUNDED[x.dtype.bits]
    for condition, turns in ((up > across, 0.5), (below(x), 1.0)):
        rest = number(condition, turns * rounded, 0.0) + number(condition, -1.0, 1.0) * found
        found = number(condition, turns * math.pi, 0.0) + rest
    return number(below(y), -1.0, 1.0) * found


def _trunc(x: Expr) -> Expr:
    return te.select(x < 0, te.ceil(x), te.floor(x))


FUNCTIONS = (
    pointwise("neg", "-x", lambda x: -x, np.negative, takes=NUMBERS),
    pointwise("abs", "the absolute value", te.absolute, np.absolute, takes=NUMBERS),
    pointwise("sign", "-1, 0 or 1", _sign, np.sign, takes=NUMBERS, uses=3),
    pointwise("square", "x * x", lambda x: x * x, np.square, takes=NUMBERS, uses=2),
    pointwise("reciprocal", "1 / x", lambda x: 1.0 / x, lambda x: 1.0 / x),
    pointwise("exp", "e to the x", te.exp, np.exp),
    pointwise("exp2", "2 to the x", te.exp2, np.exp2),
    pointwise("expm1", "exp(x) - 1, accurate near 0", _expm1, np.expm1, uses=16),
    pointwise("log", "the natural logarithm", te.log, np.log),
    pointwise("log2", "the logarithm to base 2", lambda x: te.log(x) * (1.0 / math.log(2.0)), np.log2),
    pointwise("log1p", "log(1 + x), accurate near 0", _log1p, np.log1p, uses=5),
    pointwise("sqrt", "the square root", te.sqrt, np.sqrt),
    pointwise("rsqrt", "1 over the square root", te.rsqrt, lambda x: 1.0 / np.sqrt(x)),
    pointwise("sin", "the sine", te.sin, np.sin),
    pointwise("cos", "the cosine", te.cos, np.cos),
    pointwise("tan", "the tangent", _tan, np.tan, uses=2),
    pointwise("atan", "the arctangent", _atan, np.arctan, uses=64),
    pointwise("atan2", "the angle of (b, a)", _atan2, np.arctan2, count=2, uses=64),
    pointwise("tanh", "the hyperbolic tangent", te.tanh, np.tanh),
    pointwise("erf", "the error function", te.erf, lambda x: erf(np.array(x))),
    pointwise("floor", "rounded down", te.floor, np.floor),
    pointwise("ceil", "rounded up", te.ceil, np.ceil),
    pointwise("trunc", "rounded towards 0", _trunc, np.trunc, uses=3),
    pointwise("round", "rounded to the nearest, ties to even", te.rint, np.round),
)

ACTIVATIONS = (
    pointwise("relu", "max(x, 0)", lambda x: te.maximum(x, 0), lambda x: np.maximum(x, 0), takes=NUMBERS),
    pointwise("sigmoid", "1 / (1 + exp(-x))", te.sigmoid, _sigmoid_numpy),
    pointwise("silu", "x * sigmoid(x)", MAPS["silu"].expr, lambda x: x * _sigmoid_numpy(x), uses=2),
    pointwise("gelu", "x * Φ(x)", MAPS["gelu_erf"].expr, lambda x: MAPS["gelu_erf"].numpy(np.array(x)), uses=2),
    pointwise("gelu_tanh", "gelu by tanh", MAPS["gelu_tanh"].expr,
              lambda x: MAPS["gelu_tanh"].numpy(np.array(x)), uses=5),
    pointwise("hardsigmoid", "min(max(x + 3, 0), 6) / 6", _hard, lambda x: np.clip(x + 3, 0, 6) / 6),
    pointwise("hardswish", "x * hardsigmoid(x)", lambda x: x * _hard(x), lambda x: x * np.clip(x + 3, 0, 6) / 6,
              uses=2),
    pointwise("mish", "x * tanh(softplus(x))", _mish, lambda x: x * np.tanh(np.logaddexp(x, 0)), uses=8),
    pointwise("leaky_relu", "x where it is positive, else slope * x",
              lambda x, v: te.select(x > 0, x, x * real(v, "slope")),
              lambda x, v: np.where(x > 0, x, x * real(v, "slope")),
              uses=3, attributes=(_number("slope", "what negative x are multiplied by", 0.01),)),
    pointwise("softplus", "log(1 + exp(beta * x)) / beta", _softplus, _softplus_numpy, uses=8,
              attributes=(_number("beta", "the factor", 1.0), _number("threshold", "beyond it, x itself", 20.0))),
    pointwise("elu", "scale * (x where it is positive, else alpha * (exp(input_scale * x) - 1))", _elu, _elu_numpy,
              uses=18, attributes=(_number("alpha", "the limit", 1.0), _number("scale", "a factor", 1.0),
                                  _number("input_scale", "a factor", 1.0))),
)  # fmt: skip
