"""What passes share: a graph rebuilt node by node, with other values in the place of some."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..graph import Graph, GraphBuilder, Node, Value
from ..operators import OPERATORS, Kind


class Rewriter(GraphBuilder):
    """The new nodes of a graph, and which new value stands for each old one."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(list(graph.values))
        self.graph = graph
        self.values = {v.name: v for v in (*graph.inputs, *graph.constants)}

    def keep(self, node: Node) -> None:
        """Take over a node, with the values that now stand for its operands."""
        operands = tuple(self.values[name].name for name in node.operands)
        self.add(node if operands == node.operands else replace(node, operands=operands))
        self.values.update((v.name, v) for v in node.results)

    def value(self, name: str) -> Value:
        """Return the value of the new graph that is called ``name``."""
        found = self.graph.values.get(name)  # names of the old graph are not given to new values
        return self.made[name].result if found is None else found

    def made_before_reshapes(self, value: Value) -> Node | None:
        """Return the new node that gives the elements of ``value``, whatever shapes they are given behind it; None
        where an input or a constant of the graph does."""
        made = self.made.get(value.name)
        while made is not None and made.op == "reshape":
            made = self.made.get(made.operands[0])
        return made

    def finished(self) -> Graph:
        """Return the new graph. Outputs and updates follow the values that stand for them."""
        graph = self.graph
        outputs = tuple(self.values[name].name for name in graph.outputs)
        updates = tuple((target, self.values[name].name) for target, name in graph.updates)
        return Graph(graph.inputs, graph.constants, self.nodes, outputs, updates)


def rewrite(graph: Graph, replaced: Callable[[Rewriter, Node], Value | None]) -> Graph:
    """``graph`` with every node for which ``replaced`` gives a value replaced by that value."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        value = None if node.is_foreign else replaced(rewriter, node)
        if value is None:
            rewriter.keep(node)
        else:
            rewriter.values[node.name] = value
    return rewriter.finished()


def attributes_of(node: Node) -> Mapping[str, object]:
    """Return all attributes of a node that is not foreign, defaults filled in."""
    return OPERATORS[node.op].values(node.attributes).values


def integers_of(node: Node, name: str) -> tuple[int, ...]:
    """Return an attribute that is a list of whole numbers."""
    return OPERATORS[node.op].values(node.attributes).integers(name)


_BY_PLACE = ("batch_norm", "gather", "gather_elements")
"""Pointwise operators for which it matters where in an operand an element stands."""


def is_elementwise(node: Node) -> bool:
    """Return whether each element of the result is computed from those in its place, whatever place that is, of
    operands that broadcast to it."""
    return not node.is_foreign and OPERATORS[node.op].kind is Kind.POINTWISE and node.op not in _BY_PLACE
