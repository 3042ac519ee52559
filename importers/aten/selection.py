"""Operators of ATen that find places, and those that write to places: the greatest few of a line, indices of pools,
running extremes, scattering.

What is written to few places is a select for each of them:

    scatter(x, i, v)[j] = v[0] where j == i[0], v[1] where j == i[1], ..., else x[j]

With many places that would cost far more than torch's own kernels, which then stay.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from .rule import Emitter, NodeMaker, NoRule, cast, need, number, operand, reshape, rule, slice_, transpose

FEW = 8
"""How many places a rule looks for, or writes to, at most."""
_INT64 = DTYPES["int64"]


def _along(b: NodeMaker, extent: int, dim: int, rank: int) -> Value:
    """The numbers from 0 to ``extent`` - 1 along a dimension."""
    places = b.node("range", count=extent, dtype=_INT64.name)
    return reshape(b, places, tuple(extent if d == dim else 1 for d in range(rank)))


def _expanded(b: NodeMaker, x: Value, shape: Sequence[int]) -> Value:
    return x if x.shape == tuple(shape) else b.node("expand", x, shape=tuple(shape))


def _either(b: NodeMaker, *conditions: Value) -> Value:
    first, *rest = conditions
    for other in rest:
        first = b.node("logical_or", first, other)
    return first


def _both(b: NodeMaker, *conditions: Value) -> Value:
    first, *rest = conditions
    for other in rest:
        first = b.node("logical_and", first, other)
    return first


# The greatest few


def _greatest(b: NodeMaker, x: Value, dim: int, count: int, largest: bool) -> list[tuple[Value, Value]]:
    """The ``count`` greatest (least) elements along a dimension with their places, in order, the first of equal ones
    first. NaN is greater than all. The next one is the extreme of all that come after the latest. Several are looked
    for along rows, which a kernel reads once."""
    last = len(x.shape) - 1
    if count > 1 and dim != last:
        rows = _greatest(b, transpose(b, x, dim, last), last, count, largest)
        return [(transpose(b, value, dim, last), transpose(b, place, dim, last)) for value, place in rows]
    extent, op, before = x.shape[dim], "max" if largest else "min", "lt" if largest else "gt"
    places = _along(b, extent, dim, len(x.shape))
    nothing, behind = number(b, -float("inf") if largest else float("inf"), x.dtype), number(b, extent - 1, _INT64)
    found: list[tuple[Value, Value]] = []
    for _ in range(count):
        if not found:
            found.append((b.node(op, x, dims=(dim,), keep=True), b.node(f"arg{op}", x, dim=dim, keep=True)))
            continue
        value, place = found[-1]
        later = _both(b, b.node("eq", x, value), b.node("lt", place, places))
        left = _either(b, b.node(before, x, value), later)
        value = b.node(op, b.node("where", left, x, nothing), dims=(dim,), keep=True)
        here = b.node("where", _both(b, left, b.node("eq", x, value)), places, behind)
        found.append((value, b.node("min", here, dims=(dim,), keep=True)))
    return found


@rule("topk.default")
def _topk(b: Emitter, x: Value, count: int, dim: int = -1, largest: bool = True, in_order: bool = True) -> list[Value]:
    need(x.dtype.is_float and bool(x.shape) and 0 < count <= FEW, "so many elements")
    d = dim % len(x.shape)
    values, places = zip(*_greatest(b, x, d, count, largest), strict=True)
    return [part[0] if count == 1 else b.node("concatenate", *part, dim=d) for part in (values, places)]


@rule("kthvalue.default")
def _kth_value(b: Emitter, x: Value, count: int, dim: int = -1, keep: bool = False) -> list[Value]:
    need(x.dtype.is_float and bool(x.shape) and 0 < count <= FEW, "so many elements")
    return [reshape(b, v, b.shape) for v in _greatest(b, x, dim % len(x.shape), count, False)[-1]]


@rule("cummax.default", "cummin.default")
def _running_extreme(b: Emitter, x: Value, dim: int) -> list[Value]:
    """The place is that of the latest element which equals the extreme, or is NaN."""
    need(bool(x.shape) and not x.dtype.is_bool, "a scalar")
    d = dim % len(x.shape)
    values = b.node("running_max" if "cummax" in b.target else "running_min", x, dim=d)
    latest = b.node("eq", x, values)
    if x.dtype.is_float:
        latest = _either(b, latest, b.node("ne", x, x))
    places = b.node("where", latest, _along(b, x.shape[d], d, len(x.shape)), number(b, 0, _INT64))
    return [values, b.node("running_max", places, dim=d)]


# Scattering


def _placed(b: NodeMaker, x: Value, dim: int, places: Value, source: Value,
            write: Callable[[Value, Value], Value]) -> Value:  # fmt: skip
    """``x``, in which ``write(old, new)`` stands where ``places`` are along a dimension. ``places`` and ``source`` have
    the shape of ``x`` but for that dimension, or one element in the place of any."""
    along, count = _along(b, x.shape[dim], dim, len(x.shape)), places.shape[dim]
    need(count <= FEW, "so many places")
    for n in range(count):
        place, new = (v if not v.shape or v.shape[dim] == 1 else slice_(b, v, dim, n, n + 1) for v in (places, source))
        x = b.node("where", b.node("eq", along, place), write(x, new), x)
    return x


def _written(b: NodeMaker, how: str | None) -> Callable[[Value, Value], Value]:
    """How a new element and an old one are combined."""
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
    how = "add" if "scatter_add" in b.target else reduce
    return _placed(b, x, d, places, operand(b, source, x.dtype), _written(b, how))


@rule("index_add.default", "index_copy.default", "index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_write(b: Emitter, x: Value, dim: int, places: Value, source: Any, *, alpha: Any = 1) -> Value:
    need(bool(x.shape) and alpha == 1, "a scalar")
    d = dim % len(x.shape)
    how = "add" if "index_add" in b.target else None
    return _placed(b, x, d, _lined(b, places, d, x), operand(b, source, x.dtype), _written(b, how))


def _lined(b: NodeMaker, places: Value, dim: int, x: Value) -> Value:
    """One line of places along a dimension of ``x``, with those from the end counted from the front."""
    line = cast(b, reshape(b, places, tuple(places.elements if d == dim else 1 for d in range(len(x.shape)))), _INT64)
    end = b.node("add", line, number(b, x.shape[dim], _INT64))
    return b.node("where", b.node("lt", line, number(b, 0, _INT64)), end, line)


@rule("index_put.default")
def _index_put(b: Emitter, x: Value, indices: Sequence[Any], source: Value, accumulate: bool = False) -> Value:
    """A number or rows where a mask says so, lines along one dimension, or an element of each line."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    given = [indices[d] for d in dims]
    source, write = cast(b, source, x.dtype), _written(b, "add" if accumulate else None)
    if len(given) == 1 and given[0].dtype.is_bool:
        mask, d = given[0], dims[0]
        need(source.elements == 1, "an element for each place of a mask")
        mask = reshape(b, mask, (*[1] * d, *mask.shape, *[1] * (len(x.shape) - d - len(mask.shape))))
        return b.node("where", mask, write(x, reshape(b, source, ())), x)
    need(all(p.dtype.is_integer for p in given), "masks among places")
    if len(dims) == 1 and len(given[0].shape) <= 1:
        (d,) = dims
        shape = (*x.shape[:d], given[0].elements, *x.shape[d + 1 :])
        whole = source if len(source.shape) <= len(x.shape) else None
        need(whole is not None, "a source of more dimensions")
        if not given[0].shape and len(source.shape) == len(x.shape) - 1:
            source = reshape(b, source, (*source.shape[:d], 1, *source.shape[d:]))
        return _placed(b, x, d, _lined(b, given[0], d, x), _expanded(b, source, shape), write)
    return _one_of_each_line(b, x, dims, given, source, write)


def _one_of_each_line(b: Emitter, x: Value, dims: Sequence[int], given: Sequence[Value], source: Value,
                      write: Callable[[Value, Value], Value]) -> Value:  # fmt: skip
    """x[arange(n), i] = source, where i has one place, or a line of places, for each of n."""
    need(list(dims) == [0, 1], "places of other dimensions")
    lines, known, places = x.shape[0], b.known(given[0]), given[1]
    need(known is not None and known.size == lines and list(known.ravel()) == list(range(lines)), "lines in no order")
    need(known is not None and known.shape[0] == lines and known.ndim <= 2, "lines in no order")
    need(places.shape[0] == lines and len(places.shape) <= 2, "places that vary together")
    count = places.shape[1] if len(places.shape) == 2 else 1
    shape, behind = (lines, *places.shape[1:], *x.shape[2:]), [1] * (len(x.shape) - 2)
    source = reshape(b, _expanded(b, source, shape), (lines, count, *x.shape[2:]))
    line = cast(b, reshape(b, places, (lines, count, *behind)), _INT64)
    end = b.node("add", line, number(b, x.shape[1], _INT64))
    return _placed(b, x, 1, b.node("where", b.node("lt", line, number(b, 0, _INT64)), end, line), source, write)


# Pools


def pool_places(b: NodeMaker, x: Value, greatest: Value, window: dict[str, tuple[int, ...]]) -> Value:
    """Where the greatest element of each window of a pool lies in its image, row-major: the first of equal ones. What
    lies on the border is moved to the next element of the image."""
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
    total: Value | None = None
    inner = len(taps)
    for d in range(rank):
        inner //= kernel[d]
        extent, outputs = x.shape[first + d], greatest.shape[first + d]
        own = b.node("modulo", b.node("floor_divide", number_of_tap, divisor=inner), divisor=kernel[d])
        start = b.node("range", count=outputs, start=-before[d], step=stride[d], dtype=_INT64.name)
        start = reshape(b, start, tuple(outputs if e == first + d else 1 for e in range(len(x.shape))))
        place = b.node("add", start, b.node("mul", own, number(b, apart[d], _INT64)))
        place = b.node("minimum", b.node("maximum", place, number(b, 0, _INT64)), number(b, extent - 1, _INT64))
        total = place if total is None else b.node("add", b.node("mul", total, number(b, extent, _INT64)), place)
    if total is None:
        raise NoRule("no windows")
    return total
