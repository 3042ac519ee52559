"""Operators of ATen on single elements."""

import math
from typing import Any

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from .rule import RULES, Emitter, NodeMaker, Rule, cast, need, number, operand, rule

_UNARY = {
    "neg": "neg", "abs": "abs", "reciprocal": "reciprocal", "exp": "exp", "exp2": "exp2", "expm1": "expm1",
    "log": "log", "log2": "log2", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos",
    "tan": "tan", "atan": "atan",
    "tanh": "tanh", "erf": "erf", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round",
    "relu": "relu", "sigmoid": "sigmoid", "silu": "silu", "hardsigmoid": "hardsigmoid", "hardswish": "hardswish",
    "mish": "mish", "erfc": "erfc", "special_erfcx": "erfcx", "erfinv": "erfinv", "lgamma": "lgamma",
    "digamma": "digamma", "special_i0e": "i0e", "special_i1e": "i1e",
}  # fmt: skip
_BINARY = {
    "add.Tensor": "add", "add.Scalar": "add", "sub.Tensor": "sub", "sub.Scalar": "sub", "mul.Tensor": "mul",
    "mul.Scalar": "mul", "div.Tensor": "div", "div.Scalar": "div", "maximum.default": "maximum",
    "minimum.default": "minimum", "atan2.default": "atan2",
}  # fmt: skip
_MOST_FACTORS = 16
"""A power of an integer is a product of so many factors at most."""
_OF_BOOLS = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}
_COMPARE = {f"{name}.{kind}": name for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")}


def _unary(op: str) -> Rule:
    return lambda b, x: b.node(op, cast(b, x, b.dtype))


def _binary(op: str) -> Rule:
    def apply(b: Emitter, x: Any, y: Any, alpha: Any = 1) -> Value:
        if b.dtype.is_bool:
            need(op in _OF_BOOLS and alpha == 1, "arithmetic on bools")
            return b.node(_OF_BOOLS[op], operand(b, x, b.dtype), operand(b, y, b.dtype))
        second = operand(b, y, b.dtype)
        if alpha != 1:
            second = b.node("mul", second, number(b, alpha, b.dtype))
        return b.node(op, operand(b, x, b.dtype), second)

    return apply


def _compare(op: str) -> Rule:
    def apply(b: Emitter, x: Any, y: Any) -> Value:
        dtype = b.common(x, y)
        if dtype.is_bool and op not in ("eq", "ne"):
            dtype = DTYPES["int32"]
        return b.node(op, operand(b, x, dtype), operand(b, y, dtype))

    return apply


RULES.update({f"aten.{name}.default": _unary(op) for name, op in _UNARY.items()})
RULES.update({f"aten.{name}": _binary(op) for name, op in _BINARY.items()})
RULES.update({f"aten.{name}": _compare(op) for name, op in _COMPARE.items()})


@rule("rsub.Scalar", "rsub.Tensor")
def _rsub(b: Emitter, x: Any, y: Any, alpha: Any = 1) -> Value:
    result = _binary("sub")(b, y, x, alpha)
    assert isinstance(result, Value)
    return result


@rule("sign.default", "sgn.default")
def _sign(b: Emitter, x: Value) -> Value:
    """That of NaN is 0, as torch has it."""
    above, below = (b.node(op, x, number(b, 0, x.dtype)) for op in ("gt", "lt"))
    return b.node("sub", cast(b, above, b.dtype), cast(b, below, b.dtype))


@rule("fmax.default", "fmin.default")
def _of_numbers(b: Emitter, x: Value, y: Value) -> Value:
    """Return the greater, or the less, of two of which one may be NaN."""
    x, y = cast(b, x, b.dtype), cast(b, y, b.dtype)
    both = b.node("maximum" if "fmax" in b.target else "minimum", x, y)
    return b.node("where", _isnan(b, x), y, b.node("where", _isnan(b, y), x, both))


@rule("gelu.default")
def _gelu(b: Emitter, x: Value, approximate: str = "none") -> Value:
    return b.node("gelu_tanh" if approximate == "tanh" else "gelu", x)


@rule("leaky_relu.default")
def _leaky_relu(b: Emitter, x: Value, slope: float = 0.01) -> Value:
    return b.node("leaky_relu", x, slope=slope)


@rule("rrelu_with_noise_functional.default")
def _rrelu(b: Emitter, x: Value, noise: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
           generator: Any = None) -> list[Value]:  # fmt: skip
    """The slope is drawn in training, and the middle of its bounds otherwise."""
    need(not training, "slopes that are drawn")
    return [b.node("leaky_relu", x, slope=(lower + upper) / 2)]


@rule("elu.default")
def _elu(b: Emitter, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    return b.node("elu", x, alpha=alpha, scale=scale, input_scale=input_scale)


@rule("softplus.default")
def _softplus(b: Emitter, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    return b.node("softplus", x, beta=beta, threshold=threshold)


@rule("hardtanh.default", "clamp.default", "clamp.Tensor")
def _clamp(b: Emitter, x: Value, low: Any = None, high: Any = None, **keywords: Any) -> Value:
    if low is None and high is None and "min" not in keywords and "max" not in keywords:
        need(b.target == "aten.hardtanh.default", "no bounds")
        low, high = -1.0, 1.0
    low, high = keywords.get("min", low), keywords.get("max", high)
    x = cast(b, x, b.dtype)
    x = x if low is None else b.node("maximum", x, operand(b, low, b.dtype))
    return x if high is None else b.node("minimum", x, operand(b, high, b.dtype))


@rule("clamp_min.default", "clamp_min.Tensor")
def _clamp_min(b: Emitter, x: Value, low: Any) -> Value:
    return b.node("maximum", cast(b, x, b.dtype), operand(b, low, b.dtype))


@rule("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(b: Emitter, x: Value, high: Any) -> Value:
    return b.node("minimum", cast(b, x, b.dtype), operand(b, high, b.dtype))


def integer_power(b: NodeMaker, x: Value, exponent: Value) -> Value:
    """Return an integer to the power of another one of its dtype, by squares. Beyond the range of the dtype the result
    wraps around up to the power of 63. A negative power is 0, but for 1 and -1."""
    one, zero, last = (number(b, n, x.dtype) for n in (1, 0, 63))
    odd = b.node("bitwise_and", exponent, one)
    inside = b.node("logical_and", b.node("ge", exponent, zero), b.node("le", exponent, last))
    # Of further powers only those of 0, 1 and -1 are in range, and of these the last bit of the power decides.
    left = b.node("where", inside, exponent, b.node("add", odd, number(b, 62, x.dtype)))
    result, square = one, x
    for bit in range(6):
        chosen = b.node("ne", b.node("bitwise_and", left, number(b, 1 << bit, x.dtype)), zero)
        result = b.node("where", chosen, b.node("mul", result, square), result)
        square = b.node("mul", square, square)
    if x.dtype.kind == "uint":
        return result
    is_unit = b.node("eq", b.node("abs", x), one)
    return b.node("where", b.node("logical_or", b.node("ge", exponent, zero), is_unit), result, zero)


@rule("pow.Tensor_Scalar", "pow.Tensor_Tensor")
def _pow(b: Emitter, x: Value, exponent: Any) -> Value:
    x = cast(b, x, b.dtype)
    if isinstance(exponent, Value):
        exponent = cast(b, exponent, b.dtype)
        return integer_power(b, x, exponent) if b.dtype.is_integer else b.node("pow", x, exponent)
    match exponent:
        case 1:
            return b.node("identity", x)
        case 2:
            return b.node("square", x)
        case 3:
            return b.node("mul", b.node("square", x), x)
        case 4:
            return b.node("square", b.node("square", x))
    if b.dtype.is_integer:
        need(isinstance(exponent, int) and 0 < exponent <= _MOST_FACTORS, "powers of integers")
        power = x
        for _ in range(exponent - 1):
            power = b.node("mul", power, x)
        return power
    names = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    return b.node(names[exponent], x) if exponent in names else b.node("pow", x, number(b, exponent, b.dtype))


@rule("pow.Scalar")
def _power_of(b: Emitter, base: Any, exponent: Value) -> Value:
    first, exponent = number(b, base, b.dtype), cast(b, exponent, b.dtype)
    return integer_power(b, first, exponent) if b.dtype.is_integer else b.node("pow", first, exponent)


@rule("_to_copy.default")
def _to_copy(b: Emitter, x: Value, **keywords: Any) -> Value:
    return b.node("cast", x, dtype=b.dtype.name) if x.dtype != b.dtype else b.node("identity", x)


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(b: Emitter, condition: Value, x: Any, y: Any) -> Value:
    return b.node("where", condition, operand(b, x, b.dtype), operand(b, y, b.dtype))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(b: Emitter, x: Value, mask: Value, value: Any) -> Value:
    return b.node("where", mask, operand(b, value, b.dtype), cast(b, x, b.dtype))


def truth(b: Emitter, x: Value) -> Value:
    return cast(b, x, DTYPES["bool"])


def bitwise_not(b: NodeMaker, x: Value) -> Value:
    """Return an integer with each bit turned over."""
    return b.node("bitwise_xor", x, number(b, -1 if x.dtype.kind == "int" else x.dtype.integer_range[1], x.dtype))


@rule("logical_not.default", "bitwise_not.default")
def _not(b: Emitter, x: Value) -> Value:
    if x.dtype.is_integer and b.target == "aten.bitwise_not.default":
        return bitwise_not(b, x)
    return b.node("logical_not", truth(b, x))


def _logic(op: str, bits: str) -> Rule:
    def apply(b: Emitter, x: Any, y: Any) -> Value:
        if "bitwise" in b.target and not b.dtype.is_bool:
            return b.node(bits, operand(b, x, b.dtype), operand(b, y, b.dtype))
        return b.node(op, *(truth(b, operand(b, v, b.dtype)) for v in (x, y)))

    return apply


for _kind, _op in (("and", "logical_and"), ("or", "logical_or"), ("xor", "ne")):
    _both = _logic(_op, f"bitwise_{_kind}")
    RULES.update({f"aten.bitwise_{_kind}.{form}": _both for form in ("Tensor", "Scalar", "Scalar_Tensor")})
    RULES[f"aten.logical_{_kind}.default"] = _both


def _shift(op: str) -> Rule:
    return lambda b, x, y: b.node(op, operand(b, x, b.dtype), operand(b, y, b.dtype))


for _name, _symbol, _op in (("left", "lshift", "shift_left"), ("right", "rshift", "shift_right")):
    RULES.update(
        {f"aten.bitwise_{_name}_shift.{form}": _shift(_op) for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")}
    )
    RULES.update({f"aten.__{_symbol}__.{form}": _shift(_op) for form in ("Tensor", "Scalar")})


@rule("isnan.default")
def _isnan(b: Emitter, x: Value) -> Value:
    return b.node("ne", x, x)


@rule("isinf.default")
def _isinf(b: Emitter, x: Value) -> Value:
    need(x.dtype.is_float, "integers")
    return b.node("eq", b.node("abs", x), number(b, math.inf, x.dtype))
