"""A product of three matrices, as one sum over both inner extents (``numpy.linalg.multi_dot``)."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ..build import cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .epilogue import epilogue_of, epilogue_parameters
from .matmul import product
from .operator import Operator, accumulation_parameter, precision_parameter
from .parameter import NUMBERS, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    m, n, k, p, dtype = v.integer("m"), v.integer("n"), v.integer("k"), v.integer("p"), v.text("dtype")
    epilogue = epilogue_of(v, "E")
    a, b, c = placeholder((m, k), dtype, "A"), placeholder((k, p), dtype, "B"), placeholder((p, n), dtype, "C")
    r, s, wide = reduce_axis(k, "k"), reduce_axis(p, "p"), epilogue.wide
    total = compute(
        (m, n),
        lambda i, j: sum(cast(a[i, r], wide) * cast(b[r, s], wide) * cast(c[s, j], wide), axis=(r, s)),
        "D" if epilogue.is_nothing else "total",
    )
    d, further = epilogue.apply(total, "D", (1,))
    return workload(d, inputs=[a, b, c, *further], precision=v.text("precision"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    epilogue, m, n, k, p = epilogue_of(v, "E"), *(v.integer(name) for name in ("m", "n", "k", "p"))
    a, b, c = (inputs[name] for name in ("A", "B", "C"))
    wide = epilogue.wide
    if m * k * p + m * p * n <= k * p * n + m * k * n:
        total = product(product(a, b, wide), c.astype(wide.numpy, copy=False), wide)
    else:
        total = product(a.astype(wide.numpy, copy=False), product(b, c, wide), wide)
    return (epilogue.numpy(total, inputs, (-1,)),)


MULTI_DOT = Operator(
    name="multi_dot",
    summary="D[i, j] = activation(sum over k and p of A[i, k] * B[k, p] * C[p, j] + E[j] + R[i, j])",
    parameters=(
        Parameter("m", "rows of A and D", Integer()),
        Parameter("n", "columns of C and D", Integer()),
        Parameter("k", "columns of A, rows of B", Integer()),
        Parameter("p", "columns of B, rows of C", Integer()),
        dtype_parameter(*NUMBERS),
        accumulation_parameter("float32", "float64", "int32", "int64"),
        *epilogue_parameters(name="E"),
        precision_parameter("ieee", "tf32", "tf32x3", "bf16x6", "bf16x9"),
    ),
    examples=(
        {"m": 5, "n": 7, "k": 13, "p": 3},
        {"m": 1, "n": 17, "k": 1, "p": 5},
        {"m": 33, "n": 1, "k": 31, "p": 24},
        {"m": 7, "n": 16, "k": 17, "p": 40, "accumulate": "float64", "residual": True, "dtype": "float16"},
        {"m": 24, "n": 16, "k": 36, "p": 12, "bias": True, "activation": "relu", "dtype": "float32"},
        {"m": 34, "n": 33, "k": 16, "p": 24, "precision": "tf32", "dtype": "float32"},
        {"m": 34, "n": 32, "k": 16, "p": 24, "precision": "tf32", "dtype": "bfloat16"},
    ),
    build=_build,
    baseline=_numpy,
)
