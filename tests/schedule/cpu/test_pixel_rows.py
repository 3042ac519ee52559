"""Convolutions with channels last as blocked products: padding, strides, dilations, groups, dimensions, rows."""

import re
from typing import Any

import pytest

from tests.schedule.gpu.tiles import workload_of
from tests.sketch_agreement import assert_kernel_agrees, check_schedules
from tilewright.core.policy import SpacePolicy
from tilewright.core.target import Target
from tilewright.ir.expr import Load, walk
from tilewright.ir.linear_form import flat_form
from tilewright.ir.stmt import expressions, walk_statements
from tilewright.ir.text import kernel_text
from tilewright.runtime.devices import host_target
from tilewright.schedule.cpu.gemm.fma import CPU_GEMM
from tilewright.schedule.cpu.gemm.kernel import CpuGemmSetting
from tilewright.schedule.cpu.gemm.pixel_rows import lower_pixel_rows, pixel_rows_of
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

TARGET = Target("llvm", "x86-64", ("avx2", "fma"), threads=2, vector_bytes=32)


def _conv2d(**parameters: Any) -> Workload:
    given = {"batch": 1, "channels": 3, "height": 6, "width": 9, "filters": 11, "kernel_h": 3, "kernel_w": 3}
    return workload_of("conv2d", **{**given, "layout": "NHWC", **parameters})


def _transposed(**parameters: Any) -> Workload:
    given = {"batch": 1, "channels": 3, "height": 4, "width": 5, "filters": 11, "kernel_h": 3, "kernel_w": 3}
    return workload_of("conv2d_transpose", **{**given, "stride": 2, "padding": 1, "layout": "NHWC", **parameters})


FILTER_GRADIENT = parse_workload(
    "X: float32[6, 5, 7, 12]\nD: float32[11, 3, 5, 12]\n"
    "W[c, r < 3, s < 3, o < 11] = sum over y < 3, x < 5, n < 12 of X[c, y + r, x + s, n] * D[o, y, x, n]"
)
"""Channels are images, and images are channels: the elements of what is multiplied as a filter follow one another."""
CASES = {
    "gradient of filters": FILTER_GRADIENT,
    "padded": _conv2d(padding=1),
    "not padded": _conv2d(padding=0),
    "strides": _conv2d(padding=1, stride=2, height=7),
    "one place": _conv2d(kernel_h=1, kernel_w=1, stride=2),
    "far apart": _conv2d(height=9, dilation=2, padding=2, activation="relu"),
    "several images": _conv2d(batch=3, padding=1, bias=True),
    "groups": _conv2d(channels=18, filters=22, groups=2, padding=1, height=3),
    "filters first": _conv2d(padding=1, filters_first=True),
    "transposed": _transposed(output_padding=1, batch=2),
    "transposed, not of whole strides": _transposed(bias=True, residual=True),
    "transposed, phases of different places": _transposed(kernel_h=1, kernel_w=4, stride=3, padding=0),
    "transposed, phases apart": _transposed(kernel_h=4, kernel_w=4, batch=2),
    "transposed, phases apart and inside": _transposed(kernel_h=4, kernel_w=4, padding=3, height=5),
    "half": _conv2d(padding=1, dtype="float16"),
    "a line": workload_of("conv1d", batch=2, channels=4, length=11, filters=9, kernel=3, padding=1, layout="NWC"),
    "a volume": workload_of(
        "conv3d",
        **{"batch": 2, "channels": 3, "depth": 4, "height": 3, "width": 5, "filters": 9, "padding": 1, "stride": 2},
        **{"kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "layout": "NDHWC"},
    ),
}
SETTINGS = {
    "several rows": (3, 1, 4, 2),
    "within a row": (4, 2, 1, 1),
    "wider than a row": (16, 1, 2, 1),
}
"""Rows and vectors of a register tile, and how many of them a task has along both axes."""


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_pixel_rows_compute_their_expression(case: str, setting: str) -> None:
    workload, (mr, vectors, tiles, panels) = CASES[case], SETTINGS[setting]
    product, rows = pixel_rows_of(workload) or pytest.fail("no such convolution")
    for pack_a in ("task", "never") if rows.is_inside else ("task",):
        chosen = CpuGemmSetting(mr, vectors, 8, tiles, panels, rows.depth, pack_a, "whole")
        kernel = lower_pixel_rows(product, "k", chosen, rows)
        assert_kernel_agrees(workload, kernel, TARGET)


def test_phases_multiply_only_the_places_that_they_have() -> None:
    """Of a 3x3 kernel with stride 2, phases have 1, 2, 2 and 4 places."""
    product, rows = pixel_rows_of(CASES["transposed"]) or pytest.fail("no such convolution")
    assert (rows.taps, len(rows.exist)) == ((1, 2, 2), 4)
    text = kernel_text(lower_pixel_rows(product, "k", CpuGemmSetting(3, 1, 8, 1, 1, rows.depth, "task", "task"), rows))
    (condition,) = re.findall(r"for place_3 in 2:\n +if (.*):\n +for channel in 3:", text)
    assert {"task", "place_2", "place_3"} <= {*re.findall(r"\w+", condition)}


@pytest.mark.parametrize("pack_b", ["task", "whole"])
def test_filters_are_read_along_their_elements(pack_b: str) -> None:
    product, rows = pixel_rows_of(FILTER_GRADIENT) or pytest.fail("no such convolution")
    assert (product.b.row, product.b.k) == (180, 1)
    chosen = CpuGemmSetting(3, 1, 2, 1, 1, rows.depth, "never", pack_b)
    kernel = lower_pixel_rows(product, "k", chosen, rows)
    reads = {e for s in walk_statements(kernel.body) for root in expressions(s) for e in walk(root)}
    strides = {
        flat_form(e.indices, (180, 60, 12, 1)).stride for e in reads if isinstance(e, Load) and e.buffer.name == "D"
    }
    assert strides == {1}
    assert_kernel_agrees(FILTER_GRADIENT, kernel, TARGET)


def test_filters_of_many_images_are_packed_before_the_tasks() -> None:
    """The prior counts filters for each image where its tasks pack them."""
    large = parse_workload(
        "X: float32[128, 30, 30, 32]\nD: float32[256, 28, 28, 32]\nW[c, r < 3, s < 3, o < 256] = "
        "sum over y < 28, x < 28, n < 32 of X[c, y + r, x + s, n] * D[o, y, x, n]"
    )
    space = CPU_GEMM.space(large, TARGET)
    seconds = space.prior_seconds
    assert seconds is not None
    assert dict(space.schedule(int(seconds.argmin())).knobs)["pack_b"] == "whole"


def test_which_images_are_read_where_they_lie() -> None:
    def is_inside(**parameters: Any) -> bool:
        _, rows = pixel_rows_of(_conv2d(**parameters)) or pytest.fail("no such convolution")
        return rows.is_inside

    assert is_inside(padding=0) and is_inside(kernel_h=1, kernel_w=1, stride=2)
    assert not is_inside(padding=1)


def test_what_is_left_to_others() -> None:
    assert pixel_rows_of(_conv2d(layout="NCHW")) is None
    assert pixel_rows_of(workload_of("matmul", m=64, n=64, k=64)) is None
    assert not CPU_GEMM.matches(_conv2d(channels=32, filters=32, groups=32, height=28, width=28), host_target("llvm"))


def test_rows_of_pixels_with_strides_are_one_product() -> None:
    """As a product for each row of pixels they would read all filters again and again."""
    workload = _conv2d(channels=64, height=14, width=14, filters=128, kernel_h=1, kernel_w=1, stride=2)
    space = CPU_GEMM.space(workload, TARGET, policy=SpacePolicy(prune=False))
    whole = {"m_blocks": 1, "n_blocks": 1}
    schedule = next(s for s in map(space.schedule, range(len(space))) if whole.items() <= dict(s.knobs).items())
    assert "parallel for task in 1:" in kernel_text(CPU_GEMM.lower(workload, TARGET, schedule))


@pytest.mark.parametrize("stride", [1, 2])
def test_compiled_convolutions_agree(stride: int) -> None:
    workload = _conv2d(channels=16, height=14, width=15, filters=35, padding=1, stride=stride, activation="relu")
    policy = SpacePolicy(prune=False)  # on some processors a single setting is promising
    assert check_schedules("cpu_gemm", host_target("llvm"), workload, 1, 2, policy) == 2
