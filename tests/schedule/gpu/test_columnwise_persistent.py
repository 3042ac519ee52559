"""Column-wise kernels that keep their elements: which workloads they are for, and every way to share the elements."""

import re

import pytest

from tests.schedule.gpu.tiles import (
    EVERY_LEGAL,
    H200,
    assert_agrees,
    assert_schedule_agrees,
    legal_schedule_of,
    workload_of,
)
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.target import Target
from tilewright.schedule.defaults import default_schedules
from tilewright.schedule.gpu.columnwise.persistent import CUDA_COLUMNWISE_PERSISTENT
from tilewright.schedule.gpu.occupancy import limits_of
from tilewright.schedule.problems.columnwise import columnwise_problem, dependent_columnwise_problem
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
    "softmax of shifted vectors": softmax(2, 36, 45),
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
    "a weight of each row and column, a mask, and a table": parse_workload(
        "X: float16[3, 21, 48]\nW: float32[21, 48]\nT: float32[7]\n"
        "M[i, k] = max over j < 21 of select(j <= k, float32(X[i, j, k]) * W[j, k], -9)\n"
        "S[i, k] = sum over j < 21 of exp(float32(X[i, j, k]) * W[j, k] - M[i, k])\n"
        "Y[i, j, k] = float16(exp(float32(X[i, j, k]) * W[j, k] - M[i, k]) "
        "/ (S[i, k] * 0.5 + T[k // 7] * T[k // 7] + abs(W[20 - j, k])))"
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
    assert assert_agrees(CUDA_COLUMNWISE_PERSISTENT, WORKLOADS[name], 9, SMALL, EVERY_LEGAL) >= 6


@pytest.mark.parametrize("storage", ["registers", "registers_and_shared", "global"])
@pytest.mark.parametrize("combine", ["cluster", "grid"])
@pytest.mark.parametrize(
    "name", ["layer norm", "layer norm of odd extents", "softmax of shifted vectors", "group norm"]
)
def test_ctas_that_share_rows_agree_with_the_reference(name: str, combine: str, storage: str) -> None:
    sketch, workload = CUDA_COLUMNWISE_PERSISTENT, WORKLOADS[name]
    schedule = legal_schedule_of(sketch, workload, SMALL, splits=4, combine=combine, row_storage=storage)
    assert_schedule_agrees(sketch, workload, schedule, SMALL)


def test_rows_that_do_not_fit_are_read_again_by_ctas_that_keep_the_others() -> None:
    target = Target("cuda", "sm_90a", threads=2, vector_bytes=16)
    workload, sketch = layer_norm(1, 5003, 64), CUDA_COLUMNWISE_PERSISTENT
    knobs: dict[str, int | str] = {"splits": 2, "combine": "grid", "row_storage": "registers_and_shared"}
    for threads_x, ctas_per_sm in ((16, 1), (8, 2)):
        schedule = legal_schedule_of(
            sketch, workload, target, vector_width=4, threads_x=threads_x, threads=64, ctas_per_sm=ctas_per_sm, **knobs
        )
        assert 1 < sketch.derive(workload, target, [schedule])["passes"][0] < 3
        assert_schedule_agrees(sketch, workload, schedule, target)


def test_few_long_columns_occupy_the_whole_device() -> None:
    """A cooperative launch has as many CTAs as run at once, and registers for all of them."""
    workload = layer_norm(1, 400_000, 32)
    schedule = default_schedules(workload, H200)[0]
    assert dict(schedule.knobs)["combine"] == "grid"
    kernel = CUDA_COLUMNWISE_PERSISTENT.lower(workload, H200, schedule)
    (resources,) = build_kernel(kernel, H200).resources.values()
    blocks, threads, shared = (
        int(CUDA_COLUMNWISE_PERSISTENT.derive(workload, H200, [schedule])[name][0])
        for name in ("blocks", "threads", "shared_bytes")
    )
    resident = limits_of(H200).resident_blocks(threads, resources.registers, shared)
    assert resources.spill_bytes == 0 and H200.threads <= blocks <= resident * H200.threads


LARGE = {
    "softmax": softmax(64, 512, 1024),
    "softmax of the first axis": softmax(1, 512, 100000),
    "layer norm": layer_norm(64, 512, 1024),
    "group norm": workload_of(
        "group_norm", batch=16, channels=320, pixels=4096, groups=32, layout="NHWC", dtype="float16"
    ),
    "instance norm": workload_of(
        "group_norm", batch=16, channels=64, pixels=65536, groups=64, layout="NHWC", dtype="float16"
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_memory_is_read_once_by_default_and_nothing_spills(name: str) -> None:
    schedule = default_schedules(LARGE[name], H200)[0]
    assert schedule.sketch == CUDA_COLUMNWISE_PERSISTENT.name
    quantities = CUDA_COLUMNWISE_PERSISTENT.derive(LARGE[name], H200, [schedule])
    assert quantities["passes"][0] == 1 and quantities["contiguous_bytes"][0] >= 64
    kernel = CUDA_COLUMNWISE_PERSISTENT.lower(LARGE[name], H200, schedule)
    assert [r.spill_bytes for r in build_kernel(kernel, H200).resources.values()] == [0]


def test_vectors_pass_from_one_group_to_the_next() -> None:
    """Ten channels of a group are no whole vectors, 320 channels of a pixel are."""
    schedule = legal_schedule_of(
        CUDA_COLUMNWISE_PERSISTENT, LARGE["group norm"], vector_width=8, row_storage="registers", splits=16
    )
    kernel = CUDA_COLUMNWISE_PERSISTENT.lower(LARGE["group norm"], H200, schedule)
    (body,) = re.findall(r"__global__.*", backend_for(H200).emit(finish(kernel, H200), H200).text, re.DOTALL)
    assert body.count("recast<uint4>(&X[") == body.count("X[") > 0
    assert body.count("recast<uint4>(&Y[") == body.count("Y[") > 0


@pytest.mark.parametrize(("rows", "widths"), [(512, {1, 8, 4}), (510, {1, 4}), (511, {1})])
def test_rows_of_an_odd_pitch_have_shifted_vectors(rows: int, widths: set[int]) -> None:
    """Every load of such a vector has 16 bytes, where the tensor ends with a whole one."""
    workload = softmax(2, rows, 1023)
    space = CUDA_COLUMNWISE_PERSISTENT.space(workload, H200, policy=EVERY_LEGAL)
    assert set(space.column("vector_width").tolist()) == widths
    if 8 in widths:
        schedule = legal_schedule_of(CUDA_COLUMNWISE_PERSISTENT, workload, vector_width=8, row_storage="registers")
        kernel = CUDA_COLUMNWISE_PERSISTENT.lower(workload, H200, schedule)
        (body,) = re.findall(r"__global__.*", backend_for(H200).emit(finish(kernel, H200), H200).text, re.DOTALL)
        assert body.count("recast<uint4>(&X[") == body.count("X[") > 0


REFUSED = {
    "rows": "X: float32[8, 64]\nM[i] = max over k < 64 of X[i, k]\nY[i, k] = X[i, k] - M[i]",
    "a sum alone": "X: float32[8, 64]\nM[k] = sum over i < 8 of X[i, k]",
    "a result of other columns": (
        "X: float32[8, 64]\nM[k] = max over i < 8 of X[i, k]\nY[i, k < 64] = X[i, k] - M[63 - k]"
    ),
    "a sum that reads another column": (
        "X: float32[8, 64]\nM[k] = max over i < 8 of X[i, k]\nS[k < 64] = sum over i < 8 of X[i, k] - M[63 - k]\n"
        "Y[i, k] = X[i, k] - S[k]"
    ),
    "reductions of different axes": (
        "X: float32[4, 8, 64]\nM[i, k] = max over j < 8 of X[i, j, k]\n"
        "S[j, k] = sum over i < 4 of X[i, j, k] - M[i, k]\nY[i, j, k] = X[i, j, k] - M[i, k] - S[j, k]"
    ),
    "positions": "X: float32[8, 64]\nM[k] = argmax over i < 8 of X[i, k]\nY[i, k] = X[i, k] + float32(M[k])",
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_workloads_are_left_to_other_sketches(name: str) -> None:
    assert not CUDA_COLUMNWISE_PERSISTENT.matches(parse_workload(REFUSED[name]), H200)


def test_sketches_of_single_reductions_take_no_dependent_ones() -> None:
    for workload in WORKLOADS.values():
        problem = dependent_columnwise_problem(workload)
        assert problem is not None
        assert columnwise_problem(workload) == (None if problem.is_dependent else problem)
