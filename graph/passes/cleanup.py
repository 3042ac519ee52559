"""Passes that leave out what is not needed."""

from ...core.keys import canonical_json
from ..graph import Graph, Node, Value
from .rewrite import Rewriter, attributes_of, integers_of, rewrite


def drop_identities(graph: Graph) -> Graph:
    """Leave out nodes that give their operand back, and make one reshape of reshapes in a row, one permutation of
    permutations."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if not node.operands:
            return None
        operand = rewriter.values[node.operands[0]]
        same = operand.type == node.result.type
        match node.op:
            case "identity" | "cast" | "expand" | "pad" | "slice" | "reshape" | "spread" if same:
                return operand
            case "concatenate" if len(node.operands) == 1:
                return operand
            case "average_pool" | "max_pool" if same and set(integers_of(node, "kernel")) == {1}:
                return operand
            case "permute" if integers_of(node, "order") == tuple(range(len(operand.shape))):
                return operand
            case "reshape" | "permute":
                return _merged(rewriter, node, operand)
        return None

    return rewrite(graph, replaced)


def _merged(rewriter: Rewriter, node: Node, operand: Value) -> Value | None:
    before = rewriter.made.get(operand.name)
    if before is None or before.op != node.op:
        return None
    source = rewriter.value(before.operands[0])
    if node.op == "reshape":
        return source if source.type == node.result.type else rewriter.node("reshape", source, shape=node.result.shape)
    order = [integers_of(before, "order")[d] for d in integers_of(node, "order")]
    return source if order == sorted(order) else rewriter.node("permute", source, order=tuple(order))


def drop_unused(graph: Graph) -> Graph:
    """Leave out nodes whose results nothing reads, foreign ones without an effect too."""
    needed = set(graph.kept)
    for node in reversed(graph.nodes):
        if node.has_effect or any(v.name in needed for v in node.results):
            needed.update(node.operands)
    kept = tuple(n for n in graph.nodes if n.has_effect or any(v.name in needed for v in n.results))
    return Graph(graph.inputs, graph.constants, kept, graph.outputs, graph.updates)


def join_equal(graph: Graph) -> Graph:
    """Compute once what several nodes compute from the same operands. Foreign nodes stay: they may be random."""
    known: dict[str, Value] = {}

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        operands = [rewriter.values[name].name for name in node.operands]
        key = canonical_json([node.op, operands, {k: _listed(v) for k, v in attributes_of(node).items()}])
        if key in known:
            return known[key]
        known[key] = node.result
        return None

    return rewrite(graph, replaced)


def repeat_casts(graph: Graph) -> Graph:
    """Give every reader of a cast to a wider float a cast of its own, so that it reads the narrow value."""

    def shared(name: str) -> bool:
        node = graph.producers.get(name)
        if node is None or node.op != "cast" or len(graph.readers[name]) < 2:
            return False
        before = graph.values[node.operands[0]].dtype
        return before.is_float and before.bits < node.result.dtype.bits

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if not any(shared(name) for name in node.operands):
            return None
        operands = []
        for name in node.operands:
            value = rewriter.values[name]
            if shared(name):
                source = rewriter.values[graph.producers[name].operands[0]]
                value = rewriter.node("cast", source, dtype=value.dtype.name)
            operands.append(value)
        return rewriter.node(node.op, *operands, **node.attributes)

    return rewrite(graph, replaced)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
