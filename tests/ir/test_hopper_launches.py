"""Small kernels of the operations that Hopper brought: results, planted faults, rules, instructions."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.errors import CompileError, InvalidKernel, KernelFault
from tilewright.core.target import Target
from tilewright.ir.gpu.ordered_sequence import OrderedSequenceWait
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import map_statements
from tilewright.ir.stmt import Stmt
from tilewright.ir.verify import verify
from tilewright.tests.ir.hopper_launches import (
    FAULTS,
    Build,
    data_of,
    exchange,
    expected,
    matrices,
    passed_on,
    stored,
    turns,
)

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
PLANTED = [(build, fault, message) for build, faults in FAULTS.items() for fault, message in faults.items()]


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("build", FAULTS, ids=name)
def test_right_kernels_give_right_results(build: Build) -> None:
    kernel = build("")
    verify(kernel, final=True)
    data = data_of(kernel)
    for variant in (kernel, finish(kernel, H200)):
        (result,) = interpret(variant, data).values()
        np.testing.assert_array_equal(result, expected(build, data))


@pytest.mark.parametrize(("build", "fault", "message"), PLANTED, ids=[f"{name(b)}: {f}" for b, f, _ in PLANTED])
def test_planted_faults_are_found(build: Build, fault: str, message: str) -> None:
    kernel = build(fault)
    with pytest.raises((KernelFault, InvalidKernel), match=message):
        interpret(kernel, data_of(kernel))


@pytest.mark.parametrize(
    ("build", "instructions"),
    [
        (matrices, {"STSM.16.M88 ": 4, "STSM.16.M88.2 ": 2, "STSM.16.M88.4 ": 1, "STSM.16.MT88.4 ": 1}),
        (exchange, {"BAR.SYNC": 1}),
        (stored, {"UTMASTG.3D": 1, "FENCE.VIEW.ASYNC": 1}),
        (turns, {"BAR.SYNC": 1, "BAR.ARV": 2}),
        (passed_on, {"UTMALDG.3D.MULTICAST": 1, "UCGABAR_ARV": 2}),
    ],
    ids=name,
)
def test_they_become_instructions_of_hopper(build: Build, instructions: dict[str, int]) -> None:
    kernel, backend = build(""), backend_for(H200)
    (taken,) = build_kernel(kernel, H200).resources.values()
    assert taken.spill_bytes == 0
    sass = backend.assembly(backend.emit(finish(kernel, H200), H200), H200)
    assert {i: sass.count(i) for i in instructions} == instructions


@pytest.mark.parametrize(
    ("warpgroups", "what"), [(1, "1 warpgroups take turns; 2 to 4"), (4, "4 warpgroups take turns in blocks of 384")]
)
def test_turns_of_warpgroups_that_are_not_there_are_refused(warpgroups: int, what: str) -> None:
    kernel = turns()

    def changed(stmt: Stmt) -> Stmt:
        return replace(stmt, warpgroups=warpgroups) if isinstance(stmt, OrderedSequenceWait) else stmt

    with pytest.raises(InvalidKernel, match=what):
        verify(replace(kernel, body=map_statements(kernel.body, changed)))


@pytest.mark.parametrize("build", [matrices, stored, turns, passed_on], ids=name)
def test_what_came_with_hopper_is_refused_before_it(build: Build) -> None:
    with pytest.raises(CompileError, match="sm_89 has no"):
        build_kernel(build(""), replace(H200, arch="sm_89"))
