"""Norms that a model writes out become operators, whose rows a kernel computes at once."""

from collections.abc import Callable
from functools import partial

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


def find_layer_norms(graph: Graph) -> Graph:
    """Replace (x - mean(x)) * rsqrt(variance(x) + epsilon) by ``layer_norm``, the mean being over the last dimensions.
    The factor may be multiplied with weights first. The variance is the mean of (x - mean(x))², or that of x² minus
    mean(x)², which is not let below 0."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "mul":
            return None
        for left, factor in (node.operands, reversed(node.operands)):
            centred = _made(graph, left, "sub")
            mean = None if centred is None else _made(graph, centred.operands[1], "mean")
            if centred is None or mean is None or mean.operands[0] != centred.operands[0]:
                continue
            for root, weight in _factors(graph, factor):
                found = _of_root(graph, root, partial(_is_variance, graph, mean))
                if found is not None and integers_of(mean, "dims") == found[0]:
                    x = rewriter.values[mean.operands[0]]
                    normal = rewriter.node("layer_norm", x, dims=len(found[0]), epsilon=found[1])
                    return normal if weight is None else rewriter.node("mul", normal, rewriter.values[weight])
        return None

    return rewrite(graph, replaced)


def find_softmax(graph: Graph) -> Graph:
    """Replace exp(x - max(x)) / sum(exp(x - max(x))) by ``softmax``."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        power, total = (
            (_made(graph, name, op) for name, op in zip(node.operands, ("exp", "sum"), strict=True))
            if node.op == "div"
            else (None, None)
        )
        if total is None or power is None or total.operands[0] != power.name:
            return None
        less = _made(graph, power.operands[0], "sub")
        top = None if less is None else _made(graph, less.operands[1], "max")
        if less is None or top is None or top.operands[0] != less.operands[0]:
            return None
        dims = integers_of(total, "dims")
        if len(dims) != 1 or integers_of(top, "dims") != dims or not (_keeps(top) and _keeps(total)):
            return None
        return rewriter.node("softmax", rewriter.values[less.operands[0]], dim=dims[0])

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
    """Return how many dimensions the mean is over, and epsilon, where ``factor`` is the inverse root mean square of
    ``x``."""

    def is_mean_square(name: str) -> tuple[int, ...] | None:
        mean = _made(graph, name, "mean")
        if mean is None or not _is_square(graph, mean.operands[0], x):
            return None
        return _last_dims(graph, mean)

    found = _of_root(graph, factor, is_mean_square)
    return None if found is None else (len(found[0]), found[1])


def _of_root(
    graph: Graph, name: str, is_mean: Callable[[str], tuple[int, ...] | None]
) -> tuple[tuple[int, ...], float] | None:
    """Return the dimensions that ``is_mean`` finds, and epsilon, where a value is rsqrt(mean + epsilon)."""
    root = _made(graph, name, "rsqrt")
    total = None if root is None else _made(graph, root.operands[0], "add")
    for mean_name, epsilon_name in (total.operands, reversed(total.operands)) if total is not None else ():
        dims, epsilon = is_mean(mean_name), _made(graph, epsilon_name, "full")
        value = None if epsilon is None else attributes_of(epsilon)["value"]
        if dims is not None and isinstance(value, int | float) and 0 <= value <= 1:
            return dims, float(value)
    return None


def _factors(graph: Graph, name: str) -> list[tuple[str, str | None]]:
    """Return a value as an inverse root and the weight that it is multiplied with, in all ways that it may be one."""
    product = _made(graph, name, "mul")
    pairs = [] if product is None else [product.operands, product.operands[::-1]]
    return [(name, None), *((root, weight) for root, weight in pairs)]


def _is_variance(graph: Graph, mean: Node, name: str) -> tuple[int, ...] | None:
    """Return the dimensions, where a value is the variance around ``mean``."""
    (x,) = mean.operands
    variance, bounded = _made(graph, name, "variance"), _made(graph, name, "maximum")
    if variance is not None:
        same = variance.operands == (x,) and attributes_of(variance)["correction"] == 0
        return _last_dims(graph, variance) if same else None
    for n in (0, 1) if bounded is not None else ():
        zero = _made(graph, bounded.operands[n], "full") if bounded is not None else None
        if bounded is not None and zero is not None and attributes_of(zero)["value"] == 0:
            name = bounded.operands[1 - n]
    squares, difference = _made(graph, name, "mean"), _made(graph, name, "sub")
    if difference is not None:  # the mean of squares less the square of the mean
        squares = _made(graph, difference.operands[0], "mean")
        whole = squares is not None and _is_square(graph, squares.operands[0], x)
        return _last_dims(graph, mean) if whole and _is_square(graph, difference.operands[1], mean.name) else None
    for centred in (n for n in graph.readers[x] if n.op == "sub" and n.operands == (x, mean.name)):
        if squares is not None and _is_square(graph, squares.operands[0], centred.name):
            return _last_dims(graph, squares)
    return None


def _last_dims(graph: Graph, reduction: Node) -> tuple[int, ...] | None:
    """Return the dimensions of a reduction that keeps them, if they are the last ones."""
    rank, dims = len(graph.values[reduction.operands[0]].shape), integers_of(reduction, "dims")
    return dims if _keeps(reduction) and dims == tuple(range(rank - len(dims), rank)) else None


def _keeps(reduction: Node) -> bool:
    return attributes_of(reduction)["keep"] is True


def _made(graph: Graph, name: str, op: str) -> Node | None:
    node = graph.producers.get(name)
    return node if node is not None and node.op == op else None


def _is_square(graph: Graph, name: str, x: str) -> bool:
    square, product = _made(graph, name, "square"), _made(graph, name, "mul")
    return (square is not None and square.operands == (x,)) or (product is not None and product.operands == (x, x))
