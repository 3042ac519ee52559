"""Convolutions as blocked products: padding, rows of any width, tasks that begin within a row."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import workload_of
from tests.sketch_agreement import assert_kernel_agrees, check_schedules
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.text import kernel_text
from tilewright.runtime.devices import host_target
from tilewright.schedule.cpu.gemm.direct_convolution import (
    FLATTENED,
    PADDED,
    DirectConvolution,
    lower_direct_convolution,
)
from tilewright.schedule.cpu.gemm.fma import CPU_GEMM
from tilewright.schedule.cpu.gemm.im2col import lower_im2col
from tilewright.schedule.cpu.gemm.kernel import CpuGemmSetting
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.problems.convolution import convolution_of
from tilewright.te.workload import Workload

TARGET = Target("llvm", "x86-64", ("avx2", "fma"), threads=2, vector_bytes=32)
WIDE = Target("llvm", "x86-64", ("avx512f", "avx512vl", "fma"), threads=2, vector_bytes=64)


def _conv2d(**parameters: Any) -> Workload:
    given = {"batch": 1, "channels": 2, "height": 6, "width": 9, "filters": 7, "kernel_h": 3, "kernel_w": 3}
    return workload_of("conv2d", **{**given, **parameters})


CASES = {
    "padded": _conv2d(padding=1),
    "not padded": _conv2d(padding=0),
    "narrow": _conv2d(width=5, height=11, padding=1),
    "rows of vectors": _conv2d(width=16, padding=1),
    "epilogue": _conv2d(padding=1, activation="relu"),
    "far apart": _conv2d(height=9, dilation=2, padding=2),
    "half": _conv2d(padding=1, dtype="float16"),
    "several": _conv2d(batch=3, padding=1),
    "every other pixel": _conv2d(height=9, width=21, padding=1, stride=2),
    "every third pixel": _conv2d(height=8, width=40, stride=3, batch=2, activation="relu"),
    "every other pixel, far apart": _conv2d(height=11, width=27, padding=2, stride=2, dilation=2),
    "groups": _conv2d(channels=4, filters=14, groups=2, padding=1),
    "blocks that end behind k": _conv2d(channels=6, kernel_h=4, kernel_w=4, padding=2),
}
SETTINGS = [
    CpuGemmSetting(3, 2, 8, 2, 9, 9, "task", "task"),
    CpuGemmSetting(3, 1, 8, 1, 1, 10, "whole", "task"),
    CpuGemmSetting(4, 1, 8, 2, 3, 64, "task", "task"),
]
NARROW = CpuGemmSetting(3, 2, 8, 2, 2, 9, "task", "task", last_vectors=1)


@pytest.mark.parametrize("setting", [*SETTINGS, NARROW], ids=["even", "one panel", "whole k", "narrow panel"])
@pytest.mark.parametrize("case", CASES)
def test_im2col_computes_its_expression(case: str, setting: CpuGemmSetting) -> None:
    workload = CASES[case]
    found = convolution_of(workload)
    assert found is not None
    product, columns = found
    assert columns.rows * columns.width == product.n.extent
    assert_kernel_agrees(workload, lower_im2col(product, "k", setting, columns), TARGET)


@pytest.mark.parametrize("last_vectors", [0, 1, 2], ids=["padded", "one vector", "two vectors"])
@pytest.mark.parametrize("setting", SETTINGS, ids=["even", "one panel", "whole k"])
@pytest.mark.parametrize("case", CASES)
def test_direct_convolution_computes_its_expression(case: str, setting: CpuGemmSetting, last_vectors: int) -> None:
    workload = CASES[case]
    product, columns = convolution_of(workload) or pytest.fail("no convolution")
    window = columns.window
    if window is None or (window.padded_width < setting.lanes and not last_vectors):
        assert case in ("narrow", "every other pixel", "every third pixel")
        return
    positions = prod(window.extents)
    kc, last = -(-setting.kc // positions) * positions, min(last_vectors, setting.vectors)
    setting = replace(setting, kc=kc, flattened=last_vectors > 0, last_vectors=last)
    kernel = lower_direct_convolution(product, "k", setting, DirectConvolution(columns, window))
    assert_kernel_agrees(workload, kernel, TARGET)


@pytest.mark.parametrize("more", [{}, {"activation": "relu"}, {"dtype": "float16", "channels": 4}], ids=str)
def test_the_last_columns_are_a_short_vector(more: dict[str, Any]) -> None:
    """Nine rows of nine pixels are ten vectors of eight, and one pixel."""
    workload = _conv2d(height=9, padding=1, **more)
    product, columns = convolution_of(workload) or pytest.fail("no convolution")
    assert columns.window is not None
    for vectors, panels in ((2, 6), (1, 11)):
        setting = CpuGemmSetting(3, vectors, 8, 2, panels, 9, "task", "task", flattened=True, last_vectors=1)
        kernel = lower_direct_convolution(product, "k", setting, DirectConvolution(columns, columns.window))
        assert "accumulators_2: float32[3, 4]" in kernel_text(kernel)
        assert_kernel_agrees(workload, kernel, TARGET)


def test_what_windows_are() -> None:
    _, columns = convolution_of(_conv2d(height=9, dilation=2, padding=2)) or pytest.fail("no convolution")
    window = columns.window
    assert window is not None
    assert (window.extents, window.row_steps, window.pixel_steps) == ((3, 3), (2, 0), (0, 2))
    assert (window.padded_width, window.halo_rows) == (13, 4)


@pytest.mark.parametrize("target", [TARGET, WIDE], ids=["avx2", "avx512"])
def test_rows_are_flattened_where_padding_is_dear(target: Target) -> None:
    """14 pixels fill 14 of 16 lanes of a padded row; 224 fill whole vectors of it."""
    short = _conv2d(channels=256, height=14, width=14, filters=256, padding=1)
    assert default_schedule(short, target)["image_rows"] == FLATTENED
    space = CPU_GEMM.space(short, target, policy=SpacePolicy(prune=False))
    flattened = np.asarray(space.column("image_rows")) == FLATTENED
    waste = space.quantities["edge_waste"]
    assert waste[flattened].min() < waste[~flattened].min() - 0.05
    long = _conv2d(channels=16, height=224, width=224, filters=64, padding=1)
    assert default_schedule(long, target)["image_rows"] == PADDED


def test_a_task_of_flattened_rows_has_a_panel_of_vectors() -> None:
    workload = _conv2d(channels=16, height=14, width=14, filters=32, padding=1)
    knobs = dict(default_schedule(workload, TARGET).knobs)
    narrow = {**knobs, "nr_vectors": 3, "mr": 4, "n_blocks": 16}  # two vectors each
    with pytest.raises(IllegalSchedule, match="each of the n_blocks blocks has nr_vectors vectors or more"):
        CPU_GEMM.lower(workload, TARGET, Schedule.of("cpu_gemm", CPU_GEMM.version, narrow))


def test_what_is_left_to_others() -> None:
    assert convolution_of(_conv2d(stride=5, width=25)) is None  # no vector of pixels lies in few vectors of memory
    assert convolution_of(_conv2d(layout="NHWC")) is None  # outputs do not lie along the width
    assert convolution_of(workload_of("matmul", m=64, n=64, k=64)) is None
    deep = {"channels": 32, "height": 14, "width": 14, "padding": 1}
    assert CPU_GEMM.matches(_conv2d(**deep, filters=32), host_target("llvm"))
    assert not CPU_GEMM.matches(_conv2d(**deep, filters=8), host_target("llvm"))


@pytest.mark.parametrize("kernel_w", [1, 3])  # of windows one wide, pixels lie along the columns, but not the depth
def test_compiled_convolutions_agree(kernel_w: int) -> None:
    sizes = {"channels": 16, "height": 15, "width": 17, "filters": 32, "kernel_w": kernel_w}
    workload = _conv2d(**sizes, padding=kernel_w // 2, activation="relu")
    assert set(CPU_GEMM.space(workload, host_target("llvm")).column("pack_b").tolist()) == {"task"}
    assert check_schedules("cpu_gemm", host_target("llvm"), workload, 1, 2) == 2
