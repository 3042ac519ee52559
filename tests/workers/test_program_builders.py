"""Children build the kernels of a program, as this process would."""

import os
import threading

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, workload_of
from tilewright.codegen.lowering import build_known
from tilewright.core.errors import IllegalSchedule
from tilewright.runtime.cpu import CpuDevice, CpuKernel
from tilewright.runtime.kernels import load_kernels
from tilewright.runtime.module import Module
from tilewright.schedule.defaults import default_schedules
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.workers.program_builders import ProgramBuilders, program_children

WORKLOAD = workload_of("softmax", rows=64, columns=100)


@pytest.fixture(scope="module")
def builders() -> ProgramBuilders:
    return ProgramBuilders(1, idle_seconds=1.0)


def test_kernels_of_children_compute_what_they_should(builders: ProgramBuilders) -> None:
    """A schedule that is known is built. One of another machine gives way to the default."""
    device = CpuDevice()
    workloads = {str(n): workload_of("softmax", rows=64, columns=n) for n in (100, 101, 102)}
    second = default_schedules(workloads["100"], device.target)[1]
    other = build_known(workload_of("matmul", m=64, n=64, k=64), device.target, None).schedule
    found = load_kernels(workloads, {"100": second, "101": other}, device, build=builders, at_once=2)
    assert {key: kernel.tuned for key, kernel in found.items()} == {"100": True, "101": False, "102": False}
    assert found["100"].schedule == second
    for key, workload in workloads.items():
        inputs, kernel = random_inputs(workload, 0), found[key].kernel
        assert isinstance(kernel, CpuKernel)
        (result,) = Module(workload, found[key].schedule, kernel)(*(inputs[b.name] for b in workload.inputs))
        np.testing.assert_allclose(result, reference(workload, inputs)["Y"], rtol=1e-5)


def test_a_child_builds_what_this_process_builds(builders: ProgramBuilders) -> None:
    here = build_known(WORKLOAD, H200, None)
    there = builders(WORKLOAD, H200, None)
    assert there == here and there.binary.code


def test_errors_come_back_with_their_types(builders: ProgramBuilders) -> None:
    refused = [s.sketch for s in default_schedules(WORKLOAD, H200)]
    with pytest.raises(IllegalSchedule, match="no sketch takes this workload"):
        builders(WORKLOAD, H200, None, refused)


def test_this_process_builds_where_no_child_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    assert ProgramBuilders(1)(WORKLOAD, H200, None) == build_known(WORKLOAD, H200, None)
    monkeypatch.setattr("sys.executable", "/usr/sbin/web_server")  # it embeds Python
    assert program_children() == 0


@pytest.mark.timeout(60)
def test_idle_children_end_and_come_back(builders: ProgramBuilders) -> None:
    builders(WORKLOAD, H200, None)
    assert not builders.is_idle
    for thread in threading.enumerate():
        if thread.name == "program-builders":
            thread.join()
    assert builders.is_idle
    assert builders(WORKLOAD, H200, None).binary.code


def test_a_forked_process_builds_with_children_of_its_own(builders: ProgramBuilders) -> None:
    builders(WORKLOAD, H200, None)
    child = os.fork()
    if child == 0:
        os._exit(0 if builders.is_idle and builders(WORKLOAD, H200, None).binary.code else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
