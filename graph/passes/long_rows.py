"""Few long rows, reduced in two steps.

A kernel for rows gives each row to one CTA, or to the CTAs of one cluster. A sum of everything would leave most of a
device idle. It becomes the sum of the sums of its parts, which are many rows:

    mean over (0, 1) of x[4096, 2048]    ->    mean over 0 of the mean over 1
    variance                             ->    means and variances of parts, joined
    layer_norm                           ->    mean and variance of each row, and what is done with them
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log, prod

from ...core.dtypes import float32
from ..graph import Graph, Node, Value
from ..operators import OPERATORS, Kind
from .reductions import PLAIN, joined_variance, reshaped
from .rewrite import Rewriter, integers_of, rewrite

_FEW_ROWS = 32
"""With so many rows and more, clusters of CTAs keep a device busy."""
_LONG = 1 << 16
"""Rows with fewer elements are reduced at once."""
_PART, _SHORTEST, _FEWEST_PARTS = 8192, 512, 128
"""About how many elements a part has, how many at least, and how many parts there are at least, in all rows."""
_SHORTEST_COMPUTED, _FEWEST_COMPUTED = 128, _FEW_ROWS
"""The same of parts that end where dimensions do, of what is computed from slices: in any other shape it would be
stored first."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The shape in which a value is reduced, and the dimensions of the second step and of the first."""

    shape: tuple[int, ...]
    runs: tuple[tuple[int, ...], tuple[int, ...]]


def split_long_rows(graph: Graph) -> Graph:
    """Reduce few long rows in two steps. Values of 16 bits are float32 between the steps."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op in (*PLAIN, "variance") and not node.attributes.get("keep"):
            return _reduction(rewriter, node, computed=_is_of_slices(graph, node.operands[0]))
        return _layer_norm(rewriter, node) if node.op == "layer_norm" else None

    return rewrite(graph, replaced)


def _is_of_slices(graph: Graph, name: str) -> bool:
    """Return whether a value is computed from slices, as the differences of neighbours are."""
    producer = graph.producers.get(name)
    if producer is None or producer.is_foreign or OPERATORS[producer.op].kind is not Kind.POINTWISE:
        return producer is not None and producer.op == "slice"
    return any(_is_of_slices(graph, operand) for operand in producer.operands)


def _reduction(rewriter: Rewriter, node: Node, *, computed: bool) -> Value | None:
    x, dims = rewriter.values[node.operands[0]], integers_of(node, "dims")
    last = tuple(range(len(x.shape) - len(dims), len(x.shape)))
    parts = _parts(x.shape, len(dims), computed=computed) if dims == last and x.dtype.is_float else None
    if parts is None:
        return None
    y = _widened(rewriter, reshaped(rewriter, x, parts.shape))
    if node.op == "variance":
        correction = OPERATORS[node.op].values(node.attributes).integer("correction")
        y = joined_variance(rewriter, y, parts.runs, correction)
    else:
        for run in reversed(parts.runs):
            y = rewriter.node(node.op, y, dims=run)
    return y if y.dtype == node.result.dtype else rewriter.node("cast", y, dtype=node.result.dtype.name)


def _layer_norm(rewriter: Rewriter, node: Node) -> Value | None:
    v = OPERATORS[node.op].values(node.attributes)
    x, *weights = (rewriter.values[name] for name in node.operands)
    count = v.integer("dims")
    parts = _parts(x.shape, count)
    if parts is None:
        return None
    wide, kept = _widened(rewriter, x), (*x.shape[:-count], *(1,) * count)
    mean = split = _widened(rewriter, reshaped(rewriter, x, parts.shape))
    for run in reversed(parts.runs):
        mean = rewriter.node("mean", mean, dims=run)
    variance = joined_variance(rewriter, split, parts.runs, 0)
    epsilon = rewriter.node("full", shape=(), value=v.number("epsilon"), dtype=float32.name)
    inverse = rewriter.node("rsqrt", rewriter.node("add", variance, epsilon))
    y = rewriter.node("sub", wide, reshaped(rewriter, mean, kept))
    y = rewriter.node("mul", y, reshaped(rewriter, inverse, kept))
    for op, weight in zip(("mul", "add"), weights, strict=False):
        y = rewriter.node(op, y, _widened(rewriter, weight))
    return y if y.dtype == x.dtype else rewriter.node("cast", y, dtype=x.dtype.name)


def _widened(rewriter: Rewriter, x: Value) -> Value:
    return x if x.dtype.bits > 16 else rewriter.node("cast", x, dtype=float32.name)


def _parts(shape: Sequence[int], count: int, *, computed: bool = False) -> _Parts | None:
    """Return how the last ``count`` dimensions are reduced in two steps; None where rows are many or short, or cannot
    be divided. Parts end where dimensions do, if they can; those of what is ``computed`` from slices always do."""
    kept, long = tuple(shape[: len(shape) - count]), shape[len(shape) - count :]
    rows, length = prod(kept), prod(long)
    if not 0 < rows < _FEW_ROWS or length < _LONG:
        return None

    shortest, fewest = (_SHORTEST_COMPUTED, _FEWEST_COMPUTED) if computed else (_SHORTEST, _FEWEST_PARTS)

    def fit(sizes: Iterable[int]) -> int | None:
        found = [n for n in sizes if n >= shortest and length % n == 0 and rows * (length // n) >= fewest]
        return min(found, key=lambda n: abs(log(n / _PART)), default=None)

    ends = {prod(long[d:]): d for d in range(1, count)}
    if (size := fit(ends)) is not None:
        first, end = len(kept), len(kept) + ends[size]
        return _Parts(tuple(shape), (tuple(range(first, end)), tuple(range(end, len(shape)))))
    size = None if computed else fit(range(_SHORTEST, 4 * _PART))
    rank = len(kept)
    return None if size is None else _Parts((*kept, length // size, size), ((rank,), (rank + 1,)))
