"""Which stages are pairwise reductions, and how their axes are told apart."""

import pytest

from tilewright.te.contraction import contraction_of, pairwise_reduction_of
from tilewright.te.parse import parse_workload

ROWS = "A: float32[2, 5, 7]\nB: float32[2, 6, 7]\nW: float32[7, 2]\nS: float32[5]\n"


@pytest.mark.parametrize(
    "body",
    [
        "sum over k < 7 of abs(A[b, i, k] - B[b, j, k])",
        "min over k < 7 of B[b, j, k] + A[b, i, k] * A[b, i, k]",
        "max over k < 7 of W[k, b] * max(A[b, i, k] + B[b, j, k], 0)",
        "sum over k < 7 of A[b, i, k] * B[b, j, k]",
    ],
)
def test_two_loads_are_its_sides(body: str) -> None:
    """A product is one, too. What else is read depends on axes of both."""
    (stage,) = parse_workload(f"{ROWS}D[b < 2, i < 5, j < 6] = {body}").stages
    found = pairwise_reduction_of(stage)
    assert found is not None and (found.batch, found.shared) == (("b",), ("k",))
    assert {found.rows, found.columns} == {("i",), ("j",)}
    assert (contraction_of(stage) is not None) == ("* B" in body)


@pytest.mark.parametrize(
    "body",
    [
        "argmin over k < 7 of abs(A[b, i, k] - B[b, j, k])",
        "sum over k < 7 of select(k < i, abs(A[b, i, k] - B[b, j, k]), 0)",
        "sum over k < 7 of S[i] * abs(A[b, i, k] - B[b, j, k])",
        "sum over k < 7 of exp(A[b, i, k])",
    ],
)
def test_others_are_none(body: str) -> None:
    """Positions, masks, factors of one side alone, and reductions of one tensor."""
    (stage,) = parse_workload(f"{ROWS}D[b < 2, i < 5, j < 6] = {body}").stages
    assert pairwise_reduction_of(stage) is None
