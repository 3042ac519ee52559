"""Products of quantised numbers as products of 8-bit integers, which are summed up exactly, and what zero points add.

    sum over k of (x - p) (w - q)  =  sum x w  -  p (sum w - K q)  -  q sum x

All of it is int32, where integers wrap around, so that no order of the terms changes the result. What depends on
constant weights alone is computed once for them.
"""

from dataclasses import dataclass

from ..core.dtypes import DType, int8, int32, uint8
from .graph import GraphBuilder, Value
from .reference import known_value

_SHIFT = 128
"""Bytes without a sign less this are bytes with one."""


@dataclass(frozen=True, slots=True)
class QuantisedFactor:
    """``values`` less ``zero``. The zero point broadcasts to the values, and is the same along what is summed up; None
    stands for 0."""

    values: Value
    zero: Value | None = None


def is_quantised(dtype: DType) -> bool:
    """Return whether factors of products may have a dtype."""
    return dtype in (int8, uint8)


def integer_matmul(b: GraphBuilder, x: QuantisedFactor, w: QuantisedFactor) -> Value:
    """Return the product of matrices [..., m, k] and [..., k, n] as int32[..., m, n]."""
    x, w = _simple(b, x), _with_sign(b, w)
    total = b.node("matmul", x.values, w.values, accumulate="int32")
    if x.zero is not None:
        sums = _sum(b, w.values, len(w.values.shape) - 2)
        if w.zero is not None:
            sums = b.node("sub", sums, b.node("mul", w.zero, _number(b, x.values.shape[-1])))
        total = _less(b, total, x.zero, sums)
    if w.zero is not None:
        total = _less(b, total, w.zero, _sum(b, x.values, len(x.values.shape) - 1))
    return total


def integer_convolution(b: GraphBuilder, x: QuantisedFactor, w: QuantisedFactor, **attributes: object) -> Value:
    """Return the convolution of images [n, c, ...] with filters [o, c / groups, ...] as int32[n, o, ...]. The zero
    point of the images is a number. What lies in the border of an image is 0, and not its zero point, so that sums of
    filters are convolutions of an image of ones."""
    x, w = _simple(b, x), _with_sign(b, w)

    def convolved(image: Value, filters: Value) -> Value:
        return b.node("convolution", image, filters, accumulate="int32", **attributes)

    total = convolved(x.values, w.values)
    groups = attributes.get("groups", 1)
    assert isinstance(groups, int)
    ones = _ones(b, (groups, *w.values.shape[1:]))
    each = w.values.shape[0] // groups
    if x.zero is not None:
        image = _ones(b, (1, *x.values.shape[1:]))
        sums = convolved(image, w.values)
        if w.zero is not None:
            count = _repeated(b, convolved(image, ones), each)
            sums = b.node("sub", sums, b.node("mul", w.zero, count))
        total = _less(b, total, x.zero, sums)
    if w.zero is not None:
        total = _less(b, total, w.zero, _repeated(b, convolved(x.values, ones), each))
    return total


def _simple(b: GraphBuilder, factor: QuantisedFactor) -> QuantisedFactor:
    """``factor`` with a zero point of int32, and none where that is known to be 0."""
    if factor.zero is None:
        return factor
    known = known_value(b, factor.zero)
    if known is not None and not known.any():
        return QuantisedFactor(factor.values)
    return QuantisedFactor(factor.values, _cast(b, factor.zero, int32))


def _with_sign(b: GraphBuilder, factor: QuantisedFactor) -> QuantisedFactor:
    """``factor`` in int8. Processors multiply bytes with a sign on the right alone."""
    if factor.values.dtype != uint8:
        return _simple(b, factor)
    shift = _number(b, _SHIFT)
    values = b.node("cast", b.node("sub", _cast(b, factor.values, int32), shift), dtype=int8.name)
    zero = _number(b, 0) if factor.zero is None else _cast(b, factor.zero, int32)
    return _simple(b, QuantisedFactor(values, b.node("sub", zero, shift)))


def _less(b: GraphBuilder, total: Value, zero: Value, sums: Value) -> Value:
    """``total`` less the product of a zero point and sums. Where that is not known before, it is computed for each
    element of the total, so that the kernel of the total can do it."""
    if known_value(b, zero) is None:
        zero, sums = (b.node("expand", v, shape=total.shape) for v in (zero, sums))
    return b.node("sub", total, b.node("mul", zero, sums))


def _sum(b: GraphBuilder, values: Value, dim: int) -> Value:
    return b.node("sum", _cast(b, values, int32), dims=(dim,), keep=True)


def _repeated(b: GraphBuilder, total: Value, times: int) -> Value:
    """``total`` of each group for each of its filters."""
    return total if total.shape[1] == 1 else b.node("repeat", total, dim=1, times=times)


def _cast(b: GraphBuilder, value: Value, dtype: DType) -> Value:
    return value if value.dtype == dtype else b.node("cast", value, dtype=dtype.name)


def _number(b: GraphBuilder, number: int) -> Value:
    return b.node("full", shape=(), value=number, dtype=int32.name)


def _ones(b: GraphBuilder, shape: tuple[int, ...]) -> Value:
    return b.node("full", shape=shape, value=1, dtype=int8.name)
