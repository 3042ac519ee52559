"""Operators of ONNX on quantised numbers: integers with a scale and a zero point."""

from ...core.dtypes import DTYPES, DType
from ...graph.graph import Value
from ..aten.rule import NodeMaker, reshape
from .call import Call, cast, need, rule
from .elementwise import onnx_dtype
from .layers import float_convolution, float_product

_EXACT_TERMS = 256
"""A sum of so many products of 8-bit integers is exact in float32."""


def _spread(c: Call, value: Value, x: Value) -> Value:
    """A scale or a zero point with the dimensions of ``x``: of all elements, along an axis, or of blocks along it."""
    if value.elements == 1:
        return reshape(c, value, ())
    d, size = c.get("axis", 1) % len(x.shape), c.get("block_size", 0)
    if len(value.shape) == 1 and len(x.shape) > 1:
        return reshape(c, value, tuple(n if e == d else 1 for e, n in enumerate(x.shape)))
    need(size > 0 and value.shape[d] * size == x.shape[d], "blocks that end early")
    return c.node("repeat", value, dim=d, times=size)


@rule("DequantizeLinear")
def _dequantise(c: Call) -> Value:
    x, scale = c.value(0), c.value(1)
    c.get("axis"), c.get("block_size")
    need(not c.get("output_dtype", 0), "another dtype")
    y = cast(c, x, scale.dtype)
    if c.has(2):
        y = c.node("sub", y, cast(c, _spread(c, c.value(2), x), scale.dtype))
    return c.node("mul", y, _spread(c, scale, x))


@rule("QuantizeLinear")
def _quantise(c: Call) -> Value:
    x, scale = c.value(0), c.value(1)
    c.get("axis"), c.get("block_size")
    need(not c.get("precision", 0), "another precision")
    given = c.get("output_dtype", 0)
    dtype = c.value(2).dtype if c.has(2) else onnx_dtype(given) if given else DTYPES["uint8"]
    y = c.node("div", x, cast(c, _spread(c, scale, x), x.dtype))
    return _rounded(c, y, _spread(c, c.value(2), x) if c.has(2) else None, dtype)


def _rounded(c: NodeMaker, x: Value, zero: Value | None, dtype: DType) -> Value:
    """``x`` to the nearest whole number, with the zero point; a cast moves it to the nearest number of the dtype."""
    need(dtype.is_integer and dtype.bits == 8, f"numbers of {dtype}")
    y = c.node("round", x)
    y = y if zero is None else c.node("add", y, c.node("cast", zero, dtype=y.dtype.name))
    return c.node("cast", y, dtype=dtype.name)


def _shifted(c: Call, n: int, zero: int, terms: int, dim: int | None = None) -> Value:
    """Input ``n`` less the zero point that input ``zero`` has, in floats that hold sums of so many products."""
    x, dtype = c.value(n), DTYPES["float32" if terms <= _EXACT_TERMS else "float64"]
    y = cast(c, x, dtype)
    if not c.has(zero):
        return y
    point = c.value(zero)
    if point.elements == 1:
        point = reshape(c, point, ())
    else:
        need(dim is not None and len(point.shape) == 1, "zero points of several dimensions")
        point = reshape(c, point, tuple(k if e == dim else 1 for e, k in enumerate(x.shape)))
    return c.node("sub", y, cast(c, point, dtype))


@rule("MatMulInteger")
def _matmul_integer(c: Call) -> Value:
    terms = c.value(0).shape[-1]
    a = _shifted(c, 0, 2, terms, len(c.value(0).shape) - 2)
    return cast(c, float_product(c, a, _shifted(c, 1, 3, terms, len(c.value(1).shape) - 1)), DTYPES["int32"])


@rule("ConvInteger")
def _conv_integer(c: Call) -> Value:
    terms = c.value(1).elements // c.value(1).shape[0]
    return cast(c, float_convolution(c, _shifted(c, 0, 2, terms), _shifted(c, 1, 3, terms, 0)), DTYPES["int32"])


@rule("QLinearMatMul")
def _quantised_matmul(c: Call) -> Value:
    terms = c.value(0).shape[-1]
    need(all(c.value(n).elements == 1 for n in (1, 2, 4, 5, 6, 7)), "scales of rows or columns")
    y = float_product(c, _shifted(c, 0, 2, terms), _shifted(c, 3, 5, terms))
    a, b, scale = (cast(c, reshape(c, c.value(n), ()), y.dtype) for n in (1, 4, 6))
    y = c.node("mul", y, c.node("div", c.node("mul", a, b), scale))
    return _rounded(c, y, reshape(c, c.value(7), ()), c.value(7).dtype)
