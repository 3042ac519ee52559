"""Plain loops on a GPU: that settings compute their expression which no rule of thumb likes, and what is refused."""

import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, assert_schedule_agrees, schedule_of, workload_of
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.schedule.gpu.loops.space import CUDA_LOOPS as SKETCH
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

PRODUCT = workload_of("matmul", m=20, n=36, k=24)
ROWS = workload_of("reduce", shape=[5, 1000, 3], axes=[1])
CONVOLUTION = workload_of(
    "conv2d", batch=1, channels=4, height=8, width=8, filters=6, kernel_h=3, kernel_w=3, padding=1
)


FORCES = parse_workload(
    "P: float32[75, 3]\nM: float32[75]\nF[i, c < 3] = sum over j < 75 of M[j] * (P[j, c] - P[i, c]) "
    "/ (1 + abs(P[j, 0] - P[i, 0]) + abs(P[j, 1] - P[i, 1]))"
)
NEAREST = parse_workload(
    "A: float32[75, 3]\nB: float32[90, 3]\nN[i] = argmin over j < 90 of abs(A[i, 0] - B[j, 0]) + abs(A[i, 2] - B[j, 2])"
)


@pytest.mark.parametrize("workload", [FORCES, NEAREST], ids=["forces", "nearest"])
def test_outputs_side_by_side_are_those_in_turn(workload: Workload) -> None:
    """What all outputs read alike is loaded once for several of them. Some threads have outputs beyond the last one."""
    known = dict(schedule_of(SKETCH, workload).knobs)
    for shared in (1, 32):
        knobs: dict[str, KnobValue] = {
            **known,
            "items": 4,
            "interleaved": 1,
            "threads_per_output": shared,
            "threads": 64,
        }
        schedule = Schedule.of(SKETCH.name, SKETCH.version, knobs)
        assert_schedule_agrees(SKETCH, workload, schedule)


@pytest.mark.parametrize("workload", [PRODUCT, ROWS, CONVOLUTION], ids=["product", "rows", "convolution"])
def test_settings_that_are_pruned_compute_the_expression_too(workload: Workload) -> None:
    assert assert_agrees(SKETCH, workload, 6, policy=SpacePolicy(prune=False)) == 6


@pytest.mark.parametrize(
    ("workload", "knobs", "broken"),
    [
        (PRODUCT, {"staged": "no", "block_k": 8}, "block_k is 4 where nothing is staged"),
        (PRODUCT, {"threads_y": 32, "threads_x": 32, "items_y": 8, "items_x": 8}, "registers for threads_y"),
        (ROWS, {"threads": 512, "threads_per_output": 256}, "all threads of the block"),
        (ROWS, {"threads": 256, "threads_per_output": 256, "items": 2}, "items is 1"),
    ],
)
def test_what_cannot_be_built_is_refused(workload: Workload, knobs: dict[str, KnobValue], broken: str) -> None:
    known = schedule_of(SKETCH, workload)
    schedule = Schedule.of(SKETCH.name, SKETCH.version, {**dict(known.knobs), **knobs})
    with pytest.raises(IllegalSchedule, match=broken):
        SKETCH.lower(workload, H200, schedule)
