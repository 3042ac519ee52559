"""Reductions in the forms that kernel classes take: over the last dimensions, or over dimensions next to each other in
front of those that stay."""

from collections.abc import Sequence
from math import prod

from ..graph import Graph, Node, Value
from ..operators import OPERATORS
from .rewrite import Rewriter, integers_of, rewrite

PLAIN = ("sum", "prod", "max", "min", "mean")
"""Reductions whose result is the reduction of those of equal parts."""

_SAMPLES = 16
"""The pivot of a column is the mean of so many of its elements."""
_LONG_COLUMN = 1024
"""From so many elements, the variance of a column is computed in one pass."""


def keep_no_dims(graph: Graph) -> Graph:
    """Write reductions that keep their dimensions as a reduction and a reshape."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if not any(a.name == "keep" for a in OPERATORS[node.op].attributes) or not node.attributes.get("keep"):
            return None
        result = rewriter.node(node.op, rewriter.values[node.operands[0]], **{**node.attributes, "keep": False})
        return rewriter.node("reshape", result, shape=node.result.shape)

    return rewrite(graph, replaced)


def split_reductions(graph: Graph) -> Graph:
    """Write reductions over other than the last dimensions as several of one kernel each.

    sum over 0, 2 and 3        ->    the sum over 0 of the sums over 2 and 3
    variance over 0            ->    the mean of (x - mean(x))², or of long columns, with their own pivots,
                                     the sum of (x - pivot)² and that of x - pivot, in one pass
    variance over 0, 2 and 3   ->    the means and variances over 2 and 3, joined as Chan, Golub and LeVeque do
    mean of such long columns  ->    their pivots less the sum of pivot - x over their length, in the same pass
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op in (*PLAIN, "variance") and not node.attributes.get("keep"):
            return _split(rewriter, node, beside_variance=node.op == "mean" and _has_variance(graph, node))
        return None

    return rewrite(graph, replaced)


def _has_variance(graph: Graph, node: Node) -> bool:
    """Return whether the variance of what a mean is taken of is computed, too."""
    readers, dims = graph.readers[node.operands[0]], integers_of(node, "dims")
    return any(r.op == "variance" and integers_of(r, "dims") == dims for r in readers if not r.is_foreign)


def split_softmax(graph: Graph) -> Graph:
    """Write each softmax over another than the last dimension in steps. What two of them read is there twice, so that
    no kernel stores it:

    t = max(x);  s = sum(exp(x - t));  exp(x - t) / s
    """
    return rewrite(graph, lambda b, node: _softmax(b, node) if node.op in ("softmax", "log_softmax") else None)


def split_group_norms(graph: Graph) -> Graph:
    """Write each group norm as a norm of rows, where its weights belong to rows or to columns of these; elsewhere as
    the mean and the variance of each group, and what is done with them for each element."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "group_norm":
            return None
        x, *weights = (rewriter.values[name] for name in node.operands)
        v = OPERATORS[node.op].values(node.attributes)
        batch, channels, *rest = x.shape
        groups, pixels = v.integer("groups"), prod(rest)
        size = channels // groups
        rows = rewriter.node("reshape", x, shape=(batch, groups, size * pixels))
        shape: tuple[int, ...] = (groups, size)
        if pixels == 1 or size == 1 or not weights:
            y = rewriter.node("layer_norm", rows, dims=1, epsilon=v.number("epsilon"))
        else:
            mean = rewriter.node("mean", rows, dims=(2,))
            variance = rewriter.node("variance", rows, dims=(2,), correction=0)
            epsilon = rewriter.node("full", shape=(), value=v.number("epsilon"), dtype=x.dtype.name)
            inverse = rewriter.node("rsqrt", rewriter.node("add", variance, epsilon))
            y = rewriter.node("reshape", x, shape=(batch, groups, size, pixels))
            for op, of_group in (("sub", mean), ("mul", inverse)):
                y = rewriter.node(op, y, rewriter.node("reshape", of_group, shape=(batch, groups, 1, 1)))
            shape = (groups, size, 1)
        for op, weight in zip(("mul", "add"), weights, strict=False):
            y = rewriter.node(op, y, rewriter.node("reshape", weight, shape=shape))
        return rewriter.node("reshape", y, shape=x.shape)

    return rewrite(graph, replaced)


def _split(rewriter: Rewriter, node: Node, *, beside_variance: bool) -> Value | None:
    x, dims = rewriter.values[node.operands[0]], integers_of(node, "dims")
    long = [d for d, n in enumerate(x.shape) if n > 1]
    reduced = [d for d in dims if d in long]
    places = tuple(long.index(d) for d in reduced)
    runs = _runs(places)
    whole = not runs or (len(runs) == 1 and (node.op != "variance" or runs[0][-1] == len(long) - 1))
    if not runs:
        return None if node.op == "variance" else reshaped(rewriter, x, node.result.shape)
    columns = tuple(x.shape[d] for d in long)
    if beside_variance and _is_long_column(columns, runs):
        pivot, _, once, count = _sums_of_columns(rewriter, reshaped(rewriter, x, columns), runs[0])
        mean = rewriter.node("sub", reshaped(rewriter, pivot, once.shape), _times(rewriter, once, 1 / count))
        return reshaped(rewriter, mean, node.result.shape)
    if whole and len(reduced) == len(dims):
        return None
    x = reshaped(rewriter, x, columns)
    if node.op == "variance":
        correction = OPERATORS[node.op].values(node.attributes).integer("correction")
        y = joined_variance(rewriter, x, runs, correction)
    else:
        y = x
        for run in reversed(runs):
            y = rewriter.node(node.op, y, dims=run)
    return reshaped(rewriter, y, node.result.shape)


def joined_variance(rewriter: Rewriter, x: Value, runs: Sequence[tuple[int, ...]], correction: int) -> Value:
    """Return the variance over ``runs`` of dimensions: the means and variances over the last run, joined over the
    others."""
    *others, last = runs
    count = prod(x.shape[d] for run in runs for d in run)
    if _is_long_column(x.shape, runs):
        return _variance_of_columns(rewriter, x, last, count - correction)
    if last[-1] == len(x.shape) - 1:
        if not others:
            return rewriter.node("variance", x, dims=last, correction=correction)
        inner = rewriter.node("variance", x, dims=last, correction=0)
        of_rows = rewriter.node("mean", x, dims=last)
    else:
        inner, of_rows = None, x
    mean = of_rows
    for run in reversed(others if inner is not None else runs):
        mean = rewriter.node("mean", mean, dims=run)
    kept = tuple(1 if any(d in run for run in runs) else n for d, n in enumerate(x.shape))
    kept = kept if inner is None else tuple(n for d, n in enumerate(kept) if d not in last)
    off = rewriter.node("square", rewriter.node("sub", of_rows, rewriter.node("reshape", mean, shape=kept)))
    total = off if inner is None else rewriter.node("add", off, inner)
    weight = 1 if inner is None else prod(x.shape[d] for d in last)
    for run in reversed(others if inner is not None else runs):
        total = rewriter.node("sum", total, dims=run)
    left = count - correction
    return _times(rewriter, total, weight / left if left > 0 else float("inf"))


def _is_long_column(shape: Sequence[int], runs: Sequence[tuple[int, ...]]) -> bool:
    """Return whether one run of dimensions is reduced, ahead of others, of many elements."""
    return len(runs) == 1 and runs[0][-1] < len(shape) - 1 and prod(shape[d] for d in runs[0]) >= _LONG_COLUMN


def _variance_of_columns(rewriter: Rewriter, x: Value, run: tuple[int, ...], left: int) -> Value:
    """Return the sum of squares around the mean over ``run``, over ``left``, by one pass over ``x``.

    Squares of x itself would cancel where the mean is large. Those around a pivot near the mean do not (Chan, Golub and
    LeVeque, "Algorithms for computing the sample variance", 1983, on shifted data):

    squares around the mean = sum((x - pivot)²) - sum(x - pivot)² / count
    """
    _, squares, once, count = _sums_of_columns(rewriter, x, run)
    around = rewriter.node("sub", squares, _times(rewriter, rewriter.node("square", once), 1 / count))
    least = rewriter.node("full", shape=(), value=0.0, dtype=x.dtype.name)
    return _times(rewriter, rewriter.node("maximum", around, least), 1 / left if left > 0 else float("inf"))


def _sums_of_columns(rewriter: Rewriter, x: Value, run: tuple[int, ...]) -> tuple[Value, Value, Value, int]:
    """Return the pivots of columns, the sums of (x - pivot)² and of pivot - x over ``run``, and of how many elements
    these are."""
    first, count = run[0], prod(x.shape[d] for d in run)
    columns = reshaped(rewriter, x, (*x.shape[:first], count, *x.shape[run[-1] + 1 :]))
    step = count // _SAMPLES
    sample = rewriter.node("slice", columns, dim=first, start=step // 2, stop=step * _SAMPLES, step=step)
    kept = tuple(1 if d in run else n for d, n in enumerate(x.shape))
    pivot = rewriter.node("reshape", rewriter.node("mean", sample, dims=(first,)), shape=kept)
    squares = rewriter.node("sum", rewriter.node("square", rewriter.node("sub", x, pivot)), dims=run)
    # pivot - x has the same square as x - pivot, which would be stored if both sums read it
    once = rewriter.node("sum", rewriter.node("sub", pivot, x), dims=run)
    return pivot, squares, once, count


def _times(rewriter: Rewriter, x: Value, factor: float) -> Value:
    value = factor if factor != float("inf") else "inf"
    return rewriter.node("mul", x, rewriter.node("full", shape=(), value=value, dtype=x.dtype.name))


def _softmax(rewriter: Rewriter, node: Node) -> Value | None:
    x, d = rewriter.values[node.operands[0]], OPERATORS[node.op].values(node.attributes).integer("dim")
    if prod(x.shape[d + 1 :]) == 1 or x.shape[d] == 1:
        if d == len(x.shape) - 1 or x.shape[d] == 1:
            return None
        rows = rewriter.node("reshape", x, shape=x.shape[: d + 1])
        return rewriter.node("reshape", rewriter.node(node.op, rows, dim=d), shape=x.shape)
    one = tuple(1 if e == d else n for e, n in enumerate(x.shape))

    top = rewriter.node("reshape", rewriter.node("max", x, dims=(d,)), shape=one)
    total = rewriter.node("sum", rewriter.node("exp", rewriter.node("sub", x, top)), dims=(d,))
    off = rewriter.node("sub", x, top)
    if node.op == "softmax":
        return rewriter.node("div", rewriter.node("exp", off), rewriter.node("reshape", total, shape=one))
    return rewriter.node("sub", off, rewriter.node("reshape", rewriter.node("log", total), shape=one))


def _runs(dims: Sequence[int]) -> list[tuple[int, ...]]:
    """Dimensions next to each other, together."""
    found: list[tuple[int, ...]] = []
    for d in dims:
        if found and found[-1][-1] == d - 1:
            found[-1] = (*found[-1], d)
        else:
            found.append((d,))
    return found


def reshaped(rewriter: Rewriter, x: Value, shape: tuple[int, ...]) -> Value:
    """``x`` with another shape."""
    return x if x.shape == shape else rewriter.node("reshape", x, shape=shape)
