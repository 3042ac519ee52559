"""A linear layer: product with a weight matrix, bias, activation."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ..build import cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .epilogue import epilogue_of, epilogue_parameters
from .matmul import product
from .operator import Operator, accumulation_parameter, constant_parameter, precision_parameter
from .parameter import FLOATS, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    rows, inputs, outputs = v.integer("rows"), v.integer("inputs"), v.integer("outputs")
    dtype, epilogue = v.text("dtype"), epilogue_of(v)
    x, weight = placeholder((rows, inputs), dtype, "X"), placeholder((outputs, inputs), dtype, "W")
    k = reduce_axis(inputs, "k")
    total = compute(
        (rows, outputs),
        lambda i, j: sum(cast(x[i, k], epilogue.wide) * cast(weight[j, k], epilogue.wide), axis=k),
        "Y" if epilogue.is_nothing else "total",
    )
    y, further = epilogue.apply(total, "Y", (1,))
    constants = [weight] if v.flag("constant_weights") else []
    return workload(y, inputs=[x, weight, *further], constants=constants, precision=v.text("precision"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    epilogue = epilogue_of(v)
    return (epilogue.numpy(product(inputs["X"], inputs["W"].T, epilogue.wide), inputs, (-1,)),)


LINEAR = Operator(
    name="linear",
    summary="Y[i, j] = activation(sum over k of X[i, k] * W[j, k] + B[j] + R[i, j])",
    parameters=(
        Parameter("rows", "rows of X and Y", Integer()),
        Parameter("inputs", "columns of X: length of the sums", Integer()),
        Parameter("outputs", "columns of Y", Integer()),
        dtype_parameter(*FLOATS),
        accumulation_parameter("float32", "float64"),
        *epilogue_parameters(bias=True),
        constant_parameter("W"),
        precision_parameter("ieee", "tf32", "tf32x3", "bf16x6", "bf16x9"),
    ),
    examples=(
        {"rows": 5, "inputs": 13, "outputs": 7},
        {"rows": 1, "inputs": 1, "outputs": 1, "bias": False, "activation": "relu"},
        {"rows": 3, "inputs": 17, "outputs": 31, "activation": "gelu_tanh"},
        {"rows": 16, "inputs": 8, "outputs": 4, "bias": False, "activation": "gelu_erf"},
        {"rows": 2, "inputs": 19, "outputs": 3, "activation": "silu"},
        {"rows": 21, "inputs": 72, "outputs": 40, "residual": True},
        {"rows": 40, "inputs": 136, "outputs": 72, "bias": False, "constant_weights": True},
        {"rows": 5, "inputs": 7, "outputs": 11, "residual": True, "accumulate": "float64", "dtype": "float16"},
    ),
    build=_build,
    baseline=_numpy,
)
