"""Operators of ATen that move elements or make constants."""

from collections.abc import Sequence
from math import prod
from typing import Any

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from ...graph.operators.attributes import real_json
from .rule import Emitter, NodeMaker, NoRule, cast, dims_of, need, number, reshape, rule, slice_, transpose

_MOST_PARTS = 32
"""Of so many tensors a kernel makes one: each is a select in another, and expressions have a depth (``te.limits``)."""


@rule("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.default",
      "squeeze.dim", "squeeze.dims", "_reshape_alias.default")  # fmt: skip
def _reshape(b: Emitter, x: Value, *rest: Any) -> Value:
    return reshape(b, x, b.shape)


@rule("clone.default", "detach.default", "alias.default", "contiguous.default", "lift_fresh_copy.default")
def _identity(b: Emitter, x: Value, **keywords: Any) -> Value:
    return b.node("identity", x)


@rule("permute.default")
def _permute(b: Emitter, x: Value, order: Sequence[int]) -> Value:
    return b.node("permute", x, order=tuple(d % len(x.shape) for d in order))


@rule("transpose.int")
def _transpose(b: Emitter, x: Value, i: int, j: int) -> Value:
    return transpose(b, x, i, j) if x.shape else x


@rule("t.default")
def _t(b: Emitter, x: Value) -> Value:
    return transpose(b, x, 0, -1) if len(x.shape) == 2 else b.node("identity", x)


@rule("expand.default")
def _expand(b: Emitter, x: Value, *rest: Any, **keywords: Any) -> Value:
    return b.node("expand", x, shape=b.shape)


@rule("slice.Tensor")
def _slice(b: Emitter, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    extent = x.shape[dim]
    low, high, _ = slice(start, end).indices(extent)
    return slice_(b, x, dim, low, max(low, high), step)


@rule("select.int")
def _select(b: Emitter, x: Value, dim: int, place: int) -> Value:
    at = place % x.shape[dim]
    return reshape(b, slice_(b, x, dim, at, at + 1), b.shape)


@rule("split_with_sizes.default")
def _split_sizes(b: Emitter, x: Value, sizes: Sequence[int], dim: int = 0) -> Sequence[Value]:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [slice_(b, x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


@rule("split.Tensor")
def _split(b: Emitter, x: Value, size: int, dim: int = 0) -> Sequence[Value]:
    extent = x.shape[dim]
    return [slice_(b, x, dim, n, min(n + size, extent)) for n in range(0, extent, size)]


@rule("unbind.int")
def _unbind(b: Emitter, x: Value, dim: int = 0) -> Sequence[Value]:
    shape = list(x.shape)
    count = shape.pop(dim)
    return [reshape(b, slice_(b, x, dim, n, n + 1), shape) for n in range(count)]


@rule("cat.default")
def _cat(b: Emitter, parts: Sequence[Value], dim: int = 0) -> Value:
    kept = [cast(b, p, b.dtype) for p in parts if p.elements or len(p.shape) > 1]
    need(bool(kept), "no parts")
    return joined(b, kept, dim % len(b.shape))


@rule("stack.default")
def _stack(b: Emitter, parts: Sequence[Value], dim: int = 0) -> Value:
    d = dim % len(b.shape)
    shape = tuple(1 if n == d else e for n, e in enumerate(b.shape))
    return joined(b, [reshape(b, cast(b, p, b.dtype), shape) for p in parts], d)


def joined(b: NodeMaker, parts: Sequence[Value], dim: int) -> Value:
    """Return the parts side by side. Many are joined in groups, so that a kernel for one group stays within the
    limits."""
    while len(parts) > _MOST_PARTS:
        groups = [parts[n : n + _MOST_PARTS] for n in range(0, len(parts), _MOST_PARTS)]
        parts = [g[0] if len(g) == 1 else b.node("concatenate", *g, dim=dim) for g in groups]
    return b.node("concatenate", *parts, dim=dim)


@rule("flip.default")
def _flip(b: Emitter, x: Value, dims: Sequence[int]) -> Value:
    return b.node("flip", x, dims=dims_of(dims, len(x.shape))) if dims else b.node("identity", x)


@rule("repeat.default")
def _repeat(b: Emitter, x: Value, times: Sequence[int]) -> Value:
    shape = (*[1] * (len(times) - len(x.shape)), *x.shape)
    apart = [e for pair in zip([1] * len(shape), shape, strict=True) for e in pair]
    wide = [e for pair in zip(times, shape, strict=True) for e in pair]
    need(len(wide) <= 8, "so many dimensions")
    return reshape(b, b.node("expand", reshape(b, x, apart), shape=tuple(wide)), b.shape)


def taken(b: NodeMaker, x: Value, dim: int, places: Sequence[int], most: int = 4) -> Value:
    """Return the elements of ``x`` at places that are known, along a dimension: a view. Raises NoRule for more than
    ``most`` places without a pattern."""
    count, first = len(places), places[0]
    step = places[1] - first if count > 1 else 1
    if step > 0 and list(places) == list(range(first, first + step * count, step)):
        return slice_(b, x, dim, first, places[-1] + 1, step)
    if step == -1 and list(places) == list(range(first, first - count, -1)):
        return b.node("flip", slice_(b, x, dim, places[-1], first + 1), dims=(dim,))
    times = next((n for n, p in enumerate(places) if p != first), count)
    if count % times == 0 and list(places) == [first + n // times for n in range(count)]:
        return b.node("repeat", slice_(b, x, dim, first, places[-1] + 1), dim=dim, times=times)
    need(count <= most, "places without a pattern")
    return b.node("concatenate", *(slice_(b, x, dim, p, p + 1) for p in places), dim=dim)


@rule("index.Tensor")
def _index(b: Emitter, x: Value, indices: Sequence[Any]) -> Value:
    """Places along neighbouring dimensions. Known ones, each of which varies along a dimension of its own, are a view;
    others are gathered."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    if dims != list(range(dims[0], dims[-1] + 1)):  # the dimension of the places is the first one then
        x = b.node("permute", x, order=(*dims, *(d for d in range(len(x.shape)) if d not in dims)))
        return _gathered(b, x, [indices[d] for d in dims], 0)
    try:
        return _at_known_places(b, x, indices, dims)
    except NoRule:
        return _gathered(b, x, [indices[d] for d in dims], dims[0])


def _at_known_places(b: Emitter, x: Value, indices: Sequence[Any], dims: Sequence[int]) -> Value:
    for d in dims:
        found = b.known(indices[d])
        need(found is not None and found.dtype.kind == "i", "places that are not known")
        own = len(dims) - 1 - dims.index(d)  # its dimension, counted from the last one
        assert found is not None
        shape = [1] * (len(dims) - found.ndim) + list(found.shape)
        need(len(shape) == len(dims) and found.size == shape[-1 - own], "places that vary together")
        x = taken(b, x, d, [int(p) % x.shape[d] for p in found.ravel()])
    return b.node("identity", x)


def _gathered(b: Emitter, x: Value, places: Sequence[Value], first: int) -> Value:
    """Return the elements at places along ``len(places)`` dimensions from ``first`` on, which become one: row-major."""
    need(all(p.type is not None and p.dtype.is_integer for p in places), "places that are no integers")
    extents, total = x.shape[first : first + len(places)], None
    for place, extent in zip(places, extents, strict=True):
        place = cast(b, place, DTYPES["int64"])
        if len(places) > 1:
            end = b.node("add", place, number(b, extent, place.dtype))
            place = b.node("where", b.node("lt", place, number(b, 0, place.dtype)), end, place)
        if total is not None:
            place = b.node("add", b.node("mul", total, number(b, extent, place.dtype)), place)
        total = place
    assert total is not None
    flat = reshape(b, x, (*x.shape[:first], prod(extents), *x.shape[first + len(places) :]))
    return b.node("gather", flat, total, dim=first)


@rule("embedding.default")
def _embedding(b: Emitter, table: Value, places: Value, *rest: Any, **keywords: Any) -> Value:
    return b.node("gather", table, places, dim=0)


@rule("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(b: Emitter, table: Value, places: Value, offsets: Value, scale: bool = False, mode: int = 0,
                   sparse: bool = False, weights: Value | None = None, last: bool = False,
                   padding: int = -1) -> list[Value]:  # fmt: skip
    """Bags of one size: the sum, the mean or the greatest of the rows of each."""
    starts = b.known(offsets)
    need(starts is not None and not last and padding < 0 and not scale, "bags that are not known")
    assert starts is not None
    size = places.elements // len(starts)
    need([int(n) for n in starts] == list(range(0, places.elements, size)), "bags of several sizes")
    rows = b.node("gather", table, reshape(b, places, (len(starts), size)), dim=0)
    if weights is not None:
        rows = b.node("mul", rows, reshape(b, weights, (len(starts), size, 1)))
    return [b.node(("sum", "mean", "max")[mode], rows, dims=(1,))]


@rule("index_select.default")
def _index_select(b: Emitter, x: Value, dim: int, places: Value) -> Value:
    need(bool(x.shape) and len(places.shape) == 1, "a scalar")
    return b.node("gather", x, places, dim=dim % len(x.shape))


@rule("gather.default")
def _gather(b: Emitter, x: Value, dim: int, places: Value, *rest: Any, **keywords: Any) -> Value:
    need(bool(x.shape) and bool(places.shape), "a scalar")
    return b.node("gather_elements", x, places, dim=dim % len(x.shape))


@rule("cumsum.default", "cumprod.default")
def _scan(b: Emitter, x: Value, dim: int, **keywords: Any) -> Value:
    need(bool(x.shape), "a scalar")
    name = "running_sum" if "cumsum" in b.target else "running_product"
    return b.node(name, cast(b, x, b.dtype), dim=dim % len(x.shape))


@rule("roll.default")
def _roll(b: Emitter, x: Value, shifts: Any, dims: Any = ()) -> Value:
    steps, over = ([n] if isinstance(n, int) else list(n) for n in (shifts, dims))
    y = x if over else reshape(b, x, (x.elements,))
    for step, d in zip(steps, over or [0], strict=True):
        extent = y.shape[d]
        first = -step % extent
        if first:
            parts = (slice_(b, y, d, first, extent), slice_(b, y, d, 0, first))
            y = b.node("concatenate", *parts, dim=d % len(y.shape))
    return b.node("identity", reshape(b, y, b.shape))


@rule("unfold.default")
def _unfold(b: Emitter, x: Value, dim: int, size: int, step: int) -> Value:
    d, count = dim % len(x.shape), b.shape[dim % len(x.shape)]
    rank = len(x.shape)
    if step == size:
        whole = slice_(b, x, d, 0, count * size)
        split = reshape(b, whole, (*x.shape[:d], count, size, *x.shape[d + 1 :]))
        return b.node("permute", split, order=(*range(d + 1), *range(d + 2, rank + 1), d + 1))
    need(size <= _MOST_PARTS, "windows of so many elements")
    places = [slice_(b, x, d, n, n + (count - 1) * step + 1, step) for n in range(size)]
    return b.node("concatenate", *(reshape(b, p, (*p.shape, 1)) for p in places), dim=rank)


@rule("diagonal.default")
def _diagonal(b: Emitter, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rank = len(x.shape)
    rows, columns = dim1 % rank, dim2 % rank
    order = (*(d for d in range(rank) if d not in (rows, columns)), rows, columns)
    turned = x if list(order) == sorted(order) else b.node("permute", x, order=order)
    count, wide = b.shape[-1], x.shape[columns]
    first = offset if offset >= 0 else -offset * wide
    flat = reshape(b, turned, (*turned.shape[:-2], turned.shape[-2] * wide))
    return slice_(b, flat, rank - 2, first, first + (count - 1) * (wide + 1) + 1, wide + 1)


@rule("copy.default")
def _copy(b: Emitter, x: Value, source: Value, *rest: Any) -> Value:
    source = cast(b, source, b.dtype)
    return source if source.shape == b.shape else b.node("expand", source, shape=b.shape)


@rule("slice_scatter.default")
def _slice_scatter(b: Emitter, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None,
                   step: int = 1) -> Value:  # fmt: skip
    d = dim % len(x.shape)
    low, high, _ = slice(start, end).indices(x.shape[d])
    need(low < high, "no places")
    if step == 1:
        return _with_part(b, x, source, d, low)
    spread = b.node("spread", source, dim=d, step=step)
    before, behind = [0] * len(x.shape), [0] * len(x.shape)
    before[d], behind[d] = low, x.shape[d] - low - spread.shape[d]
    places = b.node("range", count=x.shape[d], start=-low, dtype="int64")
    places = reshape(b, places, tuple(n if e == d else 1 for e, n in enumerate(x.shape)))
    limit = number(b, (source.shape[d] - 1) * step, places.dtype)
    inside = b.node("logical_and", b.node("ge", places, number(b, 0, places.dtype)), b.node("le", places, limit))
    inside = b.node(
        "logical_and", inside, b.node("eq", b.node("modulo", places, divisor=step), number(b, 0, places.dtype))
    )
    padded = b.node("pad", spread, before=tuple(before), behind=tuple(behind), value=0)
    return b.node("where", inside, padded, x)


@rule("select_scatter.default")
def _select_scatter(b: Emitter, x: Value, source: Value, dim: int, place: int) -> Value:
    d = dim % len(x.shape)
    row = reshape(b, source, tuple(1 if e == d else n for e, n in enumerate(x.shape)))
    return _with_part(b, x, row, d, place % x.shape[d])


def _with_part(b: NodeMaker, x: Value, part: Value, dim: int, start: int) -> Value:
    """``x`` with ``part`` in the place of what stands from ``start`` on."""
    stop = start + part.shape[dim]
    around = [(0, start), (stop, x.shape[dim])]
    before, behind = ([slice_(b, x, dim, low, high)] if high > low else [] for low, high in around)
    return b.node("concatenate", *before, part, *behind, dim=dim)


@rule("constant_pad_nd.default")
def _pad(b: Emitter, x: Value, widths: Sequence[int], value: Any = 0) -> Value:
    before, behind = [0] * len(x.shape), [0] * len(x.shape)
    for n in range(len(widths) // 2):
        before[-1 - n], behind[-1 - n] = widths[2 * n], widths[2 * n + 1]
    for d, extent in enumerate(x.shape):  # negative widths cut off
        low, high = max(0, -before[d]), extent - max(0, -behind[d])
        x = x if (low, high) == (0, extent) else slice_(b, x, d, low, high)
    need(isinstance(value, int | float) and value == value, "a border of NaN")
    before, behind = [max(0, n) for n in before], [max(0, n) for n in behind]
    return b.node("pad", x, before=tuple(before), behind=tuple(behind), value=real_json(value))


@rule("upsample_nearest2d.vec", "upsample_nearest2d.default", "upsample_nearest1d.vec", "upsample_nearest1d.default",
      "upsample_nearest3d.vec", "upsample_nearest3d.default")  # fmt: skip
def _upsample(b: Emitter, x: Value, *rest: Any, **keywords: Any) -> Value:
    for d in range(2, len(x.shape)):
        need(b.shape[d] % x.shape[d] == 0, "a factor that is not whole")
        if b.shape[d] != x.shape[d]:
            x = b.node("repeat", x, dim=d, times=b.shape[d] // x.shape[d])
    return b.node("identity", x)


@rule("full.default", "full_like.default", "scalar_tensor.default", "zeros.default", "ones.default",
      "zeros_like.default", "ones_like.default", "new_full.default", "new_zeros.default", "new_ones.default",
      "empty.memory_format", "empty_permuted.default", "empty_like.default", "new_empty.default")  # fmt: skip
def _full(b: Emitter, *arguments: Any, **keywords: Any) -> Value:
    values = [a for a in arguments if isinstance(a, int | float)]
    value = values[-1] if values else ("ones" in b.target)
    scalar = number(b, value, b.dtype)
    return b.node("expand", scalar, shape=b.shape) if b.shape else scalar


@rule("fill.Scalar")
def _fill(b: Emitter, x: Value, value: Any) -> Value:
    scalar = number(b, value, b.dtype)
    return b.node("expand", scalar, shape=b.shape) if b.shape else scalar


@rule("arange.start_step", "arange.default", "arange.start")
def _arange(b: Emitter, *arguments: Any, **keywords: Any) -> Value:
    start, step = (arguments[0] if len(arguments) > 1 else 0), (arguments[2] if len(arguments) > 2 else 1)
    if float(start).is_integer() and float(step).is_integer():
        return b.node("range", count=b.shape[0], start=int(start), step=int(step), dtype=b.dtype.name)
    need(b.dtype.is_float, "integers between others")
    wide = DTYPES["float64"]
    places = b.node("range", count=b.shape[0], dtype=wide.name)
    return cast(b, b.node("add", b.node("mul", places, number(b, step, wide)), number(b, start, wide)), b.dtype)


@rule("diagonal_scatter.default")
def _diagonal_scatter(b: Emitter, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """A matrix with another diagonal."""
    need(len(x.shape) == 2 and (dim1 % 2, dim2 % 2) == (0, 1), "diagonals of several matrices")
    above = max(0, -offset)
    rows = b.node("pad", source, before=(above,), behind=(x.shape[0] - above - source.elements,), value=0)
    places = reshape(b, b.node("range", count=x.shape[0], start=offset, dtype="int64"), (x.shape[0], 1))
    on_it = b.node("eq", places, b.node("range", count=x.shape[1], dtype="int64"))
    return b.node("where", on_it, reshape(b, rows, (x.shape[0], 1)), x)


@rule("col2im.default")
def _col2im(b: Emitter, x: Value, size: list[int], kernel: list[int], dilation: list[int], padding: list[int],
            stride: list[int]) -> Value:  # fmt: skip
    return reshape(b, folded(b, x, size, kernel, dilation, [*padding, *padding], stride), b.shape)


def folded(b: NodeMaker, x: Value, size: list[int], kernel: list[int], dilation: list[int], padding: list[int],
           stride: list[int]) -> Value:  # fmt: skip
    """Columns ``x`` [.., channels * taps, windows] as images [n, channels, *size], whose pixels are sums of what
    windows have of them. ``padding``: in front of all dimensions, then behind them."""
    rank, taps = len(size), prod(kernel)
    need(taps <= 64 and rank + 3 <= 8, "so large windows")
    counts = [
        (size[d] + padding[d] + padding[rank + d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        for d in range(rank)
    ]
    batch = x.shape[0] if len(x.shape) > 2 else 1
    split = reshape(b, x, (batch, x.shape[-2] // taps, taps, *counts))
    total: Value | None = None
    for tap in range(taps):
        part = reshape(b, slice_(b, split, 2, tap, tap + 1), (*split.shape[:2], *counts))
        before, behind, rest = [0, 0], [0, 0], tap
        for d in reversed(range(rank)):
            part = b.node("spread", part, dim=d + 2, step=stride[d])
            first = rest % kernel[d] * dilation[d] - padding[d]
            rest //= kernel[d]
            low = max(0, -first)
            high = min(part.shape[d + 2], size[d] - first)
            if high <= low:
                break
            part = slice_(b, part, d + 2, low, high)
            before.insert(2, first + low)
            behind.insert(2, size[d] - first - high)
        else:
            part = b.node("pad", part, before=tuple(before), behind=tuple(behind), value=0.0)
            total = part if total is None else b.node("add", total, part)
    need(total is not None, "no windows")
    assert total is not None
    return total
