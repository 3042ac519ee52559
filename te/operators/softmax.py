"""Softmax and its logarithm along any dimension: rows are what stands before it, ``inner`` what stands behind."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..build import cast, compute, exp, log, max, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .operator import Operator, accumulation, accumulation_parameter, widened
from .parameter import FLOATS, Integer, Parameter, Values, dtype_parameter


def _shape(v: Values) -> tuple[int, ...]:
    """Rows, columns, and what lies inside of a column where that is more than one element."""
    inner = v.integer("inner")
    return (v.integer("rows"), v.integer("columns"), *((inner,) if inner > 1 else ()))


def _build(v: Values) -> Workload:
    shape, dtype = _shape(v), v.text("dtype")
    x, wide = placeholder(shape, dtype, "X"), accumulation(v)[0]
    k, r = reduce_axis(shape[1], "k"), reduce_axis(shape[1], "r")
    kept, names = (shape[0], *shape[2:]), ["i", "j", *("p" for _ in shape[2:])]
    rows = [names[0], *names[2:]]
    top = compute(kept, lambda i, *p: max(cast(x[i, k, *p], wide), axis=k), "top", rows)
    power = compute(shape, lambda i, j, *p: exp(cast(x[i, j, *p], wide) - top[i, *p]), "power", names)
    total = compute(kept, lambda i, *p: sum(power[i, r, *p], axis=r), "total", rows)
    y = compute(shape, lambda i, j, *p: cast(power[i, j, *p] / total[i, *p], dtype), "Y", names)
    return workload(y)


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    x = widened(inputs["X"])
    y = x - x.max(axis=1, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(axis=1, keepdims=True)
    return (y.astype(inputs["X"].dtype, copy=False),)


def _log_build(v: Values) -> Workload:
    shape, dtype = _shape(v), v.text("dtype")
    x, wide = placeholder(shape, dtype, "X"), accumulation(v)[0]
    k, r = reduce_axis(shape[1], "k"), reduce_axis(shape[1], "r")
    kept, names = (shape[0], *shape[2:]), ["i", "j", *("p" for _ in shape[2:])]
    rows = [names[0], *names[2:]]
    top = compute(kept, lambda i, *p: max(cast(x[i, k, *p], wide), axis=k), "top", rows)
    total = compute(kept, lambda i, *p: sum(exp(cast(x[i, r, *p], wide) - top[i, *p]), axis=r), "total", rows)
    shift = compute(kept, lambda i, *p: log(total[i, *p]), "shift", rows)
    y = compute(shape, lambda i, j, *p: cast(cast(x[i, j, *p], wide) - top[i, *p] - shift[i, *p], dtype), "Y", names)
    return workload(y)


def _log_numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    x = widened(inputs["X"])
    y = x - x.max(axis=1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=1, keepdims=True))
    return (y.astype(inputs["X"].dtype, copy=False),)


_PARAMETERS = (
    Parameter("rows", "how many rows", Integer()),
    Parameter("columns", "length of a row", Integer()),
    Parameter("inner", "elements of X behind each (row, column): X[i, j, p], normalised along j", Integer(), 1),
    dtype_parameter(*FLOATS),
    accumulation_parameter("float32", "float64"),
)

_EXAMPLES = (
    {"rows": 5, "columns": 37},
    {"rows": 1, "columns": 1},
    {"rows": 8, "columns": 64},
    {"rows": 3, "columns": 2},
    {"rows": 3, "columns": 5, "accumulate": "float64", "dtype": "float16"},
    {"rows": 2, "columns": 11, "inner": 7, "dtype": "float32"},
)

SOFTMAX = Operator(
    name="softmax",
    summary="Y[i, j] = exp(X[i, j]) / sum over k of exp(X[i, k]), shifted by the row's greatest element",
    parameters=_PARAMETERS,
    examples=_EXAMPLES,
    build=_build,
    baseline=_numpy,
)

LOG_SOFTMAX = Operator(
    name="log_softmax",
    summary="Y[i, j] = X[i, j] - t - log(sum over k of exp(X[i, k] - t)), where t is the row's greatest element",
    parameters=_PARAMETERS,
    examples=_EXAMPLES,
    build=_log_build,
    baseline=_log_numpy,
)
