"""Fourier transforms of ONNX, whose complex numbers are pairs: products with a constant matrix, for short lengths."""

import numpy as np

from ...graph.graph import Value
from ...graph.operators.operator import Array
from ..aten.rule import reshape, slice_
from .call import Call, axis_of, need, rule

_MOST_FACTORS = 1 << 22
"""How many elements a matrix has at most: beyond, a fast transform would have far fewer operations."""


def _matrix(n: int, m: int, length: int, parts: int, outputs: int, sign: int) -> Array:
    """Return ``m`` numbers of a transform of ``length`` from ``n``, as float64[n * parts, m * outputs]. Where the
    result has no imaginary part, the ``n`` numbers are half a spectrum, whose other half are their conjugates."""
    need(n * parts * m * outputs <= _MOST_FACTORS, "so long a transform")
    turned = np.exp(sign * 2j * np.pi / length * (np.arange(n)[:, None] * np.arange(m) % length))
    if outputs == 1:
        k = np.arange(n)[:, None]
        turned = turned * np.where((k == 0) | (2 * k == length), 1.0, 2.0)
    if sign > 0:
        turned = turned / length
    rows = [turned, 1j * turned][:parts]
    columns = [np.stack([r.real, r.imag][:outputs], -1) for r in rows]
    return np.stack(columns, 1).reshape(n * parts, m * outputs)


def _transformed(c: Call, x: Value, length: int, sign: int, onesided: bool) -> Value:
    """``x`` [.., n, parts] as [.., m, 2], or as [.., m, 1] where half a spectrum gives numbers."""
    halves = (length // 2 + 1, length) if onesided else (length, length)
    wanted, m = halves if sign > 0 else halves[::-1]
    n, parts = x.shape[-2:]
    if n != wanted:
        last = len(x.shape) - 2
        behind = tuple(max(0, wanted - n) if d == last else 0 for d in range(len(x.shape)))
        x = slice_(c, x, last, 0, min(n, wanted))
        x = c.node("pad", x, before=(0,) * len(x.shape), behind=behind, value=0.0)
    outputs = 1 if sign > 0 and onesided else 2
    matrix = _matrix(wanted, m, length, parts, outputs, sign)
    y = c.node("matmul", reshape(c, x, (*x.shape[:-2], wanted * parts)), c.data(matrix.astype(x.dtype.numpy)))
    return reshape(c, y, (*x.shape[:-2], m, outputs))


@rule("DFT")
def _dft(c: Call) -> Value:
    x, rank = c.value(0), len(c.value(0).shape)
    axis = (c.integers(2)[0] if c.has(2) else -2) if c.opset >= 20 else c.get("axis", 1)
    d, inverse, onesided = axis_of(axis, rank), bool(c.get("inverse", 0)), bool(c.get("onesided", 0))
    need(x.dtype.is_float and d < rank - 1, "another axis")
    order = (*(e for e in range(rank - 1) if e != d), d, rank - 1)
    turned = c.node("permute", x, order=order)
    usual = 2 * (x.shape[d] - 1) if inverse and onesided else x.shape[d]
    length = c.integers(1)[0] if c.has(1) else usual
    y = _transformed(c, turned, length, 1 if inverse else -1, onesided)
    return c.node("permute", y, order=tuple(order.index(e) for e in range(rank)))


@rule("STFT")
def _stft(c: Call) -> Value:
    """Transforms of frames of a signal: [batch, frames, frequencies, 2]."""
    x, step = c.value(0), c.integers(1)[0]
    need(x.dtype.is_float, "integers")
    size = c.integers(3)[0] if c.has(3) else c.value(2).elements
    count = (x.shape[1] - size) // step + 1
    need(count * size <= _MOST_FACTORS, "so many frames")
    places = np.arange(count)[:, None] * step + np.arange(size)
    frames = c.node("gather", x, c.data(places), dim=1)
    if c.has(2):
        frames = c.node("mul", frames, reshape(c, c.value(2), (size, 1)))
    return _transformed(c, frames, size, -1, bool(c.get("onesided", 1)))
