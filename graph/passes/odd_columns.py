"""Columns whose rows begin anywhere in memory, reduced in two steps.

A kernel for columns loads vectors of 16 bytes where these divide a row. In a tensor with rows of another length each
element is loaded alone, which takes memory longer. A few such rows together are one that vectors divide:

    mean over 1 of x[128, 2048, 1023]    ->    mean over 1 of the mean over 1 of x[128, 512, 4 * 1023]
"""

from math import gcd, prod

from ...core.dtypes import float32
from ..graph import Graph, Node, Value
from .reductions import PLAIN
from .rewrite import Rewriter, integers_of, rewrite

_VECTOR_BYTES = 16
_LEAST_BYTES = 1 << 26
"""The kernel for the second step takes longer than what vectors save of smaller tensors."""
_LEAST_ROWS = 1025
"""Of so many rows at least: the columns of fewer stay in a cache for a kernel that reads them again."""
_WIDE, _MOST_ROWS, _LEAST_LEFT = 256, 64, 16
"""About how many elements the rows that are taken together have, how many they are at most, and how many rows the first
step has at least for each of the second one."""


def fold_odd_columns(graph: Graph) -> Graph:
    """Reduce the columns of large inputs in two steps where no vector divides their rows. Values of 16 bits are float32
    between the steps."""
    return rewrite(graph, lambda b, n: _folded(b, n) if n.op in PLAIN and not n.attributes.get("keep") else None)


def _folded(b: Rewriter, node: Node) -> Value | None:
    x, dims = b.values[node.operands[0]], integers_of(node, "dims")
    first, behind = dims[0], dims[-1] + 1
    if dims != tuple(range(first, behind)) or b.made_before_reshapes(x) is not None or not x.dtype.is_float:
        return None
    rows, columns = prod(x.shape[first:behind]), prod(x.shape[behind:])
    together = _rows_together(rows, columns, _VECTOR_BYTES // x.dtype.bytes)
    if x.bytes < _LEAST_BYTES or together is None:
        return None
    outer = x.shape[:first]
    y = b.node("reshape", x, shape=(*outer, rows // together, together * columns))
    y = y if y.dtype.bits > 16 else b.node("cast", y, dtype=float32.name)
    y = b.node("reshape", b.node(node.op, y, dims=(first,)), shape=(*outer, together, columns))
    y = b.node("reshape", b.node(node.op, y, dims=(first,)), shape=node.result.shape)
    return y if y.dtype == node.result.dtype else b.node("cast", y, dtype=node.result.dtype.name)


def _rows_together(rows: int, columns: int, vector: int) -> int | None:
    """Return how many rows are taken together, so that ``vector`` divides them; None where it divides each row, and
    where the rows are few or cannot be shared out."""
    least = vector // gcd(columns, vector)
    if rows < _LEAST_ROWS or columns == 1 or least == 1:
        return None
    most = min(_MOST_ROWS, rows // _LEAST_LEFT)
    fitting = [n for n in range(least, most + 1, least) if rows % n == 0]
    return next((n for n in fitting if n * columns >= _WIDE), fitting[-1] if fitting else None)
