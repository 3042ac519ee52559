"""Matrix product."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DType
from ..build import cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .epilogue import epilogue_of, epilogue_parameters
from .operator import Operator, accumulation_parameter, constant_parameter, precision_parameter
from .parameter import NUMBERS, Flag, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    m, n, k, dtype, epilogue = v.integer("m"), v.integer("n"), v.integer("k"), v.text("dtype"), epilogue_of(v, "D")
    a_transposed, b_transposed = v.flag("transpose_a"), v.flag("transpose_b")
    a = placeholder((k, m) if a_transposed else (m, k), dtype, "A")
    b = placeholder((n, k) if b_transposed else (k, n), dtype, "B")
    r, wide = reduce_axis(k, "k"), epilogue.wide
    total = compute(
        (m, n),
        lambda i, j: sum(
            cast(a[r, i] if a_transposed else a[i, r], wide) * cast(b[j, r] if b_transposed else b[r, j], wide), axis=r
        ),
        "C" if epilogue.is_nothing else "total",
    )
    c, further = epilogue.apply(total, "C", (1,))
    constants = [b] if v.flag("constant_weights") else []
    return workload(c, inputs=[a, b, *further], constants=constants, precision=v.text("precision"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    epilogue = epilogue_of(v, "D")
    a = inputs["A"].T if v.flag("transpose_a") else inputs["A"]
    b = inputs["B"].T if v.flag("transpose_b") else inputs["B"]
    return (epilogue.numpy(product(a, b, epilogue.wide), inputs, (-1,)),)


def product(a: NDArray[Any], b: NDArray[Any], wide: DType) -> NDArray[Any]:
    """``a @ b`` in dtype ``wide``. 8-bit integers go through floats, where NumPy has fast products, as long as every
    sum is exact there."""
    if a.dtype.itemsize == 1:
        exact = np.float32 if a.shape[-1] << 16 <= 1 << 24 else np.float64
        return np.asarray(np.matmul(a.astype(exact), b.astype(exact)).astype(wide.numpy))
    return np.asarray(np.matmul(a.astype(wide.numpy, copy=False), b.astype(wide.numpy, copy=False)))


MATMUL = Operator(
    name="matmul",
    summary="C[i, j] = activation(sum over k of A[i, k] * B[k, j] + D[j] + R[i, j])",
    parameters=(
        Parameter("m", "rows of C", Integer()),
        Parameter("n", "columns of C", Integer()),
        Parameter("k", "length of the sums", Integer()),
        dtype_parameter(*NUMBERS),
        Parameter("transpose_a", "whether A is stored as [k, m]", Flag(), False),
        Parameter("transpose_b", "whether B is stored as [n, k]", Flag(), False),
        accumulation_parameter("float32", "float64", "int32", "int64"),
        *epilogue_parameters(name="D"),
        constant_parameter("B"),
        precision_parameter("ieee", "tf32", "tf32x3", "bf16x6", "bf16x9"),
    ),
    examples=(
        {"m": 5, "n": 7, "k": 13},
        {"m": 1, "n": 17, "k": 1},
        {"m": 33, "n": 1, "k": 31, "transpose_a": True},
        {"m": 8, "n": 16, "k": 4, "transpose_b": True},
        {"m": 3, "n": 19, "k": 5, "transpose_a": True, "transpose_b": True, "dtype": "float16"},
        {"m": 7, "n": 5, "k": 17, "accumulate": "float64", "dtype": "float32"},
        {"m": 7, "n": 5, "k": 17, "accumulate": "int64", "bias": True, "activation": "relu", "dtype": "uint8"},
        {"m": 12, "n": 40, "k": 72, "constant_weights": True},
        {"m": 7, "n": 5, "k": 11, "residual": True, "activation": "silu", "dtype": "bfloat16"},
        {"m": 72, "n": 88, "k": 80, "transpose_a": True, "dtype": "float16"},
        {"m": 88, "n": 72, "k": 40, "dtype": "float16"},
        {"m": 37, "n": 45, "k": 51, "dtype": "float16"},
        {"m": 72, "n": 40, "k": 36, "transpose_a": True, "precision": "tf32", "dtype": "float32"},
        {"m": 65, "n": 34, "k": 39, "precision": "tf32x3", "dtype": "float32"},
    ),
    build=_build,
    baseline=_numpy,
)
