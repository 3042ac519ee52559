"""Factors that a sum does not depend on, behind that sum."""

import numpy as np
import pytest

from tilewright.ir.rewrite import loads_of
from tilewright.te.check import check
from tilewright.te.data import random_inputs
from tilewright.te.hoisted_factors import with_hoisted_factors
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference

INPUTS = "A: float32[4, 7]\nB: float32[5, 7]\nC: float32[4, 5]\nS[i, j] = sum over k < 7 of "


@pytest.mark.parametrize(
    "body",
    ["A[i, k] * C[i, j] * B[j, k]", "C[i, j] * (A[i, k] * 2.0) * B[j, k]", "C[i, j] * C[i, 0] * A[i, k] * B[j, k]"],
)
@pytest.mark.parametrize("end", ["", "\nO[j, i] = max(S[i, j], 0.0)"])
def test_the_sum_is_left_without_them(body: str, end: str) -> None:
    workload = parse_workload(INPUTS + body + end)
    found = with_hoisted_factors(workload)
    assert found is not None and check(found).outputs == workload.outputs
    assert [s.name for s in found.stages] == ["S_sum", *(s.name for s in workload.stages)]
    assert {load.buffer.name for load in loads_of(found.stages[0].body)} == {"A", "B"}
    inputs = random_inputs(workload, 1)
    for name, wanted in reference(workload, inputs).items():
        np.testing.assert_allclose(reference(found, inputs)[name], wanted, 1e-6, 1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "A[i, k] * B[j, k]",
        "A[i, k] * C[i, j]",  # one factor would be left
        "A[i, k] * B[j, k] * C[i, k % 5]",
        "A[i, k] * B[j, k] * 2.0",
        "A[i, k] * abs(B[j, k]) * C[i, j]",
        "A[i, k] * B[j, k] + C[i, j]",
    ],
)
def test_nothing_else_changes(body: str) -> None:
    assert with_hoisted_factors(parse_workload(INPUTS + body)) is None
    greatest = INPUTS.replace("sum", "max") + "A[i, k] * B[j, k] * C[i, j]"
    assert with_hoisted_factors(parse_workload(greatest)) is None
