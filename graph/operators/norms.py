"""Softmax and the normalisations: rows are read once to see how large they are, and once more to be scaled."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ...core.dtypes import float32
from ...core.errors import InvalidGraph
from ...ir.expr import Expr
from ...te import build as te
from ...te.limits import MAX_RANK
from ...te.operators.parameter import Integer, Number, Parameter, Values
from .attributes import DIMENSION, MOST
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
    stored,
    wide,
)
from .reductions import reduced

EPSILON = Parameter("epsilon", "added to the variance before the root", Number(0.0, 1.0), 1e-5)


def _rows_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    dimension(v, "dim", len(operands[0].shape))
    if not operands[0].dtype.is_float:
        raise InvalidGraph(f"{operands[0]} is not a tensor of floats", field="operands")
    return operands[0]


def _softmax(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, dims = operands[0], (v.integer("dim"),)
    top = reduced(x, dims, te.max, lambda e, _: e, "top")
    power = stored(x.shape, lambda *at: te.exp(wide(x[at]) - top[at]), "power")
    total = reduced(power, dims, te.sum, lambda e, _: e, "total")
    return Element(x.shape, x.dtype, lambda at: power[at] / total[at])


def _log_softmax(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, dims = operands[0], (v.integer("dim"),)
    top = reduced(x, dims, te.max, lambda e, _: e, "top")
    total = reduced(x, dims, te.sum, lambda e, at: te.exp(e - top[at]), "total")
    return Element(x.shape, x.dtype, lambda at: wide(x[at]) - top[at] - te.log(total[at]))


def _softmax_numpy(operands: Sequence[Array], v: Values) -> Array:
    x, d = operands[0], v.integer("dim")
    with np.errstate(all="ignore"):
        y = np.exp(x - x.max(axis=d, keepdims=True))
        return np.asarray(y / y.sum(axis=d, keepdims=True))


def _log_softmax_numpy(operands: Sequence[Array], v: Values) -> Array:
    x, d = operands[0], v.integer("dim")
    with np.errstate(all="ignore"):
        y = x - x.max(axis=d, keepdims=True)
        return np.asarray(y - np.log(np.exp(y).sum(axis=d, keepdims=True)))


def _norm_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    x, count = operands[0], v.integer("dims")
    if not 1 <= count <= len(x.shape) or not same_dtype(operands).is_float:
        raise InvalidGraph(f"the last {count} dimensions of {x} cannot be normalised", field="dims")
    if any(o.shape != x.shape[-count:] for o in operands[1:]):
        raise InvalidGraph(f"weights of {operands[1]} for the last {count} dimensions of {x}", field="operands")
    return x


def _affine(e: Expr, weights: Sequence[GraphOperand], at: tuple[Expr, ...]) -> Expr:
    """``e`` times the first weight plus the second, as far as there are any."""
    e = e * wide(weights[0][at]) if weights else e
    return e + wide(weights[1][at]) if len(weights) > 1 else e


def _affine_numpy(x: Array, weights: Sequence[Array]) -> Array:
    x = x * weights[0] if weights else x
    return x + weights[1] if len(weights) > 1 else x


def _normalised(operand: GraphOperand, dims: Sequence[int], epsilon: float) -> Callable[[tuple[Expr, ...]], Expr]:
    """Return the elements of ``operand`` minus their mean over ``dims``, over their standard deviation."""
    factor = 1.0 / prod(operand.shape[d] for d in dims)
    total = reduced(operand, dims, te.sum, lambda e, _: e, "total")

    def centred(e: Expr, at: tuple[Expr, ...]) -> Expr:
        return e - total[at] * factor

    square = reduced(operand, dims, te.sum, lambda e, at: centred(e, at) * centred(e, at), "square")
    return lambda at: centred(wide(operand[at]), at) * te.rsqrt(square[at] * factor + epsilon)


def _layer_norm(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, count = operands[0], v.integer("dims")
    rank = len(x.shape)
    normal = _normalised(x, range(rank - count, rank), v.number("epsilon"))
    return Element(x.shape, x.dtype, lambda at: _affine(normal(at), operands[1:], at[rank - count :]))


def _layer_norm_numpy(operands: Sequence[Array], v: Values) -> Array:
    x = operands[0]
    dims = tuple(range(x.ndim - v.integer("dims"), x.ndim))
    y = x - x.mean(axis=dims, keepdims=True)
    y = y / np.sqrt((y * y).mean(axis=dims, keepdims=True) + v.number("epsilon"))
    return _affine_numpy(y, operands[1:])


def _rms_norm(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, count = operands[0], v.integer("dims")
    rank = len(x.shape)
    dims = range(rank - count, rank)
    square = reduced(x, dims, te.sum, lambda e, _: e * e, "square")
    factor = 1.0 / prod(x.shape[d] for d in dims)

    def at(to: tuple[Expr, ...]) -> Expr:
        e = wide(x[to]) * te.rsqrt(square[to] * factor + v.number("epsilon"))
        return _affine(e, operands[1:], to[rank - count :])

    return Element(x.shape, x.dtype, at)


def _rms_norm_numpy(operands: Sequence[Array], v: Values) -> Array:
    x = operands[0]
    dims = tuple(range(x.ndim - v.integer("dims"), x.ndim))
    return _affine_numpy(x / np.sqrt((x * x).mean(axis=dims, keepdims=True) + v.number("epsilon")), operands[1:])


def _group_norm_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    x, groups = operands[0], v.integer("groups")
    if len(x.shape) < 2 or x.shape[1] % groups or not same_dtype(operands).is_float or len(x.shape) >= MAX_RANK:
        raise InvalidGraph(f"{groups} groups of the channels of {x}", field="groups")
    if any(o.shape != (x.shape[1],) for o in operands[1:]):
        raise InvalidGraph(f"weights of {operands[1]} for the channels of {x}", field="operands")
    return x


def _group_norm(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, groups = operands[0], v.integer("groups")
    batch, channels, *rest = x.shape
    size = channels // groups
    split = Element((batch, groups, size, *rest), x.dtype, lambda at: x[(at[0], at[1] * size + at[2], *at[3:])])
    normal = _normalised(split, range(2, len(split.shape)), v.number("epsilon"))

    def at(to: tuple[Expr, ...]) -> Expr:
        place = (to[0], to[1] // size, to[1] % size, *to[2:])
        return _affine(normal(place), operands[1:], (to[1],))

    return Element(x.shape, x.dtype, at)


def _group_norm_numpy(operands: Sequence[Array], v: Values) -> Array:
    x = operands[0]
    rows = x.reshape(x.shape[0], v.integer("groups"), -1)
    y = rows - rows.mean(axis=2, keepdims=True)
    y = (y / np.sqrt((y * y).mean(axis=2, keepdims=True) + v.number("epsilon"))).reshape(x.shape)
    return _affine_numpy(y, [w.reshape(-1, *[1] * (x.ndim - 2)) for w in operands[1:]])


def _batch_norm_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    x = operands[0]
    if len(x.shape) < 2 or not same_dtype(operands).is_float or any(o.shape != (x.shape[1],) for o in operands[1:]):
        raise InvalidGraph(f"weights of {operands[1]} for the channels of {x}", field="operands")
    return x


def _batch_norm(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, *given = operands

    def at(to: tuple[Expr, ...]) -> Expr:
        weight, bias, mean, variance = (wide(o[(to[1],)]) for o in given)
        return (wide(x[to]) - mean) * (te.rsqrt(variance + v.number("epsilon")) * weight) + bias

    return Element(x.shape, x.dtype, at)


def _batch_norm_numpy(operands: Sequence[Array], v: Values) -> Array:
    x = operands[0]
    weight, bias, mean, variance = (o.reshape(-1, *[1] * (x.ndim - 2)) for o in operands[1:])
    return np.asarray((x - mean) / np.sqrt(variance + v.number("epsilon")) * weight + bias)


_X = TensorType((3, 4, 5), float32)
_FIVE, _FOUR, _BOTH = TensorType((5,), float32), TensorType((4,), float32), TensorType((4, 5), float32)
_DIM = Parameter("dim", "the dimension", DIMENSION)
_ROWS = (Case((_X,), {"dim": 2}), Case((_X,), {"dim": 1}))
_LAST = Parameter("dims", "how many of the last dimensions", Integer(1, MAX_RANK), 1)

NORMS = (
    GraphOperator("softmax", Kind.REDUCTION, "exp(x) over its sum along a dimension", _rows_type, _softmax_numpy,
                  _softmax, _ROWS, (_DIM,), uses=3),
    GraphOperator("log_softmax", Kind.REDUCTION, "the logarithm of softmax", _rows_type, _log_softmax_numpy,
                  _log_softmax, _ROWS, (_DIM,), uses=3),
    GraphOperator("layer_norm", Kind.REDUCTION, "(x - mean) / sqrt(variance + epsilon) [* weight [+ bias]]",
                  _norm_type, _layer_norm_numpy, _layer_norm,
                  (Case((_X, _FIVE, _FIVE)), Case((_X,), {"dims": 2}), Case((_X, _BOTH), {"dims": 2})),
                  (_LAST, EPSILON), (1, 3), 3),
    GraphOperator("rms_norm", Kind.REDUCTION, "x / sqrt(mean square + epsilon) [* weight [+ bias]]",
                  _norm_type, _rms_norm_numpy, _rms_norm, (Case((_X, _FIVE)), Case((_X,), {"dims": 2})),
                  (_LAST, EPSILON), (1, 3), 2),
    GraphOperator("group_norm", Kind.REDUCTION, "layer norm of groups of channels and all behind them",
                  _group_norm_type, _group_norm_numpy, _group_norm,
                  (Case((_X, _FOUR, _FOUR), {"groups": 2}), Case((_X,), {"groups": 4})),
                  (Parameter("groups", "how many groups", Integer(1, MOST)), EPSILON), (1, 3), 3),
)  # fmt: skip
BATCH_NORM = GraphOperator(
    "batch_norm", Kind.POINTWISE, "(x - mean) / sqrt(variance + epsilon) * weight + bias, for each channel",
    _batch_norm_type, _batch_norm_numpy, _batch_norm,
    (Case((_X, _FOUR, _FOUR, _FOUR, _FOUR), {"epsilon": 1.0}),), (EPSILON,), (5, 5),
)  # fmt: skip
