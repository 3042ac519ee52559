"""Scores of attention are scaled behind their product, where a kernel has the factor in the exponent of the softmax.

softmax(matmul(mul(q, 0.5), reshape(mul(k, 0.5))))    ->    softmax(mul(mul(matmul(q, reshape(k)), 0.5), 0.5))
"""

from ..graph import Graph, Node, Value
from ..operators import OPERATORS, Kind
from ..region import is_view
from .rewrite import Rewriter, rewrite


def scale_scores(graph: Graph) -> Graph:
    """Move factors that are one number behind a product that a softmax reads through pointwise nodes, where nothing
    else reads what was multiplied."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "matmul" or not _is_softmaxed(graph, node):
            return None
        found = [_unscaled(rewriter, name) for name in node.operands]
        factors = [factor for _, factor in found if factor is not None and factor.dtype == node.result.dtype]
        if not factors or len(factors) < sum(factor is not None for _, factor in found):
            return None
        scores = rewriter.node("matmul", *(operand for operand, _ in found), **node.attributes)
        for factor in factors:
            scores = rewriter.node("mul", scores, factor)
        return scores

    return rewrite(graph, replaced)


def _is_softmaxed(graph: Graph, node: Node) -> bool:
    while node.name not in graph.kept and len(graph.readers[node.name]) == 1:
        (node,) = graph.readers[node.name]
        if node.op == "softmax" or node.is_foreign:
            return node.op == "softmax"
        if not is_view(node) and OPERATORS[node.op].kind is not Kind.POINTWISE:
            return False
    return False


def _unscaled(rewriter: Rewriter, name: str) -> tuple[Value, Value | None]:
    """Return a value without the factor that it, or what it is views of, is multiplied with, and that factor."""
    graph, views, below = rewriter.graph, list[Node](), name
    while len(graph.readers[below]) == 1 and (made := graph.producers.get(below)) is not None:
        if made.op == "mul":
            for x, factor in (made.operands, reversed(made.operands)):
                if graph.values[factor].shape == () and _is_number(graph, factor):
                    value = rewriter.values[x]
                    for view in reversed(views):
                        value = rewriter.node(view.op, value, **view.attributes)
                    return value, rewriter.values[factor]
        if not is_view(made) or len(made.operands) != 1:
            break
        views.append(made)
        (below,) = made.operands
    return rewriter.values[name], None


def _is_number(graph: Graph, name: str) -> bool:
    made = graph.producers.get(name)
    return made is not None and made.op == "full"
