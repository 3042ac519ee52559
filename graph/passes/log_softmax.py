"""Logarithms of softmax of which only a few elements, or sums, are used: as in losses over classes."""

from ..graph import Graph, Node, Value
from ..operators import OPERATORS, Kind
from .rewrite import Rewriter, is_elementwise, rewrite

_FEW = 4
"""Of so many elements at most one is used."""


def pick_first(graph: Graph) -> Graph:
    """Pick elements before pointwise nodes, where nothing needs all that these give:

    gather_elements(x * w, i)    ->    gather_elements(x, i) * gather_elements(expand(w), i)
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        source = graph.producers.get(node.operands[0]) if node.op == "gather_elements" else None
        if source is None or not is_elementwise(source) or not _is_much(graph, source, node.result.elements):
            return None
        shape = source.result.shape
        operands = [rewriter.values[name] for name in source.operands]
        wide = [o if o.shape == shape else rewriter.node("expand", o, shape=shape) for o in operands]
        places = rewriter.values[node.operands[1]]
        picked = [rewriter.node("gather_elements", o, places, **node.attributes) for o in wide]
        return rewriter.node(source.op, *picked, **source.attributes)

    return rewrite(graph, replaced)


def _is_much(graph: Graph, source: Node, picked: int) -> bool:
    """Return whether a value has far more elements than are picked of it, or than anything else makes of it."""
    return picked * _FEW <= source.result.elements and _gives_few(graph, source.name, source.result.elements)


def pick_before_log_softmax(graph: Graph) -> Graph:
    """Write each log_softmax that no other kernel needs as a whole with the greatest element and the sum of each row,
    so that it is not stored; elements of it are then picked from its operand:

    gather_elements(log_softmax(x, d), i)    ->    gather_elements(x, i) - max(x) - log(sum(exp(x - max(x))))
    sum(log_softmax(x, d) * w)               ->    sum((x - max(x) - log(sum(exp(x - max(x))))) * w)
    """
    whole: dict[str, tuple[Value, Value, Value]] = {}  # its result -> the operand, the greatest, the logarithm

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op == "log_softmax" and _is_picked(graph, node):
            x, d = rewriter.values[node.operands[0]], OPERATORS[node.op].values(node.attributes).integer("dim")
            top = rewriter.node("max", x, dims=(d,), keep=True)
            total = rewriter.node("sum", rewriter.node("exp", rewriter.node("sub", x, top)), dims=(d,), keep=True)
            whole[node.name] = x, top, rewriter.node("log", total)
            return _less(rewriter, *whole[node.name])
        if node.op == "gather_elements" and node.operands[0] in whole:
            x, *rows = whole[node.operands[0]]
            return _less(rewriter, rewriter.node("gather_elements", x, rewriter.values[node.operands[1]],
                                                 **node.attributes), *rows)  # fmt: skip
        return None

    return rewrite(graph, replaced)


def _less(rewriter: Rewriter, x: Value, top: Value, logarithm: Value) -> Value:
    return rewriter.node("sub", rewriter.node("sub", x, top), logarithm)


def _is_picked(graph: Graph, node: Node) -> bool:
    """Return whether elements of a log_softmax are picked, and whatever else reads it gives few elements as well."""
    picks = [r for r in graph.readers[node.name] if r.op == "gather_elements" and r.operands[0] == node.name]
    d = OPERATORS[node.op].values(node.attributes).integer("dim")
    shape = node.result.shape
    for pick in picks:
        found = pick.result.shape
        if pick.attributes["dim"] != d or (*found[:d], *found[d + 1 :]) != (*shape[:d], *shape[d + 1 :]):
            return False
    return bool(picks) and node.result.dtype.bits > 16 and _gives_few(graph, node.name, node.result.elements)


def _gives_few(graph: Graph, name: str, elements: int) -> bool:
    """Return whether all that reads a value, through pointwise nodes and views too, has at most a part of
    ``elements``."""
    if name in graph.kept:
        return False
    return all(
        not r.is_foreign
        and (
            r.result.elements * _FEW <= elements
            or (OPERATORS[r.op].kind in (Kind.POINTWISE, Kind.VIEW) and _gives_few(graph, r.name, elements))
        )
        for r in graph.readers[name]
    )
