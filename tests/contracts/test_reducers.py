"""Products and positions (argmax, argmin) inside arbitrary expressions, by the sketches that take any workload."""

import pytest

from tests.random_expressions import other_reducers, random_workload
from tests.sketch_agreement import check_schedules
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import SKETCHES
from tilewright.schedule.step_chain import StepChain

TARGETS = {"cpu_loops": host_target("llvm"), "cuda_loops": Target("cuda", "sm_90a", threads=132, vector_bytes=16)}


def test_every_sketch_that_takes_any_workload_is_here() -> None:
    generic = {name for name, sketch in SKETCHES.items() if sketch.generic and not isinstance(sketch, StepChain)}
    assert set(TARGETS) == generic


@pytest.mark.slow
@pytest.mark.parametrize("sketch", TARGETS)
def test_products_and_positions_in_random_expressions(sketch: str) -> None:
    checked = 0
    for seed in range(60):
        workload = other_reducers(random_workload(seed))
        if workload is not None:
            checked += check_schedules(sketch, TARGETS[sketch], workload, seed, 2)
    assert checked == 30
