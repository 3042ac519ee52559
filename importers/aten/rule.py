"""What a rule is, and what rules share."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ...core.dtypes import DType
from ...graph.graph import Value
from ...graph.operators.attributes import real_json
from ...graph.operators.operator import Array


class NoRule(Exception):
    """A rule does not cover these arguments."""


class NodeMaker(Protocol):
    """What adds nodes to a graph."""

    def node(self, op: str, *operands: Value, **attributes: object) -> Value:
        """Add a node, and return its result."""
        ...


class Emitter(NodeMaker, Protocol):
    """What a rule may do."""

    @property
    def target(self) -> str:
        """The name of the operator, such as ``aten.add.Tensor``."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result, as torch gives it."""
        ...

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result, as torch gives it."""
        ...

    @property
    def precision(self) -> str:
        """The roundings that torch allows itself in products of float32 (``core.precision``)."""
        ...

    @property
    def convolution_precision(self) -> str:
        """The same for convolutions."""
        ...

    def common(self, *arguments: Any) -> DType:
        """Return the dtype in which torch computes on these tensors and numbers."""
        ...

    def expanded_from(self, value: Value) -> Value:
        """Return what a value has been expanded from, or the value itself."""
        ...

    def known(self, value: Value) -> Array | None:
        """Return the elements of a value that depends on no input and no constant; None for any other."""
        ...

    def dtype_of(self, given: Any) -> DType:
        """Return a dtype of torch. Raises NoRule for one that graphs do not have."""
        ...


Rule = Callable[..., "Value | Sequence[Value]"]
_Rule = TypeVar("_Rule", bound=Rule)

RULES: dict[str, Rule] = {}
"""The name of an operator, such as ``aten.add.Tensor``, and its rule."""


_NAMESPACES = ("tilewright.", "quantized_decomposed.")


def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Put a function into the table, under the names of operators of ATen, or of the namespaces that begin them."""

    def add(function: _Rule) -> _Rule:
        RULES.update({name if name.startswith(_NAMESPACES) else f"aten.{name}": function for name in names})
        return function

    return add


def cast(b: NodeMaker, x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else b.node("cast", x, dtype=dtype.name)


def number(b: NodeMaker, value: Any, dtype: DType) -> Value:
    """Return a scalar of ``dtype``. Raises NoRule for a number that it does not hold."""
    if not isinstance(value, int | float):
        raise NoRule(f"the number {value!r}")
    if dtype.is_integer and (value != value or value in (math.inf, -math.inf) or int(value) != value):
        raise NoRule(f"{value} as {dtype}")
    given = bool(value) if dtype.is_bool else int(value) if dtype.is_integer else float(value)
    return b.node("full", shape=(), value=real_json(given), dtype=dtype.name)


def operand(b: NodeMaker, x: Any, dtype: DType) -> Value:
    """Return a tensor or a number as a value of ``dtype``."""
    return cast(b, x, dtype) if isinstance(x, Value) else number(b, x, dtype)


def need(condition: bool, what: str) -> None:
    if not condition:
        raise NoRule(what)


def dims_of(dims: Any, rank: int) -> tuple[int, ...]:
    """Dimensions as torch gives them, from 0 to ``rank`` - 1 and sorted; all of them for None and for none."""
    given = [dims] if isinstance(dims, int) else list(range(rank) if not dims else dims)
    return tuple(sorted(d % rank for d in given)) if rank else ()


def tuple_of(value: Any, rank: int) -> tuple[int, ...]:
    """Return one number for each of ``rank`` dimensions, as torch abbreviates them."""
    given = [value] if isinstance(value, int) else list(value)
    return tuple(given * rank if len(given) == 1 else given)


def reshape(b: NodeMaker, x: Value, shape: Sequence[int]) -> Value:
    return x if x.shape == tuple(shape) else b.node("reshape", x, shape=tuple(shape))


def transpose(b: NodeMaker, x: Value, i: int = -2, j: int = -1) -> Value:
    order = list(range(len(x.shape)))
    order[i], order[j] = order[j], order[i]
    return b.node("permute", x, order=tuple(order))


def slice_(b: NodeMaker, x: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    return b.node("slice", x, dim=dim % len(x.shape), start=start, stop=stop, step=step)
