"""Reshapes move behind pointwise nodes, so that no shape stands between a product and what follows it.

add(reshape(matmul(x, w), [2, 7, 5]), bias[5])    ->    reshape(add(matmul(x, w), bias[5]), [2, 7, 5])
"""

from collections.abc import Sequence
from math import prod

from ..graph import Graph, Node, Value
from ..operators import OPERATORS, Kind
from ..operators.views import reshape_groups
from .rewrite import Rewriter, rewrite


def sink_reshapes(graph: Graph) -> Graph:
    """Move every reshape behind the pointwise node that reads it, where that node's other operands can be reshaped too
    (a broadcast dimension stays one), and where a kernel computes what is reshaped."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if OPERATORS[node.op].kind is not Kind.POINTWISE or node.op == "batch_norm":
            return None
        made = rewriter.made
        operands = [rewriter.values[name] for name in node.operands]
        for operand in operands:
            producer = made.get(operand.name)
            if producer is None or producer.op != "reshape" or operand.shape != node.result.shape:
                continue
            source = made.get(producer.operands[0])
            if source is None or source.is_foreign or OPERATORS[source.op].kind is Kind.VIEW:
                continue
            shape = source.result.shape
            found = [_moved(rewriter, o, node.result.shape, shape) for o in operands]
            if all(v is not None for v in found):
                result = rewriter.node(node.op, *(v for v in found if v is not None), **node.attributes)
                return rewriter.node("reshape", result, shape=node.result.shape)
        return None

    return rewrite(graph, replaced)


def slice_after_reshapes(graph: Graph) -> Graph:
    """Move every slice behind the reshape that reads it, where the slice is of whole parts of what the dimension is
    split into. Kernels then see a stored value in the dimensions that they work on.

    reshape(slice(x[8, 96], 1, 32:64), [8, 2, 16])    ->    slice(reshape(x, [8, 6, 16]), 1, 2:4)
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        before = rewriter.made.get(rewriter.values[node.operands[0]].name) if node.op == "reshape" else None
        if before is None or before.op != "slice":
            return None
        x, v = rewriter.value(before.operands[0]), OPERATORS["slice"].values(before.attributes)
        d, start, stop = v.integer("dim"), v.integer("start"), v.integer("stop")
        for old, new in reshape_groups(before.result.shape, node.result.shape):
            if list(old) != [d] or v.integer("step") != 1 or not new:
                continue
            inner = prod(node.result.shape[e] for e in new[1:])
            if any(n % inner for n in (start, stop, x.shape[d])):
                return None
            shape = list(node.result.shape)
            shape[new[0]] = x.shape[d] // inner
            whole = rewriter.node("reshape", x, shape=tuple(shape))
            return rewriter.node("slice", whole, dim=new[0], start=start // inner, stop=stop // inner)
        return None

    return rewrite(graph, replaced)


def sink_through_norms(graph: Graph) -> Graph:
    """Move every reshape that keeps the rows of a norm behind that norm."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op not in ("layer_norm", "rms_norm"):
            return None
        x, *weights = (rewriter.values[name] for name in node.operands)
        producer, dims = rewriter.made.get(x.name), OPERATORS[node.op].values(node.attributes).integer("dims")
        source = rewriter.value(producer.operands[0]) if producer is not None and producer.op == "reshape" else None
        if source is None or source.shape[-dims:] != x.shape[-dims:]:
            return None
        result = rewriter.node(node.op, source, *weights, **node.attributes)
        return rewriter.node("reshape", result, shape=node.result.shape)

    return rewrite(graph, replaced)


def _moved(rewriter: Rewriter, operand: Value, old: Sequence[int], new: tuple[int, ...]) -> Value | None:
    """``operand``, which broadcasts to ``old``, in a shape that broadcasts to ``new``; None where there is none."""
    if operand.elements == 1:
        return operand if not operand.shape else rewriter.node("reshape", operand, shape=())
    own = (*[1] * (len(old) - len(operand.shape)), *operand.shape)
    shape = [1] * len(new)
    for before, after in reshape_groups(old, new):
        mine = [own[d] for d in before]
        if mine == [old[d] for d in before]:
            for d in after:
                shape[d] = new[d]
        elif any(extent != 1 for extent in mine):
            return None
    while tuple(shape) != new and shape[:1] == [1]:  # dimensions that broadcasting adds
        del shape[0]
    made = rewriter.made.get(operand.name)
    if made is not None and made.op == "reshape" and rewriter.value(made.operands[0]).shape == tuple(shape):
        return rewriter.value(made.operands[0])
    return operand if tuple(shape) == operand.shape else rewriter.node("reshape", operand, shape=tuple(shape))
