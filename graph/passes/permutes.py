"""Products read their left operand in the order that it is stored in. A permutation before a product moves behind it,
where it often meets its inverse, or into a constant operand, where it is computed once.

matmul(reshape(permute(x[4, 50, 768], [1, 0, 2]), [200, 768]), w)
    ->  reshape(permute(reshape(matmul(reshape(x, [200, 768]), w), [4, 50, n]), [1, 0, 2]), [200, n])
matmul(reshape(permute(x[4, 7, 7, 512], [0, 3, 1, 2]), [4, 25088]), w)    ->    matmul(reshape(x, [4, 25088]), w')
"""

from collections.abc import Sequence
from math import prod

from ..graph import Graph, Node, Value
from .reshapes import is_computed
from .rewrite import Rewriter, integers_of, is_elementwise, rewrite


def join_rows(graph: Graph) -> Graph:
    """Make one product of a batch of products that share their right operand.

    matmul(x[50, 4, k], expand(w[k, n], [50, k, n]))    ->    reshape(matmul(reshape(x, [200, k]), w), [50, 4, n])
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "matmul" or len(node.result.shape) < 3:
            return None
        x, expanded = (rewriter.values[name] for name in node.operands)
        made = rewriter.made.get(expanded.name)
        if made is None or made.op != "expand" or x.shape[:-1] != node.result.shape[:-1]:
            return None
        w = rewriter.value(made.operands[0])
        if w.shape[-2:] != expanded.shape[-2:] or prod(w.shape[:-2]) != 1:
            return None
        rows = rewriter.node("reshape", x, shape=(prod(x.shape[:-1]), x.shape[-1]))
        y = rewriter.node("matmul", rows, rewriter.node("reshape", w, shape=w.shape[-2:]), **node.attributes)
        return rewriter.node("reshape", y, shape=node.result.shape)

    return rewrite(graph, replaced)


def multiply_as_stored(graph: Graph) -> Graph:
    """Give products of two dimensions the rows of their left operand in the order of memory, and, where the right
    operand is constant, its columns too."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "matmul" or len(node.result.shape) != 2:
            return None
        a, b = (rewriter.values[name] for name in node.operands)
        permuted = _permutation_before(rewriter, a)
        if permuted is None:
            return None
        x, order = permuted
        counts = [prod(x.shape[d] for d in order[:n]) for n in range(len(order) + 1)]
        if a.shape[0] not in counts:  # rows begin amid a dimension
            return None
        split = counts.index(a.shape[0])
        rows, columns = order[:split], order[split:]
        stored_rows = tuple(sorted(rows))
        stored_columns = tuple(sorted(columns)) if node.operands[1] in graph.fixed else columns
        if stored_rows + stored_columns == order:
            return None
        left = rewriter.node("reshape", _permuted(rewriter, x, stored_rows + stored_columns), shape=a.shape)
        if stored_columns != columns:
            b = _with_rows_in_order(rewriter, b, [x.shape[d] for d in columns], _places(stored_columns, columns))
        y = rewriter.node("matmul", left, b, **node.attributes)
        if stored_rows == rows:
            return y
        y = rewriter.node("reshape", y, shape=(*(x.shape[d] for d in stored_rows), y.shape[-1]))
        y = rewriter.node("permute", y, order=(*_places(rows, stored_rows), split))
        return rewriter.node("reshape", y, shape=node.result.shape)

    return rewrite(graph, replaced)


def sink_permutes(graph: Graph) -> Graph:
    """Move permutations that keep the last dimension behind pointwise nodes whose other operands vary along that
    dimension alone.

    add(reshape(permute(x[4, 50, 8], [1, 0, 2]), [200, 8]), bias[8])
        ->  reshape(permute(add(x, bias), [1, 0, 2]), [200, 8])
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if not is_elementwise(node):
            return None
        operands = [rewriter.values[name] for name in node.operands]
        shape = node.result.shape
        whole = [n for n, o in enumerate(operands) if o.shape == shape and o.elements > shape[-1]] if shape else []
        others = [o for n, o in enumerate(operands) if n not in whole]
        if len(whole) != 1 or any(prod(o.shape[:-1]) != 1 for o in others):
            return None
        name, permuted = node.operands[whole[0]], _permutation_before(rewriter, operands[whole[0]])
        if permuted is None or len(graph.readers[name]) != 1 or name in graph.kept:
            return None
        x, order = permuted
        if order[-1] != len(order) - 1 or x.shape[-1] != shape[-1] or not is_computed(rewriter.made_before_reshapes(x)):
            return None
        moved = [x if n in whole else rewriter.node("reshape", o, shape=o.shape[-1:]) for n, o in enumerate(operands)]
        y = rewriter.node("permute", rewriter.node(node.op, *moved, **node.attributes), order=order)
        return rewriter.node("reshape", y, shape=shape)

    return rewrite(graph, replaced)


def _permutation_before(rewriter: Rewriter, value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """Return what ``value`` is a permutation of, or a reshape of a permutation, and the order; None where it is
    neither."""
    made = rewriter.made_before_reshapes(value)
    if made is None or made.op != "permute":
        return None
    return rewriter.value(made.operands[0]), integers_of(made, "order")


def _with_rows_in_order(rewriter: Rewriter, b: Value, rows: Sequence[int], order: tuple[int, ...]) -> Value:
    """``b``, whose rows have the dimensions ``rows``, with these in another order. What is stored by columns stays
    stored by columns."""
    made = rewriter.made.get(b.name)
    if made is not None and made.op == "permute":
        columns = rewriter.value(made.operands[0])
        split = rewriter.node("reshape", columns, shape=(b.shape[1], *rows))
        moved = _permuted(rewriter, split, (0, *(n + 1 for n in order)))
        return rewriter.node("permute", rewriter.node("reshape", moved, shape=columns.shape), order=(1, 0))
    split = rewriter.node("reshape", b, shape=(*rows, b.shape[1]))
    return rewriter.node("reshape", _permuted(rewriter, split, (*order, len(order))), shape=b.shape)


def _permuted(rewriter: Rewriter, value: Value, order: tuple[int, ...]) -> Value:
    return value if order == tuple(sorted(order)) else rewriter.node("permute", value, order=order)


def _places(wanted: Sequence[int], among: Sequence[int]) -> tuple[int, ...]:
    """Return where each of ``wanted`` stands in ``among``."""
    return tuple(among.index(d) for d in wanted)
