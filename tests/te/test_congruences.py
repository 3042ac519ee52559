"""Sums over the terms that a remainder selects: the same values, from fewer terms."""

import pytest

from tests.sketch_agreement import agree
from tilewright.ir.text import expr_text
from tilewright.te.congruences import with_congruent_terms
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.phases import with_phases
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload


def _gradient(stride: int, kernel: int, padding: int, extent: int, *, adds: bool = False) -> Workload:
    """Return the gradient of a convolution towards its input, or with a kernel that goes the other way (``adds``)."""
    count = (extent + 2 * padding - kernel) // stride + 1
    place = f"(y + r - {kernel - 1 - padding})" if adds else f"(y + {padding} - r)"
    return parse_workload(
        f"D: float32[2, {count}, 3]\nW: float32[3, {kernel}, 4]\n"
        f"G[n, y < {extent}, c] = sum over r < {kernel}, k < 3 of select({place} % {stride} == 0 and {place} >= 0 and "
        f"{place} // {stride} < {count}, D[n, {place} // {stride}, k], 0) * W[k, r, c]"
    )


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(("stride", "kernel"), [(2, 3), (2, 4), (2, 5), (3, 3), (3, 4), (4, 1), (5, 3)])
@pytest.mark.parametrize("extent", [12, 13, 11])
def test_values_stay(stride: int, kernel: int, padding: int, extent: int, adds: bool) -> None:
    workload = _gradient(stride, kernel, padding, extent, adds=adds)
    phased = with_phases(workload)
    assert phased is not None and phased.output_buffers == workload.output_buffers
    (total,) = (s for s in phased.stages if s.reducer is not None)
    assert total.reduce_axes[0].extent <= -(-kernel // stride) + 1
    inputs = random_inputs(workload, 1)
    agree("phased", reference(phased, inputs), reference(workload, inputs), tolerance(workload))


def test_phases_begin_with_an_axis_that_the_divisor_divides() -> None:
    even, odd = (with_congruent_terms(_gradient(2, 3, 1, extent).stages[0]) for extent in (12, 13))
    assert expr_text(even.body).startswith("select(y//2 - r >= -1 and y//2 - r + 1 < 6"), expr_text(even.body)
    assert "(y + 1)//2" in expr_text(odd.body)


@pytest.mark.parametrize(
    "body",
    [
        "sum over r < 4 of select(r % 2 == 0, X[y] * W[r], 0)",
        "sum over r < 4 of select(y % 2 == 0, X[y] * W[r], 0)",
        "sum over r < 4 of select((y + 2 * r) % 3 == 0, X[y] * W[r], 0)",
        "sum over r < 4 of select((y + r) % 2 == 1 or y > 3, X[y] * W[r], 0)",
        "sum over r < 4 of select((y + r) % 2 == 1, X[y], 1) * W[r]",
        "max over r < 4 of select((y + r) % 2 == 1, X[y] * W[r], 0)",
    ],
)
def test_other_sums_stay(body: str) -> None:
    (total,) = parse_workload(f"X: float32[8]\nW: float32[4]\nY[y < 8] = {body}").stages
    assert with_congruent_terms(total) is total
