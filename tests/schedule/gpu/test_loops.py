"""Plain loops on a GPU: that settings compute their expression which no rule of thumb likes, and what is refused."""

import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, schedule_of, workload_of
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.schedule.gpu.loops.space import CUDA_LOOPS as SKETCH
from tilewright.te.workload import Workload

PRODUCT = workload_of("matmul", m=20, n=36, k=24)
ROWS = workload_of("reduce", shape=[5, 1000, 3], axes=[1])
CONVOLUTION = workload_of(
    "conv2d", batch=1, channels=4, height=8, width=8, filters=6, kernel_h=3, kernel_w=3, padding=1
)


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
