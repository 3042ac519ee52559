"""Softmax and its logarithm along rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..build import cast, compute, exp, log, max, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .operator import Operator, accumulation, accumulation_parameter, widened
from .parameter import FLOATS, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    rows, columns, dtype = v.integer("rows"), v.integer("columns"), v.text("dtype")
    x, wide = placeholder((rows, columns), dtype, "X"), accumulation(v)[0]
    k, r = reduce_axis(columns, "k"), reduce_axis(columns, "r")
    top = compute((rows,), lambda i: max(cast(x[i, k], wide), axis=k), "top")
    power = compute((rows, columns), lambda i, j: exp(cast(x[i, j], wide) - top[i]), "power")
    total = compute((rows,), lambda i: sum(power[i, r], axis=r), "total")
    y = compute((rows, columns), lambda i, j: cast(power[i, j] / total[i], dtype), "Y")
    return workload(y)


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    x = widened(inputs["X"])
    y = x - x.max(axis=1, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(axis=1, keepdims=True)
    return (y.astype(inputs["X"].dtype, copy=False),)


def _log_build(v: Values) -> Workload:
    rows, columns, dtype = v.integer("rows"), v.integer("columns"), v.text("dtype")
    x, wide = placeholder((rows, columns), dtype, "X"), accumulation(v)[0]
    k, r = reduce_axis(columns, "k"), reduce_axis(columns, "r")
    top = compute((rows,), lambda i: max(cast(x[i, k], wide), axis=k), "top")
    total = compute((rows,), lambda i: sum(exp(cast(x[i, r], wide) - top[i]), axis=r), "total")
    shift = compute((rows,), lambda i: log(total[i]), "shift")
    y = compute((rows, columns), lambda i, j: cast(cast(x[i, j], wide) - top[i] - shift[i], dtype), "Y")
    return workload(y)


def _log_numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    x = widened(inputs["X"])
    y = x - x.max(axis=1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=1, keepdims=True))
    return (y.astype(inputs["X"].dtype, copy=False),)


_PARAMETERS = (
    Parameter("rows", "how many rows", Integer()),
    Parameter("columns", "length of a row", Integer()),
    dtype_parameter(*FLOATS),
    accumulation_parameter("float32", "float64"),
)

_EXAMPLES = (
    {"rows": 5, "columns": 37},
    {"rows": 1, "columns": 1},
    {"rows": 8, "columns": 64},
    {"rows": 3, "columns": 2},
    {"rows": 3, "columns": 5, "accumulate": "float64", "dtype": "float16"},
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
