"""Workloads of every type go through the workers: what a builder answers is read, and a runner checks and times it."""

from typing import Any

import pytest

from tilewright.codegen.backend import CompiledKernel
from tilewright.core.target import Target
from tilewright.core.trial import Timed
from tilewright.runtime.devices import host_target
from tilewright.schedule.defaults import default_schedule
from tilewright.te.json import workload_to_json
from tilewright.te.operators import OPERATORS
from tilewright.tests.workers.any_noise import ANY_NOISE
from tilewright.workers.builder_child import BuilderRole
from tilewright.workers.frames import Frame
from tilewright.workers.local import LocalExecutor
from tilewright.workers.settings import ExecutorSettings
from tilewright.workers.wire import binary_from_frame

H200 = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
SHAPE = {"m": 256, "n": 256, "k": 256}
PRODUCTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tf32": ("matmul", {**SHAPE, "transpose_b": True, "precision": "tf32"}),
    "tf32x3": ("matmul", {**SHAPE, "transpose_b": True, "precision": "tf32x3"}),
    "bf16x6": ("matmul", {**SHAPE, "transpose_b": True, "precision": "bf16x6"}),
    "int8": ("matmul", {**SHAPE, "transpose_b": True, "dtype": "int8"}),
    "fp8": ("scaled_matmul", {**SHAPE, "scales": "tensor"}),
    "fp8, e5m2": ("scaled_matmul", {**SHAPE, "scales": "row", "dtype": "float8_e5m2"}),
    "fp8, blocks": ("scaled_matmul", {**SHAPE, "scales": "block"}),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_a_builder_makes_for_hopper_is_read_by_who_asked(name: str) -> None:
    operator, parameters = PRODUCTS[name]
    workload = OPERATORS[operator].workload(parameters)
    setup = {"target": H200.to_json(), "builder": "tilewright.codegen.lowering:build", "accept_code": False}
    schedule = default_schedule(workload, H200).to_json()
    frame = Frame({"workload": workload_to_json(workload), "schedule": schedule})
    found = binary_from_frame(BuilderRole(setup).answer(frame, lambda *_: None))
    assert isinstance(found, CompiledKernel)
    assert {b.name for b in workload.inputs} <= {p.name for p in found.parameters}


@pytest.mark.slow
def test_a_runner_checks_and_times_products_of_every_type() -> None:
    target = host_target()
    with LocalExecutor(target, settings=ExecutorSettings(timing=ANY_NOISE)) as executor:
        for operator, parameters in PRODUCTS.values():
            workload = OPERATORS[operator].workload(parameters)
            ((_, trial),) = executor.measure(workload, [default_schedule(workload, target)])
            assert isinstance(trial.outcome, Timed), trial.outcome
