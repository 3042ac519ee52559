"""Column-wise kernels that keep their elements: which workloads they are for, and every way to share the elements."""

import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, assert_agrees, workload_of
from tilewright.core.target import Target
from tilewright.schedule.gpu.columnwise.persistent import CUDA_COLUMNWISE_PERSISTENT
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

SMALL = Target("cuda", "sm_90a", threads=4, vector_bytes=16)


def softmax(outer: int, rows: int, columns: int, dtype: str = "float16") -> Workload:
    return parse_workload(
        f"X: {dtype}[{outer}, {rows}, {columns}]\nM[i, k] = max over j < {rows} of float32(X[i, j, k])\n"
        f"E[i, j, k] = exp(float32(X[i, j, k]) - M[i, k])\nS[i, k] = sum over j < {rows} of E[i, j, k]\n"
        f"Y[i, j, k] = {dtype}(E[i, j, k] / S[i, k])"
    )


def layer_norm(outer: int, rows: int, columns: int) -> Workload:
    """With a weight for each row, a shift for each column, and the mean as an output."""
    centred = f"X[i, j, k] - M[i, k] / {rows}"
    return parse_workload(
        f"X: float32[{outer}, {rows}, {columns}]\nW: float32[{rows}]\nB: float32[{columns}]\n"
        f"M[i, k] = sum over j < {rows} of X[i, j, k]    # output\n"
        f"V[i, k] = sum over j < {rows} of ({centred}) * ({centred})\n"
        f"Y[i, j, k] = ({centred}) / sqrt(V[i, k] / {rows} + 0.00001) * W[j] + B[k]    # output"
    )


WORKLOADS = {
    "softmax": softmax(2, 37, 64),
    "softmax of odd extents": softmax(3, 23, 45, "bfloat16"),
    "softmax of columns of even extent": softmax(1, 19, 102),
    "layer norm": layer_norm(2, 33, 48),
    "layer norm of odd extents": layer_norm(1, 40, 27),
    "first axis and two column axes": parse_workload(
        "X: float32[29, 3, 20]\nM[h, k] = max over j < 29 of X[j, h, k]\n"
        "S[h, k] = sum over j < 29 of exp(X[j, h, k] - M[h, k])\nY[j, h, k] = X[j, h, k] - M[h, k] - log(S[h, k])"
    ),
    "l2 norm of two reduced axes and two inputs": parse_workload(
        "X: float16[2, 5, 7, 24]\nR: float32[2, 5, 7, 24]\n"
        "S[i, k] = sum over a < 5, b < 7 of float32(X[i, a, b, k]) * float32(X[i, a, b, k])\n"
        "Y[i, a, b, k] = float32(X[i, a, b, k]) / sqrt(S[i, k]) + R[i, a, b, k]"
    ),
    "variance without elements": parse_workload(
        "X: float32[3, 31, 40]\nM[i, k] = sum over j < 31 of X[i, j, k]\n"
        "V[i, k] = sum over j < 31 of (X[i, j, k] - M[i, k] / 31) * (X[i, j, k] - M[i, k] / 31)\n"
        "Y[i, k] = V[i, k] / 31"
    ),
    "group norm": workload_of("group_norm", batch=2, channels=40, pixels=35, groups=4, layout="NHWC", dtype="float16"),
    "vectors of several groups": workload_of("group_norm", batch=1, channels=24, pixels=21, groups=8, layout="NHWC"),
    "vectors within groups": workload_of("group_norm", batch=1, channels=48, pixels=21, groups=3, layout="NHWC"),
    "instance norm": workload_of("group_norm", batch=2, channels=20, pixels=35, groups=20, layout="NHWC"),
    "one pixel": workload_of("group_norm", batch=1, channels=10, pixels=1, groups=2, layout="NHWC"),
    "float64": workload_of(
        "group_norm", batch=1, channels=8, pixels=17, groups=2, layout="NHWC", accumulate="float64", dtype="float16"
    ),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_settings_agree_with_the_reference(name: str) -> None:
    assert assert_agrees(CUDA_COLUMNWISE_PERSISTENT, WORKLOADS[name], 12, SMALL, EVERY_LEGAL) >= 6
