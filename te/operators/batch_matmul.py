"""Matrix products, one for each member of a batch."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ..build import cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .epilogue import epilogue_of, epilogue_parameters
from .matmul import product
from .operator import Operator, accumulation_parameter, constant_parameter, precision_parameter
from .parameter import NUMBERS, Flag, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    batch, m, n, k = (v.integer(name) for name in ("batch", "m", "n", "k"))
    dtype, epilogue = v.text("dtype"), epilogue_of(v, "D")
    a_transposed, b_transposed = v.flag("transpose_a"), v.flag("transpose_b")
    a = placeholder((batch, k, m) if a_transposed else (batch, m, k), dtype, "A")
    b = placeholder((batch, n, k) if b_transposed else (batch, k, n), dtype, "B")
    r, wide = reduce_axis(k, "k"), epilogue.wide
    total = compute(
        (batch, m, n),
        lambda b_, i, j: sum(
            cast(a[b_, r, i] if a_transposed else a[b_, i, r], wide)
            * cast(b[b_, j, r] if b_transposed else b[b_, r, j], wide),
            axis=r,
        ),
        "C" if epilogue.is_nothing else "total",
    )
    c, further = epilogue.apply(total, "C", (2,))
    constants = [b] if v.flag("constant_weights") else []
    return workload(c, inputs=[a, b, *further], constants=constants, precision=v.text("precision"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    epilogue = epilogue_of(v, "D")
    a = inputs["A"].swapaxes(1, 2) if v.flag("transpose_a") else inputs["A"]
    b = inputs["B"].swapaxes(1, 2) if v.flag("transpose_b") else inputs["B"]
    return (epilogue.numpy(product(a, b, epilogue.wide), inputs, (-1,)),)


BATCH_MATMUL = Operator(
    name="batch_matmul",
    summary="C[b, i, j] = activation(sum over k of A[b, i, k] * B[b, k, j] + D[j] + R[b, i, j])",
    parameters=(
        Parameter("batch", "how many products", Integer()),
        Parameter("m", "rows of each C", Integer()),
        Parameter("n", "columns of each C", Integer()),
        Parameter("k", "length of the sums", Integer()),
        dtype_parameter(*NUMBERS),
        Parameter("transpose_a", "whether A is stored as [batch, k, m]", Flag(), False),
        Parameter("transpose_b", "whether B is stored as [batch, n, k]", Flag(), False),
        accumulation_parameter("float32", "float64", "int32", "int64"),
        *epilogue_parameters(name="D"),
        constant_parameter("B"),
        precision_parameter("ieee", "tf32", "tf32x3", "bf16x6", "bf16x9"),
    ),
    examples=(
        {"batch": 3, "m": 5, "n": 7, "k": 13},
        {"batch": 1, "m": 1, "n": 17, "k": 1},
        {"batch": 3, "m": 33, "n": 1, "k": 31, "transpose_a": True},
        {"batch": 3, "m": 8, "n": 16, "k": 4, "transpose_b": True},
        {"batch": 2, "m": 3, "n": 5, "k": 7, "accumulate": "float64", "residual": True, "dtype": "float16"},
        {"batch": 2, "m": 3, "n": 5, "k": 7, "bias": True, "activation": "gelu_erf", "dtype": "float32"},
        {"batch": 2, "m": 24, "n": 40, "k": 72, "bias": True, "dtype": "bfloat16"},
    ),
    build=_build,
    baseline=_numpy,
)
