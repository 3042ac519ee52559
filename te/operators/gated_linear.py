"""Two products with the same rows, one of which gates the other: the first half of a gated feed-forward block."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.expr import Expr
from ..build import Tensor, cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .maps import ACTIVATIONS, MAPS
from .matmul import product
from .operator import Operator, accumulation, accumulation_parameter
from .parameter import FLOATS, Choice, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    rows, inputs, outputs, dtype = v.integer("rows"), v.integer("inputs"), v.integer("outputs"), v.text("dtype")
    wide, activation = accumulation(v)[0], v.text("activation")
    x = placeholder((rows, inputs), dtype, "X")
    gate, up = (placeholder((outputs, inputs), dtype, name) for name in ("G", "U"))

    def total(weight: Tensor, name: str) -> Tensor:
        k = reduce_axis(inputs, "k")
        return compute((rows, outputs), lambda i, j: sum(cast(x[i, k], wide) * cast(weight[j, k], wide), axis=k), name)

    gates, ups = total(gate, "gates"), total(up, "ups")

    def body(i: Expr, j: Expr) -> Expr:
        opened = gates[i, j] if activation == "none" else MAPS[activation].expr(gates[i, j])
        return cast(opened * ups[i, j], dtype)

    return workload(compute((rows, outputs), body, "Y"), inputs=[x, gate, up])


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    wide, activation = accumulation(v)[0], v.text("activation")
    gates, ups = (product(inputs["X"], inputs[name].T, wide) for name in ("G", "U"))
    y = gates if activation == "none" else MAPS[activation].numpy(gates)
    return (np.multiply(y, ups, out=ups).astype(inputs["X"].dtype, copy=False),)


GATED_LINEAR = Operator(
    name="gated_linear",
    summary="Y[i, j] = activation(sum over k of X[i, k] * G[j, k]) * (sum over k of X[i, k] * U[j, k])",
    parameters=(
        Parameter("rows", "rows of X and Y", Integer()),
        Parameter("inputs", "columns of X: length of the sums", Integer()),
        Parameter("outputs", "columns of Y", Integer()),
        dtype_parameter(*FLOATS),
        accumulation_parameter("float32", "float64"),
        Parameter("activation", "what is applied to the gate; silu makes it SwiGLU", Choice(ACTIVATIONS), "silu"),
    ),
    examples=(
        {"rows": 5, "inputs": 13, "outputs": 7},
        {"rows": 1, "inputs": 1, "outputs": 1, "activation": "none"},
        {"rows": 24, "inputs": 72, "outputs": 40, "activation": "gelu_tanh"},
        {"rows": 5, "inputs": 7, "outputs": 11, "accumulate": "float64", "dtype": "float16"},
    ),
    build=_build,
    baseline=_numpy,
)
