"""Operations of StableHLO that read and write at places which are known when the model runs. What is out of bounds is
moved to the nearest end, as XLA does it."""

from ...graph.graph import Value
from ..aten.rule import need, slice_
from .call import HloCall, clamped, permuted, reshaped, rule


@rule("dynamic_slice")
def _dynamic_slice(c: HloCall) -> Value:
    return _part(c, c.inputs[0], c.inputs[1:], c.get("slice_sizes"))


def _part(c: HloCall, x: Value, starts: tuple[Value, ...], sizes: list[int]) -> Value:
    """So many elements along each dimension from ``starts``, which are scalars."""
    for d, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        extent, first = x.shape[d], c.number(start)
        if size == extent:
            continue
        if first is not None:
            begin = min(max(int(first), 0), extent - size)
            x = slice_(c, x, d, begin, begin + size)
        else:
            begins = reshaped(c, clamped(c, start, extent - size), (1,))
            places = c.node("add", begins, c.node("range", count=size, dtype=start.dtype.name))
            x = c.node("gather", x, places, dim=d)
    return x


@rule("dynamic_update_slice")
def _dynamic_update_slice(c: HloCall) -> Value:
    """An element is that of the update where the update reaches, and stays what it is elsewhere."""
    x, update, *starts = c.inputs
    inside: Value | None = None
    for d, start in enumerate(starts):
        extent, size = x.shape[d], update.shape[d]
        if size == extent:
            continue
        line = c.node("range", count=extent, dtype=start.dtype.name)
        places = c.node("sub", line, reshaped(c, clamped(c, start, extent - size), ()))
        zero = c.scalar(0, start.dtype)
        reached = c.node("ge", places, zero)
        reached = c.node("logical_and", reached, c.node("lt", places, c.scalar(size, start.dtype)))
        reached = reshaped(c, reached, [n if e == d else 1 for e, n in enumerate(x.shape)])
        inside = reached if inside is None else c.node("logical_and", inside, reached)
        update = c.node("gather", update, clamped(c, places, size - 1), dim=d)
    return update if inside is None else c.node("where", inside, update, x)


@rule("gather")
def _gather(c: HloCall) -> Value:
    x, places, numbers = c.inputs[0], c.inputs[1], c.get("dimension_numbers")
    sizes = list(c.get("slice_sizes"))
    last = numbers.index_vector_dim
    mapped, collapsed = list(numbers.start_index_map), list(numbers.collapsed_slice_dims)
    batches = list(numbers.operand_batching_dims)
    if len(places.shape) == 1 and last == 0 and not batches:
        return _one_slice(c, x, places, sizes)
    need(len(mapped) == 1, "places along several dimensions")
    d = mapped[0]
    need(collapsed == [d] and sizes[d] == 1, "slices of several elements")
    if last < len(places.shape):
        places = reshaped(c, places, [n for e, n in enumerate(places.shape) if e != last])
    places = _not_negative(c, places, x.shape[d])
    if batches:
        same = list(numbers.start_indices_batching_dims) == batches and len(places.shape) == len(x.shape)
        need(same and len(batches) == len(x.shape) - 1 and not numbers.offset_dims, "batches of another form")
        return c.node("gather_elements", x, places, dim=d)
    whole = all(size == n for e, (size, n) in enumerate(zip(sizes, x.shape, strict=True)) if e != d)
    need(whole, "parts of slices")
    found = c.node("gather", x, places, dim=d)
    offsets, rank = list(numbers.offset_dims), len(places.shape)
    of_places = iter(range(d, d + rank))
    of_slices = iter([*range(d), *range(d + rank, len(found.shape))])
    order = [next(of_slices) if e in offsets else next(of_places) for e in range(len(found.shape))]
    return permuted(c, found, order)


def _not_negative(c: HloCall, places: Value, extent: int) -> Value:
    """Places that ``gather`` reads as XLA does, which does not count negative ones from the end. JAX asks for that
    before it, by where(i < 0, i + extent, i): then i itself is given."""
    chosen = c.made(places, "where")
    if chosen is not None:
        below, added = (c.made(c.source(chosen, n), op) for n, op in ((0, "lt"), (1, "add")))
        place = c.source(chosen, 2)
        if below is not None and added is not None and below.operands[0] == added.operands[0] == place.name:
            if (c.number(c.source(below, 1)), c.number(c.source(added, 1))) == (0, extent):
                return place if place.shape == places.shape else c.node("expand", place, shape=places.shape)
    return c.node("maximum", places, c.scalar(0, places.dtype))


def _one_slice(c: HloCall, x: Value, places: Value, sizes: list[int]) -> Value:
    """Return one slice, whose start the elements of ``places`` say."""
    mapped = list(c.get("dimension_numbers").start_index_map)
    zero = c.scalar(0, places.dtype)
    starts = tuple(
        reshaped(c, slice_(c, places, 0, mapped.index(d), mapped.index(d) + 1), ()) if d in mapped else zero
        for d in range(len(x.shape))
    )
    return reshaped(c, _part(c, x, starts, sizes), c.shape)
