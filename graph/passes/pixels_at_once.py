"""Convolutions of images with few channels compute several pixels of a row at once: as channels, which become pixels.

With 3 channels, what a window of 3x3 sees in a row is 9 numbers, and matrix units load lines of 128 bytes. A window of
3x8 sees what 6 neighbouring pixels need, and moves by 6 pixels. Each filter is there 6 times, one pixel further each
time, with zeros beside it:

    y[n, o, i, 6 j + p] = sum over c, s, t of x[n, c, i + s, 6 j + t] v[(p, o), c, s, t],
    v[(p, o), c, s, t] = w[o, c, s, t - p]

To put the channels back into the row is a depth to space, or pixel shuffle. A sixth of the lines are loaded. More
products are multiplied, but that takes less time.
"""

from dataclasses import dataclass
from math import gcd

from ...core.dtypes import float32
from ...core.precision import IEEE
from ..graph import Graph, Node, Value
from ..operators import OPERATORS
from .rewrite import Rewriter, attributes_of, integers_of, rewrite

VECTOR_BYTES, LINE_BYTES = 16, 128
"""What matrix units load begins at multiples of so many bytes, and fills lines of so many."""
_MOST_BYTES = 32
"""Wider pixels fill enough of a line on their own."""
FEW = 7
"""Images of so many channels at most are copied for their convolution, by its kernel where no other one does."""
_STEP_BYTES = 32
"""Matrix units multiply so many bytes of a line at once."""
_BYTES_PER_CYCLE = 24
"""A multiprocessor loads about so many bytes in a cycle, and multiplies a step of 64 lines with two filters. Half of
the filters are loaded for 64 lines, since tiles have 128."""
_MOST_FILTERS = 256
"""A wgmma multiplies with so many at most."""
_MOST_STRIDE = 8
"""TMA moves by so many pixels at most from one position to the next."""
_CLEARLY = 0.8
"""Several pixels at once cost at most so much of what single ones do."""


@dataclass(frozen=True, slots=True)
class PixelWindow:
    """What a window sees in a row of pixels: ``taps`` of them with ``channels`` each, of elements of so many ``bytes``.
    From one position to the next it moves by ``stride`` pixels. There are ``positions``, and ``filters``."""

    channels: int
    taps: int
    stride: int
    positions: int
    filters: int
    bytes: int

    def span(self, pixels: int) -> int:
        """Return how many pixels of the image so many neighbouring positions see."""
        return self.taps + (pixels - 1) * self.stride

    def chunk(self, pixels: int) -> tuple[int, int]:
        """Return how many pixels are stored as one, and how many channels each of them has there. Windows that compute
        ``pixels`` move by whole chunks, of a multiple of 16 bytes, and see as few bytes as they can."""
        step = pixels * self.stride
        counts = range(step if self.channels <= FEW else 1, 0, -1)
        found = [(n, self._pitch(n)) for n in counts if step % n == 0 and step // n <= _MOST_STRIDE]
        return min(found, key=lambda chunk: self.seen(pixels, *chunk), default=(1, self._pitch(1)))

    def _pitch(self, together: int) -> int:
        unit = VECTOR_BYTES // gcd(VECTOR_BYTES, together * self.bytes)
        return -(-self.channels // unit) * unit

    def seen(self, pixels: int, together: int, pitch: int) -> int:
        """Return how many bytes a window that computes ``pixels`` sees in chunks of so many pixels."""
        return -(-self.span(pixels) // together) * together * pitch * self.bytes

    def cost(self, pixels: int) -> float:
        """Return the cycles of a row of a window that computes ``pixels``, for 64 positions and each of these."""
        seen, filters = self.seen(pixels, *self.chunk(pixels)), pixels * self.filters
        loaded = 64 * -(-seen // LINE_BYTES) * LINE_BYTES + filters * seen / 2
        return max(loaded / _BYTES_PER_CYCLE, -(-seen // _STEP_BYTES) * filters / 2) / pixels

    def pixels(self, *, unit: int = 1, whole: bool = True) -> int:
        """Return how many pixels are best computed at once, 1 or a multiple of ``unit``. They are ``whole`` parts of
        the row, or some are left out."""
        most = min(_MOST_FILTERS // self.filters, self.positions)
        most = most if self.channels <= FEW else min(most, _MOST_STRIDE // self.stride)
        counts = [n for n in range(2, most + 1) if n % unit == 0 and not (whole and self.positions % n)]
        best = min(counts, key=lambda n: (self._padded_cost(n), n), default=1)
        return best if self._padded_cost(best) <= _CLEARLY * self.cost(1) else 1

    def _padded_cost(self, pixels: int) -> float:
        return self.cost(pixels) * -(-self.positions // pixels) * pixels / self.positions


def pixel_window(node: Node, x: Value, w: Value) -> PixelWindow | None:
    """Return what the window of a convolution sees in a row. None for pixels of many channels, for windows with gaps,
    for images of which several rows are folded to one, and where matrix units may not multiply."""
    given, dtype = OPERATORS[node.op].values(attributes_of(node)), node.result.dtype
    rounds = dtype.bits == 16 or (dtype == float32 and given.text("precision") != IEEE)
    if given.integer("groups") > 1 or given.integers("dilation")[-1] > 1 or not rounds:
        return None
    last, first = given.flag("channels_last"), given.flag("filters_first") or not given.flag("channels_last")
    channels, positions = (x.shape[-1], node.result.shape[-2]) if last else (x.shape[1], node.result.shape[-1])
    taps = w.shape[-1 if not last else -2 if first else -3]
    filters = w.shape[0] if first else w.shape[-1]
    stride = given.integers("stride")
    folded = len(stride) == 2 and stride[0] > 1 and channels <= FEW
    if channels * dtype.bytes > _MOST_BYTES or taps == 1 or folded:
        return None
    return PixelWindow(channels, taps, stride[-1], positions, filters, dtype.bytes)


def compute_pixels_at_once(graph: Graph) -> Graph:
    """Let convolutions with channels last, whose readers want these last, compute several pixels of a row at once."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        readers = graph.readers[node.name]
        if node.op != "convolution" or node.name in graph.kept or any(_moves(r, node) for r in readers):
            return None
        x, w, *bias = (rewriter.values[name] for name in node.operands)
        row, given = pixel_window(node, x, w), attributes_of(node)
        pixels = 1 if row is None or not given["channels_last"] else row.pixels()
        if row is None or pixels == 1:
            return None
        rank, channels, filters = len(x.shape) - 2, row.channels, row.filters
        if not given["filters_first"]:
            w = rewriter.node("permute", w, order=(rank + 1, *range(rank + 1)))
        outer = w.shape[1:rank]
        w = rewriter.node("reshape", w, shape=(filters, *outer, row.taps * channels))
        w = repeated_filters(rewriter, w, pixels, row.stride * channels)
        w = rewriter.node("permute", w, order=(rank, *range(rank), rank + 1))
        w = rewriter.node("reshape", w, shape=(pixels * filters, *outer, row.span(pixels), channels))
        if not given["filters_first"]:
            w = rewriter.node("permute", w, order=(*range(1, rank + 2), 0))
        bias = [
            rewriter.node("expand", rewriter.node("reshape", v, shape=(1, filters)), shape=(pixels, filters))
            for v in bias
        ]
        bias = [rewriter.node("reshape", v, shape=(pixels * filters,)) for v in bias]
        stride = (*integers_of(node, "stride")[:-1], pixels * row.stride)
        y = rewriter.node("convolution", x, w, *bias, **{**given, "stride": stride})
        return rewriter.node("reshape", y, shape=node.result.shape)

    return rewrite(graph, replaced)


def _moves(reader: Node, node: Node) -> bool:
    """Return whether a reader of a convolution puts its channels elsewhere, such as those that become pixels."""
    split = reader.op == "reshape" and reader.result.shape[-1:] != node.result.shape[-1:]
    return split or reader.op == "permute"


def repeated_filters(b: Rewriter, rows: Value, pixels: int, step: int) -> Value:
    """Return filters [..., seen] as [..., pixels, seen + (pixels - 1) * step]: each one ``step`` further than that of
    the pixel before it, with zeros beside it."""
    *outer, seen = rows.shape
    rank, wide = len(outer), seen + (pixels - 1) * step
    rows = b.node("pad", rows, before=(0,) * (rank + 1), behind=(*[0] * rank, wide + step - seen), value=0.0)
    rows = b.node("reshape", rows, shape=(*outer, 1, wide + step))
    rows = b.node("expand", rows, shape=(*outer, pixels, wide + step))
    rows = b.node("reshape", rows, shape=(*outer, pixels * (wide + step)))
    rows = b.node("slice", rows, dim=rank, start=0, stop=pixels * wide, step=1)
    return b.node("reshape", rows, shape=(*outer, pixels, wide))
