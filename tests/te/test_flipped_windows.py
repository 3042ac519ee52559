"""Windows that run against the axes of a result: the same values, with windows that run along them."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.linear_form import affine_form
from tilewright.ir.rewrite import loads_of
from tilewright.te.check import check
from tilewright.te.data import random_inputs
from tilewright.te.flipped_windows import unflipped
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference

_INPUTS = "X: float32[10, 9]\nW: float32[3, 2]\n"


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("Y[i < 8, j < 8] = sum over r < 3, s < 2 of X[i - r + 2, j - s + 1] * W[r, s]", {"r": 1, "s": 1}),
        ("Y[i < 8, j < 8] = max over r < 3, s < 2 of X[i + r, j - s + 1] * W[r, s]", {"r": 1, "s": 1}),
        ("Y[i < 4, j < 1] = sum over r < 3, s < 2 of X[2 * i - r + 3, j - s + 1] * W[r, s]", {"r": 1, "s": -1}),
        ("Y[i < 6, j < 8] = sum over r < 3, s < 2 of X[i - r + 2, j - s + 1] * X[i + r, j]", {"r": -1, "s": 1}),
    ],
)
def test_the_values_stay_the_same(text: str, ways: dict[str, int]) -> None:
    """What runs along some indices and against others stays, and so does what runs against an axis of one element."""
    given = parse_workload(_INPUTS + text)
    (reduction,) = given.stages
    turned = unflipped(reduction)
    inputs = random_inputs(given, 1)
    made = check(replace(given, stages=(turned,)))
    np.testing.assert_allclose(reference(made, inputs)["Y"], reference(given, inputs)["Y"], rtol=1e-6)
    forms = [affine_form(i) for i in next(iter(loads_of(turned.body))).indices]
    assert {name: sum(form.coefficient(name) for form in forms if form is not None) for name in ways} == ways
