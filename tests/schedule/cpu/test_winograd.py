"""Convolutions by Winograd's F(2 x 2, 3 x 3): edges, padding, images, epilogues, types, and where they are chosen."""

from typing import Any

import numpy as np
import pytest

from tests.golden import check_golden
from tests.schedule.gpu.tiles import workload_of
from tests.sketch_agreement import assert_kernel_agrees, check_schedules
from tilewright.codegen.lowering import lower
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.prologue import split_prologue
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import expressions, walk_statements
from tilewright.ir.text import kernel_text
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.devices import host_target
from tilewright.runtime.kernels import load_kernels
from tilewright.runtime.module import load_module
from tilewright.schedule.cpu.gemm.kernel import CpuGemmSetting
from tilewright.schedule.cpu.winograd.kernel import lower_winograd, tile_rows_of
from tilewright.schedule.cpu.winograd.space import CPU_WINOGRAD
from tilewright.schedule.defaults import default_schedule, default_schedules
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

AVX2 = Target("llvm", "x86-64", ("avx2", "fma"), threads=2, vector_bytes=32)
AVX512 = Target("llvm", "x86-64", ("avx512f",), threads=2, vector_bytes=64)


def _conv2d(**parameters: Any) -> Workload:
    given = {"batch": 1, "channels": 3, "height": 6, "width": 9, "filters": 11, "kernel_h": 3, "kernel_w": 3}
    return workload_of("conv2d", **{**given, "layout": "NHWC", **parameters})


def _layer(size: int, channels: int, **parameters: Any) -> Workload:
    sizes = {"height": size, "width": size, "channels": channels, "filters": channels}
    return _conv2d(**sizes, padding=1, constant_weights=True, **parameters)


CASES = {
    "padded": _conv2d(padding=1),
    "not padded": _conv2d(),
    "whole tiles": _conv2d(channels=8, height=6, width=8, filters=16),
    "more filters than a task has": _conv2d(filters=35, padding=1, bias=True),
    "far padded": _conv2d(padding=2, activation="relu"),
    "several images": _conv2d(batch=2, height=4, width=5, padding=1, bias=True, residual=True),
    "a row of pixels": _conv2d(height=3, width=12),
    "filters first": _conv2d(padding=1, filters_first=True),
    "half": _conv2d(padding=1, dtype="float16"),
    "double": _conv2d(padding=1, dtype="float64"),
}
SETTINGS = {
    "several tiles": (3, 1, 4, 2, 1, "whole"),
    "one tile": (4, 2, 1, 1, 2, "task"),
    "tall": (16, 1, 2, 1, 1, "whole"),
    "narrow panel": (3, 2, 2, 2, 1, "whole"),
    "narrow panel of a task": (3, 2, 2, 2, 1, "task"),
}
"""Rows and vectors of a register tile, how many of them a task has along both axes, the vectors of its last panel, and
when filters are packed."""


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str, setting: str) -> None:
    mr, vectors, tiles, panels, last, pack_b = SETTINGS[setting]
    product, rows = tile_rows_of(CASES[case]) or pytest.fail("no such convolution")
    lanes = AVX2.vector_bytes // product.accumulator.dtype.bytes
    chosen = CpuGemmSetting(mr, vectors, lanes, tiles, panels, product.k.extent, "task", pack_b, last_vectors=last)
    assert_kernel_agrees(CASES[case], lower_winograd(product, "k", chosen, rows), AVX2)


@pytest.mark.parametrize("constant", [True, False])
def test_compiled_kernels_agree(constant: bool) -> None:
    epilogue = {"bias": True, "residual": True, "activation": "relu", "constant_weights": constant}
    workload = _conv2d(channels=24, height=9, width=7, filters=35, padding=1, **epilogue)
    assert check_schedules("cpu_winograd", host_target("llvm"), workload, 1, 2) == 2


def test_the_kernel_reads_as_it_did() -> None:
    workload = _conv2d(channels=64, height=8, width=10, filters=32, padding=1)
    check_golden("schedule/golden/cpu_winograd.txt", kernel_text(lower(workload, AVX2, _first(workload, AVX2))))


def test_constant_filters_are_transformed_once() -> None:
    workload = _layer(14, 32)
    kernel = lower(workload, AVX512, _first(workload, AVX512))
    (filters,) = kernel.constants
    prologue, rest = split_prologue(kernel)
    assert prologue is not None
    for body, reads in ((prologue, True), (rest, False)):
        read = {load.buffer.name for s in walk_statements(body) for e in expressions(s) for load in loads_of(e)}
        assert (filters in read) == reads


@pytest.mark.parametrize(("pack_b", "tiles", "lines_of_a_step"), [("whole", 7, 1), ("whole", 1, 2), ("task", 7, 0)])
def test_packed_filters_of_the_next_point_are_prefetched(pack_b: str, tiles: int, lines_of_a_step: int) -> None:
    """The last point is followed by the first one of the next panel. A step of k has two lines, which tiles share."""
    product, rows = tile_rows_of(_layer(14, 64)) or pytest.fail("no such convolution")
    chosen = CpuGemmSetting(8, 2, 16, tiles, 2, 64, "task", pack_b)
    text = kernel_text(lower_winograd(product, "k", chosen, rows))
    lines = [line for line in text.splitlines() if "prefetch_line" in line]
    assert len(lines) == lines_of_a_step
    assert all("n_packed[(point + 1)%16, min(" in line and "panel + (point + 1)//16, 1)" in line for line in lines)


@pytest.mark.parametrize(
    "other",
    [
        _layer(28, 64, stride=2),
        _layer(28, 64, dilation=2),
        _layer(28, 64, kernel_h=5),
        _layer(28, 64, groups=2),
        _layer(28, 64, layout="NCHW"),
        workload_of("conv1d", batch=1, channels=64, length=900, filters=64, kernel=3, layout="NWC"),
        workload_of("matmul", m=784, n=64, k=576),
    ],
    ids=["strides", "dilations", "another window", "groups", "channels first", "a line", "a product"],
)
def test_other_workloads_are_left_to_other_sketches(other: Workload) -> None:
    assert not CPU_WINOGRAD.matches(other, AVX512)
    with pytest.raises(IllegalSchedule, match="cpu_winograd does not match"):
        CPU_WINOGRAD.space(other, AVX512)


def test_the_estimates_choose_between_fewer_multiplications_and_smaller_filters() -> None:
    """Where images are small and filters many, reading transformed filters takes longer than multiplying."""
    for size, channels in ((56, 64), (28, 128), (14, 256)):
        assert default_schedule(_layer(size, channels), AVX512).sketch == "cpu_winograd"
    assert default_schedule(_layer(3, 512), AVX512).sketch == "cpu_gemm"


def test_a_refused_sketch_writes_no_kernel() -> None:
    workload, device = _layer(14, 32), CpuDevice()
    chosen = _first(workload, device.target)
    for refused in ((), ("cpu_winograd",)):
        loaded = load_kernels({"key": workload}, {"key": chosen}, device, refused)["key"]
        assert (loaded.tuned, loaded.schedule == chosen) == (not refused, not refused)
    with pytest.raises(IllegalSchedule, match="no sketch"):
        default_schedules(workload, AVX512, refused_sketches=("cpu_winograd", "cpu_gemm"))


def test_errors_are_at_most_twice_those_of_the_direct_kernel() -> None:
    workload = _layer(14, 64)
    inputs = random_inputs(workload, 1)
    wanted = reference(workload, inputs)["Y"]
    errors = []
    for refused in ((), ("cpu_winograd",)):
        schedule = default_schedules(workload, host_target("llvm"), most=1, refused_sketches=refused)[0]
        (found,) = load_module(workload, schedule)(*(inputs[b.name] for b in workload.inputs))
        errors.append(np.sqrt(np.mean((found.astype(np.float64) - wanted) ** 2)))
    assert errors[0] <= 2 * errors[1]


def _first(workload: Workload, target: Target) -> Schedule:
    return CPU_WINOGRAD.space(workload, target).schedule(0)
