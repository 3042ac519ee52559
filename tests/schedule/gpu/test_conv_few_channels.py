"""Kernels of convolutions of few channels: what they take, what they compute, and what lies beside pixels."""

from collections.abc import Callable

import numpy as np
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
from tilewright.codegen.lowering import finish
from tilewright.codegen.shared_memory import plan_shared_memory
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.conv_few_channels.space import CUDA_CONV_FEW_CHANNELS as SKETCH
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device on which blocks have several rounds."""


def _conv(**more: object) -> Workload:
    given: dict[str, object] = dict(batch=2, channels=3, height=9, width=21, filters=8, kernel_h=3, kernel_w=3)
    return workload_of("conv2d", **{**given, "padding": 1, "layout": "NHWC", "dtype": "float16", **more})


TF32 = {"dtype": "float32", "precision": "tf32"}


def _stem(**more: object) -> Workload:
    """The first layer of a ResNet."""
    given: dict[str, object] = dict(batch=32, height=224, width=224, filters=64, kernel_h=7, kernel_w=7, stride=2)
    return _conv(**{**given, "padding": 3, **more})


STEM = _stem()
PATCHES = _conv(batch=32, height=224, width=224, filters=768, kernel_h=16, kernel_w=16, stride=16, padding=0)
"""That of a vision transformer."""


def _k_major() -> Workload:
    """Filters as (filter, row, column, channel), which go through the image backwards."""
    x, w = te.placeholder((1, 10, 24, 3), "bfloat16", "X"), te.placeholder((12, 3, 3, 3), "bfloat16", "W")
    r, s, c = te.reduce_axis(3, "r"), te.reduce_axis(3, "s"), te.reduce_axis(3, "c")
    product = lambda n, y, z, o: te.sum(  # noqa: E731
        te.cast(x[n, y + 2 - r, z + 2 - s, c], "float32") * te.cast(w[o, r, s, c], "float32"), axis=(r, s, c)
    )
    return te.workload(te.compute((1, 8, 22, 12), product, "Y"))


CASES: dict[str, Callable[[], Workload]] = {
    "3 x 3": _conv,
    "3 x 3, stride 2": lambda: _conv(stride=2, height=16, width=32),
    "7 x 7, stride 2": lambda: _conv(kernel_h=7, kernel_w=7, padding=3, stride=2, width=32, filters=64),
    "one channel": lambda: _conv(channels=1, filters=5),
    "one pixel of two": lambda: _conv(channels=1, kernel_h=1, kernel_w=1, padding=0, stride=2, filters=2),
    "4 channels, 4 x 4": lambda: _conv(channels=4, kernel_h=4, kernel_w=4, filters=40, dtype="bfloat16", bias=True),
    "5 channels, 4 x 4": lambda: _conv(
        channels=5, kernel_h=4, kernel_w=4, filters=17, residual=True, activation="silu"
    ),
    "12 channels": lambda: _conv(channels=12, width=18, filters=24, activation="relu"),
    "windows side by side": lambda: _conv(kernel_h=4, kernel_w=4, stride=4, padding=0, height=16, width=64),
    "dilated rows": lambda: _conv(kernel_w=1, dilation=2, padding=2, stride=1, channels=7),
    "filters K-major, backwards": _k_major,
    "TF32": lambda: _conv(filters=24, **TF32),
    "TF32, stride 2": lambda: _conv(filters=6, stride=2, bias=True, **TF32),
    "1-D": lambda: workload_of(
        "conv1d", batch=2, channels=1, length=400, filters=16, kernel=10, stride=5, layout="NWC", dtype="float16"
    ),
    "planes": lambda: _conv(layout="NCHW", width=20, bias=True, activation="relu"),
    "planes of odd rows": lambda: _conv(layout="NCHW", filters=20),
    "planes, 7 x 7, stride 2": lambda: _conv(
        layout="NCHW", kernel_h=7, kernel_w=7, padding=3, stride=2, width=32, filters=64, dtype="bfloat16"
    ),
    "a plane": lambda: _conv(layout="NCHW", channels=1, kernel_w=4, filters=17, residual=True),
    "planes, TF32": lambda: _conv(layout="NCHW", filters=17, **TF32),
    "rows, channels first": lambda: workload_of(
        "conv1d", batch=2, channels=2, length=400, filters=16, kernel=10, stride=5, dtype="float16"
    ),
    "3-D": lambda: workload_of(
        "conv3d",
        **{"batch": 2, "channels": 3, "depth": 4, "height": 6, "width": 16, "filters": 8, "layout": "NDHWC"},
        **{"kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": "float16"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = CASES[case]()
    assert assert_agrees(SKETCH, workload, 5, policy=EVERY_LEGAL) == 5
    assert assert_agrees(SKETCH, workload, 1, FEW, policy=EVERY_LEGAL) == 1


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("warps_m", [2, 8])
def test_blocks_go_on_with_further_patches(stages: int, warps_m: int) -> None:
    """A warp has several instructions of a row, or every so many rows. In the last round some blocks have nothing to
    do."""
    workload = _conv(width=120, height=33, batch=7)
    knobs = {"stages": stages, "warps_m": warps_m, "tile_h": 8, "tile_w": 64, "warps_n": 1}
    assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, FEW, **knobs), FEW)


@pytest.mark.parametrize(
    "more",
    [{}, {"stride": 2}, {"channels": 4}, {"channels": 1, "kernel_w": 4}, {"padding": 2}, {"layout": "NCHW"}, TF32],
    ids=str,
)
def test_what_no_window_sees_is_not_multiplied(more: dict[str, object]) -> None:
    """An infinity times 0 would be NaN: an output is finite where its window is, though what lies beside that in a word
    is not."""
    workload = _conv(**more)
    kernel = finish(SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload)), H200)
    for column in range(6, 12):
        inputs = random_inputs(workload, 1)
        inputs["X"][(slice(None), 4, column) if more.get("layout") != "NCHW" else (..., 4, column)] = np.inf
        got, wanted = interpret(kernel, inputs)["Y"], reference(workload, inputs)["Y"]
        finite = np.isfinite(np.asarray(wanted, np.float64))
        assert 0 < finite.mean() < 1
        assert np.array_equal(np.isfinite(np.asarray(got, np.float64)), finite)


def test_what_it_leaves_to_others() -> None:
    for workload in (
        _conv(channels=8),
        _conv(channels=18),
        _conv(channels=4, **TF32),
        _conv(dtype="float32"),
        _conv(dtype="int8"),
        _conv(channels=4, filters=4, groups=2),
        _conv(dilation=2),
        _conv(kernel_h=1, kernel_w=1, padding=0),
        _conv(layout="NCHW", channels=9),
        PATCHES,
    ):
        assert not SKETCH.matches(workload, H200)
    assert SKETCH.matches(_conv(), Target("cuda", "sm_80", (), 108, 16))


def test_blocks_take_as_much_shared_memory_as_is_counted() -> None:
    space = SKETCH.space(STEM, H200, policy=EVERY_LEGAL)
    for row in range(0, len(space), len(space) // 12):
        (launch,) = SKETCH.lower(STEM, H200, space.schedule(row)).launches
        assert plan_shared_memory(launch.body).bytes == space.quantities["shared_bytes"][row]


@pytest.mark.parametrize(
    ("more", "knobs"),
    [({}, {"atoms_m": 1, "atoms_n": 4}), ({}, {"atoms_m": 2, "atoms_n": 4}), ({"layout": "NCHW", **TF32}, {})],
    ids=str,
)
def test_compiled_kernels_keep_to_registers(more: dict[str, object], knobs: dict[str, int]) -> None:
    resources = compiled(SKETCH, _stem(**more), **knobs)
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)


def test_it_is_the_default_where_channels_are_few() -> None:
    assert default_schedule(STEM, H200).sketch == SKETCH.name
    assert default_schedule(PATCHES, H200).sketch == "cuda_conv"
