"""Images of few channels, stored so that convolutions on matrix units load what a window sees in a row as one
(``schedule.gpu.conv.row_taps``): pixels at multiples of 16 bytes, with the border of each row.

convolution(permute(x[n, 3, d, h, w]), before=[1, 1, 1])
    ->  convolution(pad(permute(x)), before=[1, 1, 0]),    pad: [n, d, h, w + 2, 4]

Where windows move by several pixels, so many of them may be stored as one (space to depth), which takes fewer bytes:

convolution(permute(x[n, 3, d, h, w]), stride=[1, 1, 4])
    ->  convolution(reshape(permute(x), [n, d, h, w / 4, 12]), stride=[1, 1, 1])
"""

from ...core.dtypes import float32
from ..graph import Graph, Node, Value
from ..operators import OPERATORS
from .pixels_at_once import FEW, LINE_BYTES, pixel_window
from .rewrite import Rewriter, attributes_of, rewrite


def store_few_channels(graph: Graph) -> Graph:
    """Give images with channels last that are copied for one convolution, and have few channels, the form that its
    kernel loads fastest."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "convolution" or not _is_copied_for(graph, node):
            return None
        x, w, *bias = (rewriter.values[name] for name in node.operands)
        row, given = pixel_window(node, x, w), OPERATORS[node.op].values(attributes_of(node))
        if row is None or not given.flag("channels_last"):
            return None
        rank, channels, first = len(x.shape) - 2, row.channels, given.flag("filters_first")
        together, pitch = row.chunk(1)
        taps, low = -(-row.taps // together) * together, given.integers("before")[-1]
        width = -(-max(low + x.shape[-2], (row.positions - 1) * row.stride + taps) // together) * together
        same = (width - taps) // row.stride + 1 == row.positions
        loaded = (width, pitch, together) == (*x.shape[-2:], 1) and (rank != 2 or channels > FEW)
        if not same or loaded or row.seen(1, together, pitch) > row.taps * LINE_BYTES:
            return None
        if rank != 2 and pitch > channels > FEW:
            return None
        zeros = (0,) * rank
        borders = {"before": (*zeros, low, 0), "behind": (*zeros, width - low - x.shape[-2], pitch - channels)}
        x = rewriter.node("pad", x, **borders, value=0.0)
        if (taps, pitch) != (row.taps, channels):
            more = (*zeros[1:], taps - row.taps, pitch - channels)
            w = rewriter.node("pad", w, before=(0,) * (rank + 2), behind=(0, *more) if first else (*more, 0), value=0.0)
        window = {name: given.integers(name) for name in ("stride", "dilation", "before", "behind")}
        window |= {name: (*window[name][:-1], 0) for name in ("before", "behind")}
        if together > 1:
            seen = (taps // together, together * pitch)
            x = rewriter.node("reshape", x, shape=(*x.shape[:-2], width // together, together * pitch))
            shape = (*w.shape[:rank], *seen) if first else (*w.shape[: rank - 1], *seen, w.shape[-1])
            w = rewriter.node("reshape", w, shape=shape)
            window["stride"] = (*window["stride"][:-1], row.stride // together)
            if not first and node.result.dtype == float32:  # matrix units multiply these K-major alone
                w, first = rewriter.node("permute", w, order=(rank + 1, *range(rank + 1))), True
        folded = rank == 2 and channels <= FEW
        if folded:  # volumes are loaded as they are
            x = rewriter.node("reshape", x, shape=(x.shape[0], 1, *x.shape[1:]))
            w = rewriter.node("reshape", w, shape=(w.shape[0], 1, *w.shape[1:]) if first else (1, *w.shape))
            window = {name: (int(name in ("stride", "dilation")), *numbers) for name, numbers in window.items()}
        attributes = {**node.attributes, **window, "filters_first": first}
        y = rewriter.node("convolution", x, w, *bias, **attributes)
        return rewriter.node("reshape", y, shape=node.result.shape) if folded else y

    return rewrite(graph, replaced)


def _is_copied_for(graph: Graph, node: Node) -> bool:
    """Return whether the image of a convolution has so few channels that matrix units take it in copies alone, or is a
    permutation that nothing else reads."""
    image = graph.values[node.operands[0]]
    if image.shape[-1] <= FEW:
        return True
    made = graph.producers.get(image.name)
    alone = made is not None and len(graph.readers[made.name]) == 1 and made.name not in graph.kept
    return alone and made is not None and made.op == "permute"
