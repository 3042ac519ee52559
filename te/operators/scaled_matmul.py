"""Products of 8-bit numbers that stand for others by scales, and by zero points."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import INPUT_DTYPES, float32, int32
from ...core.errors import InvalidParameter
from ...ir.expr import Expr, index
from ..build import Tensor, cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .operator import Operator, precision_parameter
from .parameter import Choice, Flag, Integer, Parameter, Values, dtype_parameter

BLOCK = 128
"""With ``block``, A has a scale for so many places of k in a row, B one for so many columns and so many places of k."""


def _build(v: Values) -> Workload:
    m, n, k, scales = v.integer("m"), v.integer("n"), v.integer("k"), v.text("scales")
    a, b, r = placeholder((m, k), v.text("dtype"), "A"), placeholder((n, k), v.text("dtype"), "B"), reduce_axis(k, "k")
    wide = float32 if INPUT_DTYPES[v.text("dtype")].is_float else int32
    if not wide.is_float and scales == "block":
        raise InvalidParameter(f"scales is block for {v.text('dtype')}; allowed: tensor, row", field="scales")
    if wide.is_float and v.flag("zero_points"):
        raise InvalidParameter("zero_points is true for floats; allowed: false", field="zero_points")
    if not wide.is_float and v.text("precision") != "ieee":
        raise InvalidParameter(f"precision is {v.text('precision')} for integers; allowed: ieee", field="precision")
    blocks = -(-k // BLOCK)
    shapes = {"tensor": ((1,), (1,)), "row": ((m,), (n,)), "block": ((m, blocks), (-(-n // BLOCK), blocks))}[scales]
    a_scale, b_scale = placeholder(shapes[0], "float32", "SA"), placeholder(shapes[1], "float32", "SB")

    def term(i: Expr, j: Expr) -> Expr:
        left, right = cast(a[i, r], wide), cast(b[j, r], wide)
        if scales == "block":
            left, right = left * a_scale[i, r // BLOCK], right * b_scale[j // BLOCK, r // BLOCK]
        return left * right

    total = compute((m, n), lambda i, j: sum(term(i, j), axis=r), "total")
    further: list[Tensor] = [a_scale, b_scale]
    zero_points, sums = placeholder((m,), "int32", "Z"), placeholder((n,), "int32", "S")
    if v.flag("zero_points"):
        further += [zero_points, sums]
    bias = placeholder((n,), v.text("result"), "D")
    if v.flag("bias"):
        further.append(bias)

    def body(i: Expr, j: Expr) -> Expr:
        value: Expr = total[i, j]
        if v.flag("zero_points"):
            value = value - zero_points[i] * sums[j]
        value = cast(value, "float32")
        if scales != "block":
            value = (
                value * a_scale[index(0) if scales == "tensor" else i] * b_scale[index(0) if scales == "tensor" else j]
            )
        if v.flag("bias"):
            value = value + cast(bias[j], "float32")
        return cast(value, v.text("result"))

    return workload(compute((m, n), body, "C"), inputs=[a, b, *further], precision=v.text("precision"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    k = v.integer("k")
    exact = np.float32 if INPUT_DTYPES[v.text("dtype")].is_float or k << 14 <= 1 << 24 else np.float64
    a, b, a_scale, b_scale = inputs["A"].astype(exact), inputs["B"].astype(exact), inputs["SA"], inputs["SB"]
    if v.text("scales") == "block":
        a = a * np.repeat(a_scale, BLOCK, 1)[:, :k]
        b = b * np.repeat(np.repeat(b_scale, BLOCK, 1)[:, :k], BLOCK, 0)[: v.integer("n")]
    total = np.matmul(a, b.T)
    if v.flag("zero_points"):
        total = total.astype(np.int32) - inputs["Z"][:, None] * inputs["S"]
    result = total.astype(np.float32)
    if v.text("scales") != "block":
        result *= a_scale[:, None] * b_scale
    if v.flag("bias"):
        result += inputs["D"].astype(np.float32)
    return (result.astype(INPUT_DTYPES[v.text("result")].numpy),)


SCALED_MATMUL = Operator(
    name="scaled_matmul",
    summary="C[i, j] = (sum over k of A[i, k] * B[j, k] - Z[i] * S[j]) * SA[i] * SB[j] + D[j]",
    parameters=(
        Parameter("m", "rows of A and C", Integer()),
        Parameter("n", "rows of B, columns of C", Integer()),
        Parameter("k", "length of the sums", Integer()),
        dtype_parameter("float8_e4m3fn", "float8_e5m2", "int8", default="float8_e4m3fn"),
        Parameter("result", "element type of C and D", Choice(("bfloat16", "float16", "float32")), "bfloat16"),
        Parameter(
            "scales",
            f"tensor: one of A, one of B; row: one for each row of A and of B; block: one for {BLOCK} places of k in a "
            f"row of A, and for {BLOCK} of them in {BLOCK} rows of B",
            Choice(("tensor", "row", "block")),
            "row",
        ),
        Parameter(
            "zero_points", "whether rows of A have zero points Z; S are the sums of the rows of B", Flag(), False
        ),
        Parameter("bias", "whether D is added", Flag(), False),
        precision_parameter("ieee", "fast_accumulation"),
    ),
    examples=(
        {"m": 5, "n": 7, "k": 33},
        {"m": 3, "n": 4, "k": 10, "scales": "row"},
        {"m": 2, "n": 5, "k": 12, "scales": "tensor", "result": "float32"},
        {"m": 3, "n": 17, "k": 1, "scales": "tensor", "bias": True},
        {"m": 3, "n": 130, "k": 129, "scales": "block", "dtype": "float8_e4m3fn", "result": "float32"},
        {"m": 72, "n": 48, "k": 160, "zero_points": True, "bias": True, "dtype": "int8"},
        {"m": 72, "n": 40, "k": 160, "precision": "fast_accumulation", "dtype": "float8_e5m2"},
    ),
    build=_build,
    baseline=_numpy,
)
