"""Convolutions and pools on channels-last data, as kernels want them.

A value [n, c, spatial …] is held as [n, spatial …, c]. What follows a convolution keeps this order for as long as it
can, so that permutations stay only at the borders of the graph, and on filters, where they are computed once:

    relu(convolution(x, w))    ->    permute(relu(convolution(permute(x), permute(w), channels_last)))
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod

from ...core.dtypes import float32, float64
from ...core.precision import IEEE
from ..graph import FOREIGN, Graph, Node, Value
from ..operators import OPERATORS, Kind
from ..operators.scans import SCAN_NAMES
from .rewrite import Rewriter, attributes_of, integers_of

FEW_CHANNELS = 16
"""A group of fewer channels and filters does not fill a vector of a processor. Pixels of a row do."""


def use_channels_last(graph: Graph, *, gpu: bool = False) -> Graph:
    """``graph`` with channels-last convolutions; ``graph`` itself where it has no convolution. No kernel class of a
    ``gpu`` sums up exact products of floats over windows: torch computes these, in the order that they have. Elsewhere
    groups of few channels stay in the order that they have."""
    if not any(node.op == "convolution" and not attributes_of(node)["channels_last"] for node in graph.nodes):
        return graph
    rewriter = _ChannelsLast(graph, gpu)
    for node in graph.nodes:
        rewriter.rewrite(node)
    return rewriter.finished()


def last_dim(d: int, rank: int) -> int:
    """Return where dimension ``d`` of a value of ``rank`` dimensions is when channels are last."""
    return d if d == 0 else rank - 1 if d == 1 else d - 1


def to_last(rank: int) -> tuple[int, ...]:
    """Return the order that makes channels last."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """Return the order that undoes ``to_last``."""
    return (0, rank - 1, *range(1, rank - 1))


class _ChannelsLast(Rewriter):
    """``last`` has the channels-last form of values of the old graph by their names; those that have only this one are
    permuted where something reads the other. ``means``: what channels of norms are on average, [batch, channels]."""

    def __init__(self, graph: Graph, gpu: bool) -> None:
        super().__init__(graph)
        self.gpu = gpu
        self.last: dict[str, Value] = {}
        self.means: dict[str, Value] = {}

    def rewrite(self, node: Node) -> None:
        """Write a node of the old graph in the order of dimensions that its operands have."""
        handler = None if node.op == FOREIGN else _HANDLERS.get(node.op)
        if handler is None and node.op != FOREIGN and OPERATORS[node.op].kind is Kind.POINTWISE:
            handler = _pointwise
        if handler is None or not handler(self, node):
            for name in node.operands:
                self.first(name)
            self.keep(node)

    def finished(self) -> Graph:
        for name in self.graph.kept:
            self.first(name)
        return super().finished()

    def first(self, name: str) -> Value:
        """Return the new value that stands for ``name``, in its own order of dimensions."""
        if name not in self.values:
            held = self.last[name]
            self.values[name] = self._ordered(held, to_first(len(held.shape)))
        return self.values[name]

    def in_last(self, name: str) -> Value:
        """Return the channels-last form of a value of three dimensions or more."""
        if name not in self.last:
            value = self.values[name]
            self.last[name] = self._ordered(value, to_last(len(value.shape)))
        return self.last[name]

    def broadcast_in_last(self, name: str, rank: int) -> Value:
        """Return a value that broadcasts to ``rank`` dimensions, in a form that broadcasts to their channels-last
        order."""
        shape = self.graph.values[name].shape
        if len(shape) == rank:
            return self.in_last(name)
        value = self.first(name)
        if value.elements == 1:
            return self.node("reshape", value, shape=()) if shape else value
        shape = (*[1] * (rank - len(shape)), *shape)
        value = self._ordered(self.node("reshape", value, shape=shape), to_last(rank))
        return self.node("reshape", value, shape=_without_leading_ones(value.shape))

    def _ordered(self, value: Value, order: tuple[int, ...]) -> Value:
        """``value`` in another order of dimensions, by a reshape where only dimensions of one element move."""
        long = [d for d in order if value.shape[d] > 1]
        if long == sorted(long):
            return self.node("reshape", value, shape=tuple(value.shape[d] for d in order))
        return self.node("permute", value, order=order)


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape[:1] == (1,):
        shape = shape[1:]
    return shape


def _convolution(b: _ChannelsLast, node: Node) -> bool:
    """Filters [o, c/g, …] become […, c/g, (g,) o/g]; where matrix units multiply float32 or bytes, which they take
    K-major alone, [(g,) o/g, …, c/g]."""
    given = attributes_of(node)
    groups, rank = OPERATORS[node.op].values(given).integer("groups"), len(node.result.shape) - 2
    if given["channels_last"]:
        return False
    if _sees_patches(b.graph, node):
        _product_of_patches(b, node)
        return True
    if _is_left(b, node) if b.gpu else _has_few_channels(b, node):
        return False
    x, w, *bias = (b.in_last(node.operands[0]), *(b.first(name) for name in node.operands[1:]))
    rounds = node.result.dtype == float32 and given["precision"] != IEEE
    filters_first = (rounds or given["accumulate"] != "auto") and w.shape[1] > 1
    if groups > 1:
        own = w.shape[0] // groups
        x = b.node("reshape", x, shape=(*x.shape[:-1], groups, x.shape[-1] // groups))
        w = b.node("reshape", w, shape=(groups, own, *w.shape[1:]))
        order = (0, 1, *range(3, 3 + rank), 2) if filters_first else (*range(3, 3 + rank), 2, 0, 1)
        w = b.node("permute", w, order=order)
        bias = [b.node("reshape", v, shape=(groups, own)) for v in bias]
    else:
        w = b.node("permute", w, order=to_last(2 + rank) if filters_first else (*range(2, 2 + rank), 1, 0))
    y = b.node("convolution", x, w, *bias, **{**given, "channels_last": True, "filters_first": filters_first})
    b.last[node.name] = b.node("reshape", y, shape=(*y.shape[:-2], y.shape[-2] * y.shape[-1])) if groups > 1 else y
    return True


def _is_left(b: _ChannelsLast, node: Node) -> bool:
    """Return whether a convolution is one of exact products over windows, of channels that are not last in memory."""
    w = b.graph.values[node.operands[1]].shape
    exact = node.result.dtype in (float32, float64) and attributes_of(node)["precision"] == IEEE
    windows = w[1] > 1 and not set((*w[2:], *integers_of(node, "stride"))) == {1}
    return exact and windows and not _is_last(b, node.operands[0])


def _has_few_channels(b: _ChannelsLast, node: Node) -> bool:
    """Return whether a convolution is one of groups of few channels, which are not last in memory."""
    w, groups = b.graph.values[node.operands[1]].shape, OPERATORS[node.op].values(attributes_of(node)).integer("groups")
    return groups > 1 and max(w[1], w[0] // groups) < FEW_CHANNELS and not _is_last(b, node.operands[0])


def _is_last(b: _ChannelsLast, name: str) -> bool:
    """Return whether the channels of a value are last in memory."""
    made, rank = b.graph.producers.get(name), len(b.graph.values[name].shape)
    is_last = made is not None and made.op == "permute" and integers_of(made, "order") == to_first(rank)
    return is_last or name in b.last


def _sees_patches(graph: Graph, node: Node) -> bool:
    """Return whether windows stand side by side and have all pixels, with rows of whole 16 bytes and too few channels
    for that."""
    x, w = (graph.values[name].shape for name in node.operands[:2])
    whole = integers_of(node, "stride") == w[2:] and all(n % k == 0 for n, k in zip(x[2:], w[2:], strict=True))
    plain = not any((*integers_of(node, "before"), *integers_of(node, "behind")))
    few = x[1] == w[1] and x[1] % 8 > 0 and w[-1] % 8 == 0
    return whole and plain and few and set(integers_of(node, "dilation")) == {1}


def _product_of_patches(b: _ChannelsLast, node: Node) -> None:
    """The convolution as a product of patches in a row, as vision transformers begin with."""
    x, w, *bias = (b.first(name) for name in node.operands)
    counts, rank = node.result.shape[2:], len(w.shape) - 2
    split = [n for count, k in zip(counts, w.shape[2:], strict=True) for n in (count, k)]
    patches = b.node("reshape", x, shape=(*x.shape[:2], *split))
    order = (0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))
    depth = prod(w.shape[1:])
    rows = b.node("reshape", b.node("permute", patches, order=order), shape=(x.shape[0] * prod(counts), depth))
    filters = b.node("permute", b.node("reshape", w, shape=(w.shape[0], depth)), order=(1, 0))
    given = attributes_of(node)
    y = b.node("matmul", rows, filters, precision=given["precision"], accumulate=given["accumulate"])
    y = b.node("add", y, bias[0]) if bias else y
    b.last[node.name] = b.node("reshape", y, shape=(x.shape[0], *counts, w.shape[0]))


def _pool(b: _ChannelsLast, node: Node) -> bool:
    """Windows get one element along the channels."""
    given, rank = attributes_of(node), len(node.result.shape)
    if len(integers_of(node, "kernel")) != rank - 2 or node.operands[0] not in b.last:
        return False
    behind = {"kernel": 1, "stride": 1, "before": 0, "behind": 0, "dilation": 1}
    longer = {name: (*integers_of(node, name), more) for name, more in behind.items()}
    b.last[node.name] = b.node(node.op, b.in_last(node.operands[0]), **{**given, **longer})
    return True


def _pointwise(b: _ChannelsLast, node: Node) -> bool:
    shape = node.result.shape
    if not any(name in b.last and b.graph.values[name].shape == shape for name in node.operands):
        return False
    operands = [b.broadcast_in_last(name, len(shape)) for name in node.operands]
    b.last[node.name] = b.node(node.op, *operands, **node.attributes)
    return True


def _batch_norm(b: _ChannelsLast, node: Node) -> bool:
    """Channels are the second dimension of all pixels in a row."""
    x = b.last.get(node.operands[0])
    if x is None:
        return False
    rows = b.node("reshape", x, shape=(prod(x.shape[:-1]), x.shape[-1]))
    y = b.node("batch_norm", rows, *(b.first(name) for name in node.operands[1:]), **node.attributes)
    b.last[node.name] = b.node("reshape", y, shape=x.shape)
    return True


def _group_norm(b: _ChannelsLast, node: Node) -> bool:
    """Groups by what belongs to each channel, in float32 at least. Kernels reduce pixels, but not pixels and some of
    the channels.

    y = x * scale + shift,  scale = weight / sqrt(variance of the group + epsilon),  shift = bias - mean * scale

    The variance of a group of 16-bit floats comes from mean squares; that of wider ones from the variances of its
    channels and from how far the means of these are apart, which loses nothing.
    """
    narrow = node.result.dtype.bits == 16
    if len(node.result.shape) < 3 or not (narrow or node.operands[0] in b.last):
        return False
    x, given = b.in_last(node.operands[0]), OPERATORS[node.op].values(node.attributes)
    batch, channels, groups = x.shape[0], x.shape[-1], given.integer("groups")
    split, pixels = (batch, groups, channels // groups), tuple(range(1, len(x.shape) - 1))
    dtype = "float32" if narrow else x.dtype.name
    wide = b.node("cast", x, dtype=dtype) if narrow else x

    def mean(value: Value) -> Value:
        return b.node("reshape", b.node("mean", value, dims=(2,)), shape=(batch, groups, 1))

    of_channels = b.node("reshape", b.node("mean", wide, dims=pixels), shape=split)
    center, off = mean(of_channels), None
    zero, epsilon = (b.node("full", shape=(), value=v, dtype=dtype) for v in (0.0, given.number("epsilon")))
    if narrow:
        squares = b.node("reshape", b.node("mean", b.node("square", wide), dims=pixels), shape=split)
        spread = b.node("maximum", b.node("sub", mean(squares), b.node("square", center)), zero)
    else:
        own = b.node("reshape", b.node("variance", wide, dims=pixels, correction=0), shape=split)
        off = b.node("sub", of_channels, center)
        spread = mean(b.node("add", own, b.node("square", off)))
    scale = b.node("rsqrt", b.node("add", spread, epsilon))
    weights = [b.first(name) for name in node.operands[1:]]
    weights = [b.node("cast", w, dtype=dtype) if narrow else w for w in weights]
    weights = [b.node("reshape", w, shape=split[1:]) for w in weights]
    scale = b.node("mul", scale, weights[0]) if weights else b.node("expand", scale, shape=split)
    shift = b.node("mul", center, scale)
    shift = b.node("sub", weights[1], shift) if len(weights) > 1 else b.node("neg", shift)
    if off is not None:
        means = b.node("mul", off, scale)
        means = b.node("add", means, weights[1]) if len(weights) > 1 else means
        b.means[node.name] = b.node("reshape", means, shape=(batch, channels))
    scale, shift = (b.node("reshape", v, shape=(batch, *[1] * len(pixels), channels)) for v in (scale, shift))
    y = b.node("add", b.node("mul", wide, scale), shift)
    y = b.node("cast", y, dtype=x.dtype.name) if narrow else y
    b.last[node.name] = y
    return True


def _reduction(b: _ChannelsLast, node: Node) -> bool:
    x, given = b.last.get(node.operands[0]), attributes_of(node)
    if x is None:
        return False
    rank, single = len(x.shape), "dim" in given
    dims = [OPERATORS[node.op].values(given).integer("dim")] if single else integers_of(node, "dims")
    if node.op == "mean" and node.operands[0] in b.means and {*range(2, rank)} <= {*dims}:
        means, rest = b.means[node.operands[0]], tuple(d for d in dims if d < 2)
        means = b.node("mean", means, dims=rest) if rest else means
        b.values[node.name] = b.node("reshape", means, shape=node.result.shape)
        return True
    moved = tuple(sorted(last_dim(d, rank) for d in dims))
    without = {"keep": False} if "keep" in given else {}
    y = b.node(node.op, x, **{**given, **({"dim": moved[0]} if single else {"dims": moved}), **without})
    if len(node.result.shape) == rank:
        shape = tuple(1 if d in moved and without else n for d, n in enumerate(x.shape))
        b.last[node.name] = b.node("reshape", y, shape=shape) if without else y
        return True
    kept = [last_dim(d, rank) for d in range(rank) if d not in dims]
    order = tuple(sorted(kept).index(d) for d in kept)
    b.values[node.name] = y if list(order) == sorted(order) else b.node("permute", y, order=order)
    return True


def _along_a_dimension(b: _ChannelsLast, node: Node) -> bool:
    if not any(name in b.last for name in node.operands):
        return False
    operands = [b.in_last(name) for name in node.operands]
    d = OPERATORS[node.op].values(node.attributes).integer("dim")
    b.last[node.name] = b.node(node.op, *operands, **{**node.attributes, "dim": last_dim(d, len(operands[0].shape))})
    return True


def _flip(b: _ChannelsLast, node: Node) -> bool:
    x = b.last.get(node.operands[0])
    if x is not None:
        dims = tuple(last_dim(d, len(x.shape)) for d in integers_of(node, "dims"))
        b.last[node.name] = b.node("flip", x, dims=dims)
    return x is not None


def _pad(b: _ChannelsLast, node: Node) -> bool:
    x = b.last.get(node.operands[0])
    if x is not None:
        widths = {name: _in_order(integers_of(node, name), to_last(len(x.shape))) for name in ("before", "behind")}
        b.last[node.name] = b.node("pad", x, **{**node.attributes, **widths})
    return x is not None


def _expand(b: _ChannelsLast, node: Node) -> bool:
    x, shape = b.last.get(node.operands[0]), node.result.shape
    if x is None or len(x.shape) != len(shape):
        return False
    b.last[node.name] = b.node("expand", x, shape=_in_order(shape, to_last(len(shape))))
    return True


def _permute(b: _ChannelsLast, node: Node) -> bool:
    """Permutations are composed with that of the operand. One that makes channels first gives its operand."""
    order, x = integers_of(node, "order"), b.last.get(node.operands[0])
    rank = len(order)
    if rank < 3:
        return False
    if x is None:
        if order != to_first(rank):
            return False
        b.last[node.name] = b.first(node.operands[0])
        return True
    order = tuple(last_dim(d, rank) for d in order)
    if order == tuple(range(rank)):
        b.values[node.name] = x
    elif order == to_first(rank):
        b.last[node.name] = x
    else:
        b.values[node.name] = b.node("permute", x, order=order)
    return True


def _reshape(b: _ChannelsLast, node: Node) -> bool:
    """Spatial dimensions may be joined and split; where they have one element, or there is one channel, so may all."""
    x, shape = b.last.get(node.operands[0]), node.result.shape
    if x is None:
        return False
    if len(shape) > 2 and shape[:2] == (x.shape[0], x.shape[-1]):
        b.last[node.name] = b.node("reshape", x, shape=(shape[0], *shape[2:], shape[1]))
    elif 1 in (x.shape[-1], prod(x.shape[1:-1])):
        b.values[node.name] = b.node("reshape", x, shape=shape)
    else:
        return False
    return True


def _in_order(numbers: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    return tuple(numbers[d] for d in order)


def _gather(b: _ChannelsLast, node: Node) -> bool:
    """It is pointwise in its places alone."""
    return False


_HANDLERS: Mapping[str, Callable[[_ChannelsLast, Node], bool]] = {
    "convolution": _convolution,
    "max_pool": _pool,
    "average_pool": _pool,
    "batch_norm": _batch_norm,
    "gather": _gather,
    "gather_elements": _gather,
    "group_norm": _group_norm,
    "flip": _flip,
    "pad": _pad,
    "expand": _expand,
    "permute": _permute,
    "reshape": _reshape,
    **dict.fromkeys(("slice", "repeat", "concatenate", "spread"), _along_a_dimension),
    **dict.fromkeys(
        (
            "sum",
            "prod",
            "max",
            "min",
            "mean",
            "variance",
            "argmax",
            "argmin",
            "softmax",
            "log_softmax",
            *SCAN_NAMES,
        ),
        _reduction,
    ),
}
"""How each operator is written. What is not here and is not pointwise takes its operands with channels first."""
