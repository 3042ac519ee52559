"""Row programs: what is a work on rows, and every way to hold one."""

from typing import Any

import pytest

from tests.schedule.interpreted import assert_computes
from tilewright.schedule.gpu.rowwise.kernel import row_kernel
from tilewright.schedule.gpu.rowwise.setting import MEMORY, QUEUE, REGISTERS, SPLIT, RowSetting
from tilewright.schedule.problems.rowwise import row_form
from tilewright.te import build as te
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload


def _workload(name: str, **parameters: Any) -> Workload:
    return OPERATORS[name].workload(parameters)


def test_norms_hold_the_row_and_read_weights_beside_it() -> None:
    form = row_form(_workload("layer_norm", rows=5, columns=7, dtype="float16"))
    assert form is not None
    assert (form.rows, form.columns) == ((5,), (7,))
    assert [b.name for b in form.held] == ["X"]
    assert [load.buffer.name for load in form.beside] == ["G", "B"]
    assert (len(form.reductions), len(form.wide), len(form.narrow)) == (2, 1, 0)
    assert (form.held_bytes, form.written_bytes) == (2, 2)


def test_outputs_that_others_read_are_computed_where_they_are_read() -> None:
    form = row_form(_workload("add_rms_norm", rows=5, columns=7, dtype="float16"))
    assert form is not None
    assert sorted(b.name for b in form.held) == ["R", "X"]
    assert len(form.wide) == 2


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("matmul", {"m": 4, "n": 4, "k": 4}),
        ("reduce", {"shape": [4, 5], "axes": [0]}),
        ("reduce", {"shape": [4, 5, 6], "axes": [2, 0]}),
        ("transpose", {"shape": [4, 5], "axes": [1, 0]}),
        ("elementwise", {"shape": [4, 5], "functions": ["exp"]}),
    ],
)
def test_what_is_no_work_on_rows_is_left_alone(name: str, parameters: dict[str, Any]) -> None:
    assert row_form(OPERATORS[name].workload(parameters)) is None


def test_a_row_read_at_another_place_is_none() -> None:
    x = te.placeholder((4, 6), name="X")
    k = te.reduce_axis(6, "k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), "total")
    assert row_form(te.workload(te.compute((4, 6), lambda i, j: x[i, j] - total[i], "Y"))) is not None
    assert row_form(te.workload(te.compute((4, 6), lambda i, j: x[i, 5 - j] - total[i], "Y"))) is None
    assert row_form(te.workload(te.compute((4, 6), lambda i, j: x[i, j] - total[3 - i], "Y"))) is None


ODD = {"rows": 5, "columns": 1031, "dtype": "float16"}
EVEN = {"rows": 6, "columns": 2048, "dtype": "float16"}


@pytest.mark.parametrize("setting", [
    RowSetting(8, 32, 1),
    RowSetting(8, 32, 4),
    RowSetting(8, 128, 2),
    RowSetting(8, 16, 2),
    RowSetting(8, 128, 1, early=2),
    RowSetting(8, 32, 1, early=3),
    RowSetting(8, 32, 1, cluster=2),
    RowSetting(8, 128, 1, cluster=4),
    RowSetting(8, 64, 1, hold=MEMORY, unroll=2),
    RowSetting(8, 128, 1, hold=MEMORY),
    RowSetting(8, 32, 1, hold=SPLIT, slots=3),
    RowSetting(8, 64, 2, hold=SPLIT, slots=2),
    RowSetting(8, 32, 1, cluster=2, hold=SPLIT, slots=1, early=1),
])  # fmt: skip
@pytest.mark.parametrize("shape", [ODD, EVEN], ids=["odd", "even"])
@pytest.mark.parametrize("operator", ["softmax", "add_rms_norm"])
def test_settings_compute_the_same(operator: str, shape: dict[str, Any], setting: RowSetting) -> None:
    workload = OPERATORS[operator].workload(shape)
    form = row_form(workload)
    assert form is not None
    assert_computes(row_kernel(workload, form, setting), workload)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("slots", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("shape", [ODD, EVEN], ids=["odd", "even"])
def test_queues_of_any_length_keep_the_order_of_rows(shape: dict[str, Any], slots: int, cluster: int) -> None:
    """2 chunks of each thread, 2 rows at a time: queues of one to three and a half rows."""
    workload = OPERATORS["layer_norm"].workload(shape)
    form = row_form(workload)
    assert form is not None
    early = slots % 3 if shape is EVEN else 0
    blocks = 2 * cluster
    setting = RowSetting(8, 128 // cluster, 1, cluster, QUEUE, slots=slots, blocks=blocks, early=early)
    assert_computes(row_kernel(workload, form, setting), workload)


def test_rows_and_columns_of_several_axes() -> None:
    x, b = te.placeholder((2, 3, 4, 8), "float32", "X"), te.placeholder((2, 3), "float32", "B")
    k, r = te.reduce_axis(4, "k"), te.reduce_axis(8, "r")
    top = te.compute((2, 3), lambda i, j: te.max(x[i, j, k, r], axis=[k, r]), "top")
    y = te.compute((2, 3, 4, 8), lambda i, j, p, q: (x[i, j, p, q] - top[i, j]) * b[i, j], "Y")
    workload = te.workload([y, top])
    form = row_form(workload)
    assert form is not None and (form.rows, form.columns) == ((2, 3), (4, 8))
    for setting in (RowSetting(4, 8, 4), RowSetting(8, 4, 8), RowSetting(1, 32, 1)):
        assert_computes(row_kernel(workload, form, setting), workload)


def test_tensors_may_be_called_like_anything_in_the_program() -> None:
    x = te.placeholder((3, 40), "float32", "t")
    k = te.reduce_axis(40, "k")
    total = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), "block")
    workload = te.workload(te.compute((3, 40), lambda i, j: x[i, j] / total[i], "own0"))
    form = row_form(workload)
    assert form is not None
    assert_computes(row_kernel(workload, form, RowSetting(4, 32, 1, hold=REGISTERS)), workload)
