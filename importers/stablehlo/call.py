"""What a rule for an operation of StableHLO is given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...core.dtypes import DType
from ...graph.graph import Node, Value
from ...graph.operators.operator import Array, TensorType, broadcast
from ..aten.rule import NodeMaker, NoRule, need


class ModuleReader(NodeMaker, Protocol):
    """What a rule asks of the reader of a module."""

    def known(self, value: Value) -> Array | None:
        """Return the elements of a value that depends on no argument, and has few; None for any other."""
        ...

    def maker(self, value: Value) -> Node | None:
        """Return the node that computes a value; None for arguments and constants."""
        ...

    def named(self, name: str) -> Value:
        """Return the value of that name."""
        ...


@dataclass(frozen=True)
class HloCall:
    """One operation. ``attributes`` are numbers, texts, lists of them, arrays, and for dimension numbers objects with
    lists. ``results`` are the types of the results. ``body`` is what its region computes, such as ``add(0,1)`` of the
    region's arguments 0 and 1; empty where there is none, or where it is long."""

    op: str
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    results: tuple[TensorType, ...]
    body: str
    reader: ModuleReader
    read: set[str] = field(default_factory=set)
    """The attributes that the rule has looked at."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self.results[0].shape

    @property
    def dtype(self) -> DType:
        """The dtype of the first result."""
        return self.results[0].dtype

    def node(self, op: str, *operands: Value, **attributes: object) -> Value:
        """Add a node."""
        return self.reader.node(op, *operands, **attributes)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        self.read.add(name)
        return self.attributes.get(name, default)

    def made(self, value: Value, *ops: str) -> Node | None:
        """Return the node that computes ``value``, if it is one of ``ops``."""
        node = self.reader.maker(value)
        return node if node is not None and node.op in ops else None

    def source(self, node: Node, n: int = 0) -> Value:
        """Operand ``n`` of a node."""
        return self.reader.named(node.operands[n])

    def number(self, value: Value) -> float | None:
        """Return the one number that all elements of a value are; None where that is not known."""
        made = self.made(value, "full")
        if made is not None:
            return float(made.attributes["value"])  # type: ignore[arg-type]
        found = self.reader.known(value)
        return None if found is None else one_number(found)

    def integers(self, n: int) -> list[int]:
        """Return the elements of input ``n``. Raises NoRule where they are known only when the model runs."""
        found = self.reader.known(self.inputs[n])
        if found is None:
            raise NoRule(f"input {n} is not known while the module is read")
        return [int(i) for i in np.ravel(found)]

    def scalar(self, value: float, dtype: DType) -> Value:
        """Return a number that broadcasts."""
        return number_value(self.reader, value, (), dtype)

    def narrowed(self) -> list[Value]:
        """Return the inputs as they were before they were broadcast, as far as operators that broadcast give the
        same."""
        found = list(self.inputs)
        for n, value in enumerate(found):
            less = self._before_broadcast(value)
            others = [*(v.shape for v in found[:n]), *(v.shape for v in found[n + 1 :]), less.shape]
            if broadcast(others) == self.shape:
                found[n] = less
        return found

    def _before_broadcast(self, value: Value) -> Value:
        if value.shape and (number := self.number(value)) is not None:
            return self.scalar(number, value.dtype)
        expanded = self.made(value, "expand")
        if expanded is None:
            return value
        value = self.source(expanded)
        reshaped = self.made(value, "reshape")
        before = value if reshaped is None else self.source(reshaped)
        added = len(value.shape) - len(before.shape)
        return before if added > 0 and value.shape == (*[1] * added, *before.shape) else value


Rule = Callable[[HloCall], "Value | Sequence[Value]"]

RULES: dict[str, Rule] = {}
"""The name of an operation, such as ``stablehlo.add``, and its rule."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Put a function into the table. Names without a dialect are of ``stablehlo``."""

    def add(function: Rule) -> Rule:
        RULES.update({name if "." in name else f"stablehlo.{name}": function for name in names})
        return function

    return add


def number_value(b: NodeMaker, value: float, shape: Sequence[int], dtype: DType) -> Value:
    """Return a value all of whose elements are one number."""
    given = bool(value) if dtype.is_bool else int(value) if dtype.is_integer else float(value)
    text = str(given) if isinstance(given, float) and not np.isfinite(given) else given
    return b.node("full", shape=tuple(shape), value=text, dtype=dtype.name)


def one_number(array: Array) -> float | None:
    """Return the number that all elements of an array are; None where they differ, or where there is none."""
    first = array.flat[0] if array.size else None
    if first is None or not ((array == first).all() or (array != array).all()):
        return None
    return float(first)


def permuted(c: HloCall, x: Value, order: Sequence[int]) -> Value:
    """``x`` in another order of dimensions. Two become one; one of single elements is a reshape."""
    before = c.made(x, "permute")
    if before is not None:
        first = before.attributes["order"]
        assert isinstance(first, tuple)
        x, order = c.source(before), [first[d] for d in order]
    if [d for d in order if x.shape[d] != 1] == [d for d in range(len(order)) if x.shape[d] != 1]:
        return reshaped(c, x, [x.shape[d] for d in order])
    return c.node("permute", x, order=tuple(order))


def reshaped(c: HloCall, x: Value, shape: Sequence[int]) -> Value:
    """``x`` in another shape. Two shapes become one."""
    before = c.made(x, "reshape")
    x = x if before is None else c.source(before)
    return x if x.shape == tuple(shape) else c.node("reshape", x, shape=tuple(shape))


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the order that undoes ``order``."""
    return tuple(list(order).index(d) for d in range(len(order)))


def clamped(c: HloCall, places: Value, most: int) -> Value:
    """Places from 0 to ``most``."""
    need(places.dtype.is_integer, "places that are no integers")
    low = c.node("maximum", places, c.scalar(0, places.dtype))
    return c.node("minimum", low, c.scalar(most, places.dtype))
