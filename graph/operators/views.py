"""Operators whose result has the elements of the operand in another shape or order."""

from collections.abc import Sequence
from math import prod

import numpy as np

from ...core.dtypes import float32, int32
from ...core.errors import InvalidGraph
from ...ir.expr import Expr, index
from ...te.operators.parameter import Parameter, Values
from .attributes import DIMENSION, DIMENSIONS, SHAPE, WHOLE
from .operator import (
    Array,
    Case,
    Element,
    GraphOperand,
    GraphOperator,
    Kind,
    TensorType,
    broadcast,
    broadcast_read,
    dimension,
)


def reshape_groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[range, range]]:
    """Return the finest cut of two shapes with equally many elements into ranges of dimensions with equally many
    elements.

    old [2, 3, 4], new [6, 4]: (0..1, 0..0), (2..2, 1..1)
    """
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, second, a, b = i, j, 1, 1
        while True:
            if a <= b and i < len(old) and (a < b or i == first or old[i] == 1):
                a, i = a * old[i], i + 1
            elif j < len(new) and (b < a or j == second or new[j] == 1):
                b, j = b * new[j], j + 1
            elif i < len(old) and (a < b or i == first):
                a, i = a * old[i], i + 1
            else:
                break
        groups.append((range(first, i), range(second, j)))
    return groups


def _reshape(operand: GraphOperand, v: Values) -> GraphOperand:
    old, new = operand.shape, v.integers("shape")
    groups = reshape_groups(old, new)

    def at(to: tuple[Expr, ...]) -> Expr:
        source: list[Expr] = [index(0)] * len(old)
        for before, after in groups:
            long = [d for d in before if old[d] > 1]
            if long == [] or [new[d] for d in after if new[d] > 1] == [old[d] for d in long]:
                pairs = zip(long, [d for d in after if new[d] > 1], strict=True)
                for d, own in pairs:
                    source[d] = to[own]
                continue
            place: Expr = index(0)
            for d in after:
                place = place * new[d] + to[d]
            behind = prod(old[d] for d in long)
            for d in long:
                behind //= old[d]
                quotient = place // behind if behind > 1 else place
                source[d] = quotient if d == long[0] else quotient % old[d]
        return operand[tuple(source)]

    return Element(tuple(new), operand.dtype, at)


def _reshape_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    shape = v.integers("shape")
    if prod(shape) != operands[0].elements:
        raise InvalidGraph(f"{operands[0]} cannot be reshaped to {list(shape)}", field="shape")
    return TensorType(shape, operands[0].dtype)


def _order(v: Values, rank: int) -> tuple[int, ...]:
    order = v.integers("order")
    if sorted(order) != list(range(rank)):
        raise InvalidGraph(f"order is {list(order)}; allowed: every dimension of {rank} once", field="order")
    return order


def _permute(operand: GraphOperand, v: Values) -> GraphOperand:
    order = v.integers("order")
    back = [order.index(d) for d in range(len(order))]
    shape = tuple(operand.shape[d] for d in order)
    return Element(shape, operand.dtype, lambda at: operand[tuple(at[d] for d in back)])


def _expand_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    shape = v.integers("shape")
    if broadcast([operands[0].shape, shape]) != shape:
        raise InvalidGraph(f"{operands[0]} cannot be expanded to {list(shape)}", field="shape")
    return TensorType(shape, operands[0].dtype)


def _steps(v: Values, extent: int) -> range:
    start, stop, step = (v.integer(n) for n in ("start", "stop", "step"))
    if not (0 <= start <= stop <= extent and step >= 1):
        raise InvalidGraph(f"slice {start}:{stop}:{step} of {extent} elements", field="start")
    return range(start, stop, step)


def _slice_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    shape = list(operands[0].shape)
    d = dimension(v, "dim", len(shape))
    shape[d] = len(_steps(v, shape[d]))
    return TensorType(tuple(shape), operands[0].dtype)


def _slice(operand: GraphOperand, v: Values) -> GraphOperand:
    d = v.integer("dim")
    steps = _steps(v, operand.shape[d])
    shape = (*operand.shape[:d], len(steps), *operand.shape[d + 1 :])

    def at(to: tuple[Expr, ...]) -> Expr:
        moved = to[d] * steps.step if steps.step > 1 else to[d]
        return operand[(*to[:d], moved + steps.start if steps.start else moved, *to[d + 1 :])]

    return Element(shape, operand.dtype, at)


def _slice_numpy(operands: Sequence[Array], v: Values) -> Array:
    d = v.integer("dim")
    steps = _steps(v, operands[0].shape[d])
    place = [slice(None)] * operands[0].ndim
    place[d] = slice(steps.start, steps.stop, steps.step)
    return operands[0][tuple(place)]


def _flip_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    if any(d >= len(operands[0].shape) for d in v.integers("dims")):
        raise InvalidGraph(f"dims {list(v.integers('dims'))} of {operands[0]}", field="dims")
    return operands[0]


def _flip(operand: GraphOperand, v: Values) -> GraphOperand:
    dims, shape = v.integers("dims"), operand.shape

    def at(to: tuple[Expr, ...]) -> Expr:
        return operand[tuple(index(shape[d] - 1) - i if d in dims else i for d, i in enumerate(to))]

    return Element(shape, operand.dtype, at)


def _repeat_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    d = dimension(v, "dim", len(operands[0].shape))
    shape = list(operands[0].shape)
    shape[d] *= v.integer("times")
    return TensorType(tuple(shape), operands[0].dtype)


def _repeat(operand: GraphOperand, v: Values) -> GraphOperand:
    """Return each element along ``dim`` several times in a row, as nearest upsampling does."""
    d, times = v.integer("dim"), v.integer("times")
    shape = (*operand.shape[:d], operand.shape[d] * times, *operand.shape[d + 1 :])
    return Element(shape, operand.dtype, lambda at: operand[(*at[:d], at[d] // times, *at[d + 1 :])])


_X = TensorType((2, 3, 4), float32)

IDENTITY = GraphOperator(
    "identity", Kind.VIEW, "the operand", lambda o, v: o[0], lambda o, v: o[0], lambda o, v: o[0], (Case((_X,)),)
)
RESHAPE = GraphOperator(
    "reshape", Kind.VIEW, "the same elements in the same order, in another shape", _reshape_type,
    lambda o, v: o[0].reshape(v.integers("shape")), lambda o, v: _reshape(o[0], v),
    (Case((_X,), {"shape": (6, 4)}), Case((_X,), {"shape": (4, 6)}), Case((_X,), {"shape": (2, 1, 3, 2, 2)}),
     Case((TensorType((1,), int32),), {"shape": ()}), Case((TensorType((6, 5), float32),), {"shape": (2, 3, 5, 1)})),
    (SHAPE,),
)  # fmt: skip
PERMUTE = GraphOperator(
    "permute", Kind.VIEW, "dimensions in another order: dimension d of the result is order[d] of the operand",
    lambda o, v: TensorType(tuple(o[0].shape[d] for d in _order(v, len(o[0].shape))), o[0].dtype),
    lambda o, v: o[0].transpose(v.integers("order")), lambda o, v: _permute(o[0], v),
    (Case((_X,), {"order": (2, 0, 1)}), Case((_X,), {"order": (0, 1, 2)})),
    (Parameter("order", "the dimensions of the operand", DIMENSIONS),),
)  # fmt: skip
EXPAND = GraphOperator(
    "expand", Kind.VIEW, "the operand, broadcast to a shape", _expand_type,
    lambda o, v: np.broadcast_to(o[0], v.integers("shape")),
    lambda o, v: Element(v.integers("shape"), o[0].dtype, lambda at: broadcast_read(o[0], at)),
    (Case((TensorType((3, 1), float32),), {"shape": (2, 3, 4)}), Case((_X,), {"shape": (2, 3, 4)})),
    (SHAPE,),
)  # fmt: skip
SLICE = GraphOperator(
    "slice", Kind.VIEW, "elements start, start + step, … below stop along a dimension", _slice_type, _slice_numpy,
    lambda o, v: _slice(o[0], v),
    (Case((_X,), {"dim": 1, "start": 1, "stop": 3}), Case((_X,), {"dim": 2, "start": 0, "stop": 4, "step": 3})),
    (Parameter("dim", "the dimension", DIMENSION), Parameter("start", "the first element", WHOLE),
     Parameter("stop", "the end", WHOLE), Parameter("step", "the distance", WHOLE, 1)),
)  # fmt: skip
FLIP = GraphOperator(
    "flip", Kind.VIEW, "elements in the opposite order along dimensions", _flip_type,
    lambda o, v: np.flip(o[0], v.integers("dims")), lambda o, v: _flip(o[0], v),
    (Case((_X,), {"dims": (0, 2)}),), (Parameter("dims", "the dimensions", DIMENSIONS),),
)  # fmt: skip
REPEAT = GraphOperator(
    "repeat", Kind.VIEW, "each element along a dimension several times in a row", _repeat_type,
    lambda o, v: np.repeat(o[0], v.integer("times"), v.integer("dim")), lambda o, v: _repeat(o[0], v),
    (Case((_X,), {"dim": 1, "times": 2}),),
    (Parameter("dim", "the dimension", DIMENSION), Parameter("times", "how often", WHOLE)),
)  # fmt: skip
