"""A small multilayer perceptron: linear layers of one width, each normalised and activated."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.expr import Expr
from ..build import Tensor, cast, compute, placeholder, reduce_axis, rsqrt, sum, workload
from ..workload import Workload
from .maps import ACTIVATIONS, MAPS
from .matmul import product
from .operator import Operator, accumulation, accumulation_parameter, widened
from .parameter import FLOATS, Choice, Integer, Number, Parameter, Values, dtype_parameter

_MOST_LAYERS = 8


def _build(v: Values) -> Workload:
    rows, width, layers, dtype = v.integer("rows"), v.integer("width"), v.integer("layers"), v.text("dtype")
    x = placeholder((rows, width), dtype, "X")
    inputs, y = [x], x
    for layer in range(layers):
        weights = [placeholder((width, width), dtype, f"W{layer}")]
        weights += [placeholder((width,), dtype, f"{name}{layer}") for name in ("B", "G", "H")]
        inputs += weights
        y = _layer(v, y, weights, "Y" if layer == layers - 1 else f"Y{layer}", layer)
    return workload(y, inputs=inputs)


def _layer(v: Values, x: Tensor, weights: list[Tensor], name: str, layer: int) -> Tensor:
    rows, width = x.shape
    wide, activation = accumulation(v)[0], v.text("activation")
    weight, bias, scale, shift = weights
    k, r, s = reduce_axis(width, "k"), reduce_axis(width, "r"), reduce_axis(width, "s")
    total = compute(
        (rows, width), lambda i, j: sum(cast(x[i, k], wide) * cast(weight[j, k], wide), axis=k), f"total{layer}"
    )
    biased = compute((rows, width), lambda i, j: total[i, j] + cast(bias[j], wide), f"biased{layer}")
    added = compute((rows,), lambda i: sum(biased[i, r], axis=r), f"sum{layer}")

    def centred(i: Expr, j: Expr) -> Expr:
        return biased[i, j] - added[i] * (1.0 / width)

    square = compute((rows,), lambda i: sum(centred(i, s) * centred(i, s), axis=s), f"square{layer}")

    def body(i: Expr, j: Expr) -> Expr:
        e = centred(i, j) * rsqrt(square[i] * (1.0 / width) + v.number("epsilon"))
        e = e * cast(scale[j], wide) + cast(shift[j], wide)
        return cast(e if activation == "none" else MAPS[activation].expr(e), x.dtype)

    return compute((rows, width), body, name)


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    y, wide = inputs["X"], accumulation(v)[0]
    for layer in range(v.integer("layers")):
        weight, bias, scale, shift = (inputs[f"{name}{layer}"] for name in ("W", "B", "G", "H"))
        total = product(y, weight.T, wide)
        total += widened(bias)
        total -= total.mean(axis=1, keepdims=True)
        square = np.einsum("ij,ij->i", total, total) / total.dtype.type(total.shape[1])
        total *= (1.0 / np.sqrt(square + total.dtype.type(v.number("epsilon"))))[:, None]
        total *= widened(scale)
        total += widened(shift)
        activated = total if v.text("activation") == "none" else MAPS[v.text("activation")].numpy(total)
        y = activated.astype(inputs["X"].dtype, copy=False)
    return (y,)


MLP = Operator(
    name="mlp",
    summary="layers times Y = activation(layer_norm(Y W^T + B) * G + H), beginning with X; rounded to dtype each time",
    parameters=(
        Parameter("rows", "rows of X and Y", Integer()),
        Parameter("width", "columns of X and Y", Integer()),
        Parameter("layers", "how many layers", Integer(1, _MOST_LAYERS), 1),
        dtype_parameter(*FLOATS),
        accumulation_parameter("float32", "float64"),
        Parameter("activation", "what is applied last in each layer", Choice(ACTIVATIONS), "silu"),
        Parameter("epsilon", "added to the variance before the root", Number(1e-12, 1.0), 1e-5),
    ),
    examples=(
        {"rows": 5, "width": 13},
        {"rows": 1, "width": 1, "activation": "none", "epsilon": 0.5},
        {"rows": 3, "width": 17, "layers": 2, "epsilon": 0.1},
        {"rows": 21, "width": 32, "layers": 2, "activation": "gelu_tanh"},
        {"rows": 5, "width": 7, "accumulate": "float64", "dtype": "float16"},
    ),
    build=_build,
    baseline=_numpy,
)
