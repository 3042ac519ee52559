"""Operators that put operands, or an operand and a border, side by side."""

from collections.abc import Sequence

import numpy as np

from ...core.dtypes import float32
from ...core.errors import InvalidGraph
from ...ir.expr import Expr
from ...te.build import all_of, constant, equal, select
from ...te.operators.parameter import ListOf, Parameter, Values
from .attributes import DIMENSION, WHOLE, Real, real
from .operator import (
    Array,
    Case,
    Element,
    GraphOperand,
    GraphOperator,
    Kind,
    TensorType,
    dimension,
    same_dtype,
    wide,
    widened,
)


def _concatenate_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    dtype, first = same_dtype(operands), operands[0].shape
    d = dimension(v, "dim", len(first))
    for o in operands:
        if len(o.shape) != len(first) or (*o.shape[:d], *o.shape[d + 1 :]) != (*first[:d], *first[d + 1 :]):
            raise InvalidGraph(f"{o} beside {operands[0]} along dimension {d}", field="operands")
    return TensorType((*first[:d], sum(o.shape[d] for o in operands), *first[d + 1 :]), dtype)


def _concatenate(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    d = v.integer("dim")
    first = operands[0].shape

    def at(to: tuple[Expr, ...]) -> Expr:
        end = sum(o.shape[d] for o in operands)
        result: Expr | None = None
        for operand in reversed(operands):
            end -= operand.shape[d]
            own = wide(operand[(*to[:d], to[d] - end if end else to[d], *to[d + 1 :])])
            result = own if result is None else select(to[d] < end + operand.shape[d], own, result)
        assert result is not None
        return result

    shape = (*first[:d], sum(o.shape[d] for o in operands), *first[d + 1 :])
    return Element(shape, operands[0].dtype, at)


def _widths(v: Values, rank: int) -> tuple[tuple[int, int], ...]:
    before, behind = v.integers("before"), v.integers("behind")
    if len(before) != rank or len(behind) != rank or min((*before, *behind), default=0) < 0:
        raise InvalidGraph(f"before and behind have one number for each of {rank} dimensions, none < 0", field="before")
    return tuple(zip(before, behind, strict=True))


def _pad_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    widths = _widths(v, len(operands[0].shape))
    return TensorType(tuple(n + a + b for n, (a, b) in zip(operands[0].shape, widths, strict=True)), operands[0].dtype)


def bordered(operand: GraphOperand, widths: Sequence[tuple[int, int]], value: float) -> GraphOperand:
    """``operand`` with a border of ``value``: so many elements (before, behind) along each dimension."""
    if not any(before or behind for before, behind in widths):
        return operand
    shape = tuple(n + a + b for n, (a, b) in zip(operand.shape, widths, strict=True))

    def at(to: tuple[Expr, ...]) -> Expr:
        inside: list[Expr] = []
        for i, extent, (before, behind) in zip(to, operand.shape, widths, strict=True):
            inside += [i >= before] if before else []
            inside += [i < extent + before] if behind else []
        moved = tuple(i - before if before else i for i, (before, _) in zip(to, widths, strict=True))
        element = operand[moved]  # kernels load it under the mask as it is stored
        border = constant(element.dtype.numpy.type(value).item(), element.dtype)
        return wide(select(all_of(*inside), element, border))

    return Element(shape, operand.dtype, at)


def _spread_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    shape, step = list(operands[0].shape), v.integer("step")
    d = dimension(v, "dim", len(shape))
    if step < 1 or shape[d] < 1:
        raise InvalidGraph(f"step is {step} over {shape[d]} elements; allowed: at least 1 of both", field="step")
    shape[d] = (shape[d] - 1) * step + 1
    return TensorType(tuple(shape), operands[0].dtype)


def _spread_numpy(operands: Sequence[Array], v: Values) -> Array:
    x, d, step = operands[0], v.integer("dim"), v.integer("step")
    shape = list(x.shape)
    shape[d] = (shape[d] - 1) * step + 1
    result = np.zeros(shape, x.dtype)
    result[(*[slice(None)] * d, slice(None, None, step))] = x
    return result


def _spread(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, d, step = operands[0], v.integer("dim"), v.integer("step")
    if step == 1:
        return x

    def at(to: tuple[Expr, ...]) -> Expr:
        dtype = widened(x.dtype)
        e = wide(x[(*to[:d], to[d] // step, *to[d + 1 :])])
        return select(equal(to[d] % step, 0), e, constant(dtype.numpy.type(0).item(), dtype))

    return Element((*x.shape[:d], (x.shape[d] - 1) * step + 1, *x.shape[d + 1 :]), x.dtype, at)


_X = TensorType((2, 3), float32)
_SIDES = ListOf(WHOLE, 0)

CONCATENATE = GraphOperator(
    "concatenate", Kind.VIEW, "the operands behind one another along a dimension", _concatenate_type,
    lambda o, v: np.concatenate(o, v.integer("dim")), _concatenate,
    (Case((_X, TensorType((2, 5), float32), _X), {"dim": 1}), Case((_X,), {"dim": 0})),
    (Parameter("dim", "the dimension", DIMENSION),), (1, 128),
)  # fmt: skip
PAD = GraphOperator(
    "pad", Kind.VIEW, "the operand with a border of one value", _pad_type,
    lambda o, v: np.pad(o[0], _widths(v, o[0].ndim), constant_values=real(v, "value")),
    lambda o, v: bordered(o[0], _widths(v, len(o[0].shape)), real(v, "value")),
    (Case((_X,), {"before": (1, 0), "behind": (0, 2), "value": 1.5}),
     Case((_X,), {"before": (0, 0), "behind": (0, 0)})),
    (Parameter("before", "elements before each dimension", _SIDES),
     Parameter("behind", "elements behind each dimension", _SIDES),
     Parameter("value", "what the border holds", Real(), 0.0)),
)  # fmt: skip
SPREAD = GraphOperator(
    "spread", Kind.VIEW, "the operand with step - 1 zeros between neighbours along a dimension", _spread_type,
    _spread_numpy, _spread, (Case((_X,), {"dim": 1, "step": 3}), Case((_X,), {"dim": 0, "step": 1})),
    (Parameter("dim", "the dimension", DIMENSION), Parameter("step", "the distance of neighbours", WHOLE)),
)  # fmt: skip
