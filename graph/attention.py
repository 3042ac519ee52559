"""Which nodes around a product are those of an attention, so that one kernel may compute them all."""

from collections.abc import Container, Iterable, Iterator

from .graph import Graph, Node
from .operators import OPERATORS, Kind
from .region import alias_of, is_view, joins_permuted


def scores_before(graph: Graph, node: Node) -> list[Node]:
    """Return what a product takes weights from, from the last node to the first: casts, a softmax, pointwise nodes, and
    a product. Empty where the left operand is anything else, or has other readers."""
    found: list[Node] = []
    name = node.operands[0] if node.op == "matmul" else ""
    while name in graph.producers and (node := graph.producers[name]):
        if node.is_foreign or name in graph.kept or len(graph.readers[name]) > 1:
            break
        if is_view(node) and alias_of(graph, name) is not None:
            name = node.operands[0]
            continue
        found.append(node)
        if node.op == "matmul":
            return found if any(n.op == "softmax" for n in found) else []
        if node.op != "softmax" and OPERATORS[node.op].kind is not Kind.POINTWISE:
            break
        data = node.operands[1:] if node.op == "where" else node.operands
        name = max(data, key=lambda n: graph.values[n].elements)
    return []


def views_to_store(graph: Graph, node: Node, stored: Container[str]) -> Iterator[str]:
    """Yield what the operands of a node are views of and attention may need in memory: concatenations, and permutations
    of which a reshape makes one dimension of several, such as rows of the windows of an image."""
    for name in node.operands:
        while name not in stored and is_view(producer := graph.producers[name]) and producer.operands:
            if producer.op == "concatenate":
                yield name
                break
            name = producer.operands[0]
            if joins_permuted(graph, producer):
                yield name
                break


def independent_of_data(graph: Graph, names: Iterable[str]) -> list[Node]:
    """Return the nodes that compute values from ranges and numbers alone, such as a causal mask: a kernel that has the
    indices computes them again. Nothing for values that depend on an input or a constant."""
    found: dict[str, Node] = {}
    for name in names:
        before: dict[str, Node] = {}
        todo = [name]
        while todo:
            node = graph.producers.get(todo.pop())
            if node is None or node.is_foreign:
                before.clear()
                break
            if node.name not in before:
                before[node.name] = node
                todo.extend(node.operands)
        found |= {n.name: n for n in before.values() if not is_view(n)}
    return list(found.values())
