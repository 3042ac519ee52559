"""Functions and conversions of the interpreter, on the values that ``expressions`` describes."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.dtypes import DType
from ..bounds import dtype_interval
from ..expr import UnaryOp
from ..fold import wrap
from .memory import SCALAR_ROUNDING, VECTOR_ROUNDING, Array, computed


def _erf(value: Any) -> Any:
    return type(value)(math.erf(value))


def _vector_erf(value: Array) -> Array:
    return np.array([math.erf(x) for x in value], dtype=value.dtype)


def _rsqrt(value: Any) -> Any:
    return np.reciprocal(np.sqrt(value))


SCALAR_FUNCTIONS: dict[UnaryOp, Callable[[Any], Any]] = {
    UnaryOp.NEG: operator.neg,
    UnaryOp.ABS: abs,
    UnaryOp.NOT: lambda value: not value,
    UnaryOp.EXP: np.exp,
    UnaryOp.EXP2: np.exp2,
    UnaryOp.LOG: np.log,
    UnaryOp.TANH: np.tanh,
    UnaryOp.ERF: _erf,
    UnaryOp.SQRT: np.sqrt,
    UnaryOp.RSQRT: _rsqrt,
    UnaryOp.SIN: np.sin,
    UnaryOp.COS: np.cos,
    UnaryOp.FLOOR: np.floor,
    UnaryOp.CEIL: np.ceil,
    UnaryOp.RINT: np.rint,
}
"""The function of each operation on a scalar that is no index."""

VECTOR_FUNCTIONS: dict[UnaryOp, Callable[[Array], Array]] = {
    **SCALAR_FUNCTIONS,
    UnaryOp.NEG: np.negative,
    UnaryOp.ABS: np.abs,
    UnaryOp.NOT: np.logical_not,
    UnaryOp.ERF: _vector_erf,
}
"""The same for vectors."""


def scalar_cast(source: DType, target: DType) -> Callable[[Any], Any]:
    """Return the conversion of a scalar, as ``ir.expr.Cast`` says."""
    if target.is_bool:
        return lambda value: bool(value != 0)
    if target.name in SCALAR_ROUNDING:
        return SCALAR_ROUNDING[target.name]
    made = computed(target).type
    if target.is_float:
        return lambda value: made(value)
    make: Callable[[Any], Any] = int if target.name == "int64" else made
    if source.is_float:
        bounds = dtype_interval(target)

        def saturate(value: Any) -> Any:
            if value != value:
                return make(0)
            exact = float(value)
            if exact >= bounds.high:
                return make(bounds.high)
            return make(bounds.low) if exact <= bounds.low else make(int(exact))

        return saturate
    return lambda value: make(wrap(int(value), target))


def vector_cast(source: DType, target: DType) -> Callable[[Array], Array]:
    """Return the conversion of a vector, as ``ir.expr.Cast`` says."""
    if target.is_bool:
        return lambda value: value != 0
    if target.name in VECTOR_ROUNDING:
        return VECTOR_ROUNDING[target.name]
    dtype = computed(target)
    if target.is_float or not source.is_float:
        return lambda value: value.astype(dtype)
    bounds = dtype_interval(target)

    def saturate(value: Array) -> Array:
        exact = np.where(np.isnan(value), 0.0, value.astype(np.float64))
        result = exact.astype(dtype)
        result[exact >= bounds.high] = bounds.high
        result[exact <= bounds.low] = bounds.low
        return result

    return saturate
