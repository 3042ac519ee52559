"""Triton kernels are compared with what their first configuration computes. Here the processor is the device, and the
binaries are our own kernels with the parameters of a Triton kernel."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tilewright.codegen.backend import CompiledKernel
from tilewright.codegen.lowering import build_kernel, lower
from tilewright.core.schedule import Schedule
from tilewright.core.target import Profile, Target
from tilewright.core.trial import Failed, Reason, Timed, Trial
from tilewright.runtime.devices import host_target
from tilewright.schedule.gpu.triton import CUDA_TRITON
from tilewright.schedule.sketches import sketches_for
from tilewright.te.build import compute, placeholder, workload
from tilewright.te.json import workload_from_json
from tilewright.te.triton import TritonWorkload
from tilewright.te.workload import Workload
from tilewright.tests.triton.kernels import add_workload
from tilewright.tests.workers.any_noise import ANY_NOISE
from tilewright.workers.local import LocalExecutor
from tilewright.workers.settings import ExecutorSettings

N = 4096
RIGHT, WRONG, BROKEN = 128, 256, 512
"""What a value of BLOCK makes of the kernel."""


def build(given: Workload, target: Target, schedule: Schedule) -> CompiledKernel:
    """What builder children call in place of Triton."""
    assert isinstance(given, TritonWorkload)
    block = schedule["BLOCK"]
    if block == BROKEN:
        raise ValueError("the compiler broke")
    x, y = placeholder((N,), "float32", name="x_ptr"), placeholder((N,), "float32", name="y_ptr")
    scale = 1.01 if block == WRONG else 1.0
    body = compute((N,), lambda i: x[i] + y[i] * scale, name="out_ptr")
    made = workload(body)
    sketch = sketches_for(made, target)[0]
    return build_kernel(lower(made, target, sketch.space(made, target, limit=1).schedule(0)), target)


def kernel(*blocks: int) -> tuple[TritonWorkload, list[Schedule]]:
    data: dict[str, Any] = add_workload(N, configurations=[{"BLOCK": block} for block in blocks])
    found = workload_from_json(data)
    assert isinstance(found, TritonWorkload)
    space = CUDA_TRITON.space(found, host_target())
    return found, [space.schedule(n) for n in range(len(space))]


SETTINGS = ExecutorSettings(
    builder="tilewright.tests.workers.test_oracle:build", timing=ANY_NOISE, builders=1, accept_code=True
)


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    with LocalExecutor(host_target(), profile=Profile(), settings=SETTINGS) as opened:
        yield opened


def trials(executor: LocalExecutor, *blocks: int) -> list[Trial]:
    work, schedules = kernel(*blocks)
    return [trial for _, trial in sorted(executor.measure(work, schedules), key=lambda found: found[0])]


def test_the_first_configuration_that_builds_is_the_oracle(executor: LocalExecutor) -> None:
    broken, right, wrong = trials(executor, BROKEN, RIGHT, WRONG)
    assert isinstance(broken.outcome, Failed) and "the compiler broke" in broken.outcome.detail
    assert isinstance(right.outcome, Timed | Failed) and right.evidence.max_error == 0.0
    assert right.evidence.environment["oracle_configuration"] == 1.0
    assert right.evidence.relative_tolerance == 2.0**-12
    assert isinstance(wrong.outcome, Failed) and wrong.outcome.reason is Reason.WRONG_RESULT


def test_without_a_configuration_that_builds_every_trial_says_why(executor: LocalExecutor) -> None:
    (trial,) = trials(executor, BROKEN)
    assert isinstance(trial.outcome, Failed) and trial.outcome.reason is Reason.COMPILE_ERROR


def test_code_is_built_only_where_it_is_accepted() -> None:
    with LocalExecutor(host_target(), settings=replace(SETTINGS, accept_code=False)) as executor:
        (trial,) = trials(executor, RIGHT)
    assert isinstance(trial.outcome, Failed) and "accept_code is off" in trial.outcome.detail
