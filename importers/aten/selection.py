"""Operators of ATen that find places, and those that write to places: the greatest few of a line, indices of pools,
running extremes, scattering.

What is written to few places is a select for each of them:

    scatter(x, i, v)[j] = v[0] where j == i[0], v[1] where j == i[1], ..., else x[j]

With many places sums and extremes are scatters; what else there is would cost far more than torch's own kernels, which
then stay.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from .ranks import greatest
from .rule import Emitter, NodeMaker, cast, need, number, operand, reshape, rule, slice_, transpose

FEW = 8
"""How many places a rule looks for, or writes to, at most."""
_INT64 = DTYPES["int64"]


def _along(b: NodeMaker, extent: int, dim: int, rank: int) -> Value:
    """Return the numbers from 0 to ``extent`` - 1 along a dimension."""
    places = b.node("range", count=extent, dtype=_INT64.name)
    return reshape(b, places, tuple(extent if d == dim else 1 for d in range(rank)))


def _expanded(b: NodeMaker, x: Value, shape: Sequence[int]) -> Value:
    return x if x.shape == tuple(shape) else b.node("expand", x, shape=tuple(shape))


def _joined(b: NodeMaker, op: str, *conditions: Value) -> Value:
    first, *rest = conditions
    for other in rest:
        first = b.node(op, first, other)
    return first


def _is_nan(b: NodeMaker, x: Value) -> Value:
    return b.node("ne", x, x)


# The greatest few


def _greatest(b: NodeMaker, x: Value, dim: int, count: int) -> list[tuple[Value, Value]]:
    """Return the ``count`` greatest elements along a dimension with their places, in order, the first of equal ones
    first. NaN is greater than all. Each is the greatest of those whose places are not taken. Several are looked for
    along rows, which a kernel reads once. (Of a single one that is NaN the place is any, as ``te.argmax`` says.)"""
    last = len(x.shape) - 1
    if count == 1:
        return [(b.node("max", x, dims=(dim,), keep=True), b.node("argmax", x, dim=dim, keep=True))]
    if dim != last:
        rows = _greatest(b, transpose(b, x, dim, last), last, count)
        return [(transpose(b, value, dim, last), transpose(b, place, dim, last)) for value, place in rows]
    extent, left = x.shape[dim], x
    places = _along(b, extent, dim, len(x.shape))
    nothing, behind = number(b, -float("inf"), x.dtype), number(b, extent - 1, _INT64)
    found: list[tuple[Value, Value]] = []
    for _ in range(count):
        free = [b.node("ne", place, places) for _, place in found]
        if free:
            left = b.node("where", _joined(b, "logical_and", *free), x, nothing)
        value = b.node("max", left, dims=(dim,), keep=True)
        both_nan = b.node("logical_and", _is_nan(b, left), _is_nan(b, value))
        here = _joined(b, "logical_and", b.node("logical_or", b.node("eq", left, value), both_nan), *free)
        found.append((value, b.node("min", b.node("where", here, places, behind), dims=(dim,), keep=True)))
    return found


@rule("topk.default")
def _topk(b: Emitter, x: Value, count: int, dim: int = -1, largest: bool = True, in_order: bool = True) -> list[Value]:
    need(bool(x.shape) and count > 0, "a scalar")
    d = dim % len(x.shape)
    if count > FEW or not largest or not x.dtype.is_float:
        return greatest(b, x, d, count, largest)
    values, places = zip(*_greatest(b, x, d, count), strict=True)
    return [part[0] if count == 1 else b.node("concatenate", *part, dim=d) for part in (values, places)]


@rule("cummax.default", "cummin.default")
def _running_extreme(b: Emitter, x: Value, dim: int) -> list[Value]:
    """The place is that of the latest element which equals the extreme, or is NaN."""
    need(bool(x.shape) and not x.dtype.is_bool, "a scalar")
    d = dim % len(x.shape)
    values = b.node("running_max" if "cummax" in b.target else "running_min", x, dim=d)
    latest = b.node("eq", x, values)
    if x.dtype.is_float:
        latest = b.node("logical_or", latest, _is_nan(b, x))
    places = b.node("where", latest, _along(b, x.shape[d], d, len(x.shape)), number(b, 0, _INT64))
    return [values, b.node("running_max", places, dim=d)]


# Scattering


def placed(b: NodeMaker, x: Value, dim: int, places: Value, source: Value,
            write: Callable[[Value, Value], Value]) -> Value:  # fmt: skip
    """Return ``x``, in which ``write(old, new)`` stands where ``places`` are along a dimension. ``places`` and
    ``source`` have the shape of ``x`` but for that dimension, or one element in the place of any."""
    along, count = _along(b, x.shape[dim], dim, len(x.shape)), places.shape[dim]
    need(count <= FEW, "so many places")
    for n in range(count):
        place, new = (v if not v.shape or v.shape[dim] == 1 else slice_(b, v, dim, n, n + 1) for v in (places, source))
        x = b.node("where", b.node("eq", along, place), write(x, new), x)
    return x


_MOST_PLACES = 8
"""A scatter has at most so many places for each term. It writes all of them, where torch writes those that it needs."""
_SCATTERED = {"sum": ("sum", "add"), "add": ("sum", "add"), "amax": ("max", "maximum"), "amin": ("min", "minimum")}
"""How many new elements are combined at their places, and then with the old ones."""


def combined(b: NodeMaker, x: Value, dim: int, places: Value, source: Value, how: str | None, *,
             from_end: bool = False) -> Value:  # fmt: skip
    """Return ``placed``, or with many places a scatter, where new elements are combined with old ones. ``from_end``:
    whether negative places count from the end."""
    if places.shape[dim] <= FEW:
        places = from_front(b, places, x.shape[dim]) if from_end else places
        return placed(b, x, dim, places, source, written(b, how))
    need(how in _SCATTERED and not x.dtype.is_bool, "so many places")
    need(all(n == 1 for d, n in enumerate(places.shape) if d != dim), "places of each element of its own")
    need(_MOST_PLACES * places.shape[dim] >= x.shape[dim], "few terms for so many places")
    reduce, join = _SCATTERED[str(how)]
    need(reduce == "sum" or x.dtype.is_float, "extremes of integers")
    shape = (*x.shape[:dim], places.shape[dim], *x.shape[dim + 1 :])
    terms = [_expanded(b, v, shape) for v in (places, source)]
    found = b.node("scatter", *terms, dim=dim, count=x.shape[dim], how=reduce, from_end=from_end)
    return b.node(join, x, found)


def written(b: NodeMaker, how: str | None) -> Callable[[Value, Value], Value]:
    """Return how a new element and an old one are combined."""
    names = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "maximum", "amin": "minimum"}
    if how is None:
        return lambda _old, new: new
    need(how in names, f"the reduction {how}")
    return lambda old, new: b.node(names[how], old, new)


@rule("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add.default",
      "scatter_reduce.two")  # fmt: skip
def _scatter(b: Emitter, x: Value, dim: int, places: Value, source: Any, reduce: str | None = None, *,
             include_self: bool = True) -> Value:  # fmt: skip
    need(bool(x.shape) and include_self, "another form of scatter")
    d = dim % len(x.shape)
    around = [n for e, n in enumerate(x.shape) if e != d]
    need([n for e, n in enumerate(places.shape) if e != d] == around, "places for a part")
    if isinstance(source, Value):
        for e, n in enumerate(places.shape):
            source = source if source.shape[e] == n else slice_(b, source, e, 0, n)
    how, line = "add" if "scatter_add" in b.target else reduce, b.expanded_from(places)
    if places.shape[d] > FEW and len(line.shape) == len(x.shape) and line.shape[d] == places.shape[d]:
        places = line
    return combined(b, x, d, places, operand(b, source, x.dtype), how)


@rule("index_add.default", "index_copy.default", "index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_write(b: Emitter, x: Value, dim: int, places: Value, source: Any, *, alpha: Any = 1) -> Value:
    need(bool(x.shape) and alpha == 1, "a scalar")
    d = dim % len(x.shape)
    how = "add" if "index_add" in b.target else None
    return combined(b, x, d, _line(b, places, d, x), operand(b, source, x.dtype), how, from_end=True)


def _line(b: NodeMaker, places: Value, dim: int, x: Value) -> Value:
    """Return one line of places along a dimension of ``x``."""
    return cast(b, reshape(b, places, tuple(places.elements if d == dim else 1 for d in range(len(x.shape)))), _INT64)


def from_front(b: NodeMaker, places: Value, extent: int) -> Value:
    """Return places with those from the end counted from the front."""
    end = b.node("add", places, number(b, extent, places.dtype))
    return b.node("where", b.node("lt", places, number(b, 0, places.dtype)), end, places)


@rule("index_put.default")
def _index_put(b: Emitter, x: Value, indices: Sequence[Any], source: Value, accumulate: bool = False) -> Value:
    """Return a number or rows where a mask says so, lines along one dimension, or an element of each line."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    given = [indices[d] for d in dims]
    source, write = cast(b, source, x.dtype), written(b, "add" if accumulate else None)
    if len(given) == 1 and given[0].dtype.is_bool:
        mask, d = given[0], dims[0]
        need(source.elements == 1, "an element for each place of a mask")
        mask = reshape(b, mask, (*[1] * d, *mask.shape, *[1] * (len(x.shape) - d - len(mask.shape))))
        return b.node("where", mask, write(x, reshape(b, source, ())), x)
    need(all(p.dtype.is_integer for p in given), "masks among places")
    if len(dims) == 1 and len(given[0].shape) <= 1:
        (d,) = dims
        shape = (*x.shape[:d], given[0].elements, *x.shape[d + 1 :])
        need(len(source.shape) <= len(x.shape), "a source of more dimensions")
        if not given[0].shape and len(source.shape) == len(x.shape) - 1:
            source = reshape(b, source, (*source.shape[:d], 1, *source.shape[d:]))
        source = _expanded(b, source, shape)
        how = "add" if accumulate else None
        return combined(b, x, d, _line(b, given[0], d, x), source, how, from_end=True)
    return _one_of_each_line(b, x, dims, given, source, write)


def _one_of_each_line(b: Emitter, x: Value, dims: Sequence[int], given: Sequence[Value], source: Value,
                      write: Callable[[Value, Value], Value]) -> Value:  # fmt: skip
    """x[arange(n), i] = source, where i has one place, or a line of places, for each of n."""
    need(list(dims) == [0, 1], "places of other dimensions")
    lines, known, places = x.shape[0], b.known(given[0]), given[1]
    in_order = (
        known is not None and known.ndim <= 2 and len(known) == lines and list(known.ravel()) == list(range(lines))
    )
    need(in_order, "lines in no order")
    need(places.shape[0] == lines and len(places.shape) <= 2, "places that vary together")
    count = places.shape[1] if len(places.shape) == 2 else 1
    shape, behind = (lines, *places.shape[1:], *x.shape[2:]), [1] * (len(x.shape) - 2)
    source = reshape(b, _expanded(b, source, shape), (lines, count, *x.shape[2:]))
    line = cast(b, reshape(b, places, (lines, count, *behind)), _INT64)
    return placed(b, x, 1, from_front(b, line, x.shape[1]), source, write)


# Pools


def pool_places(b: NodeMaker, x: Value, greatest: Value, window: dict[str, tuple[int, ...]]) -> Value:
    """Return where the greatest element of each window of a pool lies in its image, row-major: the first of equal ones,
    and any place in a window with NaN. What lies on the border is moved to the next element of the image."""
    kernel, stride, before, apart = (window[n] for n in ("kernel", "stride", "before", "dilation"))
    rank, first = len(kernel), len(x.shape) - len(kernel)
    taps: list[tuple[int, ...]] = [()]
    for size in kernel:
        taps = [(*t, n) for t in taps for n in range(size)]
    need(len(taps) <= 32 and (not any(before) or all(n == 1 for n in apart)), "so large windows")
    none = (0,) * first
    image = b.node("pad", x, before=(*none, *before), behind=(*none, *window["behind"]), value="-inf")
    number_of_tap = number(b, 0, _INT64)
    for n in reversed(range(len(taps))):
        tap = image
        for d in range(rank):
            low = taps[n][d] * apart[d]
            tap = slice_(b, tap, first + d, low, low + (greatest.shape[first + d] - 1) * stride[d] + 1, stride[d])
        number_of_tap = b.node("where", b.node("eq", tap, greatest), number(b, n, _INT64), number_of_tap)
    at, inner = list[Value](), len(taps)
    for d in range(rank):
        inner //= kernel[d]
        extent, outputs = x.shape[first + d], greatest.shape[first + d]
        own = b.node("modulo", b.node("floor_divide", number_of_tap, divisor=inner), divisor=kernel[d])
        start = b.node("range", count=outputs, start=-before[d], step=stride[d], dtype=_INT64.name)
        start = reshape(b, start, tuple(outputs if e == first + d else 1 for e in range(len(x.shape))))
        place = b.node("add", start, b.node("mul", own, number(b, apart[d], _INT64)))
        place = b.node("maximum", place, number(b, 0, _INT64))
        at.append(b.node("minimum", place, number(b, extent - 1, _INT64)))
    total, *inner_dims = at
    for place, extent in zip(inner_dims, x.shape[first + 1 :], strict=True):
        total = b.node("add", b.node("mul", total, number(b, extent, _INT64)), place)
    return total
