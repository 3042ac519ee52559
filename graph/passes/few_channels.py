"""Images of few channels, stored so that convolutions on matrix units load what a window sees in a row as one
(``schedule.gpu.conv.row_taps``): pixels at multiples of 16 bytes, with the border of each row.

convolution(permute(x[n, 3, d, h, w]), before=[1, 1, 1])
    ->  convolution(pad(permute(x)), before=[1, 1, 0]),    pad: [n, d, h, w + 2, 4]
"""

from ...core.dtypes import float32
from ...core.precision import IEEE
from ..graph import Graph, Node, Value
from ..operators import OPERATORS
from .rewrite import Rewriter, rewrite

_VECTOR_BYTES, _LINE_BYTES = 16, 128
"""What matrix units load begins at multiples of so many bytes, and fills lines of so many."""
_MOST_BYTES = 32
"""Wider pixels are only permuted, by kernels that read and write whole sectors of memory but take no borders."""
_FOLDED = 7
"""Images of two dimensions with so many channels at most are folded by the kernel of their convolution."""


def store_few_channels(graph: Graph) -> Graph:
    """Give images with channels last that are copied for one convolution, and have few channels, the form that its
    kernel loads fastest."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "convolution" or not _is_copied_for(graph, node) or not _rounds(node):
            return None
        given, element = OPERATORS[node.op].values(node.attributes), node.result.dtype.bytes
        x, w, *bias = (rewriter.values[name] for name in node.operands)
        first, vector = given.flag("filters_first"), _VECTOR_BYTES // element
        rank, channels, taps = len(x.shape) - 2, x.shape[-1], w.shape[-2 if first else -3]
        pitch = -(-channels // vector) * vector
        low, high = given.integers("before")[-1], given.integers("behind")[-1]
        lines, apart = (-(-n * pitch * element // _LINE_BYTES) for n in (taps, 1))
        if lines >= taps * apart or given.integers("dilation")[-1] > 1 or not (low or high or pitch > channels):
            return None
        if pitch * element > _MOST_BYTES or (channels <= _FOLDED if rank == 2 else pitch > channels > _FOLDED):
            return None
        zeros = (0,) * rank
        x = rewriter.node("pad", x, before=(*zeros, low, 0), behind=(*zeros, high, pitch - channels), value=0.0)
        if pitch > channels:
            behind = (0, *zeros, pitch - channels) if first else (*zeros, pitch - channels, 0)
            w = rewriter.node("pad", w, before=(0, *zeros, 0), behind=behind, value=0.0)
        borders = {name: (*given.integers(name)[:-1], 0) for name in ("before", "behind")}
        return rewriter.node("convolution", x, w, *bias, **{**node.attributes, **borders})

    return rewrite(graph, replaced)


def _is_copied_for(graph: Graph, node: Node) -> bool:
    """Return whether the image of a convolution is a permutation that nothing else reads, or has one channel, which
    matrix units take in copies alone, or is a volume of channels that no kernel folds well."""
    image = graph.values[node.operands[0]]
    if len(image.shape) == 5 and image.shape[-1] <= _FOLDED:
        return True
    made = graph.producers.get(image.name)
    if made is None or len(graph.readers[made.name]) > 1 or made.name in graph.kept:
        return False
    return made.op == "permute" or (made.op == "reshape" and made.result.shape[-1] == 1)


def _rounds(node: Node) -> bool:
    """Return whether matrix units may multiply what a convolution multiplies, in one group."""
    given, dtype = OPERATORS[node.op].values(node.attributes), node.result.dtype
    rounded = dtype.bits == 16 or (dtype == float32 and given.text("precision") != IEEE)
    return given.flag("channels_last") and given.integer("groups") == 1 and rounded
