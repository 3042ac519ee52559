"""Images in other sizes: each dimension alone is a sum of a few elements with weights that are known."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...graph.graph import Value
from ...graph.operators.operator import Array
from ..aten.rule import NoRule, slice_
from ..aten.views import taken
from .call import Call, axis_of, cast, need, rule
from .elementwise import like

_MOST_TAPS = 64


@rule("Resize", "Upsample")
def _resize(c: Call) -> Value:
    x, upsample = c.value(0), c.op == "Upsample" or len(c.inputs) == 2
    rank, mode = len(x.shape), c.get("mode", "nearest")
    dims = [axis_of(d, rank) for d in c.get("axes") or range(rank)]
    scales, sizes = _scales_and_sizes(c, x, dims, upsample)
    how = c.get("coordinate_transformation_mode", "asymmetric" if upsample else "half_pixel")
    roi = np.ravel(c.known(1)) if how == "tf_crop_and_resize" else None
    kernel = _kernel(c, mode)
    need(mode == "nearest" or x.dtype.is_float, "integers between elements")
    for k, d in enumerate(dims):
        if sizes[k] == x.shape[d] and scales[k] == 1.0 and roi is None:
            continue
        bounds = None if roi is None else (float(roi[k]), float(roi[k + len(dims)]))
        at = _coordinates(how, x.shape[d], sizes[k], scales[k], bounds)
        x = _moved(c, x, d, at, scales[k], kernel)
        if bounds is not None:
            x = _outside(c, x, d, (at < 0) | (at > c.value(0).shape[d] - 1))
    return c.node("identity", x)


def _scales_and_sizes(c: Call, x: Value, dims: Sequence[int], upsample: bool) -> tuple[list[float], list[int]]:
    """By how much dimensions grow, and what their extents become."""
    extents, policy = [x.shape[d] for d in dims], c.get("keep_aspect_ratio_policy", "stretch")
    if c.op == "Upsample" or upsample or (c.has(2) and c.value(2).elements):
        given = c.get("scales") or c.known(1 if upsample else 2)
        scales = [float(s) for s in np.ravel(np.asarray(given))]
        return scales, [math.floor(s * n) for s, n in zip(scales, extents, strict=True)]
    sizes = c.integers(3)
    scales = [s / n for s, n in zip(sizes, extents, strict=True)]
    if policy != "stretch":
        scales = [min(scales) if policy == "not_larger" else max(scales)] * len(dims)
        sizes = [math.floor(s * n + 0.5) for s, n in zip(scales, extents, strict=True)]
    return scales, sizes


def _coordinates(how: str, extent: int, count: int, scale: float, roi: tuple[float, float] | None) -> Array:
    """Return where each of ``count`` elements lies among ``extent`` ones (float64[count])."""
    i, wide = np.arange(count, dtype=np.float64), scale * extent
    match how:
        case "align_corners":
            return i * 0.0 if wide == 1 else i * (extent - 1) / (wide - 1)
        case "asymmetric":
            return i / scale
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return i * 0.0 - 0.5 if wide == 1 else (i + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return extent / 2 * (1 - count / wide) + (i + 0.5) / scale - 0.5
        case "tf_crop_and_resize" if roi is not None:
            start, end = roi
            if count == 1:
                return i + (start + end) * (extent - 1) / 2
            return start * (extent - 1) + i * (end - start) * (extent - 1) / (count - 1)
    raise NoRule(f"coordinates by {how}")


Kernel = Callable[[Array, int, float], tuple[Array, Array]]
"""Coordinates, an extent and a scale -> places and weights of what each element is the sum of, both [count, taps]."""


def _kernel(c: Call, mode: str) -> Kernel:
    outside, smooth = bool(c.get("exclude_outside", 0)), bool(c.get("antialias", 0))
    a, rounding = c.get("cubic_coeff_a", -0.75), c.get("nearest_mode", "round_prefer_floor")
    if c.op == "Upsample" or len(c.inputs) == 2:
        rounding = "floor"
    if mode == "nearest":
        return lambda at, extent, scale: _nearest(at, extent, rounding)
    need(mode in ("linear", "cubic"), f"resizing by {mode}")

    def weight(t: Array) -> Array:
        t = np.abs(t)
        if mode == "linear":
            return np.asarray(np.clip(1 - t, 0, None))
        near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        return np.asarray(np.where(t <= 1, near, np.where(t < 2, far, 0.0)))

    def kernel(at: Array, extent: int, scale: float) -> tuple[Array, Array]:
        narrow = min(scale, 1.0) if smooth else 1.0
        reach = math.ceil((1 if mode == "linear" else 2) / narrow)
        places = np.floor(at).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
        weights = weight((places - at[:, None]) * narrow)
        if outside:
            weights = np.where((places < 0) | (places >= extent), 0.0, weights)
        if outside or smooth:
            weights = weights / weights.sum(1, keepdims=True)
        return np.clip(places, 0, extent - 1), weights

    return kernel


def _nearest(at: Array, extent: int, rounding: str) -> tuple[Array, Array]:
    functions: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda t: np.ceil(t - 0.5), "round_prefer_ceil": lambda t: np.floor(t + 0.5),
        "floor": np.floor, "ceil": np.ceil,
    }  # fmt: skip
    places = np.clip(functions[rounding](at), 0, extent - 1).astype(np.int64)
    return places[:, None], np.ones((len(at), 1))


def _moved(c: Call, x: Value, d: int, at: Array, scale: float, kernel: Kernel) -> Value:
    """Dimension ``d`` of ``x`` at coordinates."""
    places, weights = kernel(at, x.shape[d], scale)
    count, taps = places.shape
    if taps == 1:
        try:
            return taken(c, x, d, [int(p) for p in places[:, 0]])
        except NoRule:
            return c.node("gather", x, c.data(places[:, 0]), dim=d)
    need(taps <= _MOST_TAPS, "so many elements for one")
    behind = (1,) * (len(x.shape) - d - 1)
    factors = cast(c, c.data(weights.astype(np.float32).reshape(count, taps, *behind)), x.dtype)
    terms = c.node("mul", c.node("gather", x, c.data(places), dim=d), factors)
    return c.node("sum", terms, dims=(d + 1,))


def _outside(c: Call, x: Value, d: int, outside: Array) -> Value:
    """``x`` with the value for what lies outside of the region at some places of dimension ``d``."""
    if not outside.any():
        return x
    mask = c.data(outside.reshape(-1, *(1,) * (len(x.shape) - d - 1)))
    return c.node("where", mask, like(c, x, c.get("extrapolation_value", 0.0)), x)


@rule("ReverseSequence")
def _reverse(c: Call) -> Value:
    """Return the first elements of each sequence in the opposite order, as many as are known."""
    x, lengths = c.value(0), c.integers(1)
    batch, time = c.get("batch_axis", 1), c.get("time_axis", 0)
    parts: list[Value] = []
    for n, length in enumerate(lengths):
        one = slice_(c, x, batch, n, n + 1)
        turned = c.node("flip", slice_(c, one, time, 0, length), dims=(time,))
        rest = [slice_(c, one, time, length, x.shape[time])] if length < x.shape[time] else []
        parts.append(c.node("concatenate", turned, *rest, dim=time))
    need(len(parts) <= 64, "so many sequences")
    return c.node("concatenate", *parts, dim=batch)
