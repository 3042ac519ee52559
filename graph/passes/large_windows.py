"""Pools with large windows, one dimension after the other.

No kernel for windows takes more than 64 points of an image. The extremes and the mean of a window are those of its
rows, and windows that lie side by side are rows of another shape:

    average_pool 11 x 11            ->    average_pool 11 x 1 of average_pool 1 x 11
    average_pool 80, moved by 80    ->    mean over 1 of x[n, 80]
"""

from math import prod

from ...core.dtypes import float32
from ..graph import Graph, Node, Value
from .rewrite import Rewriter, attributes_of, integers_of, rewrite

MOST_POINTS = 64
"""Windows of so many points are taken at once."""
_NOTHING = {"kernel": 1, "stride": 1, "before": 0, "behind": 0, "dilation": 1}
"""What a pool has for a dimension without a window."""


def split_large_windows(graph: Graph) -> Graph:
    """Write pools with large windows as pools along one dimension each, the last one first. Means of 16 bits are
    float32 between the steps."""

    def replaced(b: Rewriter, node: Node) -> Value | None:
        if node.op not in ("max_pool", "average_pool"):
            return None
        sides = {name: integers_of(node, name) for name in _NOTHING}
        kernel = sides["kernel"]
        used = [d for d in range(len(kernel)) if any(sides[name][d] != n for name, n in _NOTHING.items())]
        if prod(kernel) <= MOST_POINTS or (len(used) < 2 and not _side_by_side(sides, used[0])):
            return None
        x, narrow = b.values[node.operands[0]], node.op == "average_pool" and node.result.dtype.bits < 32
        x = b.node("cast", x, dtype=float32.name) if narrow else x
        for d in reversed(used):
            if kernel[d] > MOST_POINTS and _side_by_side(sides, d):
                x = _reduced(b, node.op, x, len(x.shape) - len(kernel) + d, kernel[d])
                continue
            alone = {
                name: tuple(sides[name][e] if e == d else nothing for e in range(len(kernel)))
                for name, nothing in _NOTHING.items()
            }
            x = b.node(node.op, x, **{**attributes_of(node), **alone})
        return b.node("cast", x, dtype=node.result.dtype.name) if narrow else x

    return rewrite(graph, replaced)


def _side_by_side(sides: dict[str, tuple[int, ...]], d: int) -> bool:
    """Return whether windows along a dimension neither overlap nor leave anything between them, nor reach beyond the
    image."""
    own = {name: values[d] for name, values in sides.items()}
    return own["kernel"] == own["stride"] and own["dilation"] == 1 and not own["before"] and not own["behind"]


def _reduced(b: Rewriter, op: str, x: Value, dim: int, size: int) -> Value:
    """Return the extreme or the mean of every ``size`` elements along a dimension."""
    count = x.shape[dim] // size
    if count * size < x.shape[dim]:
        x = b.node("slice", x, dim=dim, start=0, stop=count * size)
    windows = b.node("reshape", x, shape=(*x.shape[:dim], count, size, *x.shape[dim + 1 :]))
    return b.node("max" if op == "max_pool" else "mean", windows, dims=(dim + 1,))
