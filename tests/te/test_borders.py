"""Windows over images with a border: the same values, with what is inside apart."""

from dataclasses import replace

import numpy as np
import pytest

from tests.te.test_padding_modes import MODES
from tilewright.ir.expr import Select
from tilewright.te.borders import with_borders
from tilewright.te.check import check
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.workload import Workload


def _windows(mode: str, stride: int = 1) -> Workload:
    rows, columns = (MODES[mode].format(f"({a} * {stride} + {b})") for a, b in ("yr", "xs"))
    outputs = f"n, y < {8 // stride}, x < {8 // stride}"
    return parse_workload(f"X: float32[2, 8, 8]\nY[{outputs}] = max over r < 3, s < 3 of X[n, {rows}, {columns}]")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_the_values_stay_the_same(mode: str, stride: int) -> None:
    given = _windows(mode, stride)
    (reduction,) = given.stages
    bordered = with_borders(reduction, {"y", "x"})
    inputs = random_inputs(given, 1)
    made = check(replace(given, stages=(bordered,)))
    np.testing.assert_array_equal(reference(made, inputs)["Y"], reference(given, inputs)["Y"])
    assert isinstance(bordered.body, Select) == (mode != "enlarged")


def test_what_is_read_in_the_border_stays_inside_beyond_the_last_outputs() -> None:
    """Rows have no border, and are kept inside where tiles have more of them than there are."""
    text = "X: float32[6, 9]\nY[y < 4, x < 9] = sum over r < 3, s < 3 of X[y + r, min(max(x + s - 1, 0), 8)]"
    (reduction,) = parse_workload(text).stages
    body = with_borders(reduction, {"y"}).body
    assert isinstance(body, Select)
    kept = parse_workload(text.replace("X[y + r", "X[min(max(y + r, 0), 5)")).stages[0].body
    assert body.otherwise == kept
