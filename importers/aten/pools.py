"""Pools of ATen."""

from collections.abc import Mapping
from typing import Any

from ...graph.graph import Value
from .rule import Emitter, need, rule, tuple_of


def _window(b: Emitter, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Mapping[str, object]:
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
    count_border = count_border and any(tuple_of(padding, 1))  # what windows reach beyond the border never counts
    need(divisor is None and (not count_border or window["before"] == window["behind"]), "another divisor")
    return b.node("average_pool", x, **window, count_border=count_border)


@rule("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default")
def _adaptive(b: Emitter, x: Value, size: Any) -> Value:
    rank = len(list(size))
    extents, counts = x.shape[-rank:], b.shape[-rank:]
    if all(c == 1 for c in counts):
        return b.node("mean", x, dims=tuple(range(len(x.shape) - rank, len(x.shape))), keep=True)
    need(all(e % c == 0 for e, c in zip(extents, counts, strict=True)), "windows of unequal sizes")
    kernel = tuple(e // c for e, c in zip(extents, counts, strict=True))
    return b.node("average_pool", x, **_window(b, x, kernel, kernel, 0))
