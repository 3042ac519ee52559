"""Kernels of windows of planes: what they take, what they compute, and how few steps they take for it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import (
    EVERY_LEGAL,
    H200,
    assert_agrees,
    assert_schedule_agrees,
    compiled,
    legal_schedule_of,
    schedule_of,
    workload_of,
)
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.expr import BinaryOp, Expr
from tilewright.ir.gpu.bulk_copy import BulkCopy
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import Store, walk_statements
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.separable_window.space import CUDA_SEPARABLE_WINDOW as SKETCH
from tilewright.schedule.problems.window_steps import Part, window_steps
from tilewright.te import build as te
from tilewright.te.workload import Workload


def _pool(**parameters: Any) -> Workload:
    given = {"batch": 2, "channels": 3, "height": 12, "width": 19, "kernel_h": 5, "kernel_w": 5, "padding": 2}
    return workload_of("pool2d", **{**given, **parameters})


def _any(height: int = 9, width: int = 14) -> Workload:
    """Whether any point of each window is greater than a number of its plane."""
    x, least = te.placeholder((4, height, width), "float32", "X"), te.placeholder((4,), "float32", "L")
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(4, "s")

    def body(n: Expr, y: Expr, z: Expr) -> te.Reduction:
        return te.max(te.cast(x[n, y + r, z + s] > least[n], "int8"), axis=(r, s))

    return te.workload(te.compute((4, height - 2, width - 3), body, "Y"))


def _difference(dtype: str) -> Workload:
    """The least differences of two images in windows, beside them what is left of one."""
    a, b = (te.placeholder((6, 10, 17), dtype, n) for n in "AB")
    r, s = te.reduce_axis(4, "r"), te.reduce_axis(3, "s")
    least = te.compute((6, 7, 15), lambda n, y, z: te.min(a[n, y + r, z + s] - b[n, y + r, z + s], axis=(r, s)), "M")
    return te.workload([least, te.compute((6, 7, 15), lambda n, y, z: a[n, y, z] - least[n, y, z], "Y")])


CASES: Mapping[str, Callable[[], Workload]] = {
    "halves": lambda: _pool(dtype="float16"),
    "bfloat16": lambda: _pool(kernel_h=2, kernel_w=7, padding=1, dtype="bfloat16"),
    "float32": lambda: _pool(dtype="float32", height=33, width=7),
    "bytes": lambda: _pool(dtype="int8", height=7),
    "strided": lambda: _pool(kernel_h=3, kernel_w=3, stride=2, padding=1, dtype="float16"),
    "dilated": lambda: _pool(dilation=2, height=20, width=21, kernel_w=3),
    "several tiles of columns": lambda: _pool(channels=1, height=6, width=301, dtype="float16"),
    "13 x 13": lambda: _pool(kernel_h=13, kernel_w=13, padding=6, height=20, width=20, dtype="float16"),
    "mean": lambda: _pool(kind="average", kernel_h=3, kernel_w=6, padding=1, dtype="float16"),
    "mean of what is inside": lambda: _pool(kind="average", count_include_pad=False, dtype="float32"),
    "any": _any,
    "two inputs and outputs": lambda: _difference("float32"),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 2) >= 2
    assert assert_agrees(SKETCH, CASES[case](), 2, policy=EVERY_LEGAL) == 2


def test_a_nan_is_the_greatest_of_its_windows_and_no_other() -> None:
    workload = _pool(dtype="float16")
    x = np.zeros((2, 3, 12, 19), np.float16)
    x[1, 2, 4, 18] = np.nan
    y = interpret(finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload)), H200), {"X": x})["Y"]
    wanted = np.zeros((2, 3, 12, 19), bool)
    wanted[1, 2, 2:7, 16:] = True
    np.testing.assert_array_equal(np.isnan(np.asarray(y)), wanted)


@pytest.mark.parametrize(("dtype", "instruction"), [("float16", "max.NaN.f16x2"), ("bfloat16", "max.NaN.bf16x2")])
def test_two_elements_of_16_bits_are_compared_by_one_instruction(dtype: str, instruction: str) -> None:
    workload = _pool(dtype=dtype)
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload)), H200)
    text = backend_for(H200).emit(kernel, H200).text
    assert instruction in text and "max.NaN.f32" not in text


@pytest.mark.parametrize(
    ("parameters", "knobs"),
    [
        ({"height": 32, "width": 21}, {"tile_h": 4, "store_bytes": 8}),
        ({"height": 32, "width": 21}, {"tile_h": 8, "store_bytes": 16, "row_tiles": 2}),
        ({"height": 32, "width": 21}, {"tile_h": 8, "store_bytes": 2, "row_tiles": 2}),
        ({"height": 16, "width": 33, "dtype": "float32"}, {"tile_h": 8, "store_bytes": 16}),
        ({"height": 16, "width": 31, "dtype": "int8"}, {"tile_h": 16, "store_bytes": 16}),
        ({"height": 24, "width": 20, "dtype": "bfloat16"}, {"tile_h": 4, "store_bytes": 16}),
        ({"height": 16, "width": 19, "padding": 0}, {"tile_h": 10, "store_bytes": 4}),
        ({"height": 31, "width": 31, "stride": 2}, {"tile_h": 4, "store_bytes": 16}),
        ({"height": 31, "width": 9, "kernel_w": 8, "kernel_h": 8, "padding": 4}, {"tile_h": 4, "store_bytes": 8}),
        ({"height": 16, "width": 21, "kind": "average"}, {"tile_h": 8, "store_bytes": 16}),
    ],
)
def test_blocks_store_whole_rows_by_vectors(parameters: Mapping[str, Any], knobs: Mapping[str, int]) -> None:
    given = {"kernel_h": 7, "kernel_w": 7, "padding": 3, "dtype": "float16", "channels": 2, **parameters}
    workload = _pool(**given)
    assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, **knobs))


@pytest.mark.parametrize(
    ("parameters", "knobs"),
    [
        ({}, {"tile_h": 8, "row_tiles": 1}),
        ({}, {"tile_h": 4, "row_tiles": 16}),
        ({"padding": 0, "width": 25}, {"row_tiles": 2}),
        ({"padding": 1, "kernel_h": 2, "height": 31, "width": 20}, {}),
        ({"stride": 2, "width": 15}, {"tile_h": 4, "row_tiles": 8}),
        ({"dilation": 2, "kernel_h": 3, "padding": 2}, {}),
        ({"dtype": "float32", "width": 33}, {"row_tiles": 2}),
        ({"dtype": "float32", "kind": "average"}, {}),
        ({"dtype": "bfloat16", "width": 20}, {"row_tiles": 4}),
        ({"dtype": "int8", "width": 31, "height": 16}, {"tile_h": 16}),
        ({"batch": 1, "channels": 1, "height": 16, "width": 10}, {"tile_h": 4}),  # the last copy begins earlier
    ],
)
def test_bulk_copies_bring_what_tiles_read(parameters: Mapping[str, Any], knobs: Mapping[str, int]) -> None:
    """Copies begin at a multiple of 16 bytes and stay inside the images, whatever their rows and paddings are."""
    given = {"kernel_h": 7, "kernel_w": 7, "padding": 3, "dtype": "float16", "height": 32, "width": 21, "channels": 2}
    workload = _pool(**given | dict(parameters))
    schedule = legal_schedule_of(SKETCH, workload, bulk_copies=1, **knobs)
    (copy,) = (s for s in walk_statements(SKETCH.lower(workload, H200, schedule).body) if isinstance(s, BulkCopy))
    assert copy.elements * copy.source.dtype.bytes % 16 == 0
    assert_schedule_agrees(SKETCH, workload, schedule)


@pytest.mark.parametrize(
    ("workload", "target"),
    [
        (_pool(dtype="float16", batch=1, channels=1, height=13), H200),  # copies have a multiple of 16 bytes
        (_pool(dtype="float16", width=200), H200),  # tiles have no whole rows
        (_pool(dtype="float16", kind="average"), H200),  # columns are of float32
        (_difference("float32"), H200),
        (_pool(dtype="float16"), Target("cuda", "sm_80", (), threads=108, vector_bytes=16)),
    ],
)
def test_where_there_are_no_bulk_copies(workload: Workload, target: Target) -> None:
    assert "bulk_copies" not in [k.name for k in SKETCH.knobs(workload, target)]


def test_bulk_copies_need_stores_of_several_elements_and_enough_of_the_input() -> None:
    for workload, knobs in (
        (_pool(dtype="float16", height=32), {"store_bytes": 2}),
        (_pool(dtype="float16", batch=1, channels=1, height=4, width=10, kernel_h=2, padding=1), {"store_bytes": 4}),
    ):
        knobs |= {"tile_h": 4, "tile_w": 1, "row_tiles": 1, "threads": 64}
        schedule = Schedule.of(SKETCH.name, SKETCH.version, {**knobs, "bulk_copies": 1})
        with pytest.raises(IllegalSchedule, match="with bulk_copies a store has several elements, and the input has"):
            SKETCH.lower(workload, H200, schedule)


def test_stores_of_what_depends_on_the_position_have_one_element() -> None:
    for workload in (_pool(kind="average", count_include_pad=False), _difference("float16")):
        knob = next(k for k in SKETCH.knobs(workload, H200) if k.name == "store_bytes")
        assert len(knob.values) == 1


def test_columns_of_the_padding_are_not_loaded() -> None:
    """A row of 31 elements takes 16 threads of two columns, and no condition but for the rows."""
    workload = _pool(height=32, width=31, kernel_h=7, kernel_w=7, padding=3, channels=2, dtype="float16")
    schedule = legal_schedule_of(SKETCH, workload, tile_h=8, tile_w=16, threads=64)
    kernel = SKETCH.lower(workload, H200, schedule)
    loads = [
        s
        for s in walk_statements(kernel.body)
        if isinstance(s, Store) and any(x.buffer.name == "X" for x in loads_of(s))
    ]
    assert len(loads) == 2 * 14


def test_what_it_leaves_to_others() -> None:
    for workload in (
        _pool(layout="NHWC"),
        _pool(kernel_h=2, kernel_w=2, stride=2, padding=0),  # windows share nothing
        _pool(kernel_h=1, padding=0),
        _pool(kernel_h=65, padding=0, height=80),
        workload_of("conv2d", batch=1, channels=8, height=16, width=16, filters=8, groups=8, kernel_h=3, kernel_w=3),
        workload_of("matmul", m=64, n=64, k=32),
        workload_of("reduce", shape=[64, 16, 8, 8], axes=[2, 3]),
    ):
        assert not SKETCH.matches(workload, H200)


@pytest.mark.parametrize(
    ("points", "dilation", "combine"),
    [(7, 1, BinaryOp.MAX), (7, 1, BinaryOp.ADD), (3, 2, BinaryOp.MIN), (8, 1, BinaryOp.ADD)],
)
def test_parts_of_windows_are_shared(points: int, dilation: int, combine: BinaryOp) -> None:
    starts, twice = range(40), combine is not BinaryOp.ADD
    found = window_steps(starts, points, dilation, combine)
    parts: dict[Part, list[int]] = {}

    def of(part: Part) -> list[int]:
        return [part[0]] if part[1] == 1 else parts[part]

    for part, a, b in found.steps:
        parts[part] = of(a) + of(b)
    for start, window in zip(starts, found.windows, strict=True):
        seen, wanted = of(window), [start + n * dilation for n in range(points)]
        assert set(seen) == set(wanted) and (twice or sorted(seen) == wanted)
    assert len(found.steps) <= {7: 2.5, 3: 1.6, 8: 2.6}[points] * 40


def test_windows_grow_from_the_part_that_all_of_them_have() -> None:
    for outputs, points, steps in ((7, 7, 17), (11, 31, 49), (16, 7, 41), (1, 7, 6)):
        assert len(window_steps(range(outputs), points, 1, BinaryOp.ADD).steps) == steps


def test_strided_windows_take_no_more_steps_than_one_point_after_the_other() -> None:
    assert len(window_steps(range(0, 32, 2), 3, 1, BinaryOp.MAX).steps) == 2 * 16


def test_large_pools_are_written_so_and_take_few_instructions() -> None:
    """A pool of 49 points takes about 20 instructions for each output."""
    workload = workload_of(
        "pool2d", batch=8, channels=64, height=128, width=127, kernel_h=7, kernel_w=7, padding=3, dtype="float16"
    )
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == SKETCH.name
    knobs: Mapping[str, Any] = dict(schedule.knobs)
    resources = compiled(SKETCH, workload, **knobs)
    assert resources.registers <= 64 and resources.spill_bytes == 0


def test_a_tile_has_rows_for_whole_words_of_shared_memory() -> None:
    for dtype, lanes in (("float32", 1), ("float16", 2), ("int8", 4)):
        knobs = SKETCH.knobs(_pool(dtype=dtype, height=35), H200)
        heights = next(k.values for k in knobs if k.name == "tile_h")
        assert all(int(h) % lanes == 0 for h in heights)
    workload = _pool(dtype="float16", height=35, width=35, channels=64)
    schedule = legal_schedule_of(SKETCH, workload, tile_h=18)
    assert SKETCH.lower(workload, H200, schedule)
