"""A graph: the operations of a model on dense, row-major values with concrete shapes. Plain data without weights."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from ..core.dtypes import DType
from ..core.errors import InvalidGraph, InvalidParameter
from ..te.limits import MAX_ELEMENTS, MAX_EXTENT, NAME_PATTERN
from .limits import MAX_OPERANDS, MAX_VALUES
from .operators import OPERATORS
from .operators.operator import Attributes, TensorType

FOREIGN = "foreign"
"""The operation of a node that the library of the model computes, because no operator of ours does."""

_NAME = re.compile(NAME_PATTERN[:-1] + r"\Z")


@dataclass(frozen=True, slots=True)
class Value:
    """One named value. ``type`` is None for what only foreign calls can read: another dtype, a number, a list."""

    name: str
    type: TensorType | None

    @property
    def tensor(self) -> TensorType:
        """The type of a value that is a tensor. Raises InvalidGraph for any other."""
        if self.type is None:
            raise InvalidGraph(f"{self.name} is not a tensor of a known dtype", field=self.name)
        return self.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: ``results = op(operands, attributes)``.

    ``op`` is a name in ``operators.OPERATORS``, which have one result each, or ``FOREIGN``. A foreign node has the
    attributes ``target`` (the name of a function, such as ``aten.topk.default``), ``arguments`` and ``keywords``; in
    the last two ``{"operand": n}`` stands for an operand. Other nodes have all attributes of their operator.
    """

    op: str
    operands: tuple[str, ...]
    results: tuple[Value, ...]
    attributes: Attributes = field(default_factory=dict)

    @property
    def result(self) -> Value:
        """The one result of a node that is not foreign."""
        return self.results[0]

    @property
    def name(self) -> str:
        """The name of the first result."""
        return self.results[0].name

    @property
    def is_foreign(self) -> bool:
        return self.op == FOREIGN

    @property
    def has_effect(self) -> bool:
        """Whether a foreign node does more than give its results, such as a check that raises an error."""
        return self.is_foreign and bool(self.attributes.get("effect", False))


@dataclass(frozen=True)
class Graph:
    """``nodes`` stand in an order in which each reads only what stands before it. ``constants`` are inputs that stay
    the same from call to call, such as weights; their data are not part of the graph. ``updates`` maps inputs to the
    values that they are overwritten with when everything else is done."""

    inputs: tuple[Value, ...]
    constants: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """Every value by its name."""
        given = {v.name: v for v in (*self.inputs, *self.constants)}
        return given | {v.name: v for node in self.nodes for v in node.results}

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that computes a value, by the name of the value."""
        return {v.name: node for node in self.nodes for v in node.results}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Node]]:
        """The nodes that read a value, by the name of the value. A node stands there once for each operand."""
        found: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in node.operands:
                found[name].append(node)
        return found

    @cached_property
    def kept(self) -> frozenset[str]:
        """The values that are outputs, or overwrite an input."""
        return frozenset(self.outputs) | {value for _, value in self.updates}

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The values that depend on constants and on nothing else. They are computed once for each set of weights."""
        found = {v.name for v in self.constants}
        for node in self.nodes:
            if not node.is_foreign and all(name in found for name in node.operands):
                found.add(node.name)
        return frozenset(found)


def check_graph(graph: Graph) -> Graph:
    """``graph`` itself. Raises InvalidGraph, whose ``field`` is a JSON pointer, unless all of this holds:

    - names match ``NAME_PATTERN`` of ``te.limits``, and each names one value; the numbers of ``limits`` are kept;
    - every node reads values that stand before it, has an operator of the table with the attributes that it takes, and
      its result has the type that the operator gives; or it is foreign;
    - outputs are values; updates name inputs, each once, and values of the same type.
    """
    known: dict[str, Value] = {}
    for group, values in (("inputs", graph.inputs), ("constants", graph.constants)):
        _check_count(len(values), f"/{group}", MAX_VALUES)
        for n, value in enumerate(values):
            _add(known, value, f"/{group}/{n}")
    _check_count(len(graph.nodes), "/nodes", MAX_VALUES)
    for n, node in enumerate(graph.nodes):
        _check_node(node, known, f"/nodes/{n}")
        for k, value in enumerate(node.results):
            _add(known, value, f"/nodes/{n}/results/{k}")
    _check_count(len(graph.outputs), "/outputs", MAX_VALUES)
    for n, name in enumerate(graph.outputs):
        if name not in known:
            raise InvalidGraph(f"{name!r} is no value of the graph", field=f"/outputs/{n}")
    inputs = {v.name: v for v in graph.inputs}
    for n, (target, name) in enumerate(graph.updates):
        if target not in inputs or name not in known or target in [t for t, _ in graph.updates[:n]]:
            raise InvalidGraph(f"{name!r} cannot overwrite {target!r}, which must be an input", field=f"/updates/{n}")
        if inputs[target].type != known[name].type:
            raise InvalidGraph(f"{name} and {target} have different types", field=f"/updates/{n}")
    return graph


def _check_node(node: Node, known: Mapping[str, Value], at: str) -> None:
    _check_count(len(node.operands), f"{at}/operands", MAX_OPERANDS)
    for k, name in enumerate(node.operands):
        if name not in known:
            raise InvalidGraph(f"{name!r} is no value that stands before this node", field=f"{at}/operands/{k}")
    if not 1 <= len(node.results) <= MAX_OPERANDS:
        raise InvalidGraph(f"{len(node.results)} results; allowed: 1 to {MAX_OPERANDS}", field=f"{at}/results")
    if node.is_foreign:
        if set(node.attributes) - {"effect"} != {"target", "arguments", "keywords"}:
            raise InvalidGraph(
                "a foreign node has target, arguments and keywords, and may have an effect", field=f"{at}/attributes"
            )
        return
    operator = OPERATORS.get(node.op)
    if operator is None:
        allowed = ", ".join([*OPERATORS, FOREIGN])
        raise InvalidGraph(f"{node.op!r} is no operator; allowed: {allowed}", field=f"{at}/op")
    if len(node.results) != 1:
        raise InvalidGraph(f"{node.op} has one result, given {len(node.results)}", field=f"{at}/results")
    try:
        found = operator.result([known[name].tensor for name in node.operands], node.attributes)
    except InvalidParameter as error:
        raise InvalidGraph(error.message, field=f"{at}/attributes/{error.field}") from error
    except InvalidGraph as error:
        raise InvalidGraph(error.message, field=f"{at}/operands") from error
    if found != node.result.type:
        raise InvalidGraph(f"{node.op} gives {found}, the result is {node.result.type}", field=f"{at}/results/0")


def _check_count(count: int, at: str, most: int) -> None:
    if count > most:
        raise InvalidGraph(f"{count} {at.rsplit('/', 1)[-1]}; allowed: at most {most}", field=at)


def _add(known: dict[str, Value], value: Value, at: str) -> None:
    if not isinstance(value.name, str) or not _NAME.match(value.name):
        raise InvalidGraph(f"{value.name!r} is no name; allowed: {NAME_PATTERN}", field=f"{at}/name")
    if value.name in known:
        raise InvalidGraph(f"{value.name} is already the name of another value", field=f"{at}/name")
    for extent in value.type.shape if value.type else ():
        if not isinstance(extent, int) or isinstance(extent, bool) or not 0 <= extent <= MAX_EXTENT:
            raise InvalidGraph(f"extent {extent!r}; allowed: whole numbers 0 to {MAX_EXTENT}", field=f"{at}/shape")
    if value.type and prod(value.type.shape) >= MAX_ELEMENTS:
        raise InvalidGraph(f"{prod(value.type.shape)} elements; allowed: under {MAX_ELEMENTS}", field=f"{at}/shape")
    known[value.name] = value


class GraphBuilder:
    """It adds nodes one after the other and names their results. ``node`` asks the operator for the result's type."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        """``taken`` are names that no new value may get."""
        self.made: dict[str, Node] = {}
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # the number of the last name with a stem

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, in order."""
        return tuple(self.made.values())

    def add(self, node: Node) -> None:
        """Add a node whose results have names of their own."""
        self.made[node.name] = node

    def name(self, stem: str) -> str:
        """Return a name that is not taken yet: ``stem``, or ``stem`` with a number behind it."""
        stem = re.sub(r"[^A-Za-z0-9_]", "_", stem)[:48] or "value"
        stem = stem if re.match(r"[A-Za-z_]", stem) else f"_{stem}"
        n = self._last.get(stem, 0)
        name = f"{stem}_{n}" if n else stem
        while name in self._taken:
            n += 1
            name = f"{stem}_{n}"
        self._last[stem] = n
        self._taken.add(name)
        return name

    def node(self, op: str, *operands: Value, **attributes: object) -> Value:
        """Add a node, and return its result. Raises InvalidGraph or InvalidParameter where the operator does not take
        the operands or the attributes."""
        operator = OPERATORS[op]
        result = Value(self.name(op), operator.result([v.tensor for v in operands], attributes))
        self.add(Node(op, tuple(v.name for v in operands), (result,), operator.values(attributes).values))
        return result


def in_order(graph: Graph) -> Iterator[Value]:
    """Yield all values: inputs, constants, then the results of the nodes."""
    yield from graph.inputs
    yield from graph.constants
    for node in graph.nodes:
        yield from node.results
