"""Tests of the lowering pipeline from schedule to binary: each of its stages, and what it refuses."""

import numpy as np
import pytest

from tilewright.codegen.lowering import build, lower, lowering_stages, sketch_of
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.verify import verify
from tilewright.runtime.hardware import host_target
from tilewright.runtime.module import load_module
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

TARGET = host_target()


def matmul() -> Workload:
    return OPERATORS["matmul"].workload({"m": 37, "n": 50, "k": 19})


def some_schedule(workload: Workload) -> Schedule:
    space = sketches_for(workload, TARGET)[0].space(workload, TARGET, limit=100)
    return space.schedule(len(space) // 2)


def test_every_stage_can_be_looked_at() -> None:
    workload = matmul()
    schedule = some_schedule(workload)
    stages = lowering_stages(workload, TARGET, schedule)
    verify(stages.kernel)
    verify(stages.passes[-1][1], final=True)
    assert [name for name, _ in stages.passes] == list(dict.fromkeys(name for name, _ in stages.passes))
    assert stages.source.entry in stages.artifacts.layers[-1].text
    assert sum(stages.artifacts.instructions.values()) > 10


def test_a_build_is_a_function_of_its_input() -> None:
    workload = matmul()
    schedule = some_schedule(workload)
    first, second = (build(workload, TARGET, schedule) for _ in range(2))
    assert first == second


def test_a_schedule_runs_in_the_users_process() -> None:
    workload = matmul()
    module = load_module(workload, some_schedule(workload))
    generator = np.random.Generator(np.random.PCG64(5))
    a, b = generator.uniform(-1, 1, (37, 19)).astype("f4"), generator.uniform(-1, 1, (19, 50)).astype("f4")
    (c,) = module(a, b)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def test_what_is_no_schedule_is_refused() -> None:
    workload = matmul()
    schedule = some_schedule(workload)
    with pytest.raises(IllegalSchedule, match="no sketch 'magic'; known: ") as caught:
        lower(workload, TARGET, Schedule("magic", 1, schedule.knobs))
    assert caught.value.field == "/schedule/sketch"
    with pytest.raises(IllegalSchedule, match=r"version 99 of .* at version") as caught:
        sketch_of(Schedule(schedule.sketch, 99, schedule.knobs))
    assert caught.value.field == "/schedule/version"
    with pytest.raises(IllegalSchedule, match="cannot write this workload"):
        lower(workload, Target("abacus", "wood"), schedule)
