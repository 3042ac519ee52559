"""Scatters: which reductions are some, and that their reference, which sorts terms, is right."""

import numpy as np
import pytest

from tests.random_expressions import random_workload
from tilewright.te.cost import flops
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.scatter import scatter_of
from tilewright.te.tolerance import tolerance

EMBEDDING = "I: int64[90]\nD: float32[90, 5]\nG[v < 7, d] = sum over i < 90 of select(I[i] == v, D[i, d], 0.0)"
SCATTERS = {
    "embedding": EMBEDDING,
    "histogram": "I: uint8[90]\nG[b < 16] = sum over i < 90 of select(int64(I[i]) == b, 1.0, 0.0)",
    "pairs": "I: int32[90]\nJ: int32[90]\n"
    "G[a < 3, b < 4] = sum over i < 90 of select(int64(I[i]) == a and int64(J[i]) == b, 1.0, 0.0)",
    "one hot": "I: int64[90]\nD: float32[90, 5]\n"
    "G[d < 5, v < 7] = sum over i < 90 of select(I[i] == v, 1.0, 0.0) * D[i, d]",
    "a condition as a factor": "I: int64[90]\nD: float32[90, 5]\n"
    "G[d < 5, v < 7] = sum over i < 90 of float32(I[i] == v and i > 2) * D[i, d]",
    "a condition as a number": "I: int64[90]\nG[v < 7] = sum over i < 90 of int32(I[i] == v)",
    "greatest": "I: int64[90]\nD: float32[90]\nG[v < 40] = max over i < 90 of select(I[i] == v, D[i], -inf)",
    "batch": "I: int64[3, 6, 5]\nD: float32[3, 6, 5, 4]\n"
    "G[v < 7, n < 3, d < 4] = sum over i < 6, j < 5 of "
    "select(v == I[n, i, j] and j > 1, D[n, i, j, d] * float32(v), 0.0)",
    "integers": "I: int32[90]\nD: int32[90]\nG[v < 7] = prod over i < 90 of select(int64(I[i]) - 2 == v, D[i], 1i32)",
}
"""Indices of some lie outside."""
OTHERS = {
    "no sum": "I: int64[9]\nD: float32[9]\nG[v < 7, i] = select(I[i] == v, D[i], 0.0)",
    "another value": "I: int64[9]\nD: float32[9]\nG[v < 7] = sum over i < 9 of select(I[i] == v, D[i], 1.0)",
    "another identity": "I: int64[9]\nD: float32[9]\nG[v < 7] = max over i < 9 of select(I[i] == v, D[i], 0.0)",
    "the greatest condition": "I: int64[9]\nG[v < 7] = max over i < 9 of int32(I[i] == v)",
    "an order": "I: int64[9]\nD: float32[9]\nG[v < 7] = sum over i < 9 of select(I[i] >= v, D[i], 0.0)",
    "an index that no term has": "I: int64[7]\nD: float32[9]\n"
    "G[v < 7, u < 7] = sum over i < 9 of select(I[u] == v, D[i], 0.0)",
    "a narrow axis": "I: int8[9]\nD: float32[9]\nG[v < 700] = sum over i < 9 of select(I[i] == int8(v), D[i], 0.0)",
}


@pytest.mark.parametrize("name", SCATTERS)
def test_the_reference_adds_each_term_to_its_element(name: str) -> None:
    """The same stage is evaluated point by point where its condition is written so that it is no scatter."""
    workload = parse_workload(SCATTERS[name])
    plain = parse_workload(SCATTERS[name].replace("int64(I[i]) - 2 == v", "0 == v - int64(I[i]) + 2").replace(
        "I[i] == v", "0 == v - I[i]").replace("int64(I[i]) == b", "0 == b - int64(I[i])").replace(
        "int64(I[i]) == a", "0 == a - int64(I[i])").replace("int64(J[i]) == b", "0 == b - int64(J[i])").replace(
        "v == I[n, i, j]", "0 == v - I[n, i, j]"))  # fmt: skip
    assert scatter_of(workload.stages[0]) is not None and scatter_of(plain.stages[0]) is None
    inputs = random_inputs(workload, 1)
    np.testing.assert_allclose(reference(workload, inputs)["G"], reference(plain, inputs)["G"], 1e-12, 1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_other_stages_are_none(name: str) -> None:
    assert all(scatter_of(s) is None for s in parse_workload(OTHERS[name]).stages)


def test_random_expressions_are_none() -> None:
    assert all(scatter_of(s) is None for seed in range(40) for s in random_workload(seed).stages)


def test_indices_are_drawn_from_the_elements() -> None:
    inputs = random_inputs(parse_workload(EMBEDDING), 1)
    assert set(inputs["I"].tolist()) == set(range(7))


def test_each_term_costs_once() -> None:
    assert flops(parse_workload(EMBEDDING)) == 90 * 5


def test_errors_are_those_of_the_terms_of_an_element() -> None:
    """An element has 10,000 terms, a thousandth of all; all would be 30 times as far off."""
    text = "I: int32[10000000]\nD: float32[10000000]\n"
    few = parse_workload(text + "G[v < 1000] = sum over i < 10000000 of select(int64(I[i]) == v, D[i], 0.0)")
    whole = parse_workload(text + "G[v < 1000] = sum over i < 10000000 of D[i] + float32(I[i] * 0i32)")
    (some, _), (all_, _) = tolerance(few)["G"], tolerance(whole)["G"]
    assert 1e-6 < some < all_ / 20
