"""Pools of ATen."""

from collections.abc import Sequence
from math import prod
from typing import Any

from ...graph.graph import Value
from .rule import Emitter, need, number, rule, tuple_of


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
              ceil: bool = False) -> Value:  # fmt: skip
    return b.node("max_pool", x, **_window(b, x, kernel, stride, padding, dilation))


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
    kernel = _even_windows(x.shape[-rank:], b.shape[-rank:])
    if all(n == 1 for n in b.shape[-rank:]):
        return [b.node("max", x, dims=tuple(range(len(x.shape) - rank, len(x.shape))), keep=True)]
    return [b.node("max_pool", x, **_window(b, x, kernel, kernel, 0))]


def _even_windows(extents: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """The windows that divide ``extents`` into ``counts`` parts. Raises NoRule where these have unequal sizes."""
    need(all(e % c == 0 for e, c in zip(extents, counts, strict=True)), "windows of unequal sizes")
    return tuple(e // c for e, c in zip(extents, counts, strict=True))


@rule("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default")
def _adaptive(b: Emitter, x: Value, size: Any) -> Value:
    rank = len(list(size))
    extents, counts = x.shape[-rank:], b.shape[-rank:]
    if all(c == 1 for c in counts):
        return b.node("mean", x, dims=tuple(range(len(x.shape) - rank, len(x.shape))), keep=True)
    kernel = _even_windows(extents, counts)
    return b.node("average_pool", x, **_window(b, x, kernel, kernel, 0))
