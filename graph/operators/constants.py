"""Operators without operands: what they give is known from their attributes."""

import math
from collections.abc import Sequence

import numpy as np

from ...core.dtypes import DTYPES, INDEX
from ...core.errors import InvalidGraph
from ...ir.expr import Expr
from ...te.build import cast, constant, sqrt
from ...te.operators.parameter import Parameter, Values
from .attributes import DTYPE, EXTENT, SHAPE, WHOLE, Real, real
from .operator import Array, Case, Element, GraphOperand, GraphOperator, Kind, TensorType, widened


def _number(v: Values) -> int | float | bool:
    """Return the value of ``full`` as a number of its dtype."""
    dtype, value = DTYPES[v.text("dtype")], real(v, "value")
    if dtype.is_bool and not math.isnan(value):
        return bool(value)
    if dtype.is_float:
        return float(np.float64(value).astype(dtype.numpy))
    low, high = dtype.integer_range
    if math.isnan(value) or not low <= value <= high:
        raise InvalidGraph(f"value {value} is no {dtype}", field="value")
    return int(value)


def _full_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    _number(v)
    return TensorType(v.integers("shape"), DTYPES[v.text("dtype")])


def _full_numpy(operands: Sequence[Array], v: Values) -> Array:
    dtype = DTYPES[v.text("dtype")]
    return np.full(v.integers("shape"), _number(v), np.float64 if dtype.is_float else dtype.numpy)


def _full(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    dtype, number = DTYPES[v.text("dtype")], _number(v)
    # Expressions have no constant NaN, but a function that gives it.
    element: Expr = sqrt(constant(-1.0, widened(dtype))) if number != number else constant(number, widened(dtype))
    return Element(v.integers("shape"), dtype, lambda at: element)


def _range_numpy(operands: Sequence[Array], v: Values) -> Array:
    dtype = DTYPES[v.text("dtype")]
    numbers = v.integer("start") + v.integer("step") * np.arange(v.integer("count"), dtype=np.int64)
    return numbers.astype(np.float64 if dtype.is_float else dtype.numpy)


def _range(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    dtype, start, step = DTYPES[v.text("dtype")], v.integer("start"), v.integer("step")
    return Element(
        (v.integer("count"),),
        dtype,
        lambda at: cast(at[0] * constant(step, INDEX) + constant(start, INDEX), widened(dtype)),
    )


FULL = GraphOperator(
    "full", Kind.VIEW, "one number everywhere", _full_type, _full_numpy, _full,
    (Case((), {"shape": (2, 3), "value": 1.25, "dtype": "float32"}),
     Case((), {"shape": (), "value": "-inf", "dtype": "float64"}),
     Case((), {"shape": (2,), "value": "nan", "dtype": "float32"}),
     Case((), {"shape": (4,), "value": 3, "dtype": "int64"}), Case((), {"shape": (4,), "value": 1, "dtype": "bool"})),
    (SHAPE, Parameter("value", "the number", Real(nan=True)), DTYPE), (0, 0),
)  # fmt: skip
RANGE = GraphOperator(
    "range", Kind.VIEW, "start, start + step, …",
    lambda o, v: TensorType((v.integer("count"),), DTYPES[v.text("dtype")]), _range_numpy, _range,
    (Case((), {"count": 5, "start": 2, "step": -3, "dtype": "int64"}), Case((), {"count": 3, "dtype": "float32"})),
    (Parameter("count", "how many numbers", EXTENT), Parameter("start", "the first", WHOLE, 0),
     Parameter("step", "the distance", WHOLE, 1), DTYPE), (0, 0),
)  # fmt: skip
