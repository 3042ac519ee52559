"""Normalisations along rows: layer norm and RMS norm."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.expr import Expr
from ..build import Tensor, cast, compute, placeholder, reduce_axis, rsqrt, sum, workload
from ..workload import Workload
from .operator import Operator, accumulation, accumulation_parameter, widened
from .parameter import FLOATS, Flag, Integer, Number, Parameter, Values, dtype_parameter


def _layer_norm(v: Values) -> Workload:
    rows, columns, dtype = v.integer("rows"), v.integer("columns"), v.text("dtype")
    x, wide = placeholder((rows, columns), dtype, "X"), accumulation(v)[0]
    k, r = reduce_axis(columns, "k"), reduce_axis(columns, "r")
    total = compute((rows,), lambda i: sum(cast(x[i, k], wide), axis=k), "total")

    def centred(i: Expr, j: Expr) -> Expr:
        return cast(x[i, j], wide) - total[i] * (1.0 / columns)

    square = compute((rows,), lambda i: sum(centred(i, r) * centred(i, r), axis=r), "square")
    weights = [placeholder((columns,), dtype, n) for n in ("G", "B")] if v.flag("affine") else []

    def body(i: Expr, j: Expr) -> Expr:
        e = centred(i, j) * rsqrt(square[i] * (1.0 / columns) + v.number("epsilon"))
        if weights:
            e = e * cast(weights[0][j], wide) + cast(weights[1][j], wide)
        return cast(e, dtype)

    return workload(compute((rows, columns), body, "Y"), inputs=[x, *weights])


def _layer_norm_numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    x = widened(inputs["X"])
    y = x - x.mean(axis=1, keepdims=True)
    scale = 1.0 / np.sqrt(np.einsum("ij,ij->i", y, y) / x.dtype.type(x.shape[1]) + x.dtype.type(v.number("epsilon")))
    y *= scale[:, None]
    if v.flag("affine"):
        y *= widened(inputs["G"])
        y += widened(inputs["B"])
    return (y.astype(inputs["X"].dtype, copy=False),)


def _rms_norm(v: Values) -> Workload:
    rows, columns, dtype = v.integer("rows"), v.integer("columns"), v.text("dtype")
    x, wide = placeholder((rows, columns), dtype, "X"), accumulation(v)[0]
    k = reduce_axis(columns, "k")
    square = compute((rows,), lambda i: sum(cast(x[i, k], wide) * cast(x[i, k], wide), axis=k), "square")
    weights: list[Tensor] = [placeholder((columns,), dtype, "G")] if v.flag("affine") else []

    def body(i: Expr, j: Expr) -> Expr:
        e = cast(x[i, j], wide) * rsqrt(square[i] * (1.0 / columns) + v.number("epsilon"))
        return cast(e * cast(weights[0][j], wide) if weights else e, dtype)

    return workload(compute((rows, columns), body, "Y"), inputs=[x, *weights])


def _rms_norm_numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    x = widened(inputs["X"])
    mean = np.einsum("ij,ij->i", x, x) / x.dtype.type(x.shape[1])
    y = x * (1.0 / np.sqrt(mean + x.dtype.type(v.number("epsilon"))))[:, None]
    if v.flag("affine"):
        y *= widened(inputs["G"])
    return (y.astype(inputs["X"].dtype, copy=False),)


def _add_rms_norm(v: Values) -> Workload:
    rows, columns, dtype = v.integer("rows"), v.integer("columns"), v.text("dtype")
    wide, shape = accumulation(v)[0], (rows, columns)
    x, residual = placeholder(shape, dtype, "X"), placeholder(shape, dtype, "R")
    added = compute(shape, lambda i, j: cast(cast(x[i, j], wide) + cast(residual[i, j], wide), dtype), "S")
    given = [x, residual]
    k = reduce_axis(columns, "k")
    square = compute((rows,), lambda i: sum(cast(added[i, k], wide) * cast(added[i, k], wide), axis=k), "square")
    weights: list[Tensor] = [placeholder((columns,), dtype, "G")] if v.flag("affine") else []

    def body(i: Expr, j: Expr) -> Expr:
        e = cast(added[i, j], wide) * rsqrt(square[i] * (1.0 / columns) + v.number("epsilon"))
        return cast(e * cast(weights[0][j], wide) if weights else e, dtype)

    return workload([added, compute(shape, body, "Y")], inputs=[*given, *weights])


def _add_rms_norm_numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    added = (widened(inputs["X"]) + widened(inputs["R"])).astype(inputs["X"].dtype, copy=False)
    return (added, *_rms_norm_numpy(v, {**inputs, "X": added}))


_PARAMETERS = (
    Parameter("rows", "how many rows", Integer()),
    Parameter("columns", "length of a row", Integer()),
    dtype_parameter(*FLOATS),
    accumulation_parameter("float32", "float64"),
    Parameter("epsilon", "added to the mean square before the root", Number(1e-12, 1.0), 1e-5),
)

_EXAMPLES = (
    {"rows": 5, "columns": 37},
    {"rows": 1, "columns": 1, "affine": False},
    {"rows": 8, "columns": 64, "epsilon": 0.5},
    {"rows": 3, "columns": 2},
    {"rows": 3, "columns": 5, "accumulate": "float64", "dtype": "float16"},
)

LAYER_NORM = Operator(
    name="layer_norm",
    summary="Y = (X - mean of the row) / sqrt(variance of the row + epsilon) * G + B",
    parameters=(
        *_PARAMETERS,
        Parameter("affine", "whether there are G and B, of one element per column", Flag(), True),
    ),
    examples=_EXAMPLES,
    build=_layer_norm,
    baseline=_layer_norm_numpy,
)

RMS_NORM = Operator(
    name="rms_norm",
    summary="Y = X / sqrt(mean square of the row + epsilon) * G",
    parameters=(*_PARAMETERS, Parameter("affine", "whether there is G, of one element per column", Flag(), True)),
    examples=_EXAMPLES,
    build=_rms_norm,
    baseline=_rms_norm_numpy,
)

ADD_RMS_NORM = Operator(
    name="add_rms_norm",
    summary="S = X + R, rounded to dtype; Y = S / sqrt(mean square of the row of S + epsilon) * G; both are outputs",
    parameters=(*_PARAMETERS, Parameter("affine", "whether there is G, of one element per column", Flag(), True)),
    examples=(*_EXAMPLES[:3], {"rows": 3, "columns": 2, "epsilon": 0.1}),
    build=_add_rms_norm,
    baseline=_add_rms_norm_numpy,
)
