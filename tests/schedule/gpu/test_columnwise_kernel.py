"""Column programs: what is a reduction over leading axes, and every way to deal and join its parts."""

from typing import Any

import pytest

from tests.schedule.interpreted import assert_computes
from tilewright.schedule.gpu.columnwise.kernel import CLUSTER, LAUNCH, RUNS, TURNS, ColumnSetting, column_kernel
from tilewright.schedule.problems.columnwise import column_form
from tilewright.te import build as te
from tilewright.te.operators import OPERATORS


@pytest.mark.parametrize(
    ("name", "parameters", "found"),
    [
        ("reduce", {"shape": [4, 5], "axes": [0]}, ((), (4,), (5,))),
        ("reduce", {"shape": [2, 3, 4, 5], "axes": [0, 1, 2], "kind": "mean"}, ((), (2, 3, 4), (5,))),
        ("reduce", {"shape": [2, 3, 4, 5], "axes": [1], "kind": "max"}, ((2,), (3,), (4, 5))),
        ("reduce", {"shape": [4, 5], "axes": [1]}, None),
        ("reduce", {"shape": [4, 5, 6], "axes": [0, 2]}, None),
        ("matmul", {"m": 4, "n": 5, "k": 6}, None),
        ("softmax", {"rows": 4, "columns": 5}, None),
    ],
)
def test_forms(name: str, parameters: dict[str, Any], found: object) -> None:
    form = column_form(OPERATORS[name].workload(parameters))
    assert (form and (form.outer, form.over, form.columns)) == found


SETTINGS = [
    ColumnSetting(4, 8, 4, 2, 1),
    ColumnSetting(4, 16, 8, 4, 3, RUNS, LAUNCH),
    ColumnSetting(4, 8, 4, 1, 5, TURNS, LAUNCH),
    ColumnSetting(4, 8, 8, 2, 4, RUNS, CLUSTER),
    ColumnSetting(2, 32, 1, 3, 8, TURNS, CLUSTER),
    ColumnSetting(4, 2, 64, 2, 8, TURNS, CLUSTER, resident=2),
    ColumnSetting(4, 1, 32, 4, 4, RUNS, CLUSTER),
    ColumnSetting(1, 32, 2, 2, 40, TURNS, LAUNCH, final_depth=32),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize(
    "parameters",
    [
        {"shape": [301, 40], "axes": [0], "kind": "sum", "dtype": "float32"},
        {"shape": [5, 7, 9, 24], "axes": [0, 1, 2], "kind": "mean", "dtype": "float16"},
        {"shape": [3, 67, 4, 12], "axes": [1], "kind": "max", "dtype": "float32"},
        {"shape": [97, 36], "axes": [0], "kind": "argmin", "dtype": "float32"},
    ],
    ids=["sum", "mean", "middle", "argmin"],
)
def test_settings_compute_the_same(parameters: dict[str, Any], setting: ColumnSetting) -> None:
    workload = OPERATORS["reduce"].workload(parameters)
    form = column_form(workload)
    assert form is not None
    assert_computes(column_kernel(workload, form, setting), workload)


def test_two_statistics_and_an_epilogue_in_one_pass() -> None:
    x, b = te.placeholder((53, 8), "float32", "X"), te.placeholder((8,), "float32", "B")
    k, r = te.reduce_axis(53, "k"), te.reduce_axis(53, "r")
    total = te.compute((8,), lambda j: te.sum(x[k, j], axis=k), "total")
    square = te.compute((8,), lambda j: te.sum(x[r, j] * x[r, j], axis=r), "square")
    y = te.compute((8,), lambda j: square[j] - total[j] * total[j] * b[j], "Y")
    workload = te.workload([y, total])
    form = column_form(workload)
    assert form is not None and len(form.reductions) == 2 and len(form.outputs) == 2
    for setting in SETTINGS[:4]:
        assert_computes(column_kernel(workload, form, setting), workload)
