"""A linear layer: product with a weight matrix, bias, activation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.expr import Expr
from ..build import Tensor, cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .maps import ACTIVATIONS, MAPS
from .operator import Operator, accumulator, widened
from .parameter import FLOATS, Choice, Flag, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    rows, inputs, outputs = v.integer("rows"), v.integer("inputs"), v.integer("outputs")
    dtype, activation = v.text("dtype"), v.text("activation")
    wide = accumulator(dtype)
    x = placeholder((rows, inputs), dtype, "X")
    weight = placeholder((outputs, inputs), dtype, "W")
    given = [x, weight]
    k = reduce_axis(inputs, "k")
    shape, plain = (rows, outputs), activation == "none" and not v.flag("bias") and accumulator(dtype).name == dtype
    total = compute(
        shape,
        lambda i, j: sum(cast(x[i, k], wide) * cast(weight[j, k], wide), axis=k),
        "Y" if plain else "total",
    )
    if plain:
        return workload(total, inputs=given)
    bias = placeholder((outputs,), dtype, "B") if v.flag("bias") else None
    if bias is None:
        return workload(_activated(total, None, activation, dtype), inputs=given)
    if activation != "none" and MAPS[activation].uses > 1:  # the operand is worth a tensor
        biased = compute(shape, lambda i, j: total[i, j] + cast(bias[j], wide), "biased")
        return workload(_activated(biased, None, activation, dtype), inputs=[*given, bias])
    return workload(_activated(total, bias, activation, dtype), inputs=[*given, bias])


def _activated(total: Tensor, bias: Tensor | None, activation: str, dtype: str) -> Tensor:
    def body(i: Expr, j: Expr) -> Expr:
        e: Expr = total[i, j] if bias is None else total[i, j] + cast(bias[j], total.dtype)
        return cast(e if activation == "none" else MAPS[activation].expr(e), dtype)

    return compute(total.shape, body, "Y")


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    y: NDArray[Any] = np.matmul(widened(inputs["X"]), widened(inputs["W"]).T)
    if v.flag("bias"):
        y += widened(inputs["B"])
    if v.text("activation") != "none":
        y = MAPS[v.text("activation")].numpy(y)
    return (y.astype(inputs["X"].dtype, copy=False),)


LINEAR = Operator(
    name="linear",
    summary="Y[i, j] = activation(sum over k of X[i, k] * W[j, k] + B[j])",
    parameters=(
        Parameter("rows", "rows of X and Y", Integer()),
        Parameter("inputs", "columns of X: length of the sums", Integer()),
        Parameter("outputs", "columns of Y", Integer()),
        dtype_parameter(*FLOATS),
        Parameter("bias", "whether B is added", Flag(), True),
        Parameter("activation", "what is applied last", Choice(ACTIVATIONS), "none"),
    ),
    examples=(
        {"rows": 5, "inputs": 13, "outputs": 7},
        {"rows": 1, "inputs": 1, "outputs": 1, "bias": False, "activation": "relu"},
        {"rows": 3, "inputs": 17, "outputs": 31, "activation": "gelu_tanh"},
        {"rows": 16, "inputs": 8, "outputs": 4, "bias": False, "activation": "gelu_erf"},
        {"rows": 2, "inputs": 19, "outputs": 3, "activation": "silu"},
    ),
    build=_build,
    baseline=_numpy,
)
