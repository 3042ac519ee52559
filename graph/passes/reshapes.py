"""Reshapes move behind pointwise nodes, so that no shape stands between a product and what follows it.

add(reshape(matmul(x, w), [2, 7, 5]), bias[5])    ->    reshape(add(matmul(x, w), bias[5]), [2, 7, 5])
"""

from collections.abc import Sequence
from math import prod

from ..graph import Graph, Node, Value
from ..operators import OPERATORS, Kind
from ..operators.views import reshape_groups
from .rewrite import Rewriter, integers_of, is_elementwise, rewrite


def sink_reshapes(graph: Graph) -> Graph:
    """Move every reshape behind the pointwise node that reads it, where that node's other operands can be reshaped too
    (a broadcast dimension stays one), and where a kernel computes what is reshaped."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if not is_elementwise(node):
            return None
        made = rewriter.made
        operands = [rewriter.values[name] for name in node.operands]
        computed = [o for o in operands if o.shape == node.result.shape and is_computed(made.get(o.name))]
        for name, operand in zip(node.operands, operands, strict=True):
            producer = made.get(operand.name)
            if producer is None or producer.op != "reshape" or operand.shape != node.result.shape:
                continue
            if computed and not _has_one_reader(graph, name):
                continue  # what is computed for this node alone keeps its shape
            source = rewriter.made_before_reshapes(operand)
            if source is None or not is_computed(source):
                continue
            if OPERATORS[source.op].kind is Kind.ANCHOR and not _has_one_reader(graph, name):
                continue  # the node cannot be its epilogue, and reads what is stored in any shape
            shape = source.result.shape
            found = [_moved(rewriter, o, node.result.shape, shape) for o in operands]
            if all(v is not None for v in found):
                result = rewriter.node(node.op, *(v for v in found if v is not None), **node.attributes)
                return rewriter.node("reshape", result, shape=node.result.shape)
        return None

    return rewrite(graph, replaced)


def is_computed(node: Node | None) -> bool:
    """Return whether a kernel computes what a node gives."""
    return node is not None and not node.is_foreign and OPERATORS[node.op].kind is not Kind.VIEW


def _has_one_reader(graph: Graph, name: str) -> bool:
    """Return whether only one node reads a value, and what it is a reshape of."""
    while len(graph.readers[name]) == 1 and (node := graph.producers.get(name)) is not None and node.op == "reshape":
        (name,) = node.operands
    return len(graph.readers[name]) == 1


def permute_long_dims(graph: Graph) -> Graph:
    """Let permutations have no dimensions of one element, but for a batch of one that stays the first, and write those
    that move only such as reshapes:

    permute(x[2, 5, 16, 64, 1], [0, 2, 1, 4, 3])    ->    reshape(permute(reshape(x, [2, 5, 16, 64]), [0, 2, 1, 3]), …)
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "permute":
            return None
        x = rewriter.values[node.operands[0]]
        given = integers_of(node, "order")
        long = [d for d, n in enumerate(x.shape) if n > 1 or d == given[0] == 0]
        order = [long.index(d) for d in given if d in long]
        if len(long) == len(x.shape):
            return None
        y = rewriter.node("reshape", x, shape=tuple(x.shape[d] for d in long))
        y = y if order == sorted(order) else rewriter.node("permute", y, order=tuple(order))
        return rewriter.node("reshape", y, shape=node.result.shape)

    return rewrite(graph, replaced)


def raise_splits(graph: Graph) -> Graph:
    """Move reshapes that split dimensions before the permutations and slices that they read. Kernels then see a stored
    value in the dimensions that they work on.

    reshape(slice(x[8, 96], 1, 32:64), [8, 2, 16])      ->    slice(reshape(x, [8, 6, 16]), 1, 2:4)
    reshape(permute(x[6, 5, 4], [1, 0, 2]), [5, 2, 3, 4])    ->    permute(reshape(x, [2, 3, 5, 4]), [2, 0, 1, 3])
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        return _raised(rewriter, rewriter.values[node.operands[0]], node.result.shape) if node.op == "reshape" else None

    return rewrite(graph, replaced)


def _reshaped(rewriter: Rewriter, x: Value, shape: tuple[int, ...]) -> Value:
    """``x`` in another shape, reshaped as early as possible."""
    raised = _raised(rewriter, x, shape)
    return rewriter.node("reshape", x, shape=shape) if raised is None else raised


def _raised(rewriter: Rewriter, x: Value, shape: tuple[int, ...]) -> Value | None:
    """``x`` in another shape by a reshape that is earlier than one of ``x``; None where none can be."""
    made = rewriter.made.get(x.name)
    source = None if made is None or made.is_foreign or not made.operands else rewriter.value(made.operands[0])
    if x.shape == shape:
        return x
    if made is not None and source is not None:
        if made.op == "reshape":
            return _reshaped(rewriter, source, shape)
        if made.op == "permute" and (split := _split_order(integers_of(made, "order"), x.shape, shape)) is not None:
            within, order = split
            return rewriter.node("permute", _reshaped(rewriter, source, within), order=order)
        if made.op == "slice" and (sliced := _sliced(rewriter, made, source, shape)) is not None:
            return sliced
    return None


def _split_order(
    order: Sequence[int], old: Sequence[int], new: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return what a permutation becomes whose result of shape ``old`` is reshaped to ``new`` by splitting dimensions:
    the shape of its operand, and its order. None where dimensions are joined."""
    parts: dict[int, tuple[int, ...]] = {}  # a dimension of the operand -> dimensions of the new shape
    for before, after in reshape_groups(old, new):
        long = [d for d in before if old[d] > 1]
        if len(long) != 1:
            return None
        parts[order[long[0]]] = tuple(after)
    places = [e for d in sorted(parts) for e in parts[d]]
    return tuple(new[e] for e in places), tuple(places.index(e) for e in range(len(new)))


def _sliced(rewriter: Rewriter, made: Node, x: Value, shape: tuple[int, ...]) -> Value | None:
    """Return a slice of ``x``, reshaped, as a slice of what ``x`` is reshaped to. The slice is of whole parts of what
    its dimension is split into, or it has one element, and the dimension goes. None for any other."""
    v = OPERATORS["slice"].values(made.attributes)
    d, start, stop = v.integer("dim"), v.integer("start"), v.integer("stop")
    ahead, inner = prod(x.shape[:d]), prod(x.shape[d + 1 :])
    first = next((n for n in range(len(shape) + 1) if prod(shape[:n]) == ahead), None)
    if first is None or v.integer("step") != 1:
        return None
    behind = next((n for n in range(first, len(shape) + 1) if prod(shape[n:]) == inner), len(shape))
    width = prod(shape[first + 1 : behind])
    if prod(shape[behind:]) != inner or any(n % width for n in (start, stop, x.shape[d])):
        return None
    if behind == first:  # one element
        whole = _reshaped(rewriter, x, (*shape[:first], x.shape[d], *shape[first:]))
        part = rewriter.node("slice", whole, dim=first, start=start, stop=stop)
        return rewriter.node("reshape", part, shape=shape)
    whole = _reshaped(rewriter, x, (*shape[:first], x.shape[d] // width, *shape[first + 1 :]))
    return rewriter.node("slice", whole, dim=first, start=start // width, stop=stop // width)


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
    if tuple(shape) == operand.shape:
        return operand
    made = rewriter.made.get(operand.name)
    if made is not None and made.op == "permute":  # joined dimensions of a permutation are no simple indices
        return None
    if made is not None and made.op == "reshape" and rewriter.value(made.operands[0]).shape == tuple(shape):
        return rewriter.value(made.operands[0])
    return rewriter.node("reshape", operand, shape=tuple(shape))
