"""Operators of ONNX that move elements or make constants."""

from collections.abc import Sequence
from math import prod

import numpy as np

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from ...graph.operators.attributes import real_json
from ...graph.operators.operator import broadcast
from ..aten.rule import number, reshape, slice_
from ..aten.selection import combined, from_front
from ..aten.views import folded, taken
from .call import Call, axis_of, cast, dims_of, need, rule
from .elementwise import onnx_dtype


@rule("Reshape")
def _reshape(c: Call) -> Value:
    x, shape = c.value(0), c.integers(1)
    if not c.get("allowzero", 0):
        shape = [x.shape[d] if n == 0 else n for d, n in enumerate(shape)]
    if -1 in shape:
        rest = -prod(shape)
        need(rest > 0, "an empty shape")
        shape[shape.index(-1)] = x.elements // rest
    return c.node("reshape", x, shape=tuple(shape))


@rule("Flatten")
def _flatten(c: Call) -> Value:
    x, axis = c.value(0), c.get("axis", 1)
    axis = axis if axis >= 0 else axis + len(x.shape)
    return c.node("reshape", x, shape=(prod(x.shape[:axis]), prod(x.shape[axis:])))


@rule("Squeeze")
def _squeeze(c: Call) -> Value:
    x, dims = c.value(0), c.given_twice("axes", 1)
    gone = [d for d, n in enumerate(x.shape) if n == 1] if dims is None else dims_of(dims, len(x.shape))
    return c.node("reshape", x, shape=tuple(n for d, n in enumerate(x.shape) if d not in gone))


@rule("Unsqueeze")
def _unsqueeze(c: Call) -> Value:
    x, dims = c.value(0), c.given_twice("axes", 1)
    need(dims is not None, "no axes")
    rank = len(x.shape) + len(dims or ())
    new, old = dims_of(dims, rank), iter(x.shape)
    return c.node("reshape", x, shape=tuple(1 if d in new else next(old) for d in range(rank)))


@rule("Transpose")
def _transpose(c: Call) -> Value:
    x = c.value(0)
    return c.node("permute", x, order=tuple(c.get("perm", range(len(x.shape))[::-1])))


@rule("Expand")
def _expand(c: Call) -> Value:
    x = c.value(0)
    return c.node("expand", x, shape=broadcast([x.shape, tuple(c.integers(1))]))


@rule("Concat")
def _concat(c: Call) -> Value:
    parts = [v for v in c.inputs if v is not None and v.elements]
    return c.node("concatenate", *parts, dim=axis_of(c.get("axis"), len(parts[0].shape)))


@rule("Split")
def _split(c: Call) -> Sequence[Value]:
    x, d = c.value(0), axis_of(c.get("axis", 0), len(c.value(0).shape))
    sizes, count = c.given_twice("split", 1), c.get("num_outputs", c.results)
    if sizes is None:
        each = -(-x.shape[d] // count)
        sizes = [min(each, x.shape[d] - n * each) for n in range(count)]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [slice_(c, x, d, end - size, end) for size, end in zip(sizes, ends, strict=True)]


@rule("Slice")
def _slice(c: Call) -> Value:
    x = c.value(0)
    starts, ends = c.given_twice("starts", 1), c.given_twice("ends", 2)
    need(starts is not None and ends is not None, "no bounds")
    dims = c.given_twice("axes", 3) or list(range(len(starts or ())))
    steps = c.integers(4) if c.has(4) else [1] * len(dims)
    for start, end, dim, step in zip(starts or (), ends or (), dims, steps, strict=True):
        d = axis_of(dim, len(x.shape))
        places = range(*slice(start, end, step).indices(x.shape[d]))
        need(len(places) > 0, "no elements")
        if places.step < 0:
            x, places = c.node("flip", x, dims=(d,)), _turned(places, x.shape[d])
        x = slice_(c, x, d, places.start, places[-1] + 1, places.step)
    return c.node("identity", x)


def _turned(places: range, extent: int) -> range:
    """Places that go down, seen from the other end."""
    return range(extent - 1 - places.start, extent - places[-1], -places.step)


@rule("Gather")
def _gather(c: Call) -> Value:
    x, places = c.value(0), c.constants[1]
    d = axis_of(c.get("axis", 0), len(x.shape))
    if places is not None and 0 < places.size <= 64:
        need(bool(np.all((places >= -x.shape[d]) & (places < x.shape[d]))), f"places beyond {x.shape[d]} elements")
        shape = (*x.shape[:d], *places.shape, *x.shape[d + 1 :])
        return reshape(c, taken(c, x, d, [int(p) % x.shape[d] for p in places.ravel()], 64), shape)
    return c.node("gather", x, c.value(1), dim=d)


@rule("GatherElements")
def _gather_elements(c: Call) -> Value:
    x, places = c.value(0), c.value(1)
    return c.node("gather_elements", x, places, dim=axis_of(c.get("axis", 0), len(x.shape)))


@rule("GatherND")
def _gather_nd(c: Call) -> Value:
    """Places along several dimensions at once, which become one, together with those of the batch."""
    x, places, batch = c.value(0), c.value(1), c.get("batch_dims", 0)
    count = places.shape[-1]
    outer, rest = places.shape[:-1], x.shape[batch + count :]
    first = _flat_places(c, places, x.shape[batch : batch + count])
    if batch:
        size = prod(x.shape[batch : batch + count])
        starts = c.node("range", count=prod(x.shape[:batch]), step=size, dtype="int64")
        starts = reshape(c, starts, (*x.shape[:batch], *[1] * (len(outer) - batch)))
        first = c.node("add", first, starts)
    flat = reshape(c, x, (prod(x.shape[: batch + count]), *rest))
    return c.node("gather", flat, first, dim=0)


def _flat_places(c: Call, places: Value, extents: Sequence[int]) -> Value:
    """Places [.., k] along ``k`` dimensions as one number each, row-major. Those from the end are counted from the
    front."""
    last, total = len(places.shape) - 1, None
    for n, extent in enumerate(extents):
        own = cast(c, reshape(c, slice_(c, places, last, n, n + 1), places.shape[:-1]), DTYPES["int64"])
        own = from_front(c, own, extent)
        if total is not None:
            own = c.node("add", c.node("mul", total, number(c, extent, own.dtype)), own)
        total = own
    assert total is not None
    return total


@rule("ScatterND")
def _scatter_nd(c: Call) -> Value:
    """Few slices are written, or many added up."""
    x, places, source = c.value(0), c.value(1), c.value(2)
    count = places.shape[-1]
    flat = reshape(c, x, (prod(x.shape[:count]), *x.shape[count:]))
    line = _flat_places(c, places, x.shape[:count])
    line = reshape(c, line, (line.elements, *[1] * (len(flat.shape) - 1)))
    source = reshape(c, source, (line.elements, *flat.shape[1:]))
    return reshape(c, combined(c, flat, 0, line, source, _reduction(c)), x.shape)


@rule("ScatterElements", "Scatter")
def _scatter_elements(c: Call) -> Value:
    """Few elements of each line are written, or many of a single line added up."""
    x, places, source = c.value(0), c.value(1), c.value(2)
    d = axis_of(c.get("axis", 0), len(x.shape))
    fits = all(n == m for e, (n, m) in enumerate(zip(places.shape, x.shape, strict=True)) if e != d)
    need(fits, "places for a part")
    return combined(c, x, d, cast(c, places, DTYPES["int64"]), source, _reduction(c), from_end=True)


def _reduction(c: Call) -> str | None:
    found = c.get("reduction", "none")
    return {"none": None, "mul": "prod", "max": "amax", "min": "amin"}.get(found, str(found))


@rule("Col2Im")
def _col2im(c: Call) -> Value:
    x, size, kernel = c.value(0), c.integers(1), c.integers(2)
    rank = len(size)
    stride, dilation = (list(c.get(n) or [1] * rank) for n in ("strides", "dilations"))
    return folded(c, x, size, kernel, dilation, list(c.get("pads") or [0] * 2 * rank), stride)


@rule("CumSum", "CumProd")
def _scan(c: Call) -> Value:
    x, (axis,) = c.value(0), c.integers(1)
    reverse, exclusive = (bool(c.get(name, 0)) for name in ("reverse", "exclusive"))
    name = "running_sum" if c.op == "CumSum" else "running_product"
    return c.node(name, x, dim=axis_of(axis, len(x.shape)), reverse=reverse, exclusive=exclusive)


@rule("OneHot")
def _one_hot(c: Call) -> Value:
    places, depth, values = c.value(0), c.integers(1)[0], c.value(2)
    rank = len(places.shape) + 1
    d = axis_of(c.get("axis", -1), rank)
    count = c.node("full", shape=(), value=depth, dtype=places.dtype.name)
    zero = c.node("full", shape=(), value=0, dtype=places.dtype.name)
    own = c.node("where", c.node("lt", places, zero), c.node("add", places, count), places)
    own = c.node("reshape", own, shape=(*places.shape[:d], 1, *places.shape[d:]))
    column = c.node("range", count=depth, dtype=places.dtype.name)
    column = c.node("reshape", column, shape=tuple(depth if e == d else 1 for e in range(rank)))
    off, on = (reshape(c, slice_(c, values, 0, n, n + 1), ()) for n in (0, 1))
    return c.node("where", c.node("eq", own, column), on, off)


@rule("EyeLike")
def _eye(c: Call) -> Value:
    x = c.value(0)
    rows = c.node("range", count=x.shape[0], start=c.get("k", 0), dtype="int64")
    diagonal = c.node("eq", c.node("range", count=x.shape[1], dtype="int64"), reshape(c, rows, (x.shape[0], 1)))
    dtype = x.dtype if c.get("dtype") is None else onnx_dtype(c.get("dtype"))
    return c.node("cast", diagonal, dtype=dtype.name)


@rule("TopK")
def _top_k(c: Call) -> Sequence[Value]:
    """Each element's rank is how many are before it; what has rank n is the n-th. It takes n² steps a row."""
    x, count = c.value(0), c.integers(1)[0]
    d = axis_of(c.get("axis", -1), len(x.shape))
    n = x.shape[d]
    need(n <= 1024 and not x.dtype.is_bool and len(x.shape) < 8, "so long rows")
    c.get("sorted", 1)
    ahead, behind = x.shape[:d], x.shape[d + 1 :]
    own, other = reshape(c, x, (*ahead, n, 1, *behind)), reshape(c, x, (*ahead, 1, n, *behind))
    places = c.node("range", count=n, dtype="int64")
    column = tuple([*[1] * d, n, 1, *[1] * len(behind)])
    earlier = c.node("lt", reshape(c, places, (*[1] * (d + 1), n, *[1] * len(behind))), reshape(c, places, column))
    first = c.node("gt" if c.get("largest", 1) else "lt", other, own)
    first = c.node("logical_or", first, c.node("logical_and", c.node("eq", other, own), earlier))
    rank = c.node("sum", c.node("cast", first, dtype="int32"), dims=(d + 1,))
    wanted = reshape(c, c.node("range", count=count, dtype="int32"), (*[1] * d, count, 1, *[1] * len(behind)))
    found = c.node("eq", reshape(c, rank, (*ahead, 1, n, *behind)), wanted)
    chosen = c.node("argmax", c.node("cast", found, dtype="int32"), dim=d + 1)
    return [c.node("gather_elements", x, chosen, dim=d), chosen]


@rule("Tile")
def _tile(c: Call) -> Value:
    x = c.value(0)
    for d, times in enumerate(c.integers(1)):
        need(times <= 64, "so many repeats")
        x = c.node("concatenate", *[x] * times, dim=d) if times != 1 else x
    return c.node("identity", x)


@rule("Pad")
def _pad(c: Call) -> Value:
    x, mode = c.value(0), c.get("mode", "constant")
    widths = c.given_twice("pads", 1)
    need(mode in ("constant", "edge", "reflect", "wrap") and widths is not None, f"a border by {mode}")
    value = float(c.known(2).ravel()[0]) if c.has(2) and c.known(2).size else float(c.get("value", 0.0))
    need(value == value, "a border of NaN")
    dims = [axis_of(d, len(x.shape)) for d in c.integers(3)] if c.has(3) else list(range(len(x.shape)))
    before, behind = [0] * len(x.shape), [0] * len(x.shape)
    for n, d in enumerate(dims):
        assert widths is not None
        before[d], behind[d] = widths[n], widths[n + len(dims)]
    for d, extent in enumerate(x.shape):  # negative widths cut off
        x = slice_(c, x, d, max(0, -before[d]), extent - max(0, -behind[d]))
    low, high = (tuple(max(0, n) for n in widths_) for widths_ in (before, behind))
    if mode != "constant":
        for d, (first, last) in enumerate(zip(low, high, strict=True)):
            x = _continued(c, x, d, first, last, mode)
        return c.node("identity", x)
    return c.node("pad", x, before=low, behind=high, value=real_json(value))


def _continued(c: Call, x: Value, d: int, first: int, last: int, mode: str) -> Value:
    """``x`` continued beyond both ends of a dimension: by its edge, by its mirror image, or from its other end."""
    n = x.shape[d]
    parts = [x]
    if mode == "edge":
        parts = [slice_(c, x, d, 0, 1)] * first + parts + [slice_(c, x, d, n - 1, n)] * last
    else:
        need(max(first, last) < n, "a border wider than the tensor")
        start, end = (1, n - 1 - last) if mode == "reflect" else (n - first, 0)
        ahead, behind = (start, start + first), (end, end + last)
        pieces = [slice_(c, x, d, a, b) if b > a else None for a, b in (ahead, behind)]
        if mode == "reflect":
            pieces = [None if p is None else c.node("flip", p, dims=(d,)) for p in pieces]
        parts = [p for p in (pieces[0], x, pieces[1]) if p is not None]
    need(len(parts) <= 64, "so wide a border")
    return c.node("concatenate", *parts, dim=d)


@rule("DepthToSpace")
def _depth_to_space(c: Call) -> Value:
    x, size = c.value(0), c.get("blocksize")
    n, depth, h, w = x.shape
    rest = depth // (size * size)
    if c.get("mode", "DCR") == "DCR":
        split, order = (n, size, size, rest, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (n, rest, size, size, h, w), (0, 1, 4, 2, 5, 3)
    turned = c.node("permute", c.node("reshape", x, shape=split), order=order)
    return c.node("reshape", turned, shape=(n, rest, h * size, w * size))


@rule("SpaceToDepth")
def _space_to_depth(c: Call) -> Value:
    x, size = c.value(0), c.get("blocksize")
    n, depth, h, w = x.shape
    split = c.node("reshape", x, shape=(n, depth, h // size, size, w // size, size))
    turned = c.node("permute", split, order=(0, 3, 5, 1, 2, 4))
    return c.node("reshape", turned, shape=(n, depth * size * size, h // size, w // size))


@rule("Trilu")
def _trilu(c: Call) -> Value:
    x, k = c.value(0), int(c.known(1)) if c.has(1) else 0
    rows = c.node("range", count=x.shape[-2], dtype="int64", start=k)
    columns = c.node("range", count=x.shape[-1], dtype="int64")
    column = c.node("reshape", rows, shape=(x.shape[-2], 1))
    kept = c.node("ge" if c.get("upper", 1) else "le", columns, column)
    return c.node("where", kept, x, c.node("full", shape=(), value=0, dtype=x.dtype.name))
