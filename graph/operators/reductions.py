"""Operators that combine the elements along dimensions."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ...core.dtypes import DType, float32, int64
from ...core.errors import InvalidGraph
from ...ir.expr import Expr, index
from ...te import build as te
from ...te.operators.parameter import Flag, Parameter, Values
from .attributes import DIMENSION, DIMENSIONS, WHOLE
from .operator import Array, Case, Element, GraphOperand, GraphOperator, Kind, TensorType, dimension, stored, wide

Reduce = Callable[..., te.Reduction]


def reduced(operand: GraphOperand, dims: Sequence[int], reduce: Reduce, body: Callable[[Expr, tuple[Expr, ...]], Expr],
            name: str) -> Element:  # fmt: skip
    """``reduce`` of ``body(element, its indices)`` over ``dims`` of ``operand``. It can be read at indices of the
    operand: those along ``dims`` are disregarded."""
    rank = len(operand.shape)
    kept = [d for d in range(rank) if d not in dims]
    axes = {d: te.reduce_axis(operand.shape[d], f"r{d}") for d in dims}

    def terms(*at: Expr) -> te.Reduction:
        own: dict[int, Expr] = dict(zip(kept, at, strict=True))
        place = tuple(axes[d] if d in axes else own[d] for d in range(rank))
        return reduce(body(wide(operand[place]), place), axis=tuple(axes.values()))

    total = stored([operand.shape[d] for d in kept], terms, name, [f"i{d}" for d in kept])
    return Element(operand.shape, total.dtype, lambda at: total[tuple(at[d] for d in kept)])


def without_dims(values: Element, dims: Sequence[int], keep: bool, dtype: DType) -> GraphOperand:
    """Return what ``reduced`` gave, as a value of the shape that is left."""
    rank = len(values.shape)
    if keep:
        return Element(tuple(1 if d in dims else n for d, n in enumerate(values.shape)), dtype, values.at)

    def at(to: tuple[Expr, ...]) -> Expr:
        rest = iter(to)
        return values[tuple(index(0) if d in dims else next(rest) for d in range(rank))]

    return Element(tuple(n for d, n in enumerate(values.shape) if d not in dims), dtype, at)


def _shape(shape: tuple[int, ...], dims: Sequence[int], keep: bool) -> tuple[int, ...]:
    if not dims or max(dims) >= len(shape):
        raise InvalidGraph(f"dims are {list(dims)}; allowed: some of 0 to {len(shape) - 1}", field="dims")
    if keep:
        return tuple(1 if d in dims else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def _reduction(
    name: str,
    summary: str,
    build: Callable[[GraphOperand, Values], Element],
    numpy: Callable[..., Any],
    attributes: tuple[Parameter, ...] = (),
    floats: bool = False,
    uses: int = 1,
) -> GraphOperator:
    def type_rule(operands: Sequence[TensorType], v: Values) -> TensorType:
        dtype = operands[0].dtype
        if dtype.is_bool or (floats and not dtype.is_float):
            raise InvalidGraph(f"{name} does not take {dtype}", field="operands")
        return TensorType(_shape(operands[0].shape, v.integers("dims"), v.flag("keep")), dtype)

    def evaluate(operands: Sequence[Array], v: Values) -> Array:
        given = {"axis": v.integers("dims"), "keepdims": v.flag("keep")}
        with np.errstate(all="ignore"):
            result = numpy(operands[0], v, **given) if attributes else numpy(operands[0], **given)
        return np.asarray(result, operands[0].dtype)

    def written(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
        found = build(operands[0], v)
        return without_dims(found, v.integers("dims"), v.flag("keep"), operands[0].dtype)

    x = TensorType((3, 4, 5), float32)
    cases = (Case((x,), {"dims": (1,)}), Case((x,), {"dims": (0, 2), "keep": True}), Case((x,), {"dims": (0, 1, 2)}))
    return GraphOperator(
        name, Kind.REDUCTION, summary, type_rule, evaluate, written, cases, (*_DIMS, *attributes), uses=uses
    )


_DIMS = (
    Parameter("dims", "the dimensions", DIMENSIONS),
    Parameter("keep", "whether the result has them, with one element", Flag(), False),
)


def _plain(reduce: Reduce) -> Callable[[GraphOperand, Values], Element]:
    return lambda x, v: reduced(x, v.integers("dims"), reduce, lambda e, _: e, "total")


def _count(x: GraphOperand, v: Values) -> int:
    return prod(x.shape[d] for d in v.integers("dims"))


def _scaled(values: Element, factor: float) -> Element:
    return Element(values.shape, values.dtype, lambda at: values[at] * factor)


def _mean(x: GraphOperand, v: Values) -> Element:
    return _scaled(_plain(te.sum)(x, v), 1.0 / _count(x, v))


def _variance(x: GraphOperand, v: Values) -> Element:
    dims, count = v.integers("dims"), _count(x, v)
    mean = _mean(x, v)

    def square(e: Expr, at: tuple[Expr, ...]) -> Expr:
        return (e - mean[at]) * (e - mean[at])

    left = count - v.integer("correction")
    return _scaled(reduced(x, dims, te.sum, square, "square"), 1.0 / left if left > 0 else float("inf"))


def _variance_numpy(x: Array, v: Values, axis: tuple[int, ...], keepdims: bool) -> Array:
    left = prod(x.shape[d] for d in axis) - v.integer("correction")
    centred = x - x.mean(axis=axis, keepdims=True)
    return np.asarray((centred**2).sum(axis=axis, keepdims=keepdims) * (1.0 / left if left > 0 else np.inf))


def _position(name: str, reduce: Reduce, numpy: Callable[..., Any]) -> GraphOperator:
    def type_rule(operands: Sequence[TensorType], v: Values) -> TensorType:
        d = dimension(v, "dim", len(operands[0].shape))
        if operands[0].dtype.is_bool:
            raise InvalidGraph(f"{name} does not take bool", field="operands")
        return TensorType(_shape(operands[0].shape, (d,), v.flag("keep")), int64)

    def build(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
        d = v.integer("dim")
        found = reduced(operands[0], (d,), lambda e, axis: reduce(e, axis[0]), lambda e, _: e, "position")
        return without_dims(found, (d,), v.flag("keep"), int64)

    x = TensorType((3, 4, 5), float32)
    return GraphOperator(
        name, Kind.REDUCTION, f"the position of the {name[3:]}, the first of equal ones", type_rule,
        lambda o, v: np.asarray(numpy(o[0], axis=v.integer("dim"), keepdims=v.flag("keep")), np.int64), build,
        (Case((x,), {"dim": 1}), Case((x,), {"dim": 2, "keep": True})),
        (Parameter("dim", "the dimension", DIMENSION), _DIMS[1]),
    )  # fmt: skip


REDUCTIONS = (
    _reduction("sum", "the sum along dimensions", _plain(te.sum), np.sum),
    _reduction("prod", "the product along dimensions", _plain(te.prod), np.prod),
    _reduction("max", "the greatest along dimensions", _plain(te.max), np.max),
    _reduction("min", "the least along dimensions", _plain(te.min), np.min),
    _reduction("mean", "the mean along dimensions", _mean, np.mean, floats=True),
    _reduction("variance", "the sum of squares around the mean, over the count minus correction", _variance,
               _variance_numpy, (Parameter("correction", "what is taken off the count", WHOLE, 1),), True, 3),
    _position("argmax", te.argmax, np.argmax),
    _position("argmin", te.argmin, np.argmin),
)  # fmt: skip
