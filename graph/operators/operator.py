"""An operator of graphs: the type of its result, what it computes, and how it is written as a tensor expression."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from typing import Any, Protocol

from numpy.typing import NDArray

from ...core.dtypes import DType, float32
from ...core.errors import InvalidGraph, InvalidParameter
from ...ir.bounds import Ranges, loop_range
from ...ir.expr import Binary, BinaryOp, Expr, Load, Var, index, rebuild, walk
from ...ir.rewrite import map_expr
from ...ir.simplify import simplify
from ...te.build import Reduction, Tensor, cast, compute
from ...te.index import index_of
from ...te.operators.parameter import Parameter, Values, shown

Array = NDArray[Any]

Attributes = Mapping[str, object]
"""Attributes by name. Lists are tuples."""


class Kind(StrEnum):
    """What a kernel may do with an operator.

    - ``view``: its elements are elements of operands, or constants. It becomes part of the indices of its readers.
    - ``pointwise``: each element is a function of one element of each operand.
    - ``reduction``: elements are combined along dimensions, as in sums, norms and pools.
    - ``anchor``: a product or a convolution, which a kernel has at most one of.
    """

    VIEW = "view"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    ANCHOR = "anchor"


@dataclass(frozen=True, slots=True)
class TensorType:
    """The shape and the dtype of a value."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def elements(self) -> int:
        return prod(self.shape)


class GraphOperand(Protocol):
    """What can be read while a tensor expression is written: a ``te.build.Tensor``, or an ``Element``."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DType: ...

    def __getitem__(self, at: tuple[Expr, ...], /) -> Expr: ...


@dataclass(frozen=True, slots=True)
class Element:
    """A value that is not stored: ``at`` gives its element at some indices. The expression may be float32 where
    ``dtype`` is a 16-bit float, because such values need not be rounded before they are stored."""

    shape: tuple[int, ...]
    dtype: DType
    at: Callable[[tuple[Expr, ...]], Expr]

    def __getitem__(self, at: tuple[Expr, ...]) -> Expr:
        return self.at(at)


def wide(e: Expr) -> Expr:
    """``e`` in the dtype that arithmetic on it is done in: float32 for 16-bit floats."""
    return cast(e, widened(e.dtype))


def widened(dtype: DType) -> DType:
    """Return float32 for 16-bit floats, else ``dtype`` itself."""
    return float32 if dtype.is_float and dtype.bits == 16 else dtype


@dataclass(frozen=True, slots=True)
class Case:
    """A small example of an operator, for the contract suite."""

    operands: tuple[TensorType, ...]
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GraphOperator:
    """``type_rule`` gives the type of the result, and raises InvalidGraph where the operands do not fit.

    ``evaluate`` computes the result with NumPy: floats in float64, integers and bools in their own dtypes. ``build``
    writes it as a tensor expression. Both are given attributes that have been checked.
    """

    name: str
    kind: Kind
    summary: str
    type_rule: Callable[[Sequence[TensorType], Values], TensorType]
    evaluate: Callable[[Sequence[Array], Values], Array]
    build: Callable[[Sequence[GraphOperand], Values], GraphOperand]
    cases: tuple[Case, ...]
    attributes: tuple[Parameter, ...] = ()
    operands: tuple[int, int] = (1, 1)
    """The least and the largest number of operands."""
    uses: int = 1
    """How often an element of an operand is used. What is used often, and is more than a load, is worth a tensor."""

    def values(self, attributes: Attributes) -> Values:
        """Return all attributes, defaults filled in. Raises InvalidParameter that names the first that is wrong."""
        names = [a.name for a in self.attributes]
        for name in attributes:
            if name not in names:
                known = ", ".join(names) or "none"
                raise InvalidParameter(f"{self.name} has no attribute {shown(name)}; it has {known}", field=str(name))
        return Values({a.name: a.read(attributes) for a in self.attributes})

    def result(self, operands: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """Return the type of the result. Raises InvalidParameter for a wrong attribute and InvalidGraph for wrong
        operands."""
        low, high = self.operands
        if not low <= len(operands) <= high:
            raise InvalidGraph(f"{self.name} takes {low} to {high} operands, given {len(operands)}", field=self.name)
        return self.type_rule(operands, self.values(attributes))


def stored(shape: Sequence[int], body: Callable[..., Expr | Reduction], name: str, axes: Sequence[str] = ()) -> Tensor:
    """Return a tensor of the expression whose element is ``body`` at its indices. A number is put behind ``name``, so
    that two operators of one kernel may use the same."""
    names = axes or [f"i{d}" for d in range(len(shape))]

    def simple(*at: Expr) -> Expr | Reduction:
        value = body(*at)
        ranges = {i.name: loop_range(n) for i, n in zip(at, shape, strict=True) if isinstance(i, Var)}
        if isinstance(value, Expr):
            return _with_simple_indices(value, ranges)
        ranges |= {a.name: loop_range(a.extent) for a in value.axes}
        return replace(value, body=_with_simple_indices(value.body, ranges))

    return replace(compute(shape, simple, name, names), named=False)


def _with_simple_indices(body: Expr, ranges: Ranges) -> Expr:
    """``body`` with quotients and remainders in indices resolved as far as the ranges of the axes allow."""

    def place(e: Expr) -> Expr:
        if not any(isinstance(part, Binary) and part.op in (BinaryOp.FLOORDIV, BinaryOp.MOD) for part in walk(e)):
            return e
        plain = map_expr(e, lambda part: Var(part.name) if isinstance(part, Var) else part)  # no axes of te
        found = simplify(plain, ranges)
        return e if index_of(found) is None else found

    def node(e: Expr) -> Expr:
        return rebuild(e, [place(i) for i in e.indices]) if isinstance(e, Load) else e

    return map_expr(body, node)


def same_dtype(operands: Sequence[TensorType]) -> DType:
    """Return the one dtype of all operands. Raises InvalidGraph where they differ."""
    if len({o.dtype for o in operands}) != 1:
        raise InvalidGraph(f"operands are {', '.join(map(str, operands))}; they must have one dtype", field="operands")
    return operands[0].dtype


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that all ``shapes`` broadcast to, by NumPy's rule. Raises InvalidGraph where there is none."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for d, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and result[d] not in (1, extent):
                raise InvalidGraph(f"shapes {list(map(list, shapes))} do not broadcast", field="operands")
            result[d] = extent if extent != 1 else result[d]
    return tuple(result)


def broadcast_read(operand: GraphOperand, at: tuple[Expr, ...]) -> Expr:
    """Return the element of ``operand`` at indices of the shape that it is broadcast to."""
    own = at[len(at) - len(operand.shape) :]
    return operand[tuple(index(0) if extent == 1 else i for i, extent in zip(own, operand.shape, strict=True))]


def dimension(values: Values, name: str, rank: int) -> int:
    """Return the attribute ``name`` as a dimension of ``rank``. Raises InvalidGraph outside of 0 to ``rank`` - 1."""
    d = values.integer(name)
    if not 0 <= d < rank:
        raise InvalidGraph(f"{name} is {d}; allowed: 0 to {rank - 1}", field=name)
    return d
