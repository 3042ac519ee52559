"""Parallel split-K: products of few elements with long sums, as a batch of products and their sums."""

from collections.abc import Mapping

import pytest

from tests.sketch_agreement import check_schedules
from tilewright.core.errors import IllegalSchedule
from tilewright.core.target import Target
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import SKETCHES, class_sketches
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
SKETCH = SKETCHES["cuda_parallel_split_k"]
BATCH = """
A: float16[3, 4096, 24]
B: float16[3, 4096, 32]
T[b, i, j] = sum over k < 4096 of float32(A[b, k, i]) * float32(B[b, k, j])
Y[b, i, j] = float16(max(T[b, i, j], 0))
"""


def _matmul(**parameters: object) -> Workload:
    return OPERATORS["matmul"].workload(parameters)


WORKLOADS: Mapping[str, Workload] = {
    "float16": _matmul(m=64, n=40, k=4096, dtype="float16", transpose_a=True),
    "what is left of k": _matmul(m=33, n=32, k=4099, transpose_a=True),
    "bias": _matmul(m=32, n=32, k=4160, dtype="bfloat16", bias=True, activation="relu"),
    "batch": parse_workload(BATCH),
    "distances": parse_workload(
        "A: float32[24, 4099]\nB: float32[20, 4099]\nD[i, j] = sum over k < 4099 of abs(A[i, k] - B[j, k])"
    ),
    "greatest distances": parse_workload(
        "A: float32[4099, 24]\nB: float32[4099, 20]\nD[i, j] = max over k < 4099 of abs(A[k, i] - B[k, j])"
    ),
    "correlation": parse_workload(
        "A: float32[2, 4200]\nB: float32[2, 4300]\nY[b, lag < 100] = sum over t < 4200 of A[b, t] * B[b, t + lag]"
    ),
    "gradient of a filter": parse_workload(
        "D: float32[3, 4200]\nX: float32[3, 4240]\nG[k < 41] = sum over b < 3, i < 4200 of D[b, i] * X[b, i + k]"
    ),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_slices_compute_the_product(name: str) -> None:
    workload = WORKLOADS[name]
    assert SKETCH in class_sketches(workload, H200)
    assert check_schedules(SKETCH.name, H200, workload, 0, 3) == 3


def test_what_is_left_of_k_is_a_product_of_its_own() -> None:
    """4099 terms are 16 slices of 256, and three more."""
    workload = WORKLOADS["what is left of k"]
    schedule = SKETCH.space(workload, H200, limit=1).schedule(0)
    kernel = SKETCH.lower(workload, H200, schedule)
    assert dict(schedule.knobs)["split_k_slices"] == 16
    assert [b.shape for b in kernel.workspace if b.name.startswith(("partial", "end"))] == [(16, 33, 32), (33, 32)]


@pytest.mark.parametrize(("k", "slices"), [(4096, 16), (6720, 21), (4160, 20), (4200, 21)])
def test_slices_are_equally_long_where_they_can_be(k: int, slices: int) -> None:
    """What is left would be a launch of its own. Slices of whole lines are the best ones."""
    workload = _matmul(m=32, n=32, k=k, dtype="float16", transpose_b=True)
    schedule = SKETCH.space(workload, H200, limit=1).schedule(0)
    assert dict(schedule.knobs)["split_k_slices"] == slices
    assert not any(b.name.startswith("end") for b in SKETCH.lower(workload, H200, schedule).workspace)


def test_the_default_of_a_product_that_leaves_a_device_idle_is_split() -> None:
    gram = _matmul(m=64, n=64, k=100_000, dtype="float16", transpose_a=True)
    assert default_schedule(gram, H200).sketch == SKETCH.name


@pytest.mark.parametrize(
    "workload",
    [
        _matmul(m=1024, n=1024, k=4096, dtype="float16"),
        _matmul(m=64, n=64, k=2048, dtype="float16"),
        OPERATORS["softmax"].workload({"rows": 64, "columns": 8192}),
    ],
    ids=["large", "short", "softmax"],
)
def test_other_workloads_are_not_split(workload: Workload) -> None:
    with pytest.raises(IllegalSchedule, match="products of few elements with long sums"):
        SKETCH.space(workload, H200)
