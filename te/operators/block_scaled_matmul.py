"""Products of narrow floats with a scale for every block of k: MXFP8, MXFP4 and NVFP4."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DTYPES
from ...core.errors import InvalidParameter
from ...ir.expr import Expr, index
from ..build import Tensor, absolute, cast, compute, e2m1, e8m0, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .operator import Operator, precision_parameter
from .parameter import Choice, Integer, Parameter, Values, dtype_parameter

PACKED = "uint8"
BLOCK = {"e8m0": 32, "e4m3": 16}
"""Scales -> for how many places of k one is."""


def _build(v: Values) -> Workload:
    m, n, k, dtype, scales = v.integer("m"), v.integer("n"), v.integer("k"), v.text("dtype"), v.text("scales")
    if scales == "e4m3" and dtype != PACKED:
        raise InvalidParameter(f"scales is e4m3 for {dtype}; allowed: e8m0", field="scales")
    if dtype == PACKED and k % 2:
        raise InvalidParameter(f"k is {k}, and each byte has two places of it; allowed: even numbers", field="k")
    r, width, blocks = reduce_axis(k, "k"), k // 2 if dtype == PACKED else k, -(-k // BLOCK[scales])
    a, b = placeholder((m, width), dtype, "A"), placeholder((n, width), dtype, "B")
    of_blocks = PACKED if scales == "e8m0" else "float8_e4m3fn"
    of_a, of_b = placeholder((m, blocks), of_blocks, "SA"), placeholder((n, blocks), of_blocks, "SB")

    def factor(values: Tensor, scale_of: Tensor, row: Expr) -> Expr:
        value = e2m1(values[row, r // 2], r) if dtype == PACKED else cast(values[row, r], "float32")
        scale = scale_of[row, r // BLOCK[scales]]
        return value * (e8m0(scale) if scales == "e8m0" else absolute(cast(scale, "float32")))

    total = compute((m, n), lambda i, j: sum(factor(a, of_a, i) * factor(b, of_b, j), axis=r), "total")
    further = [placeholder((1,), "float32", name) for name in ("GA", "GB")] if scales == "e4m3" else []

    def body(i: Expr, j: Expr) -> Expr:
        value: Expr = total[i, j]
        for scale in further:
            value = value * scale[index(0)]
        return cast(value, v.text("result"))

    inputs = [a, b, of_a, of_b, *further]
    return workload(compute((m, n), body, "C"), inputs=inputs, precision=v.text("precision"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    k, sides = v.integer("k"), list[NDArray[np.float32]]()
    for name in "AB":
        values, scales = inputs[name], inputs[f"S{name}"]
        if v.text("dtype") == PACKED:
            halves = np.stack([values & 15, values >> 4], axis=-1).reshape(len(values), k)
            values = halves.view(ml_dtypes.float4_e2m1fn)
        if v.text("scales") == "e8m0":
            scales = np.ldexp(np.float32(1.0), scales.astype(np.int32) - 127)
        repeated = np.repeat(np.abs(scales.astype(np.float32)), BLOCK[v.text("scales")], axis=1)[:, :k]
        sides.append(values.astype(np.float32) * repeated)
    total = np.matmul(sides[0], sides[1].T)
    if v.text("scales") == "e4m3":
        total *= inputs["GA"] * inputs["GB"]
    return (total.astype(DTYPES[v.text("result")].numpy),)


BLOCK_SCALED_MATMUL = Operator(
    name="block_scaled_matmul",
    summary="C[i, j] = (sum over k of A[i, k] * SA[i, block of k] * B[j, k] * SB[j, block of k]) * GA * GB",
    parameters=(
        Parameter("m", "rows of A and C", Integer()),
        Parameter("n", "rows of B, columns of C", Integer()),
        Parameter("k", "length of the sums; an even number for floats of 4 bits", Integer()),
        dtype_parameter("float8_e4m3fn", "float8_e5m2", PACKED, default="float8_e4m3fn"),
        Parameter(
            "scales",
            "e8m0: bytes, of powers of two for 32 places of k (MXFP8; MXFP4 where A and B are uint8, which are two "
            "e2m1 floats each); e4m3: float8_e4m3fn without their signs, for 16 places of k, and GA and GB of whole "
            "tensors (NVFP4; A and B are uint8)",
            Choice(("e8m0", "e4m3")),
            "e8m0",
        ),
        Parameter("result", "element type of C", Choice(("bfloat16", "float16", "float32")), "bfloat16"),
        precision_parameter("ieee", "fast_accumulation"),
    ),
    examples=(
        {"m": 1, "n": 3, "k": 34, "result": "float32"},
        {"m": 3, "n": 5, "k": 34, "scales": "e4m3", "dtype": PACKED, "precision": "fast_accumulation"},
        {"m": 2, "n": 3, "k": 66, "dtype": PACKED, "precision": "fast_accumulation"},
    ),
    build=_build,
    baseline=_numpy,
)
