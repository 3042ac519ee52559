"""Pools of ATen."""

import math
from collections.abc import Sequence
from math import prod
from typing import Any

from ...graph.graph import Value
from .rule import Emitter, NoRule, number, rule, tuple_of
from .selection import pool_places


def _window(
    b: Emitter, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any = 1
) -> dict[str, tuple[int, ...]]:
    rank = len(tuple_of(kernel, 0)) if not isinstance(kernel, int) else 1
    rank = max(rank, len(b.shape) - 2 if len(x.shape) > 2 else 1)
    size, border = tuple_of(kernel, rank), tuple_of(padding, rank)
    step = tuple_of(stride, rank) if stride not in ((), [], None) else size
    apart = tuple_of(dilation, rank)
    behind = []
    for d in range(rank):  # as much as the windows that torch has need, which may be more where it rounds up
        reach = (b.shape[d - rank] - 1) * step[d] + apart[d] * (size[d] - 1) + 1
        behind.append(max(border[d], reach - border[d] - x.shape[d - rank]))
    return {"kernel": size, "stride": step, "before": border, "behind": tuple(behind), "dilation": apart}


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "max_pool2d.default", "max_pool1d.default")
def _max_pool(b: Emitter, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
              ceil: bool = False) -> Value | Sequence[Value]:  # fmt: skip
    window = _window(b, x, kernel, stride, padding, dilation)
    found = b.node("max_pool", x, **window)
    return _with_places(b, x, found, window) if "indices" in b.target else found


def _with_places(b: Emitter, x: Value, found: Value, window: dict[str, tuple[int, ...]]) -> Sequence[Value]:
    """Return the result of a pool, and where it was found, if a rule says that."""
    try:
        return [found, pool_places(b, x, found, window)]
    except NoRule:
        return [found]


@rule("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _average_pool(b: Emitter, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
                  count_border: bool = True, divisor: Any = None) -> Value:  # fmt: skip
    window = _window(b, x, kernel, stride, padding)
    rank = len(window["kernel"])
    if divisor is not None:
        total = b.node("average_pool", x, **window, count_border=True)
        return b.node("mul", total, number(b, prod(window["kernel"]) / divisor, b.dtype))
    border = window["before"]
    if count_border and any(border) and border != window["behind"]:
        # What windows reach beyond the border never counts, the border itself does.
        widths = (*[0] * (len(x.shape) - rank), *border)
        x = b.node("pad", x, before=widths, behind=widths, value=0.0)
        behind = tuple(max(0, n - m) for n, m in zip(window["behind"], border, strict=True))
        return b.node("average_pool", x, **{**window, "before": (0,) * rank, "behind": behind}, count_border=False)
    return b.node("average_pool", x, **window, count_border=count_border and any(border))


@rule("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_max(b: Emitter, x: Value, size: Any) -> Sequence[Value]:
    rank = len(list(size))
    found = _adaptive(b, x, rank, "max")
    if any(n % m for n, m in zip(x.shape[-rank:], b.shape[-rank:], strict=True)):
        return [found]
    kernel = tuple(n // m for n, m in zip(x.shape[-rank:], b.shape[-rank:], strict=True))
    return _with_places(b, x, found, _window(b, x, kernel, kernel, 0))


@rule("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default")
def _adaptive_average(b: Emitter, x: Value, size: Any) -> Value:
    return _adaptive(b, x, len(list(size)), "mean")


def _adaptive(b: Emitter, x: Value, rank: int, op: str) -> Value:
    """Windows that divide the last ``rank`` dimensions into as many parts as the result has elements."""
    extents, counts = x.shape[-rank:], b.shape[-rank:]
    if all(c == 1 for c in counts):
        return b.node(op, x, dims=tuple(range(len(x.shape) - rank, len(x.shape))), keep=True)
    if all(e % c == 0 for e, c in zip(extents, counts, strict=True)):
        kernel = tuple(e // c for e, c in zip(extents, counts, strict=True))
        return b.node("max_pool" if op == "max" else "average_pool", x, **_window(b, x, kernel, kernel, 0))
    for d, count in enumerate(counts, len(x.shape) - rank):
        x = _divided(b, x, d, count, op)
    return x


def _divided(b: Emitter, x: Value, dim: int, count: int, op: str) -> Value:
    """Dimension ``dim`` in ``count`` windows: window i has the elements from i n / count, rounded down, to
    (i + 1) n / count, rounded up."""
    extent = x.shape[dim]
    if extent == count:
        return x

    def whole(value: int) -> Value:
        return b.node("full", shape=(), value=value, dtype="int64")

    size = max(-(-(i + 1) * extent // count) - i * extent // count for i in range(count))
    scaled = b.node("mul", b.node("range", count=count, dtype="int64"), whole(extent))
    first = b.node("floor_divide", scaled, divisor=count)
    end = b.node("floor_divide", b.node("add", scaled, whole(extent + count - 1)), divisor=count)
    places = b.node("add", b.node("reshape", first, shape=(count, 1)), b.node("range", count=size, dtype="int64"))
    inside = b.node("lt", places, b.node("reshape", end, shape=(count, 1)))
    behind = len(x.shape) - dim - 1
    inside = b.node("reshape", inside, shape=(count, size, *[1] * behind))
    nothing = number(b, -math.inf if op == "max" else 0.0, x.dtype)
    windows = b.node("where", inside, b.node("gather", x, places, dim=dim), nothing)
    total = b.node("max" if op == "max" else "sum", windows, dims=(dim + 1,))
    if op == "max":
        return total
    lengths = b.node("cast", b.node("sub", end, first), dtype=x.dtype.name)
    return b.node("div", total, b.node("reshape", lengths, shape=(count, *[1] * behind)))
