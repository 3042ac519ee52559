"""Norms that a model writes out become operators, whose rows a kernel computes at once."""

from ..graph import Graph, Node, Value
from .rewrite import Rewriter, attributes_of, integers_of, rewrite


def find_rms_norms(graph: Graph) -> Graph:
    """Replace x * rsqrt(mean(x * x) + epsilon) by ``rms_norm``, the mean being over the last dimensions."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "mul":
            return None
        for x, factor in (node.operands, reversed(node.operands)):
            found = _dims_and_epsilon(graph, x, factor)
            if found is not None:
                dims, epsilon = found
                return rewriter.node("rms_norm", rewriter.values[x], dims=dims, epsilon=epsilon)
        return None

    return rewrite(graph, replaced)


def _dims_and_epsilon(graph: Graph, x: str, factor: str) -> tuple[int, float] | None:
    """How many dimensions the mean is over, and epsilon, where ``factor`` is the inverse root mean square of ``x``."""
    root = _made(graph, factor, "rsqrt")
    total = None if root is None else _made(graph, root.operands[0], "add")
    for mean_name, epsilon_name in (total.operands, reversed(total.operands)) if total is not None else ():
        mean, epsilon = _made(graph, mean_name, "mean"), _made(graph, epsilon_name, "full")
        if mean is None or epsilon is None or not _is_square(graph, mean.operands[0], x):
            continue
        rank, dims = len(graph.values[x].shape), integers_of(mean, "dims")
        value = attributes_of(epsilon)["value"]
        whole = dims == tuple(range(rank - len(dims), rank)) and attributes_of(mean)["keep"] is True
        if whole and isinstance(value, int | float) and 0 <= value <= 1:
            return len(dims), float(value)
    return None


def _made(graph: Graph, name: str, op: str) -> Node | None:
    node = graph.producers.get(name)
    return node if node is not None and node.op == op else None


def _is_square(graph: Graph, name: str, x: str) -> bool:
    square, product = _made(graph, name, "square"), _made(graph, name, "mul")
    return (square is not None and square.operands == (x,)) or (product is not None and product.operands == (x, x))
