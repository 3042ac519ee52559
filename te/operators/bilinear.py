"""Bilinear forms, one for each output, of the rows of two matrices (``torch.nn.Bilinear``)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..build import cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .epilogue import epilogue_of, epilogue_parameters
from .operator import Operator, accumulation_parameter, constant_parameter, precision_parameter
from .parameter import FLOATS, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    rows, outputs, dtype, epilogue = v.integer("rows"), v.integer("outputs"), v.text("dtype"), epilogue_of(v)
    first, second = v.integer("first"), v.integer("second")
    x = placeholder((rows, first), dtype, "X")
    w = placeholder((outputs, first, second), dtype, "W")
    y = placeholder((rows, second), dtype, "Y")
    r, s, wide = reduce_axis(first, "k"), reduce_axis(second, "l"), epilogue.wide
    total = compute(
        (rows, outputs),
        lambda i, o: sum(cast(x[i, r], wide) * cast(w[o, r, s], wide) * cast(y[i, s], wide), axis=(r, s)),
        "Z" if epilogue.is_nothing else "total",
    )
    z, further = epilogue.apply(total, "Z", (1,))
    constants = [w] if v.flag("constant_weights") else []
    return workload(z, inputs=[x, w, y, *further], constants=constants, precision=v.text("precision"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    epilogue = epilogue_of(v)
    x, w, y = (inputs[name].astype(epilogue.wide.numpy, copy=False) for name in ("X", "W", "Y"))
    outputs, first, second = w.shape
    half = (y @ w.reshape(outputs * first, second).T).reshape(-1, outputs, first)
    return (epilogue.numpy(np.matmul(half, x[:, :, None])[:, :, 0], inputs, (-1,)),)


BILINEAR = Operator(
    name="bilinear",
    summary="Z[i, o] = activation(sum over k and l of X[i, k] * W[o, k, l] * Y[i, l] + B[o] + R[i, o])",
    parameters=(
        Parameter("rows", "rows of X, Y and Z", Integer()),
        Parameter("first", "columns of X", Integer()),
        Parameter("second", "columns of Y", Integer()),
        Parameter("outputs", "columns of Z", Integer()),
        dtype_parameter(*FLOATS),
        accumulation_parameter("float32", "float64"),
        *epilogue_parameters(),
        constant_parameter("W"),
        precision_parameter("ieee", "tf32", "tf32x3", "bf16x6", "bf16x9"),
    ),
    examples=(
        {"rows": 5, "first": 7, "second": 13, "outputs": 3},
        {"rows": 1, "first": 17, "second": 31, "outputs": 1},
        {"rows": 24, "first": 1, "second": 8, "outputs": 5},
        {"rows": 4, "first": 16, "second": 24, "outputs": 8, "accumulate": "float64", "dtype": "float16"},
        {"rows": 33, "first": 12, "second": 16, "outputs": 6, "bias": True, "activation": "relu", "dtype": "float32"},
        {"rows": 9, "first": 12, "second": 8, "outputs": 4, "constant_weights": True, "dtype": "float32"},
    ),
    build=_build,
    baseline=_numpy,
)
