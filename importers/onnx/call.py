"""What a rule for an operator of ONNX is given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.dtypes import DType
from ...graph.graph import GraphBuilder, Value
from ...graph.operators.operator import Array
from ...graph.reference import known_value
from ..aten.rule import NoRule


@dataclass(frozen=True)
class Call:
    """One node of ONNX. ``inputs``: a value for each input, None for one that is left out. ``constants``: the elements
    of those that are known while the model is read, such as shapes. ``results``: how many outputs are used."""

    op: str
    opset: int
    inputs: tuple[Value | None, ...]
    constants: tuple[Array | None, ...]
    attributes: Mapping[str, Any]
    results: int
    builder: GraphBuilder
    data: Callable[[Array], Value]
    """It makes a constant of the graph from its elements."""
    read: set[str] = field(default_factory=set)
    """The attributes that the rule has looked at."""

    def node(self, op: str, *operands: Value, **attributes: object) -> Value:
        """Add a node."""
        return self.builder.node(op, *operands, **attributes)

    def has(self, n: int) -> bool:
        """Return whether input ``n`` is there."""
        return n < len(self.inputs) and self.inputs[n] is not None

    def value(self, n: int) -> Value:
        """Input ``n``. Raises NoRule where it is left out."""
        found = self.inputs[n] if n < len(self.inputs) else None
        if found is None:
            raise NoRule(f"input {n} is left out")
        return found

    def known(self, n: int) -> Array:
        """Return the elements of input ``n``. Raises NoRule where they are known only when the model runs."""
        found = self.constants[n] if n < len(self.constants) else None
        value = self.inputs[n] if found is None and self.has(n) else None
        if value is not None:
            found = known_value(self.builder, value)
        if found is None:
            raise NoRule(f"input {n} is not known while the model is read")
        return found

    def integers(self, n: int) -> list[int]:
        """Return the elements of input ``n`` as whole numbers."""
        return [int(i) for i in np.ravel(self.known(n))]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        self.read.add(name)
        return self.attributes.get(name, default)

    def given_twice(self, name: str, n: int) -> list[int] | None:
        """Whole numbers that stand in an attribute in old opsets, and in input ``n`` in new ones."""
        self.read.add(name)
        if name in self.attributes:
            return [int(i) for i in self.attributes[name]]
        return self.integers(n) if self.has(n) else None


Rule = Callable[[Call], "Value | Sequence[Value]"]

RULES: dict[str, Rule] = {}
"""The name of an operator, and its rule."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Put a function into the table, under the names of operators of ONNX."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def need(condition: bool, what: str) -> None:
    if not condition:
        raise NoRule(what)


def axis_of(axis: int | None, rank: int) -> int:
    """Return the dimension from 0 to ``rank`` - 1 that ``axis`` means. Raises NoRule where it means none."""
    if axis is None or not -rank <= axis < rank:
        raise NoRule(f"axis {axis} of {rank} dimensions")
    return axis % rank


def dims_of(dims: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions from 0 to ``rank`` - 1, sorted; all of them for None."""
    return tuple(range(rank)) if dims is None else tuple(sorted(axis_of(d, rank) for d in dims))


def cast(c: Call, x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else c.node("cast", x, dtype=dtype.name)
