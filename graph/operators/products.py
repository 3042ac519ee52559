"""Matrix products and convolutions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...core.dtypes import DTYPES, DType, float16, float32, int8, int32, uint8
from ...core.errors import InvalidGraph
from ...core.precision import IEEE, PRECISIONS
from ...ir.expr import Expr
from ...te import build as te
from ...te.groups import group_of_row, group_starts, in_group
from ...te.operators.parameter import Choice, Flag, Integer, ListOf, Parameter, Values
from .attributes import MOST, WHOLE
from .joins import bordered
from .operator import (
    Array,
    Case,
    Element,
    GraphOperand,
    GraphOperator,
    Kind,
    TensorType,
    broadcast,
    broadcast_read,
    same_dtype,
    stored,
    wide,
    widened,
)

_T = TypeVar("_T")


def _product_dtype(factors: Sequence[TensorType], v: Values) -> DType:
    """Return the dtype of a product. Raises InvalidGraph for factors that it is not made of."""
    if v.text("accumulate") == "auto":
        return same_dtype(factors)
    if any(not f.dtype.is_integer or f.dtype.bits > 8 for f in factors):
        raise InvalidGraph(f"{factors[0]} and {factors[1]} are not integers of 8 bits", field="operands")
    return DTYPES[v.text("accumulate")]


def _exact_in_floats(factors: Sequence[Array], v: Values) -> list[Array]:
    """Return the factors of a product that NumPy computes fast and without a rounding: sums of products of 8-bit
    integers are exact in float64."""
    return list(factors) if v.text("accumulate") == "auto" else [f.astype(np.float64) for f in factors]


def _accumulated(total: Array, v: Values) -> Array:
    """Return exact sums in the dtype of the product, in which integers wrap around."""
    if v.text("accumulate") == "auto":
        return total
    return total.astype(np.int64).astype(DTYPES[v.text("accumulate")].numpy)


def _matmul_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    a, b = operands
    dtype = _product_dtype(operands, v)
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2] or dtype.is_bool:
        raise InvalidGraph(f"a product of {a} and {b}", field="operands")
    return TensorType((*broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1]), dtype)


def _matmul_numpy(operands: Sequence[Array], v: Values) -> Array:
    return _accumulated(np.matmul(*_exact_in_floats(operands, v)), v)


def _wide_dtype(dtype: DType, v: Values) -> DType:
    """Return the dtype that a product of factors of ``dtype`` is summed up in."""
    return widened(dtype) if v.text("accumulate") == "auto" else DTYPES[v.text("accumulate")]


def _matmul(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    a, b = operands
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    k, dtype = te.reduce_axis(a.shape[-1], "k"), _wide_dtype(a.dtype, v)

    def of(operand: GraphOperand, *last: Expr) -> Expr:
        matrix = Element((*operand.shape[:-2], 2, 2), operand.dtype, lambda at: operand[at])  # never broadcast
        return te.cast(broadcast_read(matrix, last), dtype)

    shape = (*batch, a.shape[-2], b.shape[-1])
    names = [f"b{n}" for n in range(len(batch))]
    total = stored(
        shape,
        lambda *at: te.sum(of(a, *at[:-1], k) * of(b, *at[:-2], k, at[-1]), axis=k),
        "total",
        [*names, "i", "j"],
    )
    return total


def _grouped_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    a, b, ends = operands
    dtype = same_dtype(operands[:2])
    fits = (len(a.shape), len(b.shape), len(ends.shape)) == (2, 3, 1) and a.shape[1] == b.shape[1]
    if not fits or ends.shape[0] != b.shape[0] or not dtype.is_float or not ends.dtype.is_integer:
        raise InvalidGraph(f"a grouped product of {a} and {b} with ends {ends}", field="operands")
    return TensorType((a.shape[0], b.shape[2]), dtype)


def _grouped(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    a, b, ends = operands
    (rows, depth), (count, _, columns) = a.shape, b.shape
    e, k = te.reduce_axis(count, "e"), te.reduce_axis(depth, "k")
    group = stored((rows,), lambda i: te.min(group_of_row(ends[(e,)], i, e, count), axis=e), "group")

    def terms(i: Expr, j: Expr) -> te.Reduction:
        factor = in_group(group[(i,)], count, wide(a[(i, k)]))
        return te.sum(factor * wide(b[(te.within(group[(i,)], count), k, j)]), axis=k)

    return stored((rows, columns), terms, "total", ["i", "j"])


def _grouped_numpy(operands: Sequence[Array], v: Values) -> Array:
    a, b, ends = operands
    result = np.zeros((len(a), b.shape[2]))
    for group, (start, stop) in enumerate(pairwise(group_starts(ends, len(a)))):
        result[start:stop] = a[start:stop] @ b[group]
    return result


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the last dimensions of a tensor, as convolutions and pools have them."""

    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def spans(self) -> tuple[int, ...]:
        """What a window covers."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many windows there are along each dimension."""
        padded = (n + a + b for n, a, b in zip(self.extents, self.before, self.behind, strict=True))
        return tuple((n - span) // s + 1 for n, span, s in zip(padded, self.spans, self.stride, strict=True))

    def is_whole(self, d: int) -> bool:
        """Return whether windows have one element along dimension ``d``, and there is one for each element."""
        return (self.kernel[d], self.stride[d], self.before[d], self.behind[d]) == (1, 1, 0, 0)

    def widths(self, rank: int) -> list[tuple[int, int]]:
        """Return the border of a tensor of ``rank`` dimensions: (before, behind) for each."""
        return [(0, 0)] * (rank - len(self.kernel)) + list(zip(self.before, self.behind, strict=True))

    def pixels(self, at: Sequence[Expr], taps: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return where window ``at`` reads the bordered tensor for its elements ``taps``."""
        return tuple(
            (i * s if s > 1 else i) + (t * d if d > 1 else t)
            for i, t, s, d in zip(at, taps, self.stride, self.dilation, strict=True)
        )

    def numpy(self, x: Array, value: float) -> Array:
        """Return all windows of ``x`` as an array [..., window, element of the window]."""
        rank = len(self.kernel)
        padded = np.pad(x, self.widths(x.ndim), constant_values=value)
        view = sliding_window_view(padded, self.spans, axis=tuple(range(x.ndim - rank, x.ndim)))
        outer = tuple(slice(None, None, s) for s in self.stride)
        inner = tuple(slice(None, None, d) for d in self.dilation)
        return view[(*[slice(None)] * (x.ndim - rank), *outer, *inner)]


def windows_of(extents: Sequence[int], kernel: Sequence[int], v: Values) -> Windows:
    """Return the windows that attributes say. Raises InvalidGraph where there are none, or where lengths differ."""
    rank = len(kernel)
    lists = {n: v.integers(n) for n in ("stride", "before", "behind", "dilation")}
    for name, numbers in lists.items():
        if len(numbers) != rank or min(numbers) < (0 if name in ("before", "behind") else 1):
            raise InvalidGraph(f"{name} is {list(numbers)}; needed: {rank} numbers of at least 0 or 1", field=name)
    windows = Windows(tuple(extents), tuple(kernel), **lists)
    if min(windows.counts, default=1) < 1 or len(extents) != rank:
        raise InvalidGraph(f"windows of {list(kernel)} over {list(extents)}", field="kernel")
    return windows


_NUMBERS = ListOf(WHOLE, 1, 4)
WINDOW = (
    Parameter("stride", "elements between neighbouring windows, for each dimension", _NUMBERS),
    Parameter("before", "elements of border before each dimension", _NUMBERS),
    Parameter("behind", "elements of border behind each dimension", _NUMBERS),
    Parameter("dilation", "elements between neighbours of a window, for each dimension", _NUMBERS),
)


def _convolution_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    x, w, groups = operands[0].shape, operands[1].shape, v.integer("groups")
    dtype, last = _product_dtype(operands[:2], v), v.flag("channels_last")
    split = _channel_dims(v)
    if v.flag("filters_first"):
        if not last or len(w) <= split:
            raise InvalidGraph(f"filters {operands[1]} first, without channels last", field="filters_first")
        w = _filters_last(w, split)
    if last:
        rank, filters = len(x) - 1 - split, w[-split:]
        depth = (groups, *w[-3:-2]) if split == 2 else w[-2:-1]
        legal = rank > 0 and len(w) == rank + 1 + split and x[-split:] == depth and (split == 1 or filters[0] == groups)
    else:
        rank, filters = len(x) - 2, w[:1]
        legal = rank > 0 and len(w) == rank + 2 and x[1] == w[1] * groups and w[0] % groups == 0
    if not legal or rank > 3 or dtype.is_bool:
        raise InvalidGraph(f"a convolution of {operands[0]} with {operands[1]} in {groups} groups", field="operands")
    if len(operands) > 2 and operands[2] != TensorType(filters, dtype):
        raise InvalidGraph(f"a bias of {operands[2]} for filters of {operands[1]}", field="operands")
    if last:
        return TensorType((x[0], *windows_of(x[1 : 1 + rank], w[:rank], v).counts, *filters), dtype)
    return TensorType((x[0], *filters, *windows_of(x[2:], w[2:], v).counts), dtype)


def _channel_dims(v: Values) -> int:
    """Return how many dimensions the channels of a channels-last convolution have: groups over 1 have one of their
    own."""
    return 1 if v.integer("groups") == 1 else 2


def _filters_last(filters: Sequence[_T], split: int) -> tuple[_T, ...]:
    """Return what belongs to the dimensions of filters [(g,) o/g, …, c/g], in the order […, c/g, (g,) o/g]."""
    return (*filters[split:], *filters[:split])


def _channels_last_convolution(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, w, dtype = operands[0], operands[1], _wide_dtype(operands[0].dtype, v)
    split, first = _channel_dims(v), v.flag("filters_first")
    rank = len(x.shape) - 1 - split
    of_filters = _filters_last(w.shape, split) if first else w.shape
    windows = windows_of(x.shape[1 : 1 + rank], of_filters[:rank], v)
    image = bordered(x, [*windows.widths(1 + rank), *[(0, 0)] * split], 0)
    if image is not x:
        border = image
        image = stored(image.shape, lambda *at: border[at], "padded")
    c = te.reduce_axis(of_filters[rank], "c")
    taps = [te.reduce_axis(n, f"s{d}") for d, n in enumerate(windows.kernel)]

    def terms(*at: Expr) -> te.Reduction:
        n, *rest = at
        pixel, filter_ = windows.pixels(rest[:rank], taps), rest[rank:]
        place = (*filter_, *taps, c) if first else (*taps, c, *filter_)
        e = te.cast(image[(n, *pixel, *filter_[:-1], c)], dtype) * te.cast(w[place], dtype)
        return te.sum(e, axis=(*taps, c))

    names = ["n", *("z", "y", "x")[-rank:], *(["g"] if split == 2 else []), "o"]
    total = stored((x.shape[0], *windows.counts, *of_filters[-split:]), terms, "total", names)
    if len(operands) == 2:
        return total
    return Element(total.shape, operands[2].dtype, lambda at: total[at] + wide(operands[2][at[-split:]]))


def _convolution(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    if v.flag("channels_last"):
        return _channels_last_convolution(operands, v)
    x, w, groups = operands[0], operands[1], v.integer("groups")
    windows, dtype = windows_of(x.shape[2:], w.shape[2:], v), _wide_dtype(x.dtype, v)
    rank, filters, depth = len(windows.kernel), w.shape[0] // groups, w.shape[1]
    image = bordered(x, windows.widths(rank + 2), 0)
    if image is not x:
        border = image
        image = stored(image.shape, lambda *at: border[at], "padded")
    c = te.reduce_axis(depth, "c")
    taps = [te.reduce_axis(n, f"s{d}") for d, n in enumerate(windows.kernel)]
    split = (groups, filters) if groups > 1 else (filters,)

    def terms(*at: Expr) -> te.Reduction:
        n, *own = at[: len(at) - rank]
        channel = own[0] * depth + c if groups > 1 else c
        filter_ = own[0] * filters + own[1] if groups > 1 else own[0]
        pixel = image[(n, channel, *windows.pixels(at[len(at) - rank :], taps))]
        return te.sum(te.cast(pixel, dtype) * te.cast(w[(filter_, c, *taps)], dtype), axis=(c, *taps))

    names = ["n", *(["g"] if groups > 1 else []), "o", *("z", "y", "x")[-rank:]]
    total = stored((x.shape[0], *split, *windows.counts), terms, "total", names)

    if groups == 1 and len(operands) == 2:
        return total

    def at(to: tuple[Expr, ...]) -> Expr:
        own = (to[1] // filters, to[1] % filters) if groups > 1 else (to[1],)
        e = total[(to[0], *own, *to[2:])]
        return e + wide(operands[2][(to[1],)]) if len(operands) > 2 else e

    result = x.dtype if v.text("accumulate") == "auto" else dtype
    return Element((x.shape[0], w.shape[0], *windows.counts), result, at)


def _convolution_numpy(operands: Sequence[Array], v: Values) -> Array:
    x, w, groups = operands[0], operands[1], v.integer("groups")
    if v.flag("channels_last"):
        split = _channel_dims(v)
        if v.flag("filters_first"):
            w = w.transpose(_filters_last(range(w.ndim), split))
        filters_of = w.shape[w.ndim - split :]
        x = x.reshape(*x.shape[: x.ndim - split], -1)
        w = w.reshape(*w.shape[: w.ndim - split], -1)
        given = [np.moveaxis(x, -1, 1), np.moveaxis(w, (-1, -2), (0, 1)), *(bias.reshape(-1) for bias in operands[2:])]
        plain = Values({**v.values, "channels_last": False, "filters_first": False})
        y = np.moveaxis(_convolution_numpy(given, plain), 1, -1)
        return y.reshape(*y.shape[:-1], *filters_of)
    windows = windows_of(x.shape[2:], w.shape[2:], v)
    rank, filters, depth = len(windows.kernel), w.shape[0] // groups, w.shape[1]
    x, w = _exact_in_floats((x, w), v)
    view = windows.numpy(x, 0)
    pixels = prod(windows.counts)
    view = view.reshape(x.shape[0], groups, depth, *windows.counts, *windows.kernel)
    inner, outer = range(3 + rank, 3 + 2 * rank), range(3, 3 + rank)
    columns = view.transpose(0, 1, 2, *inner, *outer).reshape(x.shape[0], groups, -1, pixels)
    y = _accumulated(np.matmul(w.reshape(groups, filters, -1), columns), v)
    y = y.reshape(x.shape[0], w.shape[0], *windows.counts)
    return np.asarray(y + operands[2].reshape(-1, *[1] * rank)) if len(operands) > 2 else y


def _f(*shape: int) -> TensorType:
    return TensorType(shape, float32)


_PLAIN = {"stride": (1, 1), "before": (0, 0), "behind": (0, 0), "dilation": (1, 1)}

PRECISION = Parameter("precision", "which roundings the sums of products may have", Choice(tuple(PRECISIONS)), IEEE)

ACCUMULATE = Parameter(
    "accumulate",
    "auto: products have the dtype of their factors; int32: factors are integers of 8 bits, with or without a sign",
    Choice(("auto", "int32")),
    "auto",
)

MATMUL = GraphOperator(
    "matmul", Kind.ANCHOR, "matrix products over the last two dimensions; the others broadcast", _matmul_type,
    _matmul_numpy, _matmul,
    (Case((_f(3, 5), _f(5, 7))), Case((_f(2, 1, 3, 5), _f(4, 5, 1))), Case((_f(1, 1), _f(1, 1))),
     Case((TensorType((3, 5), float16), TensorType((5, 7), float16))),
     Case((TensorType((3, 5), int8), TensorType((5, 7), uint8)), {"accumulate": "int32"})),
    (PRECISION, ACCUMULATE), (2, 2),
)  # fmt: skip
GROUPED_MATMUL = GraphOperator(
    "grouped_matmul", Kind.ANCHOR,
    "rows [m, k] in groups, each multiplied with a matrix of its own of [groups, k, n]; the third operand says where "
    "each group ends, and rows behind all ends are 0", _grouped_type, _grouped_numpy, _grouped,
    (Case((_f(11, 5), _f(3, 5, 7), TensorType((3,), int32))), Case((_f(2, 1), _f(1, 1, 1), TensorType((1,), int32))),
     Case((TensorType((9, 8), float16), TensorType((4, 8, 16), float16), TensorType((4,), int32)))), (), (3, 3),
)  # fmt: skip
CONVOLUTION = GraphOperator(
    "convolution", Kind.ANCHOR,
    "a convolution over one to three dimensions of [n, c, …] with filters [o, c/g, …]; if channels_last, of "
    "[n, …, (g,) c/g] with filters […, c/g, (g,) o/g], or if filters_first [(g,) o/g, …, c/g], to [n, …, (g,) o/g], "
    "where g groups over 1 have a dimension",
    _convolution_type, _convolution_numpy, _convolution,
    (Case((_f(1, 3, 7, 6), _f(4, 3, 3, 2), _f(4)), {**_PLAIN, "before": (1, 0), "behind": (0, 2)}),
     Case((_f(2, 4, 7, 7), _f(6, 2, 3, 3)), {**_PLAIN, "groups": 2, "stride": (2, 1), "dilation": (1, 2)}),
     Case((_f(1, 3, 5, 5), _f(3, 1, 3, 3), _f(3)), {**_PLAIN, "groups": 3, "before": (1, 1), "behind": (1, 1)}),
     Case((_f(2, 3, 9), _f(4, 3, 3)), {"stride": (2,), "before": (1,), "behind": (1,), "dilation": (1,)}),
     Case((_f(1, 2, 3, 4, 5), _f(3, 2, 2, 1, 3)),
          {"stride": (1, 1, 2), "before": (0, 0, 1), "behind": (0, 0, 1), "dilation": (1, 1, 1)}),
     Case((TensorType((1, 4, 7, 7), uint8), TensorType((6, 2, 3, 3), int8), TensorType((6,), int32)),
          {**_PLAIN, "before": (1, 1), "groups": 2, "accumulate": "int32"}),
     Case((TensorType((1, 7, 7, 4), int8), TensorType((3, 3, 4, 6), int8), TensorType((6,), int32)),
          {**_PLAIN, "before": (1, 1), "channels_last": True, "accumulate": "int32"})),
    (*WINDOW, Parameter("groups", "parts that channels are split into", Integer(1, MOST), 1),
     Parameter("channels_last", "whether channels are the last dimension", Flag(), False),
     Parameter("filters_first", "whether filters are the first dimension of them though channels are last", Flag(),
               False), PRECISION, ACCUMULATE), (2, 3),
)  # fmt: skip
