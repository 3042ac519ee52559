"""Batches of products in the dimensions that they come from.

torch makes one dimension of all those before the last two, and splits it again behind the product:

    reshape(matmul(reshape(a, [8, m, k]), reshape(b, [8, k, n])), [2, 4, m, n])    ->    matmul(a, b)
"""

from ..graph import Graph, Node, Value
from .rewrite import Rewriter, rewrite


def split_batches(graph: Graph) -> Graph:
    """Give products the dimensions of an operand that is reshaped for them, so that softmax and product of an attention
    have the same ones."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "matmul" or len(node.result.shape) != 3:
            return None
        operands = [rewriter.values[name] for name in node.operands]
        batches = [b for o in operands if (b := _batch_before(rewriter, o)) is not None]
        if not batches or any(o.shape[0] != node.result.shape[0] for o in operands):
            return None
        split = [rewriter.node("reshape", o, shape=(*batches[0], *o.shape[1:])) for o in operands]
        return rewriter.node("reshape", rewriter.node("matmul", *split, **node.attributes), shape=node.result.shape)

    return rewrite(graph, replaced)


def _batch_before(rewriter: Rewriter, operand: Value) -> tuple[int, ...] | None:
    """The dimensions that a reshape has made the first one of ``operand``; None where it has not."""
    made = rewriter.made.get(operand.name)
    if made is None or made.op != "reshape":
        return None
    shape = rewriter.value(made.operands[0]).shape
    return shape[:-2] if len(shape) > 3 and shape[-2:] == operand.shape[1:] else None
