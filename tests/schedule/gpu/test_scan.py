"""Kernels for scans: which workloads they are for, and that every way to share out a line computes the same."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, assert_schedule_agrees, legal_schedule_of, workload_of
from tests.sketch_agreement import assert_kernel_agrees
from tilewright.codegen.lowering import build_kernel
from tilewright.core.target import Target
from tilewright.ir.expr import Expr
from tilewright.ir.gpu.grid_barrier import is_cooperative
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.scan.space import CUDA_SCAN
from tilewright.schedule.problems.scan import scan_problem
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.workload import Workload

Body = Callable[..., Expr]


def _running_sum(shape: tuple[int, int], value: Body, output: Body, dtype: str = "float32") -> Workload:
    """Y[i, j] = output of the sum over k <= j of value(X, i, k), the input X and the place (i, j)."""
    x, k = te.placeholder(shape, dtype, "X"), te.reduce_axis(shape[1], "k")

    def up_to(i: Expr, j: Expr) -> te.Reduction:
        element = te.cast(value(x, i, k), "float32")
        return te.sum(te.select(k <= j, element, 0.0), axis=k)

    total = te.compute(shape, up_to, "total")
    return te.workload(te.compute(shape, lambda i, j: te.cast(output(total, x, i, j), dtype), "Y"))


FUSED = {
    "exp before it": _running_sum((3, 80), lambda x, i, k: te.exp(x[i, k]), lambda t, x, i, j: t[i, j]),
    "the input behind it": _running_sum((3, 80), lambda x, i, k: x[i, k], lambda t, x, i, j: t[i, j] - x[i, j]),
    "a row behind it": _running_sum((3, 80), lambda x, i, k: x[i, k], lambda t, x, i, j: t[i, j] * x[0, j]),
    "16 bits": _running_sum((5, 72), lambda x, i, k: x[i, k], lambda t, x, i, j: te.tanh(t[i, j]), "float16"),
    "another order": _running_sum((5, 72), lambda x, i, k: x[4 - i, 71 - k], lambda t, x, i, j: t[i, j]),
    "a border": _running_sum(
        (5, 72), lambda x, i, k: te.select(k > 0, x[i, k - 1], 0.0), lambda t, x, i, j: te.maximum(t[i, j], 0.0)
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_is_before_and_behind_a_scan_is_part_of_its_kernel(name: str) -> None:
    workload = FUSED[name]
    assert [s.name for s in sketches_for(workload, H200)] == ["cuda_scan"]
    assert assert_agrees(CUDA_SCAN, workload, 3, policy=WHOLE) == 3


def test_an_output_at_another_place_is_no_scan() -> None:
    other = _running_sum((6, 6), lambda x, i, k: x[i, k], lambda t, x, i, j: t[i, 5 - j])
    assert scan_problem(other) is None
    assert scan_problem(workload_of("reduce", shape=[4, 4], axes=[1])) is None


ROWS: list[dict[str, Any]] = [
    {"threads_per_row": 1, "rows_per_cta": 32, "items": 4, "stages": 1},
    {"threads_per_row": 8, "rows_per_cta": 4, "items": 2, "stages": 2},
    {"threads_per_row": 32, "rows_per_cta": 2, "items": 1, "stages": 2},
    {"threads_per_row": 32, "rows_per_cta": 1, "items": 8, "stages": 1},
    {"threads_per_row": 64, "rows_per_cta": 2, "items": 2, "stages": 1},
    {"threads_per_row": 128, "rows_per_cta": 1, "items": 1, "stages": 2},
    {"threads_per_row": 64, "rows_per_cta": 1, "items": 1, "stages": 2},
]
COLUMNS: list[dict[str, Any]] = [
    {"threads_x": 4, "threads_y": 8, "items": 4, "stages": 2},
    {"threads_x": 4, "threads_y": 32, "items": 2, "stages": 2},
    {"threads_x": 8, "threads_y": 16, "items": 8, "stages": 2},
    {"threads_x": 32, "threads_y": 4, "items": 8, "stages": 2},
    {"threads_x": 64, "threads_y": 2, "items": 16, "stages": 1},
]


@pytest.mark.parametrize(
    ("columns", "form"),
    [(519, {}), (520, {"reverse": True}), (520, {"exclusive": True}), (519, {"reverse": True, "exclusive": True})],
)
@pytest.mark.parametrize("knobs", ROWS, ids=str)
def test_rows_are_shared_out_in_every_way(knobs: dict[str, Any], columns: int, form: dict[str, bool]) -> None:
    """No number of rows of a CTA divides theirs."""
    rows, columns = (33, columns // 10) if knobs["threads_per_row"] == 1 else (3, columns)
    _check(workload_of("scan", shape=[rows, columns], axis=1, **form), knobs)


@pytest.mark.parametrize("form", [{}, {"reverse": True, "exclusive": True}])
@pytest.mark.parametrize("shape", [[2, 131, 36], [1, 256, 66]])
@pytest.mark.parametrize("knobs", COLUMNS, ids=str)
def test_columns_are_shared_out_in_every_way(knobs: dict[str, Any], shape: list[int], form: dict[str, bool]) -> None:
    _check(workload_of("scan", shape=shape, axis=1, dtype="float64" if form else "float32", **form), knobs)


def _check(workload: Workload, knobs: dict[str, Any]) -> None:
    schedule = legal_schedule_of(CUDA_SCAN, workload, **knobs)
    assert_kernel_agrees(workload, CUDA_SCAN.lower(workload, H200, schedule), H200)


@pytest.mark.parametrize(
    "parameters",
    [
        {"axis": 1},
        {"axis": 0},
        {"axis": 1, "dtype": "float16", "masked": True},
        {"axis": 0, "dtype": "bfloat16", "reverse": True},
        {"axis": 1, "kind": "prod", "exclusive": True, "dtype": "int64"},
    ],
    ids=str,
)
def test_the_first_setting_fits_its_registers_and_reads_whole_vectors(parameters: dict[str, Any]) -> None:
    workload = workload_of("scan", shape=[4096, 4096], **parameters)
    schedule = default_schedule(workload, H200)
    (taken,) = build_kernel(CUDA_SCAN.lower(workload, H200, schedule), H200).resources.values()
    assert taken.spill_bytes == 0 and taken.registers <= 168
    assert int(dict(schedule.knobs)["vector_width"]) > 1


SHARED_ROWS: list[dict[str, Any]] = [
    {"threads_per_row": 32, "rows_per_cta": 1, "items": 2, "stages": 1, "ctas_per_sm": 3},
    {"threads_per_row": 64, "rows_per_cta": 1, "items": 1, "stages": 2, "ctas_per_sm": 2},
    {"threads_per_row": 8, "rows_per_cta": 4, "items": 2, "stages": 2, "ctas_per_sm": 1},
]
SHARED_COLUMNS: list[dict[str, Any]] = [
    {"threads_x": 4, "threads_y": 8, "items": 2, "stages": 1, "ctas_per_sm": 1},
    {"threads_x": 8, "threads_y": 16, "items": 1, "stages": 2, "ctas_per_sm": 1},
    {"threads_x": 32, "threads_y": 1, "items": 4, "stages": 2, "ctas_per_sm": 2},
]
FEW = Target("cuda", "sm_90a", (), threads=4, vector_bytes=16)
"""A device of few multiprocessors, so that the CTAs that share a line have several chunks of it."""
FORMS: list[dict[str, Any]] = [
    {},
    {"reverse": True, "kind": "max", "dtype": "float16"},
    {"exclusive": True, "kind": "prod", "dtype": "int64", "masked": True},
    {"reverse": True, "exclusive": True, "kind": "min", "dtype": "int32"},
]


@pytest.mark.parametrize("line_split", ["reduce_then_scan", "cooperative", "decoupled_lookback", "single_pass"])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("knobs", [*SHARED_ROWS, *SHARED_COLUMNS], ids=str)
def test_ctas_share_lines(knobs: dict[str, Any], form: dict[str, Any], line_split: str) -> None:
    """No chunk divides the lines, and the last CTAs have fewer chunks, or none."""
    shape = [3, 1000 if form else 1001] if "threads_per_row" in knobs else [2, 261, 6]
    workload = workload_of("scan", shape=shape, axis=1, **form)
    if line_split == "single_pass":
        knobs = {**knobs, "stages": 1, "ctas_per_sm": 1}
    schedule = legal_schedule_of(CUDA_SCAN, workload, FEW, line_split=line_split, **knobs)
    kernel = CUDA_SCAN.lower(workload, FEW, schedule)
    assert len(kernel.launches) == (2 if line_split in ("reduce_then_scan", "single_pass") else 1)
    assert_schedule_agrees(CUDA_SCAN, workload, schedule, FEW)


@pytest.mark.parametrize("form", FORMS[::3], ids=str)
@pytest.mark.parametrize(
    "knobs",
    [
        {"threads_per_row": 32, "rows_per_cta": 1, "items": 2},
        {"threads_per_row": 128, "rows_per_cta": 1, "items": 1},
        {"threads_x": 4, "threads_y": 16, "items": 1},
    ],
    ids=str,
)
def test_ctas_of_a_single_pass_look_back_for_a_window(knobs: dict[str, Any], form: dict[str, Any]) -> None:
    """What is before the chunks of a window is stored by those of the one before it."""
    shape = [1, 130_001] if "threads_per_row" in knobs else [1, 12_001, 4]
    workload = workload_of("scan", shape=shape, axis=1, **form)
    schedule = legal_schedule_of(CUDA_SCAN, workload, FEW, line_split="single_pass", stages=1, **knobs)
    _, scanning = CUDA_SCAN.lower(workload, FEW, schedule).launches
    assert not is_cooperative(scanning) and scanning.blocks[0] > 2 * 256
    assert_schedule_agrees(CUDA_SCAN, workload, schedule, FEW)


@pytest.mark.parametrize("line_split", ["reduce_then_scan", "cooperative", "decoupled_lookback", "single_pass"])
def test_what_is_before_and_behind_a_shared_scan_is_part_of_its_kernel(line_split: str) -> None:
    x, k = te.placeholder((2, 600), "float16", "X"), te.reduce_axis(600, "k")
    b = te.placeholder((600,), "float32", "B")
    total = te.compute(
        (2, 600), lambda i, j: te.sum(te.select(k <= j, te.exp(te.cast(x[i, k], "float32")), 0.0), axis=k), "total"
    )
    scaled = te.compute((2, 600), lambda i, j: te.cast(total[i, j] * b[j], "float16"), "Y")
    workload = te.workload([total, scaled])
    schedule = legal_schedule_of(CUDA_SCAN, workload, FEW, line_split=line_split, items=2)
    assert_schedule_agrees(CUDA_SCAN, workload, schedule, FEW)


@pytest.mark.parametrize(
    "parameters",
    [
        {"shape": [8, 4_000_000], "axis": 1},
        {"shape": [1, 10_000_001], "axis": 1, "dtype": "int64"},
        {"shape": [1_000_000, 64], "axis": 0, "dtype": "float16"},
    ],
    ids=str,
)
def test_the_first_setting_of_few_long_lines_shares_them_and_fits_its_registers(parameters: dict[str, Any]) -> None:
    workload = workload_of("scan", **parameters)
    schedule = default_schedule(workload, H200)
    assert dict(schedule.knobs)["line_split"] != "none"
    assert all(
        r.spill_bytes == 0 for r in build_kernel(CUDA_SCAN.lower(workload, H200, schedule), H200).resources.values()
    )


@pytest.mark.parametrize("shape", [[4096, 4096], [256, 16_384]])
def test_lines_that_occupy_a_device_are_not_shared(shape: list[int]) -> None:
    schedule = default_schedule(workload_of("scan", shape=shape, axis=1), H200)
    assert dict(schedule.knobs)["line_split"] == "none"
