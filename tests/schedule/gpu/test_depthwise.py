"""Kernels of depthwise convolutions on matrix units: what they take, what they compute, and by how few products."""

from collections.abc import Callable

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
from tilewright.core.target import Target
from tilewright.ir.expr import Expr
from tilewright.ir.gpu.mma import Mma
from tilewright.ir.stmt import For, Stmt, substatements
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.depthwise.space import CUDA_DEPTHWISE as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload


def _depthwise(**more: object) -> Workload:
    given: dict[str, object] = dict(batch=3, channels=16, height=13, width=12, kernel_h=5, kernel_w=5, padding=2)
    given |= {"layout": "NHWC", "dtype": "float16", **more}
    return workload_of("conv2d", filters=given["channels"], groups=given["channels"], **given)


LARGE = _depthwise(batch=64, channels=120, height=56, width=56)


def _with_residual(stored: str = "float16") -> Workload:
    """A window of 5 x 2 without padding; a scale, a residual and an activation follow it."""
    x, w = te.placeholder((2, 9, 12, 24), "float16", "X"), te.placeholder((5, 2, 24), "float16", "W")
    scale, rest = te.placeholder((24,), "float32", "S"), te.placeholder((2, 5, 11, 24), "float16", "R")
    r, s = te.reduce_axis(5, "r"), te.reduce_axis(2, "s")
    total = te.compute(
        (2, 5, 11, 24),
        lambda n, i, j, c: te.sum(
            te.cast(x[n, i + r, j + s, c], "float32") * te.cast(w[r, s, c], "float32"), axis=(r, s)
        ),
        "total",
    )

    def output(n: Expr, i: Expr, j: Expr, c: Expr) -> Expr:
        moved = total[n, i, j, c] * scale[c] + te.cast(rest[n, i, j, c], "float32")
        return te.cast(te.maximum(moved, 0.0), stored)

    return te.workload(te.compute((2, 5, 11, 24), output, "Y"))


def _transposed(kernel: int, padding: int) -> Workload:
    """The gradient of a convolution towards its images: windows run against rows and columns."""
    shape = dict(batch=2, channels=16, height=13, width=12, filters=16, groups=16, kernel_h=kernel, kernel_w=kernel)
    return workload_of("conv2d_transpose", **shape, padding=padding, layout="NHWC", dtype="float16")


def _with_filters_of_channels(rows: int, columns: int) -> Workload:
    """A window without padding, whose filters are those of torch: one channel after the other."""
    return parse_workload(
        f"X: bfloat16[2, 12, 13, 24]\nW: bfloat16[24, {rows}, {columns}]\n"
        f"Y[n, y < {13 - rows}, x < {14 - columns}, c] = sum over r < {rows}, s < {columns} of "
        "float32(X[n, y + r, x + s, c]) * float32(W[c, r, s])\nZ[n, y, x, c] = bfloat16(Y[n, y, x, c])"
    )


CASES: dict[str, Callable[[], Workload]] = {
    "one image": lambda: _depthwise(batch=1),
    "lines of 128 bytes": lambda: _depthwise(batch=2, channels=64, height=11, width=20, dtype="bfloat16"),
    "beyond the channels": lambda: _depthwise(channels=40, height=16),
    "wide rows": lambda: _depthwise(batch=1, channels=24, height=7, width=70),
    "7 x 7": lambda: _depthwise(batch=2, height=9, width=21, kernel_h=7, kernel_w=7, padding=3),
    "far padding": lambda: _depthwise(width=8, padding=4, dtype="bfloat16"),
    "unpadded": lambda: _depthwise(width=23, padding=0),
    "5 x 9": lambda: _depthwise(channels=8, width=40, kernel_w=9, padding=1),
    "9 x 1": lambda: _depthwise(height=14, kernel_h=9, kernel_w=1, padding=0),
    "transposed": lambda: _transposed(5, 2),
    "transposed 7 x 7": lambda: _transposed(7, 3),
    "filters with channels first": lambda: _with_filters_of_channels(5, 4),
    "bias": lambda: _depthwise(channels=24, bias=True, residual=True, activation="silu"),
    "scale and residual": _with_residual,
    "stored as float32": lambda: _with_residual("float32"),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = CASES[case]()
    assert assert_agrees(SKETCH, workload, 2) >= 2
    assert assert_agrees(SKETCH, workload, 4, policy=EVERY_LEGAL) >= 4


@pytest.mark.parametrize("width", [60, 28, 14, 7])
def test_a_warp_has_more_strips_where_images_are_narrower(width: int) -> None:
    workload = _depthwise(batch=5, height=12, width=width)
    assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, tile_h=6))


@pytest.mark.parametrize(("kernel", "height"), [(5, 12), (5, 9), (7, 9)])
def test_blocks_that_stay_go_on_with_further_strips(kernel: int, height: int) -> None:
    """On two multiprocessors there are rounds, in the last of which some blocks have nothing to do."""
    few = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
    shape: dict[str, object] = {"batch": 19, "channels": 24, "height": height, "width": 60}
    workload = _depthwise(**shape, kernel_h=kernel, kernel_w=kernel, padding=kernel // 2)
    for tile_h in (height, -(-height // 3)):
        schedule = legal_schedule_of(SKETCH, workload, few, persistent=1, tile_h=tile_h)
        assert_schedule_agrees(SKETCH, workload, schedule, few)


def test_what_it_leaves_to_others() -> None:
    """Small windows are as fast without matrix units. TMA brings boxes: rows that are apart are none, nor pixels that
    begin between multiples of 16 bytes, nor a part of an image."""
    x, w = te.placeholder((13, 12, 16), "float16", "X"), te.placeholder((5, 3, 16), "float16", "W")
    r, s = te.reduce_axis(5, "r"), te.reduce_axis(3, "s")

    def product(y: Expr, z: Expr, c: Expr) -> te.Reduction:
        seen = te.select(y + r < 12, x[y + r, z + s, c], 0.0)  # the last row of the image counts as padding
        return te.sum(te.cast(seen, "float32") * te.cast(w[r, s, c], "float32"), axis=(r, s))

    for workload in (
        te.workload(te.compute((9, 10, 16), product, "Y")),
        _depthwise(channels=12),
        _depthwise(height=20, dilation=2, padding=4),
        _depthwise(kernel_h=3, kernel_w=3, padding=1),
        _depthwise(stride=2),
        _depthwise(dtype="float32"),
        _depthwise(kernel_h=10, height=20),
        _depthwise(kernel_w=10, width=20),  # eight outputs see seventeen positions
        workload_of("conv2d", batch=1, channels=8, height=9, width=9, filters=8, kernel_h=5, kernel_w=5, layout="NHWC"),
        workload_of("pool2d", batch=1, channels=8, height=9, width=9, kernel_h=5, kernel_w=5, layout="NHWC"),
    ):
        assert not SKETCH.matches(workload, H200)
    assert SKETCH.matches(_depthwise(), H200) and not SKETCH.matches(_depthwise(), Target("cuda", "sm_80", (), 108, 16))


def _products(root: Stmt) -> int:
    """How many matrix instructions a warp runs."""
    if isinstance(root, For):
        return root.extent * _products(root.body)
    return isinstance(root, Mma) + sum(map(_products, substatements(root)))


@pytest.mark.parametrize("kernel", [5, 7, 9])
@pytest.mark.parametrize("side", [6, 28, 130])
def test_there_are_settings_for_images_of_any_size(kernel: int, side: int) -> None:
    workload = _depthwise(batch=1, channels=8, height=side, width=side, kernel_h=kernel, kernel_w=5, padding=4)
    assert len(SKETCH.space(workload, H200)) >= 1


@pytest.mark.parametrize(("kernel", "products"), [(5, 60 // 2 * 3), (7, 63 * 7)])
def test_a_row_of_the_input_is_multiplied_by_all_rows_of_filters_at_once(kernel: int, products: int) -> None:
    """A strip of 56 rows sees 60 or 62. Where windows are no wider than five, two rows are multiplied at once; where
    they are wider, seven rows arrive at once."""
    workload = _depthwise(height=56, width=56, kernel_h=kernel, kernel_w=kernel, padding=kernel // 2)
    schedule = legal_schedule_of(SKETCH, workload, vector_width=4, tile_h=56)
    assert _products(SKETCH.lower(workload, H200, schedule).body) == products * 4


@pytest.mark.parametrize(("kernel", "vector_width"), [(5, 4), (5, 8), (7, 4)])
def test_compiled_kernels_keep_to_registers(kernel: int, vector_width: int) -> None:
    workload = _depthwise(batch=32, channels=96, height=56, width=56, kernel_h=kernel, kernel_w=kernel, padding=2)
    resources = compiled(SKETCH, workload, vector_width=vector_width)
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)


def test_the_default_is_a_kernel_for_matrix_units_where_windows_are_large() -> None:
    assert default_schedule(LARGE, H200).sketch == SKETCH.name
    small = _depthwise(batch=32, channels=128, height=56, width=56, kernel_h=3, kernel_w=3, padding=1)
    assert [s.name for s in sketches_for(small, H200)] == ["cuda_window"]
