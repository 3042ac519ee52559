"""Kernels of windows that move along rows: what they take, what they compute, and that no position is loaded twice."""

import pytest

from tests.schedule.gpu.tiles import (
    EVERY_LEGAL,
    H200,
    assert_agrees,
    assert_schedule_agrees,
    compiled,
    legal_schedule_of,
    workload_of,
)
from tilewright.ir.expr import Expr
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import Allocate, Launch, Store, walk_statements
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.row_window.space import CUDA_ROW_WINDOW as SKETCH
from tilewright.te import build as te
from tilewright.te.operators.padding import padded
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload


def _pool(
    rows: int = 6, columns: int = 301, points: int = 8, step: int = 1, padding: int = 0, dtype: str = "float32"
) -> Workload:
    """The greatest elements of windows, with padding that is never the greatest."""
    x, k = te.placeholder((rows, columns), dtype, "X"), te.reduce_axis(points, "k")
    around = padded(x, {1: (padding, padding)}, -100)
    extent = (columns + 2 * padding - points) // step + 1
    return te.workload(te.compute((rows, extent), lambda i, j: te.max(around[i, j * step + k], axis=k), "Y"))


def _mean(rows: int = 6, columns: int = 301, points: int = 8, step: int = 1, padding: int = 4) -> Workload:
    """Means of what of a window is no padding."""
    x, k = te.placeholder((rows, columns), "float32", "X"), te.reduce_axis(points, "k")
    around = padded(x, {1: (padding, padding)})
    extent = (columns + 2 * padding - points) // step + 1
    total = te.compute((rows, extent), lambda i, j: te.sum(around[i, j * step + k], axis=k), "total")

    def mean(i: Expr, j: Expr) -> Expr:
        first = j * step - padding
        return total[i, j] / te.cast(te.minimum(first + points, columns) - te.maximum(first, 0), "float32")

    return te.workload(te.compute((rows, extent), mean, "Y"))


def _window(points: int, columns: int, step: int, dilation: int, dtype: str = "float32") -> Workload:
    """Sums of windows without padding, with a scale for each output."""
    length = (columns - 1) * step + (points - 1) * dilation + 1
    x, scale = te.placeholder((6, length), dtype, "X"), te.placeholder((columns,), dtype, "S")
    k = te.reduce_axis(points, "k")
    total = te.compute((6, columns), lambda i, j: te.sum(x[i, j * step + k * dilation], axis=k), "total")
    return te.workload(te.compute((6, columns), lambda i, j: total[i, j] * scale[j], "Y"))


def _filtered() -> Workload:
    """Two images that one filter for each row goes over, and the product of both."""
    x, z, w = (te.placeholder(s, "float32", n) for n, s in (("X", (4, 200)), ("Z", (4, 200)), ("W", (4, 5))))
    k = te.reduce_axis(5, "k")
    return te.workload(te.compute((4, 196), lambda i, j: te.sum(x[i, j + k] * z[i, j + k] * w[i, k], axis=k), "Y"))


def _smoothed(border: str, columns: int) -> Workload:
    """Means of nine points, with a border of what stands in the row."""
    at = border.format(i="(j + k - 4)", last=columns - 1, n=columns)
    return parse_workload(f"X: float16[6, {columns}]\nY[i, j < {columns}] = sum over k < 9 of float32(X[i, {at}]) / 9")


CASES = {
    "replicated border": lambda: _smoothed("min(max({i}, 0), {last})", 301),
    "circular border": lambda: _smoothed("({i} + {n}) % {n}", 128),
    "mean": _mean,
    "greatest": lambda: _pool(padding=3, dtype="float16"),
    "strided": lambda: _mean(points=5, step=3, padding=2),
    "bytes": lambda: _pool(padding=1, dtype="int8"),
    "no padding": lambda: _window(7, 257, 1, 1),
    "dilated": lambda: _window(5, 128, 1, 3),
    "whole tiles": lambda: _window(4, 480, 2, 1, "bfloat16"),
    "filtered": _filtered,
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 2) >= 2
    assert assert_agrees(SKETCH, CASES[case](), 3, policy=EVERY_LEGAL) == 3


def test_what_it_leaves_to_others() -> None:
    for workload in (
        workload_of("pool2d", batch=1, channels=4, height=32, width=32, kernel_h=2, kernel_w=2),
        workload_of("pool2d", batch=1, channels=4, height=1, width=32, kernel_h=1, kernel_w=2, layout="NHWC"),
        _pool(step=8),  # windows share nothing
        _window(40, 100, 1, 2),  # 79 positions
        workload_of("matmul", m=64, n=64, k=32),
        workload_of("reduce", shape=[64, 16, 64], axes=[1]),
    ):
        assert not SKETCH.matches(workload, H200)


def test_windows_share_the_sums_of_what_they_have_in_common() -> None:
    """31 points take 4 to 5 additions for each output, and points with weights as many as they are."""
    workload = _mean(64, 1024, 31, 1, 0)
    schedule = legal_schedule_of(SKETCH, workload, tile_w=11, threads_per_row=64, rows_per_cta=1)
    kernel = SKETCH.lower(workload, H200, schedule)
    parts = next(s.buffer for s in walk_statements(kernel.body) if isinstance(s, Allocate) and "parts" in s.buffer.name)
    assert parts.shape == (49, 1)


@pytest.mark.parametrize("padding", [0, 3, 40])
def test_parts_of_rows_of_any_length_have_room_in_a_block(padding: int) -> None:
    """One part that is shorter than a block has room for, several with a shorter one, and padding beyond a part."""
    for columns in (60, 96, 97, 193, 301):
        workload = _mean(2, columns, 31, 1, padding)
        for tile_w in (3, 13):
            schedule = legal_schedule_of(SKETCH, workload, tile_w=tile_w, threads_per_row=32, rows_per_cta=1)
            assert_schedule_agrees(SKETCH, workload, schedule)


def test_a_block_loads_each_position_once_and_all_loads_stand_first() -> None:
    workload = _window(7, 1 << 16, 1, 1)
    schedule = legal_schedule_of(SKETCH, workload, tile_w=9, threads_per_row=128, rows_per_cta=2)
    kernel = SKETCH.lower(workload, H200, schedule)
    launch = next(s for s in walk_statements(kernel.body) if isinstance(s, Launch))
    stores = [s for s in walk_statements(launch) if isinstance(s, Store)]
    of_input = [any(load.buffer.name == "X" for load in loads_of(s)) for s in stores]
    assert sum(of_input) == 2 and not any(of_input[4:])  # with conditions only where the part of a row is shorter
    tile = next(s.buffer for s in stores if s.buffer.name.startswith("X_tile"))
    assert tile.shape == (2, 9 * 128 + 6)


def test_long_rows_have_many_outputs_for_each_thread_and_fit_the_registers() -> None:
    """A pool of long rows of odd length is not left to kernels that load each point of each window."""
    workload = _mean(2048, 32768)
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == SKETCH.name and dict(schedule.knobs)["tile_w"] in (5, 7, 9, 11, 15)
    resources = compiled(SKETCH, workload, **dict(schedule.knobs))
    assert resources.registers <= 64
