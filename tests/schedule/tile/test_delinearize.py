"""Flat indices taken apart, and names that are free."""

import numpy as np
import pytest

from tilewright.ir.expr import Const, index
from tilewright.ir.simplify import simplify
from tilewright.schedule.tile.delinearize import axis_indices, delinearize
from tilewright.schedule.tile.names import NameSupply, free_prefix
from tilewright.te.workload import Axis


@pytest.mark.parametrize("shape", [(), (5,), (1, 4), (3, 1, 2), (1, 1), (2, 3, 4)], ids=str)
def test_indices_are_those_of_the_row_major_order(shape: tuple[int, ...]) -> None:
    for flat, wanted in enumerate(np.ndindex(shape)):
        found = [simplify(e, {}) for e in delinearize(index(flat), shape)]
        assert [e.value for e in found if isinstance(e, Const)] == list(wanted)


def test_indices_come_by_the_name_of_the_axis() -> None:
    found = axis_indices(index(7), [Axis("i", 3), Axis("j", 4)])
    assert {name: simplify(e, {}) for name, e in found.items()} == {"i": index(1), "j": index(3)}


def test_no_name_is_given_twice() -> None:
    names = NameSupply({"x", "x_2"})
    assert [names.fresh(n) for n in ("x", "x", "y", "y")] == ["x_3", "x_4", "y", "y_2"]
    assert free_prefix("t", {"t1", "t_x", "u"}) == "t__"
