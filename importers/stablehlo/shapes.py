"""Operations of StableHLO that move elements."""

from ...graph.graph import Value
from ..aten.rule import need, slice_
from .call import HloCall, number_value, permuted, reshaped, rule

_KEEPING = ("sum", "mean", "max", "min", "prod", "variance")


@rule("broadcast_in_dim")
def _broadcast_in_dim(c: HloCall) -> Value:
    x, dims = c.inputs[0], list(c.get("broadcast_dimensions"))
    if (number := c.number(x)) is not None:
        return number_value(c, number, c.shape, x.dtype)
    x = permuted(c, x, sorted(range(len(dims)), key=lambda d: dims[d]))
    between = [1] * len(c.shape)
    for d, extent in zip(sorted(dims), x.shape, strict=True):
        between[d] = extent
    x = _with_dims_kept(c, x, between)
    return x if x.shape == c.shape else c.node("expand", x, shape=c.shape)


def _with_dims_kept(c: HloCall, x: Value, shape: list[int]) -> Value:
    """``x`` in a shape with more dimensions of one element. A reduction keeps those that it would have dropped."""
    made = c.made(x, *_KEEPING)
    if made is not None and not made.attributes.get("keep"):
        source, dims = c.source(made), made.attributes["dims"]
        assert isinstance(dims, tuple)
        if [1 if d in dims else n for d, n in enumerate(source.shape)] == shape:
            return c.node(made.op, source, **{**made.attributes, "keep": True})
    return reshaped(c, x, shape)


@rule("reshape")
def _reshape(c: HloCall) -> Value:
    return reshaped(c, c.inputs[0], c.shape)


@rule("transpose")
def _transpose(c: HloCall) -> Value:
    """A reduction of the last dimensions is permuted before it, so that it meets what it was made of again."""
    x, order = c.inputs[0], list(c.get("permutation"))
    made = c.made(x, *_KEEPING)
    if made is not None and not made.attributes.get("keep"):
        source, dims = c.source(made), made.attributes["dims"]
        if dims == tuple(range(len(order), len(source.shape))):
            return c.node(made.op, permuted(c, source, [*order, *dims]), **made.attributes)
    return permuted(c, x, order)


@rule("concatenate")
def _concatenate(c: HloCall) -> Value:
    return c.node("concatenate", *c.inputs, dim=c.get("dimension"))


@rule("reverse")
def _reverse(c: HloCall) -> Value:
    return c.node("flip", c.inputs[0], dims=tuple(c.get("dimensions")))


@rule("iota")
def _iota(c: HloCall) -> Value:
    d = c.get("iota_dimension")
    line = c.node("range", count=c.shape[d], dtype=c.dtype.name)
    column = reshaped(c, line, [n if e == d else 1 for e, n in enumerate(c.shape)])
    return column if column.shape == c.shape else c.node("expand", column, shape=c.shape)


@rule("slice")
def _slice(c: HloCall) -> Value:
    x = c.inputs[0]
    steps = zip(c.get("start_indices"), c.get("limit_indices"), c.get("strides"), strict=True)
    for d, (start, stop, step) in enumerate(steps):
        if (start, stop, step) != (0, x.shape[d], 1):
            x = slice_(c, x, d, start, stop, step)
    return x


@rule("pad")
def _pad(c: HloCall) -> Value:
    x, value = c.inputs[0], c.number(c.inputs[1])
    need(value is not None, "a border that is not known")
    low, high, inner = (list(c.get(n)) for n in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    need(value == 0 or not any(inner), "a value between elements")
    for d, between in enumerate(inner):
        x = c.node("spread", x, dim=d, step=between + 1) if between else x
    x = c.node("pad", x, before=tuple(max(0, n) for n in low), behind=tuple(max(0, n) for n in high), value=value)
    for d, (before, behind) in enumerate(zip(low, high, strict=True)):
        if min(before, behind) < 0:
            x = slice_(c, x, d, max(0, -before), x.shape[d] - max(0, -behind))
    return x
