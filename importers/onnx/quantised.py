"""Operators of ONNX on quantised numbers: integers with a scale and a zero point."""

import numpy as np

from ...core.dtypes import DTYPES, DType
from ...graph.graph import Value
from ...graph.integer_products import QuantisedFactor, integer_convolution, integer_matmul
from ..aten.rule import NodeMaker, number, reshape
from .call import Call, axis_of, cast, need, rule
from .elementwise import onnx_dtype
from .layers import product_of_matrices, windows_of


def _spread(c: Call, value: Value, x: Value) -> Value:
    """A scale or a zero point with the dimensions of ``x``: of all elements, along an axis, or of blocks along it."""
    if value.elements == 1:
        return reshape(c, value, ())
    if value.shape == x.shape:
        return value
    d, size = axis_of(c.get("axis", 1), len(x.shape)), c.get("block_size", 0)
    if len(value.shape) == 1 and len(x.shape) > 1:
        return reshape(c, value, tuple(n if e == d else 1 for e, n in enumerate(x.shape)))
    need(size > 0 and value.shape[d] * size == x.shape[d], "blocks that end early")
    return c.node("repeat", value, dim=d, times=size)


def _zero_point(c: Call, n: int) -> Value | None:
    """Return the zero point that input ``n`` has: one number where all are equal, and None where all are 0."""
    if not c.has(n):
        return None
    known = c.constants[n]
    if known is None or known.size == 0 or not np.array_equal(known, np.broadcast_to(known.flat[0], known.shape)):
        return c.value(n)
    return number(c, int(known.flat[0]), c.value(n).dtype) if known.flat[0] else None


@rule("DequantizeLinear")
def _dequantise(c: Call) -> Value:
    x, scale, zero = c.value(0), c.value(1), _zero_point(c, 2)
    c.get("axis"), c.get("block_size")
    need(not c.get("output_dtype", 0), "another dtype")
    y = cast(c, x, scale.dtype)
    if zero is not None:
        y = c.node("sub", y, cast(c, _spread(c, zero, x), scale.dtype))
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


def _along(c: Call, value: Value, shape: tuple[int, ...], dim: int) -> Value:
    """A number, or one for each place along ``dim``, so that it broadcasts to ``shape``."""
    if value.elements == 1:
        return reshape(c, value, ())
    if value.shape == (*shape[:dim], shape[dim], *[1] * (len(shape) - dim - 1)):
        return value
    need(value.shape == (shape[dim],), "zero points or scales of several dimensions")
    return reshape(c, value, tuple(n if e == dim else 1 for e, n in enumerate(shape)))


def _factor(c: Call, n: int, zero: int, dim: int) -> QuantisedFactor:
    """Input ``n`` with the zero point that input ``zero`` is, which may vary along ``dim``."""
    x, point = c.value(n), _zero_point(c, zero)
    return QuantisedFactor(x, None if point is None else _along(c, point, x.shape, dim % len(x.shape)))


def _matmul(c: Call, a: int, a_zero: int, b: int, b_zero: int) -> Value:
    """Return the product of two inputs, of which either may be a vector, as int32."""
    x, w = c.value(a), c.value(b)
    rows, columns = (_factor(c, a, a_zero, max(len(x.shape) - 2, 0)), _factor(c, b, b_zero, len(w.shape) - 1))
    need(len(x.shape) > 1 or rows.zero is None or rows.zero.elements == 1, "a zero point for each place of a sum")
    need(len(w.shape) > 1 or columns.zero is None or columns.zero.elements == 1, "a zero point for each place of a sum")

    def product(p: Value, q: Value) -> Value:
        return integer_matmul(c.builder, QuantisedFactor(p, rows.zero), QuantisedFactor(q, columns.zero))

    return product_of_matrices(c, x, w, product)


def _convolution(c: Call, x: int, x_zero: int, w: int, w_zero: int) -> Value:
    """Return the convolution of two inputs as int32."""
    image, filters = _factor(c, x, x_zero, 0), _factor(c, w, w_zero, 0)
    need(image.zero is None or image.zero.elements == 1, "zero points of images")
    if filters.zero is not None and filters.zero.elements > 1:
        filters = QuantisedFactor(filters.values, reshape(c, filters.zero, filters.zero.shape[:-1]))
    return integer_convolution(c.builder, image, filters, **windows_of(c, image.values, filters.values))


@rule("MatMulInteger")
def _matmul_integer(c: Call) -> Value:
    return _matmul(c, 0, 2, 1, 3)


@rule("ConvInteger")
def _conv_integer(c: Call) -> Value:
    return _convolution(c, 0, 2, 1, 3)


@rule("QLinearMatMul")
def _quantised_matmul(c: Call) -> Value:
    one = all(c.value(n).elements == 1 for n in (1, 4))
    need(one or min(len(c.value(n).shape) for n in (0, 3)) > 1, "scales of rows or columns of vectors")
    total = _matmul(c, 0, 2, 3, 5)
    last = len(total.shape) - 1
    return _requantised(
        c, total, _along(c, c.value(1), total.shape, last - 1), _along(c, c.value(4), total.shape, last)
    )


@rule("QLinearConv")
def _quantised_convolution(c: Call) -> Value:
    total = _convolution(c, 0, 2, 3, 5)
    if c.has(8):
        total = c.node("add", total, _along(c, c.value(8), total.shape, 1))
    return _requantised(c, total, reshape(c, c.value(1), ()), _along(c, c.value(4), total.shape, 1))


def _requantised(c: Call, total: Value, x_scale: Value, w_scale: Value) -> Value:
    """Sums of products in the scale of input 6 and with the zero point of input 7."""
    x, w, scale = (cast(c, s, DTYPES["float32"]) for s in (x_scale, w_scale, reshape(c, c.value(6), ())))
    y = c.node("mul", cast(c, total, DTYPES["float32"]), c.node("div", c.node("mul", x, w), scale))
    zero = _zero_point(c, 7)
    return _rounded(c, y, None if zero is None else reshape(c, zero, ()), c.value(7).dtype)
