"""Pools: the greatest or the mean element of each window."""

from collections.abc import Sequence
from math import prod

import numpy as np

from ...core.dtypes import float32
from ...core.errors import InvalidGraph
from ...ir.expr import Expr
from ...te import build as te
from ...te.operators.parameter import Flag, ListOf, Parameter, Values
from .attributes import WHOLE
from .joins import bordered
from .operator import Array, Case, Element, GraphOperand, GraphOperator, Kind, TensorType, stored, wide, widened
from .products import WINDOW, Windows, windows_of


def _windows(shape: tuple[int, ...], v: Values) -> Windows:
    kernel = v.integers("kernel")
    if len(shape) <= len(kernel):
        raise InvalidGraph(f"windows of {list(kernel)} over {list(shape)}", field="kernel")
    return windows_of(shape[len(shape) - len(kernel) :], kernel, v)


def _type(operands: Sequence[TensorType], v: Values) -> TensorType:
    x = operands[0]
    if not x.dtype.is_float:
        raise InvalidGraph(f"a pool of {x}; allowed: floats", field="operands")
    counts = _windows(x.shape, v).counts
    return TensorType((*x.shape[: len(x.shape) - len(counts)], *counts), x.dtype)


def _pool(x: GraphOperand, v: Values, greatest: bool) -> te.Tensor:
    windows, rank = _windows(x.shape, v), len(x.shape)
    image = bordered(x, windows.widths(rank), float("-inf") if greatest else 0.0)
    if image is not x:
        border = image
        image = stored(image.shape, lambda *at: border[at], "padded")
    taps = tuple(te.reduce_axis(n, f"s{d}") for d, n in enumerate(windows.kernel))
    outer = rank - len(taps)
    moving = taps[:-1] if len(taps) > 1 and windows.is_whole(len(taps) - 1) else taps

    def terms(*at: Expr) -> te.Reduction:
        e = wide(image[(*at[:outer], *windows.pixels(at[outer:], taps)[: len(moving)], *at[outer + len(moving) :])])
        return te.max(e, axis=moving) if greatest else te.sum(e, axis=moving)

    return stored((*x.shape[:outer], *windows.counts), terms, "total")


def _max_pool(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    return _pool(operands[0], v, True)


def _inside(windows: Windows, d: int, at: Expr) -> Expr:
    """Return how many elements of window ``at``, which is not dilated, are not border (int64)."""
    first = at * windows.stride[d] - windows.before[d]
    return te.minimum(first + windows.kernel[d], windows.extents[d]) - te.maximum(first, 0)


def _average_pool(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x = operands[0]
    windows, total = _windows(x.shape, v), _pool(x, v, False)
    rank = len(windows.kernel)

    def at(to: tuple[Expr, ...]) -> Expr:
        if v.flag("count_border") or not any((*windows.before, *windows.behind)):
            return total[to] * (1.0 / prod(windows.kernel))
        count = _inside(windows, 0, to[len(to) - rank])
        for d in range(1, rank):
            if not windows.is_whole(d):
                count = count * _inside(windows, d, to[len(to) - rank + d])
        return total[to] / te.cast(count, widened(x.dtype))

    return Element(total.shape, x.dtype, at)


def _max_pool_numpy(operands: Sequence[Array], v: Values) -> Array:
    windows = _windows(operands[0].shape, v)
    return np.asarray(windows.numpy(operands[0], -np.inf).max(axis=tuple(range(-len(windows.kernel), 0))))


def _average_pool_numpy(operands: Sequence[Array], v: Values) -> Array:
    windows = _windows(operands[0].shape, v)
    dims = tuple(range(-len(windows.kernel), 0))
    total = windows.numpy(operands[0], 0.0).sum(axis=dims)
    if v.flag("count_border"):
        return np.asarray(total / prod(windows.kernel))
    return np.asarray(total / windows.numpy(np.ones_like(operands[0]), 0.0).sum(axis=dims))


_X = TensorType((2, 3, 7, 5), float32)
_KERNEL = Parameter("kernel", "the extents of a window", ListOf(WHOLE, 1, 4))
_CASES: tuple[dict[str, tuple[int, ...]], ...] = (
    {"kernel": (2, 3), "stride": (2, 1), "before": (1, 1), "behind": (0, 1), "dilation": (1, 1)},
    {"kernel": (2,), "stride": (2,), "before": (0,), "behind": (0,), "dilation": (1,)},
    {"kernel": (3, 1), "stride": (1, 1), "before": (1, 0), "behind": (0, 0), "dilation": (1, 1)},
)

POOLS = (
    GraphOperator("max_pool", Kind.REDUCTION, "the greatest element of each window", _type, _max_pool_numpy, _max_pool,
                  (*(Case((_X,), {**c}) for c in _CASES), Case((_X,), {**_CASES[0], "dilation": (2, 1)})),
                  (_KERNEL, *WINDOW)),
    GraphOperator("average_pool", Kind.REDUCTION, "the mean element of each window", _type, _average_pool_numpy,
                  _average_pool,
                  (*(Case((_X,), {**c}) for c in _CASES), Case((_X,), {**_CASES[0], "count_border": True})),
                  (_KERNEL, *WINDOW, Parameter("count_border", "whether the border counts", Flag(), False))),
)  # fmt: skip
