"""Indices that wrap around once are read as two contiguous parts."""

import numpy as np
import pytest

from tilewright.codegen.passes.pipeline import run_passes
from tilewright.ir.text import kernel_text
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import Module, load_module
from tilewright.schedule.cpu.loops.wraps import split_wraps
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference

ROLL = "A: float32[5, 203]\nC[i, j < 203] = A[i, (j + 77) % 203]"
HALVES = "A: float32[2, 40]\nB: float32[3]\nC[i < 3, j < 80] = A[j // 40, j % 40] * B[i]"
BACKWARDS = "A: float32[4, 60]\nC[i, j < 60] = A[i, (90 - j) % 60]"
CIRCULAR_SUM = "A: float32[6, 64]\nC[i, j < 64] = sum over k < 3 of A[i, (j + k) % 64]"
OFTEN = "A: float32[4, 10]\nC[i, j < 50] = A[i, j % 10]"
ROWS = "A: float32[40, 16]\nC[i < 40, j] = A[(i + 7) % 40, j]"


@pytest.mark.parametrize("text", [ROLL, HALVES, BACKWARDS, CIRCULAR_SUM, OFTEN, ROWS])
def test_wrapped_indices_are_right_in_every_kind_of_tile(text: str) -> None:
    workload, target = parse_workload(text), host_target("llvm")
    inputs = random_inputs(workload, 0)
    wanted = reference(workload, inputs)
    space = SKETCHES["cpu_loops"].space(workload, target)
    for row in range(0, len(space), max(1, len(space) // 6)):
        module = load_module(workload, space.schedule(row))
        assert isinstance(module, Module)
        for name, result in zip(workload.outputs, module(*inputs.values()), strict=True):
            np.testing.assert_allclose(result, wanted[name], rtol=1e-5)


@pytest.mark.parametrize(
    "text, splits", [(ROLL, True), (HALVES, True), (BACKWARDS, True), (OFTEN, False), (ROWS, False)]
)
def test_only_what_wraps_around_once_along_the_last_axis_is_split(text: str, splits: bool) -> None:
    workload = parse_workload(text)
    assert (split_wraps(workload) != workload) is splits


def test_no_vector_of_a_rolled_row_is_divided() -> None:
    workload, target = parse_workload(ROLL), host_target("llvm")
    sketch = SKETCHES["cpu_loops"]
    for schedule in map(sketch.space(workload, target).schedule, range(3)):
        final = run_passes(sketch.lower(workload, target, schedule))[-1][1]
        assert "%203" not in kernel_text(final).replace(" ", "")
