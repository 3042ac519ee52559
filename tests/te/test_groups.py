"""Groups of rows: what is recognised, which inputs are drawn, and what the reference makes of any ends."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import InvalidParameter, InvalidWorkload
from tilewright.te import build as te
from tilewright.te.contraction import contraction_of, grouped_contraction_of
from tilewright.te.data import random_inputs
from tilewright.te.groups import all_row_groups, group_starts
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.text import workload_text
from tilewright.te.workload import Workload


def grouped(groups: int = 6, m: int = 40, **more: object) -> Workload:
    return OPERATORS["grouped_matmul"].workload({"groups": groups, "m": m, "n": 5, "k": 7, "dtype": "float64", **more})


def test_groups_are_recognised_and_their_sums_are_contractions_of_each_group() -> None:
    workload = grouped()
    assert [(g.ends.name, g.rows, g.count) for g in all_row_groups(workload).values()] == [("ends", 40, 6)]
    *_, total = workload.stages
    found = grouped_contraction_of(total)
    assert contraction_of(total) is None and found is not None and (found.row,) == found.contraction.rows
    plain = OPERATORS["matmul"].workload({"m": 3, "n": 4, "k": 5})
    assert not all_row_groups(plain) and grouped_contraction_of(plain.stages[0]) is None


@pytest.mark.parametrize(
    "ends",
    [[3, 9, 9, 20, 33, 40], [3, 9, 9, 20, 20, 31], [0, 0, 0, 0, 0, 0], [9, 3, 30, 20, 50, 1], [-7, 5, 90, 8, 8, 8]],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_the_reference_gives_each_row_the_first_group_that_ends_behind_it(ends: list[int], transposed: bool) -> None:
    workload = grouped(transpose_b=transposed)
    inputs = {**random_inputs(workload, 3), "ends": np.asarray(ends, np.int32)}
    a, b = inputs["A"], inputs["B"].swapaxes(1, 2) if transposed else inputs["B"]
    own = [next((e for e, end in enumerate(ends) if end > row), None) for row in range(40)]
    wanted = np.stack([np.zeros(5) if group is None else a[row] @ b[group] for row, group in enumerate(own)])
    np.testing.assert_allclose(reference(workload, inputs)["C"], wanted, rtol=1e-12, atol=1e-12)
    starts = group_starts(inputs["ends"], 40)
    found = [np.flatnonzero((starts[:-1] <= row) & (row < starts[1:])).tolist() for row in range(40)]
    assert found == [[] if group is None else [group] for group in own]


def test_ends_ascend_to_all_rows_and_groups_are_as_skewed_as_the_workload_says() -> None:
    sizes = {}
    for skew in (0.0, 1.0, 2.0):
        workload = grouped(32, 10_000, skew=skew)
        ends = random_inputs(workload, 1)["ends"]
        assert ends.dtype == np.int32 and (np.diff(ends) >= 0).all() and ends[-1] == 10_000
        sizes[skew] = np.sort(np.diff(ends, prepend=0))[::-1]
    assert sizes[0.0][0] < 1.3 * 10_000 / 32 and sizes[0.0][-1] > 0.7 * 10_000 / 32
    harmonic = sum(1 / rank for rank in range(1, 33))
    assert sizes[1.0][0] == pytest.approx(10_000 / harmonic, rel=0.1)
    assert sizes[2.0][0] > 10_000 / 2


def test_the_skew_is_part_of_a_workload_and_survives_all_its_forms() -> None:
    workload = grouped(skew=1.5)
    assert workload.skews == {("ends", 1.5)} and workload_key(workload) != workload_key(grouped())
    assert workload_from_json(json.loads(json.dumps(workload_to_json(workload)))) == workload
    assert "ends: int32[6]    # skew 1.5\n" in workload_text(workload)
    for given in (workload, replace(workload, constants=frozenset({"B", "ends"}))):
        assert workload_key(parse_workload(workload_text(given))) == workload_key(given)


def test_skews_that_mean_nothing_are_refused() -> None:
    data: Any = workload_to_json(grouped(skew=1.5))
    for skew in (0, -1.0, 5.0, True, "much"):
        data["inputs"][2]["skew"] = skew
        with pytest.raises(InvalidWorkload) as caught:
            workload_from_json(data)
        assert caught.value.field == "/inputs/2/skew"
    data["inputs"][2]["skew"] = 1.5
    data["inputs"][0]["skew"] = 1.5
    with pytest.raises(InvalidWorkload, match="A has a skew"):
        workload_from_json(data)
    with pytest.raises(InvalidParameter, match="skew"):
        grouped(skew=-0.5)
    a = te.placeholder((3,), "float32", "A")
    with pytest.raises(InvalidWorkload, match="skewed E is no input"):
        te.workload(te.compute((3,), lambda i: a[i], "C"), skews={te.placeholder((2,), "int32", "E"): 1.0})
