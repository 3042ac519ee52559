"""Operators of ONNX on single elements."""

import math
from typing import Any

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from ..aten.compound import COMPOUND, of_integers, remainder
from ..aten.pointwise import bitwise_not, integer_power
from ..aten.rule import number
from .call import RULES, Call, Rule, cast, need, rule

_SAME = {
    "Neg": "neg", "Abs": "abs", "Sign": "sign", "Reciprocal": "reciprocal", "Exp": "exp", "Log": "log",
    "Sqrt": "sqrt", "Sin": "sin", "Cos": "cos", "Tanh": "tanh", "Erf": "erf", "Floor": "floor", "Ceil": "ceil",
    "Tan": "tan", "Atan": "atan",
    "Round": "round", "Relu": "relu", "Sigmoid": "sigmoid", "HardSwish": "hardswish", "Mish": "mish",
    "Identity": "identity", "Add": "add", "Sub": "sub", "Mul": "mul", "Equal": "eq", "Less": "lt",
    "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "And": "logical_and", "Or": "logical_or",
    "Xor": "ne", "Not": "logical_not", "Where": "where", "Softplus": "softplus", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip
"""Operators that are one of ours on the same operands."""


def _same(op: str) -> Rule:
    return lambda c: c.node(op, *(c.value(n) for n in range(len(c.inputs))))


RULES.update({name: _same(op) for name, op in _SAME.items()})


def _compound(name: str) -> Rule:
    return lambda c: COMPOUND[name](c, c.value(0))


RULES.update({name.capitalize(): _compound(name) for name in COMPOUND})


@rule("BitwiseNot")
def _bitwise_not(c: Call) -> Value:
    return bitwise_not(c, c.value(0))


@rule("BitShift")
def _bit_shift(c: Call) -> Value:
    """Integers without a sign are shifted."""
    return c.node(f"shift_{c.get('direction', '').lower()}", c.value(0), c.value(1))


@rule("Div")
def _div(c: Call) -> Value:
    """Integers are divided towards 0."""
    x, y = c.value(0), c.value(1)
    return c.node("div", x, y) if x.dtype.is_float else _integers(c, x, y, "quotient")


@rule("Mod")
def _mod(c: Call) -> Value:
    x, y = c.value(0), c.value(1)
    if x.dtype.is_float:
        return remainder(c, x, y, not c.get("fmod", 0))
    return _integers(c, x, y, "fmod" if c.get("fmod", 0) else "remainder")


def _integers(c: Call, x: Value, y: Value, what: str) -> Value:
    known = c.known(1) if x.dtype.bits > 32 else None
    return of_integers(c, x, y, what, int(known.item()) if known is not None and known.size == 1 else 0)


def _folded(op: str) -> Rule:
    def apply(c: Call) -> Value:
        total = c.value(0)
        for n in range(1, len(c.inputs)):
            total = c.node(op, total, c.value(n))
        return c.node("identity", total)

    return apply


RULES.update({"Sum": _folded("add"), "Max": _folded("maximum"), "Min": _folded("minimum")})


def like(c: Call, x: Value, number_: float) -> Value:
    """Return a number of the dtype of ``x``."""
    return number(c, number_, x.dtype)


@rule("Mean")
def _mean(c: Call) -> Value:
    total = RULES["Sum"](c)
    assert isinstance(total, Value)
    return c.node("mul", total, like(c, total, 1.0 / len(c.inputs)))


@rule("Pow")
def _pow(c: Call) -> Value:
    x, y = c.value(0), c.value(1)
    if c.constants[1] is not None and c.constants[1].size == 1 and float(c.constants[1].ravel()[0]) == 2.0:
        return c.node("square", x)
    if x.dtype.is_float:
        return c.node("pow", x, cast(c, y, x.dtype))
    if y.dtype.is_integer:
        return integer_power(c, x, cast(c, y, x.dtype))
    return cast(c, c.node("pow", *(cast(c, v, DTYPES["float64"]) for v in (x, y))), x.dtype)


@rule("PRelu")
def _prelu(c: Call) -> Value:
    x, slope = c.value(0), c.value(1)
    return c.node("where", c.node("lt", x, like(c, x, 0.0)), c.node("mul", x, slope), x)


@rule("LeakyRelu")
def _leaky_relu(c: Call) -> Value:
    return c.node("leaky_relu", c.value(0), slope=c.get("alpha", 0.01))


@rule("Elu")
def _elu(c: Call) -> Value:
    return c.node("elu", c.value(0), alpha=c.get("alpha", 1.0))


@rule("Selu")
def _selu(c: Call) -> Value:
    alpha, gamma = c.get("alpha", 1.6732632423543772), c.get("gamma", 1.0507009873554805)
    return c.node("elu", c.value(0), alpha=alpha, scale=gamma)


@rule("Celu")
def _celu(c: Call) -> Value:
    alpha = c.get("alpha", 1.0)
    return c.node("elu", c.value(0), alpha=alpha, input_scale=1.0 / alpha)


@rule("ThresholdedRelu")
def _thresholded(c: Call) -> Value:
    x = c.value(0)
    above = c.node("gt", x, like(c, x, c.get("alpha", 1.0)))
    return c.node("where", above, x, like(c, x, 0.0))


@rule("HardSigmoid")
def _hard_sigmoid(c: Call) -> Value:
    x = c.value(0)
    line = c.node("mul", x, like(c, x, c.get("alpha", 0.2)))
    line = c.node("add", line, like(c, x, c.get("beta", 0.5)))
    return c.node("minimum", c.node("maximum", line, like(c, x, 0.0)), like(c, x, 1.0))


@rule("Gelu")
def _gelu(c: Call) -> Value:
    return c.node("gelu_tanh" if c.get("approximate", "none") == "tanh" else "gelu", c.value(0))


@rule("Swish")
def _swish(c: Call) -> Value:
    x, alpha = c.value(0), c.get("alpha", 1.0)
    if alpha == 1.0:
        return c.node("silu", x)
    return c.node("mul", x, c.node("sigmoid", c.node("mul", x, like(c, x, alpha))))


@rule("Softsign")
def _softsign(c: Call) -> Value:
    x = c.value(0)
    return c.node("div", x, c.node("add", c.node("abs", x), like(c, x, 1.0)))


@rule("Shrink")
def _shrink(c: Call) -> Value:
    x, bias, limit = c.value(0), c.get("bias", 0.0), c.get("lambd", 0.5)
    low = c.node("where", c.node("lt", x, like(c, x, -limit)), c.node("add", x, like(c, x, bias)), like(c, x, 0.0))
    return c.node("where", c.node("gt", x, like(c, x, limit)), c.node("sub", x, like(c, x, bias)), low)


@rule("Tan")
def _tan(c: Call) -> Value:
    return c.node("div", c.node("sin", c.value(0)), c.node("cos", c.value(0)))


@rule("Clip")
def _clip(c: Call) -> Value:
    x = c.value(0)
    if c.has(1):
        x = c.node("maximum", x, c.value(1))
    return c.node("identity", c.node("minimum", x, c.value(2)) if c.has(2) else x)


@rule("Cast", "CastLike")
def _cast(c: Call) -> Value:
    dtype = c.value(1).dtype if c.op == "CastLike" else onnx_dtype(c.get("to"))
    return c.node("cast", c.value(0), dtype=dtype.name)


_DTYPE_OF_ONNX = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
                  11: "float64", 16: "bfloat16"}  # fmt: skip


def onnx_dtype(number_: Any) -> Any:
    need(number_ in _DTYPE_OF_ONNX, f"the dtype {number_}")
    return DTYPES[_DTYPE_OF_ONNX[number_]]


@rule("IsNaN")
def _isnan(c: Call) -> Value:
    return c.node("ne", c.value(0), c.value(0))


@rule("IsInf")
def _isinf(c: Call) -> Value:
    x = c.value(0)
    found: list[Value] = []
    for name, value in (("detect_positive", math.inf), ("detect_negative", -math.inf)):
        if c.get(name, 1):
            found.append(c.node("eq", x, like(c, x, value)))
    need(bool(found), "nothing to detect")
    return found[0] if len(found) == 1 else c.node("logical_or", *found)


@rule("Dropout")
def _dropout(c: Call) -> Value:
    need(c.results == 1 and (not c.has(2) or not bool(c.known(2))), "dropout in training mode")
    return c.node("identity", c.value(0))
