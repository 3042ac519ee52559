"""Convolutions of images whose pixels do not begin at multiples of 16 bytes: such channels are stored with zeros behind
them, and groups of such become one.

11 groups of 3 channels, 6 filters each    ->    66 filters of 36 channels, 3 of which are zero

The border of a row is stored, too, where the places of a window in a row fill fewer lines together
(``schedule.gpu.conv.row_taps``). What is multiplied with a group's filters is a block of the diagonal of a matrix. Its
other blocks are zero. (An infinity in a channel of another group becomes NaN, since it is multiplied with zero.)
"""

from math import prod

from ...core.dtypes import float32
from ...core.precision import IEEE
from ..graph import Graph, Node, Value
from ..operators import OPERATORS
from .pixels_at_once import FEW, LINE_BYTES, VECTOR_BYTES
from .rewrite import Rewriter, attributes_of, rewrite

_MOST_CHANNELS = 256
"""So many channels at most become one group: beyond that, zeros take long to multiply."""


def align_channels(graph: Graph) -> Graph:
    """Give convolutions with channels last that matrix units multiply pixels of a multiple of 16 bytes, in one group
    where they have others. Depthwise ones stay as they are, and so do products, and images of few channels."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "convolution":
            return None
        x, w, *bias = (rewriter.values[name] for name in node.operands)
        given, dtype = OPERATORS[node.op].values(attributes_of(node)), node.result.dtype
        rounds = dtype.bits == 16 or (dtype == float32 and given.text("precision") != IEEE)
        groups, first, own = given.integer("groups"), given.flag("filters_first"), x.shape[-1]
        channels, vector = groups * own, VECTOR_BYTES // dtype.bytes
        if not rounds or not given.flag("channels_last") or channels % vector == 0:
            return None
        rank = len(node.result.shape) - (2 if groups == 1 else 3)
        taps = w.shape[-1 - rank : -1] if first else w.shape[:rank]
        if (channels <= FEW or prod(taps) == 1) if groups == 1 else (own == 1 or channels > _MOST_CHANNELS):
            return None
        if not first:
            w = rewriter.node("permute", w, order=(*range(rank + 1, len(w.shape)), *range(rank + 1)))
        if groups > 1:
            w = _blocks(rewriter, w)
            bias = [rewriter.node("reshape", v, shape=(v.elements,)) for v in bias]
            x = rewriter.node("reshape", x, shape=(*x.shape[:-2], channels))
        zeros, more = (0,) * (rank + 1), -channels % vector
        border = {name: given.integers(name) for name in ("before", "behind")}
        sides = {name: (*zeros, more if name == "behind" else 0) for name in border}
        w = rewriter.node("pad", w, **sides, value=0.0)
        pixel = (channels + more) * dtype.bytes
        if given.integers("dilation")[-1] == 1 and _lines(taps[-1] * pixel) < taps[-1] * _lines(pixel):
            sides = {name: (*zeros[1:], border[name][-1], widths[-1]) for name, widths in sides.items()}
            border = {name: (*widths[:-1], 0) for name, widths in border.items()}
        x = rewriter.node("pad", x, **sides, value=0.0)
        if not first:
            w = rewriter.node("permute", w, order=(*range(1, rank + 2), 0))
        y = rewriter.node("convolution", x, w, *bias, **{**node.attributes, **border, "groups": 1})
        return rewriter.node("reshape", y, shape=node.result.shape)

    return rewrite(graph, replaced)


def _lines(count: int) -> int:
    """Return how many lines so many bytes fill."""
    return -(-count // LINE_BYTES)


def _blocks(rewriter: Rewriter, w: Value) -> Value:
    """Return filters [groups, filters, ..., channels] as [groups * filters, ..., groups * channels], the blocks of a
    diagonal: rows of so many channels and one block more begin one block further each time."""
    groups, filters, *taps, own = w.shape
    count, channels = filters * prod(taps), groups * own
    rows = rewriter.node("reshape", w, shape=(groups, count, own))
    rows = rewriter.node("permute", rows, order=(1, 0, 2))
    rows = rewriter.node("pad", rows, before=(0, 0, 0), behind=(0, 0, channels), value=0.0)
    rows = rewriter.node("reshape", rows, shape=(count, groups * (channels + own)))
    rows = rewriter.node("slice", rows, dim=1, start=0, stop=groups * channels, step=1)
    rows = rewriter.node("reshape", rows, shape=(count, groups, channels))
    rows = rewriter.node("permute", rows, order=(1, 0, 2))
    return rewriter.node("reshape", rows, shape=(groups * filters, *taps, channels))
