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


def join_instances(graph: Graph) -> Graph:
    """Replace group norms of one image that has all channels of several, as instance norms are traced, by group norms
    of these images:

    group_norm(reshape(x[4, 8, …], [1, 32, …]), groups=32)    ->    reshape(group_norm(x, groups=8), [1, 32, …])
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        before = _made(graph, node.operands[0], "reshape") if node.op == "group_norm" else None
        if before is None or len(node.operands) > 1:
            return None
        x, shape, given = rewriter.values[before.operands[0]], node.result.shape, attributes_of(node)
        batch, channels = (*x.shape, 1, 1)[:2]
        split = shape[0] == 1 and shape[1] == batch * channels and x.shape[2:] == shape[2:]
        if not split or given["groups"] != shape[1]:
            return None
        result = rewriter.node("group_norm", x, **{**given, "groups": channels})
        return rewriter.node("reshape", result, shape=shape)

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
