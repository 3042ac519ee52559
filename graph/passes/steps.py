"""Loops over time that a trace has written out: what equal steps do alike, apart from what one needs of the one before.

A loop is seen by slices of one value along one dimension, and by concatenations, of so many parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..graph import Graph, Node, Value
from ..operators import OPERATORS, Kind
from ..operators.arithmetic import ARITHMETIC
from ..operators.functions import ACTIVATIONS, FUNCTIONS
from ..region import alias_of
from .cleanup import drop_unused
from .rewrite import Rewriter, attributes_of, integers_of, rewrite

MANY = 8
"""So many parts of a value are steps of a loop."""
_GROUP = 32
_ELEMENT_BY_ELEMENT = {"cast", *(o.name for o in (*ARITHMETIC, *FUNCTIONS, *ACTIVATIONS))}
"""Operators whose operands may have further dimensions in front."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice with step 1: ``count`` elements of dimension ``dim`` from ``start`` on."""

    node: Node
    dim: int
    start: int
    count: int

    @property
    def offset(self) -> int:
        """How many elements are before it, where it lies in one piece."""
        return self.start * prod(self.node.result.shape[self.dim + 1 :])


SliceKey = tuple[str, int, int]
"""The value of which slices are parts, the dimension, and how many elements of it each has."""


def slices_of_steps(graph: Graph) -> dict[SliceKey, list[Slice]]:
    """Return the slices of each value that are many, and what products, or sums with products, need: slices that are
    needed otherwise become indices of few kernels."""
    found: dict[SliceKey, list[Slice]] = {}
    for node in graph.nodes:
        if node.op == "slice":
            v = OPERATORS["slice"].values(node.attributes)
            one = Slice(node, v.integer("dim"), v.integer("start"), v.integer("stop") - v.integer("start"))
            if v.integer("step") == 1:
                found.setdefault((node.operands[0], one.dim, one.count), []).append(one)
    many = {key: slices for key, slices in found.items() if len(slices) >= MANY}
    if not many:
        return {}
    after = after_products(graph)
    return {key: slices for key, slices in many.items() if _needed(graph, slices, after) >= MANY}


def _needed(graph: Graph, slices: Sequence[Slice], after: frozenset[str]) -> int:
    """Return how many of the slices are operands of products, or of pointwise nodes beside what follows products."""
    return sum(_is_needed(graph, one.node.name, after) for one in slices)


def _is_needed(graph: Graph, name: str, after: frozenset[str]) -> bool:
    todo, seen = [name], {name}
    while todo:
        name = todo.pop()
        for reader in graph.readers[name]:
            if reader.is_foreign or reader.name in seen:
                continue
            seen.add(reader.name)
            kind = OPERATORS[reader.op].kind
            others = [o for o in reader.operands if o not in seen]
            if kind is Kind.ANCHOR or (kind is Kind.POINTWISE and any(o in after for o in others)):
                return True
            if kind in (Kind.VIEW, Kind.POINTWISE):
                todo.append(reader.name)
    return False


def after_products(graph: Graph) -> frozenset[str]:
    """Return the products, and the pointwise nodes and views of such."""
    found: set[str] = set()
    for node in graph.nodes:
        kind = None if node.is_foreign else OPERATORS[node.op].kind
        if kind is Kind.ANCHOR or (kind in (Kind.POINTWISE, Kind.VIEW) and not found.isdisjoint(node.operands)):
            found.add(node.name)
    return frozenset(found)


def put_steps_first(graph: Graph) -> Graph:
    """Slices of one element along a dimension that is not the first, or that is turned, are taken from a value in which
    it is the first one, and not turned. Then they lie in one piece."""
    moved: dict[str, Slice] = {}
    for (of, d, count), slices in slices_of_steps(graph).items():
        if count == 1 and (prod(graph.values[of].shape[:d]) > 1 or _turned(graph, of, d) is not None):
            moved |= {one.node.name: one for one in slices}
    ordered: dict[tuple[str, int], Value] = {}

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        one = moved.get(node.name)
        if one is None:
            return None
        d, start, of = one.dim, one.start, node.operands[0]
        before = _turned(graph, of, d)
        if before is not None:
            of, start = before, graph.values[of].shape[d] - 1 - start
        x = rewriter.values[of]
        if prod(x.shape[:d]) > 1:
            if (of, d) not in ordered:
                order = (d, *(n for n in range(len(x.shape)) if n != d))
                ordered[of, d] = rewriter.node("permute", x, order=order)
            x, d = ordered[of, d], 0
        part = rewriter.node("slice", x, dim=d, start=start, stop=start + 1, step=1)
        return _shaped(rewriter, part, node.result.shape)

    return drop_unused(rewrite(graph, replaced)) if moved else graph


def _turned(graph: Graph, name: str, dim: int) -> str | None:
    """Return the value that ``name`` is along ``dim`` the other way round."""
    node = graph.producers.get(name)
    is_turned = node is not None and node.op == "flip" and integers_of(node, "dims") == (dim,)
    return node.operands[0] if node is not None and is_turned else None


def multiply_steps_at_once(graph: Graph) -> Graph:
    """Return one product for those of many slices with one matrix:

    x[0] @ w, x[1] @ w, …    ->    y[0], y[1], …    where y = x @ w
    """
    whole: dict[tuple[object, ...], list[str]] = {}
    part: dict[str, Slice] = {}
    for slices in slices_of_steps(graph).values():
        for one in slices:
            for node in _products_of(graph, one):
                part[node.name] = one
                key = (one.node.operands[0], one.dim, one.count, node.operands[1], *sorted(attributes_of(node).items()))
                whole.setdefault(key, []).append(node.name)
    key_of = {name: key for key, names in whole.items() if len(names) >= MANY for name in names}
    products: dict[tuple[object, ...], Value] = {}

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        key = key_of.get(node.name)
        if key is None:
            return None
        one = part[node.name]
        if key not in products:
            x, w = rewriter.values[one.node.operands[0]], rewriter.values[node.operands[1]]
            rows = _shaped(rewriter, x, (x.elements // x.shape[-1], x.shape[-1]))
            product = rewriter.node("matmul", rows, w, **node.attributes)
            products[key] = _shaped(rewriter, product, (*x.shape[:-1], w.shape[-1]))
        stop = one.start + one.count
        found = rewriter.node("slice", products[key], dim=one.dim, start=one.start, stop=stop, step=1)
        return _shaped(rewriter, found, node.result.shape)

    return drop_unused(rewrite(graph, replaced)) if key_of else graph


def _products_of(graph: Graph, one: Slice) -> list[Node]:
    """Return the products of a slice as rows with a matrix that is the same for all steps: an input or of constants."""
    x, found = one.node.result, list[Node]()
    if one.dim == len(x.shape) - 1:
        return found
    given = {v.name for v in graph.inputs} | graph.fixed
    todo = [x.name]
    while todo:
        name = todo.pop()
        for reader in graph.readers[name]:
            if reader.is_foreign:
                continue
            if reader.op == "matmul" and reader.operands[0] == name:
                w, left = graph.values[reader.operands[1]], graph.values[name]
                same = w.name in given and len(w.shape) == 2 and left.shape[-1] == x.shape[-1] and len(left.shape) > 1
                found += [reader] if same else []
            elif alias_of(graph, reader.name) is not None:
                todo.append(reader.name)
    return found


def join_before_products(graph: Graph) -> Graph:
    """What steps compute alike of a value each, and nothing but a concatenation reads, is computed of all at once:

    concatenate(f(h_0), f(h_1), …)    ->    f(concatenate(h_0, h_1, …))    where f is a product, or follows one
    """
    while (found := _joined_before_products(graph)) is not graph:
        graph = found
    return graph


def _joined_before_products(graph: Graph) -> Graph:
    chosen: dict[str, tuple[list[Node], int]] = {}
    within: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op != "concatenate" or node.name in graph.fixed or node.name in within:
            continue
        d = OPERATORS["concatenate"].values(node.attributes).integer("dim")
        leaves, inner = leaves_of(graph, node, d)
        within |= inner
        makers = _alike(graph, leaves) if len(leaves) >= MANY and prod(node.result.shape[:d]) == 1 else None
        if makers is not None:
            chosen[node.name] = makers

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.name not in chosen:
            return None
        makers, varying = chosen[node.name]
        inner = [rewriter.values[m.operands[varying]] for m in makers]
        rows = [_shaped(rewriter, x, (1, *x.shape)) for x in inner]
        x = _joined(rewriter, rows)
        first = makers[0]
        operands = [x if n == varying else rewriter.values[name] for n, name in enumerate(first.operands)]
        if first.op == "matmul":
            operands[0] = _shaped(rewriter, x, (x.elements // x.shape[-1], x.shape[-1]))
        y = rewriter.node(first.op, *operands, **first.attributes)
        return _shaped(rewriter, y, node.result.shape)

    return drop_unused(rewrite(graph, replaced)) if chosen else graph


def _alike(graph: Graph, parts: Sequence[str]) -> tuple[list[Node], int] | None:
    """Return what computes the parts of a concatenation, where that is alike and nothing else reads it, and which
    operand differs; None where there is no such thing."""
    makers: list[Node] = []
    for name in parts:
        while (
            len(graph.readers[name]) == 1 and name not in graph.kept and (before := alias_of(graph, name)) is not None
        ):
            name = before
        maker = graph.producers.get(name)
        if maker is None or maker.is_foreign or len(graph.readers[name]) > 1 or name in graph.kept:
            return None
        makers.append(maker)
    first = makers[0]
    if first.op != "matmul" and first.op not in _ELEMENT_BY_ELEMENT:
        return None
    same = all(
        (m.op, len(m.operands), m.result.type) == (first.op, len(first.operands), first.result.type)
        and attributes_of(m) == attributes_of(first)
        for m in makers
    )
    if not same:
        return None
    columns = [{m.operands[n] for m in makers} for n in range(len(first.operands))]
    differ = [n for n, names in enumerate(columns) if len(names) > 1]
    if len(differ) != 1:
        return None
    varying, result = differ[0], first.result
    if first.op == "matmul":
        fits = varying == 0 and len(graph.values[first.operands[1]].shape) == 2 and len(result.shape) > 1
    else:
        types = {(graph.values[m.operands[varying]].shape, graph.values[m.operands[varying]].dtype) for m in makers}
        fits = {shape for shape, _ in types} == {result.shape} and len(types) == 1
    return (makers, varying) if fits and _follows_product(graph, first, varying) else None


def _follows_product(graph: Graph, node: Node, operand: int) -> bool:
    """Return whether a node is a product, or does something to the elements of one that nothing else reads."""
    while node.op != "matmul":
        name = node.operands[operand]
        while (before := alias_of(graph, name)) is not None and len(graph.readers[name]) == 1:
            name = before
        producer = graph.producers.get(name)
        if producer is None or len(graph.readers[name]) > 1 or name in graph.kept:
            return False
        if producer.op != "matmul" and (producer.op not in _ELEMENT_BY_ELEMENT or len(producer.operands) > 2):
            return False
        after = [n for n, o in enumerate(producer.operands) if graph.values[o].shape == producer.result.shape]
        if producer.op != "matmul" and not after:
            return False
        node, operand = producer, after[0] if after else 0
    return node.operands[1] in {v.name for v in graph.inputs} | graph.fixed


def _joined(rewriter: Rewriter, parts: Sequence[Value]) -> Value:
    """Return the parts behind one another along the first dimension. Many are joined in groups, so that a kernel for
    one stays within the limits where parts are not written in place."""
    while len(parts) > _GROUP:
        groups = [parts[n : n + _GROUP] for n in range(0, len(parts), _GROUP)]
        parts = [g[0] if len(g) == 1 else rewriter.node("concatenate", *g, dim=0) for g in groups]
    return rewriter.node("concatenate", *parts, dim=0)


def _shaped(rewriter: Rewriter, x: Value, shape: Sequence[int]) -> Value:
    return x if x.shape == tuple(shape) else rewriter.node("reshape", x, shape=tuple(shape))


def join_steps_first(graph: Graph) -> Graph:
    """Concatenations of parts of extent 1 that follow products are made along the first dimension, and permuted: then
    parts are written where they belong."""
    moved: dict[str, tuple[Sequence[str], int]] = {}
    after = after_products(graph)
    for node in graph.nodes:
        if node.op == "concatenate" and node.name not in graph.fixed:
            d = OPERATORS["concatenate"].values(node.attributes).integer("dim")
            leaves, _ = leaves_of(graph, node, d)
            alone = len(leaves) == node.result.shape[d] and prod(node.result.shape[:d]) > 1
            if alone and len(leaves) >= MANY and after.issuperset(leaves):
                moved[node.name] = leaves, d

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.name not in moved:
            return None
        leaves, d = moved[node.name]
        shape = node.result.shape
        rows = [_shaped(rewriter, rewriter.values[n], (1, *shape[:d], *shape[d + 1 :])) for n in leaves]
        return rewriter.node("permute", _joined(rewriter, rows), order=(*range(1, d + 1), 0, *range(d + 1, len(shape))))

    return drop_unused(rewrite(graph, replaced)) if moved else graph


def leaves_of(graph: Graph, node: Node, dim: int) -> tuple[Sequence[str], set[str]]:
    """Return what a concatenation joins, through those along the same dimension that nothing else reads, and the
    latter."""
    leaves: list[str] = []
    inner: set[str] = set()
    for name in node.operands:
        before = graph.producers.get(name)
        alone = before is not None and len(graph.readers[name]) == 1 and name not in graph.kept
        if before is not None and alone and before.op == "concatenate" and before.attributes["dim"] == dim:
            below, further = leaves_of(graph, before, dim)
            leaves.extend(below)
            inner |= {name} | further
        else:
            leaves.append(name)
    return leaves, inner
