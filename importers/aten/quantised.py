"""Operators of torch on quantised numbers: integers with a scale and a zero point (``quantized_decomposed``), which
exported models have, and products of such integers."""

from typing import Any

from ...core.dtypes import DTYPES, DType
from ...graph.graph import Value
from .rule import Emitter, cast, need, number, operand, reshape, rule

_FLOAT = DTYPES["float32"]
_PREFIX = "quantized_decomposed"


@rule("_int_mm.default")
def _int_mm(b: Emitter, x: Value, y: Value) -> Value:
    return b.node("matmul", x, y, accumulate="int32")


def _of_all(b: Emitter, given: Any, dtype: DType) -> Value:
    """Return a number, or the one element of a tensor."""
    return reshape(b, cast(b, given, dtype), ()) if isinstance(given, Value) else number(b, given, dtype)


def _of_channels(b: Emitter, given: Value, x: Value, axis: int) -> Value:
    """A tensor of one dimension along ``axis`` of ``x``."""
    return reshape(
        b, cast(b, given, _FLOAT), tuple(n if d == axis % len(x.shape) else 1 for d, n in enumerate(x.shape))
    )


def _quantised(b: Emitter, x: Value, scale: Value, zero: Value, bounds: tuple[Any, Any], dtype: DType) -> Value:
    """``x`` in units of ``scale`` as the nearest integers behind ``zero``, within the bounds."""
    need(dtype.is_integer and all(isinstance(n, int) for n in bounds), "bounds that are no numbers")
    y = b.node("mul", cast(b, x, _FLOAT), b.node("div", number(b, 1.0, _FLOAT), scale))
    y = b.node("add", b.node("round", y), zero)
    low, high = (operand(b, n, _FLOAT) for n in bounds)
    return b.node("cast", b.node("minimum", b.node("maximum", y, low), high), dtype=dtype.name)


def _dequantised(b: Emitter, x: Value, scale: Value, zero: Value | None) -> Value:
    y = cast(b, x, _FLOAT)
    known = None if zero is None else b.known(zero)
    if zero is not None and (known is None or known.any()):
        y = b.node("sub", y, zero)
    return cast(b, b.node("mul", y, scale), b.dtype)


@rule(f"{_PREFIX}.quantize_per_tensor.default", f"{_PREFIX}.quantize_per_tensor.tensor")
def _quantise(b: Emitter, x: Value, scale: Any, zero: Any, low: Any, high: Any, dtype: Any) -> Value:
    return _quantised(b, x, _of_all(b, scale, _FLOAT), _of_all(b, zero, _FLOAT), (low, high), b.dtype)


@rule(f"{_PREFIX}.quantize_per_channel.default")
def _quantise_channels(
    b: Emitter, x: Value, scales: Value, zeros: Value, axis: int, low: Any, high: Any, dtype: Any
) -> Value:
    scale, zero = (_of_channels(b, v, x, axis) for v in (scales, zeros))
    return _quantised(b, x, scale, zero, (low, high), b.dtype)


@rule(f"{_PREFIX}.dequantize_per_tensor.default", f"{_PREFIX}.dequantize_per_tensor.tensor")
def _dequantise(
    b: Emitter, x: Value, scale: Any, zero: Any, low: Any, high: Any, dtype: Any, *, out_dtype: Any = None
) -> Value:
    return _dequantised(b, x, _of_all(b, scale, _FLOAT), _of_all(b, zero, _FLOAT))


@rule(f"{_PREFIX}.dequantize_per_channel.default")
def _dequantise_channels(
    b: Emitter, x: Value, scales: Value, zeros: Value | None, axis: int, low: Any, high: Any, dtype: Any, *,
    out_dtype: Any = None,
) -> Value:  # fmt: skip
    zero = None if zeros is None else _of_channels(b, zeros, x, axis)
    return _dequantised(b, x, _of_channels(b, scales, x, axis), zero)
