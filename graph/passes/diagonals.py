"""Products with a diagonal matrix are products of each row, or of each column, with one number.

matmul(where(column == row, d, 0), b)    ->    mul(reshape(d, [n, 1]), b)
matmul(a, where(column == row, d, 0))    ->    mul(a, d)
"""

from ..graph import Graph, Node, Value
from .rewrite import Rewriter, attributes_of, rewrite


def multiply_by_diagonals(graph: Graph) -> Graph:
    """Replace products of floats of which one operand is a diagonal matrix, as ``torch.diag`` and ``torch.eye`` give
    them. Zeros beside the diagonal are multiplied with nothing: an infinite element stays where it is, and makes no NaN
    elsewhere."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "matmul" or not node.result.dtype.is_float or len(node.result.shape) < 2:
            return None
        for n in (0, 1):
            diagonal, other = _diagonal(graph, node.operands[n]), rewriter.values[node.operands[1 - n]]
            if diagonal is None or other.shape != node.result.shape:
                continue
            d = rewriter.values[diagonal]
            shape = () if d.elements == 1 else (d.elements, 1) if n == 0 else (d.elements,)
            return rewriter.node("mul", rewriter.node("reshape", d, shape=shape), other)
        return None

    return rewrite(graph, replaced)


def _diagonal(graph: Graph, name: str) -> str | None:
    """Return the value that the diagonal of a matrix is: one number, or one for each of its rows. None for a value that
    is no matrix, or has other elements than on the diagonal."""
    chosen = graph.producers.get(name)
    if chosen is None or chosen.op != "where" or len(chosen.result.shape) != 2:
        return None
    mask, diagonal, beside = chosen.operands
    zero, equal = graph.producers.get(beside), graph.producers.get(mask)
    rows, columns = chosen.result.shape
    vector = rows == columns and graph.values[diagonal].elements in (1, rows)
    if zero is None or zero.op != "full" or attributes_of(zero)["value"] != 0 or not vector or rows == 1:
        return None
    if equal is None or equal.op != "eq" or equal.result.shape != (rows, rows):
        return None
    dims = {_counted(graph, name) for name in equal.operands}
    return diagonal if dims == {0, 1} else None


def _counted(graph: Graph, name: str) -> int | None:
    """Return along which dimension of a matrix a value counts its rows or its columns from 0; None where it does
    not."""
    shape = graph.values[name].shape
    made = graph.producers.get(name)
    while made is not None and made.op == "reshape":
        made = graph.producers.get(made.operands[0])
    if made is None or made.op != "range" or not made.result.dtype.is_integer:
        return None
    if (attributes_of(made)["start"], attributes_of(made)["step"]) != (0, 1):
        return None
    count = made.result.elements
    return {(count,): 1, (1, count): 1, (count, 1): 0}.get(shape)
