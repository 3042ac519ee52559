"""Products in the form that kernels want: batches in their own dimensions, long sums in parts, and one product in the
place of several."""

from dataclasses import dataclass, replace

from ...core.dtypes import float32
from ...core.keys import canonical_json
from ...core.precision import IEEE
from ..graph import Graph, Node, Value
from ..operators import OPERATORS, Kind
from .rewrite import Rewriter, attributes_of, rewrite


def split_batches(graph: Graph) -> Graph:
    """Give products the dimensions of an operand that is reshaped for them, so that softmax and product of an attention
    have the same ones. torch makes one dimension of all those before the last two, and splits it again behind:

    reshape(matmul(reshape(a, [8, m, k]), reshape(b, [8, k, n])), [2, 4, m, n])    ->    matmul(a, b)
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "matmul" or len(node.result.shape) != 3:
            return None
        operands = [rewriter.values[name] for name in node.operands]
        batches = [b for o in operands if (b := _batch_before(rewriter, o)) is not None]
        if not batches or any(o.shape[0] != node.result.shape[0] for o in operands):
            return None
        split = [rewriter.node("reshape", o, shape=(*batches[0], *o.shape[1:])) for o in operands]
        return rewriter.node("reshape", rewriter.node("matmul", *split, **node.attributes), shape=node.result.shape)

    return rewrite(graph, replaced)


_LONG_SUM, _LEAST_PART = 1 << 14, 1 << 10
"""Sums of so many products are split, into parts that have so many at least."""
_TILE, _TILES = 64 * 64, 512
"""About so many elements of a result are computed by one CTA, and so many CTAs keep a GPU busy."""
_FEW_ROWS = 8
"""The kernels of products with so few rows or columns share a long sum among CTAs already."""


def split_long_sums(graph: Graph) -> Graph:
    """Compute products of few elements and long sums in float32 as batches of shorter ones, which are summed up behind:

    matmul(a[m, k], b[k, n])    ->    sum over 0 of matmul(a[s, m, k / s], b[s, k / s, n])

    The CTAs of one cluster split a sum among them, but these are too few, and a sum in float32 errs by its length. On
    matrix units other CTAs take part in a sum (stream-K)."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "matmul" or node.result.dtype != float32 or attributes_of(node)["precision"] != IEEE:
            return None
        a, b = (rewriter.values[name] for name in node.operands)
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] < _LONG_SUM:
            return None
        (m, k), n = a.shape, b.shape[1]
        if min(m, n) <= _FEW_ROWS:
            return None
        wished = min(_TILES * _TILE // (m * n), k // _LEAST_PART)
        parts = next((s for s in range(wished, 1, -1) if k % s == 0 and k // s % 4 == 0), None)
        if parts is None:
            return None
        left = rewriter.node("permute", rewriter.node("reshape", a, shape=(m, parts, k // parts)), order=(1, 0, 2))
        right = rewriter.node("reshape", b, shape=(parts, k // parts, n))
        return rewriter.node("sum", rewriter.node("matmul", left, right, **node.attributes), dims=(0,))

    return rewrite(graph, replaced)


def _batch_before(rewriter: Rewriter, operand: Value) -> tuple[int, ...] | None:
    """Return the dimensions that a reshape has made the first one of ``operand``; None where it has not."""
    made = rewriter.made.get(operand.name)
    if made is None or made.op != "reshape":
        return None
    shape = rewriter.value(made.operands[0]).shape
    batch = tuple(n for n in shape[:-2] if n > 1)
    return batch if len(batch) > 1 and shape[-2:] == operand.shape[1:] else None


def join_products(graph: Graph) -> Graph:
    """Make one product of those that share their left operand and have constants as the other one, with the biases
    behind them. What read them reads slices of its result; ``graph`` itself where there are none.

    matmul(x, wq) + bq, matmul(x, wk), …    ->    y = matmul(x, [wq wk …]) + [bq 0 …];  y[:, :n], y[:, n:m], …

    Products whose results meet in a pointwise node, as in gated ones, stay: a kernel can have both of their sums.
    """
    groups = _siblings(graph)
    if not groups:
        return graph
    fixed = [n for n in graph.nodes if n.name in graph.fixed]
    ordered = replace(graph, nodes=(*fixed, *(n for n in graph.nodes if n.name not in graph.fixed)))
    joined: dict[str, Value] = {}

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        group = groups.get(node.name)
        if group is not None and node.name not in joined:
            joined.update(_joined(rewriter, group))
        return joined.get(node.name)

    return rewrite(ordered, replaced)


@dataclass(frozen=True, slots=True)
class _Sibling:
    """A product, and the node that adds a constant vector to it, if one does."""

    product: Node
    biased: Node | None
    bias: str | None


def _siblings(graph: Graph) -> dict[str, list[_Sibling]]:
    """Return the products to join, by the name of each node that is replaced."""
    alike: dict[tuple[object, ...], list[_Sibling]] = {}
    for node in graph.nodes:
        if node.op == "matmul" and node.operands[1] in graph.fixed and node.operands[0] not in graph.fixed:
            weights = graph.values[node.operands[1]]
            if len(weights.shape) == 2:
                key = (node.operands[0], canonical_json(node.attributes), weights.dtype, node.result.dtype)
                alike.setdefault(key, []).append(_sibling(graph, node))
    found: dict[str, list[_Sibling]] = {}
    for group in alike.values():
        if len(group) < 2:
            continue
        reached = [_pointwise_behind(graph, s.product.name) for s in group]
        if len(set().union(*reached)) == sum(map(len, reached)):
            found |= {n.name: group for s in group for n in (s.product, s.biased) if n is not None}
    return found


def _sibling(graph: Graph, product: Node) -> _Sibling:
    readers = graph.readers[product.name]
    if len(readers) == 1 and readers[0].op == "add" and product.name not in graph.kept:
        bias = next((name for name in readers[0].operands if name != product.name), None)
        if bias in graph.fixed and graph.values[bias].shape == product.result.shape[-1:]:
            return _Sibling(product, readers[0], bias)
    return _Sibling(product, None, None)


def _pointwise_behind(graph: Graph, name: str) -> set[str]:
    """Return the pointwise nodes behind a value, up to the next ones of other kinds."""
    found: set[str] = set()
    todo = [name]
    while todo:
        for reader in graph.readers[todo.pop()]:
            kind = None if reader.is_foreign else OPERATORS[reader.op].kind
            if kind is Kind.POINTWISE and reader.name not in found:
                found.add(reader.name)
                todo.append(reader.name)
            elif kind is Kind.VIEW:
                todo.append(reader.name)
    return found


def _joined(rewriter: Rewriter, group: list[_Sibling]) -> dict[str, Value]:
    """Return the slices of one product that stand for the results of a group."""
    first = group[0].product
    weights = [rewriter.values[s.product.operands[1]] for s in group]
    joined = rewriter.node("concatenate", *weights, dim=1)
    y = rewriter.node("matmul", rewriter.values[first.operands[0]], joined, **first.attributes)
    if any(s.bias is not None for s in group):
        zeros = {"value": 0.0 if y.dtype.is_float else 0, "dtype": y.dtype.name}
        biases = [
            rewriter.node("full", shape=(w.shape[1],), **zeros) if s.bias is None else rewriter.values[s.bias]
            for s, w in zip(group, weights, strict=True)
        ]
        y = rewriter.node("add", y, rewriter.node("concatenate", *biases, dim=0))
    found: dict[str, Value] = {}
    start = 0
    for s, w in zip(group, weights, strict=True):
        part = rewriter.node("slice", y, dim=len(y.shape) - 1, start=start, stop=start + w.shape[1])
        found |= {n.name: part for n in (s.product, s.biased) if n is not None}
        start += w.shape[1]
    return found
