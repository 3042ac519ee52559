"""Matrix product."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..build import Tensor, cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .operator import Operator, accumulator, result_dtype, widened
from .parameter import NUMBERS, Flag, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    m, n, k, dtype = v.integer("m"), v.integer("n"), v.integer("k"), v.text("dtype")
    a_transposed, b_transposed = v.flag("transpose_a"), v.flag("transpose_b")
    a = placeholder((k, m) if a_transposed else (m, k), dtype, "A")
    b = placeholder((n, k) if b_transposed else (k, n), dtype, "B")
    r, wide = reduce_axis(k, "k"), accumulator(dtype)
    c = compute(
        (m, n),
        lambda i, j: sum(
            cast(a[r, i] if a_transposed else a[i, r], wide) * cast(b[j, r] if b_transposed else b[r, j], wide), axis=r
        ),
        "C" if result_dtype(dtype) == wide else "total",
    )
    return workload(returned(c, dtype), inputs=[a, b])


def returned(total: Tensor, dtype: str, name: str = "C") -> Tensor:
    """``total`` as the result dtype of ``dtype``: itself, or a casting stage called ``name``."""
    wanted = result_dtype(dtype)
    if total.dtype == wanted:
        return total
    return compute(total.shape, lambda *at: cast(total[at], wanted), name)


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    a = inputs["A"].T if v.flag("transpose_a") else inputs["A"]
    b = inputs["B"].T if v.flag("transpose_b") else inputs["B"]
    return (product(a, b, v.text("dtype")),)


def product(a: NDArray[Any], b: NDArray[Any], dtype: str) -> NDArray[Any]:
    """``a @ b`` in the result dtype of ``dtype``. 8-bit integers go through floats, where NumPy has fast products,
    as long as every sum is exact there."""
    if a.dtype.kind in "iu":
        wide = result_dtype(dtype).numpy
        if a.dtype.itemsize > 1:
            return np.asarray(np.matmul(a, b))
        exact = np.float32 if a.shape[-1] << 16 <= 1 << 24 else np.float64
        return np.asarray(np.matmul(a.astype(exact), b.astype(exact)).astype(wide))
    return np.asarray(np.matmul(widened(a), widened(b)).astype(result_dtype(dtype).numpy, copy=False))


MATMUL = Operator(
    name="matmul",
    summary="C[i, j] = sum over k of A[i, k] * B[k, j]",
    parameters=(
        Parameter("m", "rows of C", Integer()),
        Parameter("n", "columns of C", Integer()),
        Parameter("k", "length of the sums", Integer()),
        dtype_parameter(*NUMBERS),
        Parameter("transpose_a", "whether A is stored as [k, m]", Flag(), False),
        Parameter("transpose_b", "whether B is stored as [n, k]", Flag(), False),
    ),
    examples=(
        {"m": 5, "n": 7, "k": 13},
        {"m": 1, "n": 17, "k": 1},
        {"m": 33, "n": 1, "k": 31, "transpose_a": True},
        {"m": 8, "n": 16, "k": 4, "transpose_b": True},
    ),
    build=_build,
    baseline=_numpy,
)
