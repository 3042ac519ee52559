"""Long reductions to few elements: cut into chunks, and equal to what they were."""

from typing import Any

import numpy as np
import pytest

from tests.sketch_agreement import check_schedules
from tilewright.runtime.devices import host_target
from tilewright.schedule.cpu.loops.long_reductions import chunked
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance

CASES: list[tuple[str, dict[str, Any]]] = [
    ("reduce", {"shape": [200_003], "axes": [0], "kind": "max"}),
    ("reduce", {"shape": [300, 521], "axes": [0, 1], "kind": "sum"}),
    ("reduce", {"shape": [2, 131_101], "axes": [1], "kind": "mean"}),
    ("matmul", {"m": 1, "n": 1, "k": 150_001}),
]


@pytest.mark.parametrize("operator, parameters", CASES)
def test_chunks_add_up(operator: str, parameters: dict[str, Any]) -> None:
    workload = OPERATORS[operator].workload(parameters)
    cut = chunked(workload, 2)
    assert len(cut.stages) == len(workload.stages) + 1
    inputs = random_inputs(workload, 1)
    wanted, given, limits = reference(workload, inputs), reference(cut, inputs), tolerance(workload)
    for name, result in wanted.items():
        np.testing.assert_allclose(given[name], result, limits[name][1], limits[name][0])


def test_short_ones_and_single_threads_are_left_alone() -> None:
    for operator, parameters in CASES:
        workload = OPERATORS[operator].workload(parameters)
        assert chunked(workload, 1) == workload
    small = OPERATORS["reduce"].workload({"shape": [64, 64], "axes": [0, 1]})
    assert chunked(small, 8) == small


def test_their_kernels_agree() -> None:
    workload = OPERATORS["matmul"].workload(CASES[-1][1])
    assert check_schedules("cpu_loops", host_target("llvm"), workload, 0, 2) == 2
