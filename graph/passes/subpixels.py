"""Transposed convolutions without the zeros between pixels: convolutions whose channels become pixels (Shi et al.,
"Real-Time Single Image and Video Super-Resolution", CVPR 2016).

With stride 2, every second output pixel along a dimension meets every second place of the kernel. Each of these phases
becomes channels of a convolution of the given image, and a permutation moves them to their places:

    y[n, o, 2 i + p] = sum over k of spread(x)[n, c, 2 i + p + k] w[o, c, k]
                     = sum over t of x[n, c, i + t] v[(o, p), c, t],    v[(o, p), c, t] = w[o, c, 2 t - p]

A dilated kernel is one with zeros between its places. With stride 5 and dilation 2, each phase meets one of 3 places or
none, and windows have 2 places instead of 3.

Pointwise nodes behind it are computed ahead of the permutation, so that it is the last one of a kernel.
"""

from dataclasses import dataclass, replace
from math import prod

from ...core.dtypes import float32
from ...core.precision import IEEE
from ..graph import FOREIGN, Graph, Node, Value
from ..operators import OPERATORS
from .pixels_at_once import pixel_window, repeated_filters
from .rewrite import Rewriter, attributes_of, is_elementwise

_CHANNELS_LAST = ("convolution", "concatenate", "spread")
"""What is computed with channels last. Pools and norms take pixels side by side as well, which a convolution can store
in their places. Group norms of 16-bit floats do not."""


def use_subpixels(graph: Graph, *, gpu: bool = False) -> Graph:
    """``graph`` with transposed convolutions in this form; ``graph`` itself where it has none. With ``gpu``, so are
    those of few channels whose results are outputs."""
    if not any(node.op in ("convolution", "spread") for node in graph.nodes):
        return graph
    rewriter = _Subpixels(graph, gpu)
    for node in graph.nodes:
        rewriter.rewrite(node)
    return rewriter.finished()


@dataclass(frozen=True, slots=True)
class _Split:
    """A value of ``shape`` before its channels become pixels. ``steps``: how many do so along each dimension. Of its
    channels those that become neighbours are neighbours, or with ``phases_first`` those that stay channels."""

    value: Value
    steps: tuple[int, ...]
    shape: tuple[int, ...]
    phases_first: bool

    def like(self, value: Value) -> "_Split":
        return replace(self, value=value)


class _Subpixels(Rewriter):
    """``split`` has the values of the old graph whose channels are no pixels yet, by their names."""

    def __init__(self, graph: Graph, gpu: bool) -> None:
        super().__init__(graph)
        self.gpu = gpu
        self.split: dict[str, _Split] = {}

    def rewrite(self, node: Node) -> None:
        found = None
        if node.op != FOREIGN:
            found = self._convolution(node) or self._pixels_at_once(node) or self._pointwise(node)
        if found is not None:
            self.split[node.name] = found
            return
        for name in node.operands:
            self._merge(name)
        self.keep(node)

    def finished(self) -> Graph:
        for name in self.graph.kept:
            self._merge(name)
        return super().finished()

    def _merge(self, name: str) -> None:
        """Write the value that stands for ``name`` with its pixels, where it is not written yet."""
        if name in self.values or name not in self.split:
            return
        y, steps, shape = (s := self.split[name]).value, s.steps, s.shape
        (batch, _, *counts), phases = y.shape, [n for n in steps if n > 1]
        channels = (*phases, shape[1]) if s.phases_first else (shape[1], *phases)
        y = self.node("reshape", y, shape=(batch, *channels, *counts))
        channel, phase = (1 + len(phases), 1) if s.phases_first else (1, 2)
        order = [0, channel]
        for d, step in enumerate(steps):
            order += [2 + len(phases) + d, *([phase] if step > 1 else [])]
            phase += step > 1
        y = self.node("permute", y, order=tuple(order))
        y = self.node("reshape", y, shape=(*shape[:2], *(n * step for n, step in zip(counts, steps, strict=True))))
        for d, extent in enumerate(shape):
            if y.shape[d] > extent:
                y = self.node("slice", y, dim=d, start=0, stop=extent, step=1)
        self.values[name] = y

    def _convolution(self, node: Node) -> _Split | None:
        """Return a convolution of a spread image; None for any other node, where windows would leave the image, and
        where phases meet so different places of a dilated kernel that a window of them all has more."""
        if node.op != "convolution":
            return None
        given, rank = OPERATORS[node.op].values(attributes_of(node)), len(node.result.shape) - 2
        if given.flag("channels_last") or {*given.integers("stride")} != {1}:
            return None
        x, steps = self._before_spread(node.operands[0], rank)
        kernel, counts = self.graph.values[node.operands[1]].shape[2:], node.result.shape[2:]
        apart = given.integers("dilation")
        spans = [d * (k - 1) + 1 for d, k in zip(apart, kernel, strict=True)]
        sides = [
            _WindowSide.of(*side)
            for side in zip(steps, given.integers("before"), spans, x.shape[2:], counts, strict=True)
        ]
        taps = tuple(s.taps for s in sides)
        if prod(steps) == 1 or any(s.behind < 0 for s in sides) or prod(taps) > prod(kernel):
            return None
        made = _Split(x, steps, node.result.shape, given.integer("groups") == 1 and self._stays_last(node))
        rounds = node.result.dtype == float32 and given.values["precision"] != IEEE
        if any(n % step for n, step in zip(counts, steps, strict=True)) and not (made.phases_first or rounds):
            return None  # no kernel class leaves pixels out
        w, *bias = (self.values[name] for name in node.operands[1:])
        for d, step in enumerate(apart):
            w = self.node("spread", w, dim=2 + d, step=step) if step > 1 else w
        padding = {"before": (0, 0, *(s.first for s in sides)), "behind": (0, 0, *(s.last for s in sides))}
        w = self.node("pad", w, **padding, value=0.0)
        w = self.node("reshape", w, shape=(*w.shape[:2], *(n for pair in zip(taps, steps, strict=True) for n in pair)))
        phases = tuple(range(3, 3 + 2 * rank, 2))
        w = self.node("flip", w, dims=phases)
        channels = (*phases, 0) if made.phases_first else (0, *phases)
        w = self.node("permute", w, order=(*channels, 1, *range(2, 2 + 2 * rank, 2)))
        w = self.node("reshape", w, shape=(prod(w.shape[: rank + 1]), w.shape[rank + 1], *taps))
        bias = [self._for_phases(v, made) for v in bias]
        border = {"before": tuple(s.before for s in sides), "behind": tuple(s.behind for s in sides)}
        return made.like(
            self.node("convolution", x, w, *bias, **{**node.attributes, **border, "dilation": (1,) * rank})
        )

    def _pixels_at_once(self, node: Node) -> _Split | None:
        """Return a convolution that computes several pixels of a row at once, whose results are outputs; None for any
        other node, and where channels are many."""
        if not self.gpu or node.op != "convolution" or not self._is_output(node):
            return None
        for name in node.operands:
            self._merge(name)
        x, w, *bias = (self.values[name] for name in node.operands)
        row, given = pixel_window(node, x, w), OPERATORS[node.op].values(attributes_of(node))
        if row is None or given.flag("channels_last"):
            return None
        single = node.result.dtype == float32
        pixels = row.pixels(unit=1 if single else 2, whole=not single)
        if pixels == 1:
            return None
        rank = len(x.shape) - 2
        made = _Split(x, (*(1,) * (rank - 1), pixels), node.result.shape, False)
        w = repeated_filters(self, w, pixels, row.stride)
        w = self.node("permute", w, order=(0, rank + 1, *range(1, rank + 1), rank + 2))
        w = self.node("reshape", w, shape=(w.shape[0] * pixels, *w.shape[2:]))
        before, behind = given.integers("before"), given.integers("behind")
        step, windows = pixels * row.stride, -(-row.positions // pixels)
        needed = (windows - 1) * step + row.span(pixels) - before[-1] - x.shape[-1]
        window = {
            "stride": (*given.integers("stride")[:-1], step),
            "behind": (*behind[:-1], max(behind[-1], needed)),
        }
        bias = [self._for_phases(v, made) for v in bias]
        return made.like(self.node("convolution", x, w, *bias, **{**node.attributes, **window}))

    def _is_output(self, node: Node) -> bool:
        """Return whether a value, or what pointwise nodes make of it, is nothing but an output."""
        readers = self.graph.readers[node.name]
        if node.name in self.graph.kept:
            return not readers
        return bool(readers) and all(is_elementwise(r) and self._is_output(r) for r in readers)

    def _stays_last(self, node: Node) -> bool:
        """Return whether what reads a value wants its channels last, behind pointwise nodes."""
        return any(
            reader.op in _CHANNELS_LAST
            or (reader.op == "group_norm" and reader.result.dtype.bits == 16)
            or (is_elementwise(reader) and self._stays_last(reader))
            for reader in self.graph.readers[node.name]
        )

    def _for_phases(self, channels: Value, split: _Split) -> Value:
        """Numbers of channels, for each of those that they come from."""
        count, times = channels.elements, prod(split.steps)
        if not split.phases_first:
            return self.node("repeat", channels, dim=0, times=times)
        tiled = self.node("expand", self.node("reshape", channels, shape=(1, count)), shape=(times, count))
        return self.node("reshape", tiled, shape=(times * count,))

    def _before_spread(self, name: str, rank: int) -> tuple[Value, tuple[int, ...]]:
        """Return the image that ``name`` is spread from, and by how much along each dimension."""
        steps = [1] * rank
        while (made := self.graph.producers.get(name)) is not None and made.op == "spread":
            values = OPERATORS["spread"].values(made.attributes)
            if (d := values.integer("dim") - 2) < 0 or steps[d] > 1:
                break
            steps[d], name = values.integer("step"), made.operands[0]
        self._merge(name)
        return self.values[name], tuple(steps)

    def _pointwise(self, node: Node) -> _Split | None:
        """Return a pointwise node of such values, and of others that are the same for all pixels."""
        if not is_elementwise(node):
            return None
        whole = [self.split[name] for name in node.operands if name in self.split]
        others = [self.graph.values[name].shape for name in node.operands if name not in self.split]
        shape = node.result.shape
        if not whole or any(s != whole[0].like(s.value) or s.shape != shape for s in whole):
            return None
        rank = len(shape)
        if any(prod(o) != 1 and (len(o) < rank - 1 or prod(o) != o[1 - rank]) for o in others):
            return None
        operands = [
            self.split[name].value if name in self.split else self._repeated(name, rank, whole[0])
            for name in node.operands
        ]
        return whole[0].like(self.node(node.op, *operands, **node.attributes))

    def _repeated(self, name: str, rank: int, split: _Split) -> Value:
        """Return a value that is the same for all pixels, for each of the channels that become pixels."""
        value = self.values[name]
        if value.elements == 1:
            return self.node("reshape", value, shape=()) if value.shape else value
        value = self._for_phases(self.node("reshape", value, shape=(value.elements,)), split)
        return self.node("reshape", value, shape=(value.elements, *[1] * (rank - 2)))


@dataclass(frozen=True, slots=True)
class _WindowSide:
    """A window along one dimension: ``taps`` places with ``before`` and ``behind`` pixels of border. ``first`` and
    ``last``: how many zeros the kernel gets on either side."""

    taps: int
    before: int
    behind: int
    first: int
    last: int

    @staticmethod
    def of(step: int, before: int, kernel: int, extent: int, count: int) -> "_WindowSide":
        """Return the window in the place of one of ``kernel`` places on an image of ``extent`` pixels that is spread by
        ``step``, with ``before`` pixels of border, at ``count`` positions."""
        lowest, highest = -(before // step), (step - 1 + kernel - 1 - before) // step
        taps, first = highest - lowest + 1, step - 1 - before - step * lowest
        behind = -(-count // step) - extent + lowest + taps - 1
        return _WindowSide(taps, -lowest, behind, first, step * taps - kernel - first)
