"""Convolutions of few channels, whose images a first launch folds."""

from typing import Any

import pytest

from tests.schedule.gpu.test_conv import F16, check, conv1d, conv2d, conv3d
from tests.schedule.gpu.tiles import H200, legal_schedule_of, schedule_of
from tilewright.codegen.lowering import build_kernel
from tilewright.ir.gpu.tma import TmaLoad
from tilewright.ir.stmt import walk_statements
from tilewright.ir.verify import verify
from tilewright.schedule.gpu.conv.space import CUDA_CONV as SKETCH
from tilewright.schedule.sketches import sketches_for


@pytest.mark.parametrize("overlapped", [0, 1])
@pytest.mark.parametrize(
    ("parameters", "knobs"),
    [
        ({"kernel_h": 7, "kernel_w": 7, "padding": 3, "stride": 2, "width": 32, "height": 8}, {"pixels": "1x4x16"}),
        ({"kernel_h": 3, "height": 7, "width": 5, "stride": 2, "filters": 75}, {"pixels": "im2col", "split_k": 2}),
        (
            {"kernel_h": 5, "kernel_w": 4, "height": 5, "channels": 6, "bias": True},
            {"pixels": "im2col", "cluster_n": 2},
        ),
        ({"kernel_h": 5, "height": 6, "channels": 2, "stride": 2}, {"pixels": "im2col", "k_atoms": 2}),
        ({"kernel_h": 8, "kernel_w": 8, "stride": 8, "padding": 0, "height": 16, "width": 24}, {"pixels": "im2col"}),
    ],
)
def test_few_channels_are_folded(overlapped: int, parameters: dict[str, Any], knobs: dict[str, Any]) -> None:
    workload = conv2d(**{"channels": 3, **parameters})
    schedule = legal_schedule_of(SKETCH, workload, mma_n=32, atoms_m=1, overlapped=overlapped, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    verify(kernel)
    assert kernel.launches[0].name == "fold" and len(kernel.workspace) == 2
    seen = {s.source for s in walk_statements(kernel.body) if isinstance(s, TmaLoad) and len(s.source.shape) > 3}
    (images,) = seen
    overlaps = bool(overlapped) and parameters.get("stride", 1) < parameters.get("kernel_w", 3)
    assert (images.strides[-2] < images.shape[-1]) == overlaps
    check(workload, H200, schedule)


@pytest.mark.parametrize("overlapped", [0, 1])
@pytest.mark.parametrize(
    ("parameters", "knobs"),
    [
        ({"kernel_h": 3, "height": 5, "dilation": 1, "dtype": F16}, {"pixels": "im2col"}),
        ({"kernel_h": 3, "stride": 2, "depth": 5, "height": 9, "width": 11, "channels": 1}, {"pixels": "im2col"}),
        ({"kernel_d": 2, "kernel_h": 3, "batch": 1, "width": 6, "height": 6, "padding": 0}, {"pixels": "im2col"}),
    ],
)
def test_volumes_of_few_channels_are_folded_slice_by_slice(
    overlapped: int, parameters: dict[str, Any], knobs: dict[str, Any]
) -> None:
    workload = conv3d(**{"channels": 3, "filters": 40, **parameters})
    schedule = legal_schedule_of(SKETCH, workload, mma_n=32, atoms_m=1, overlapped=overlapped, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    verify(kernel)
    assert kernel.launches[0].name == "fold" and len(kernel.workspace) == 2
    check(workload, H200, schedule)


@pytest.mark.parametrize(
    ("parameters", "overlapped"),
    [
        ({"kernel": 10, "stride": 5}, 0),
        ({"kernel": 7, "padding": 3, "bias": True}, 0),
        ({"kernel": 12, "stride": 8}, 1),
        ({"kernel": 12, "stride": 8}, 0),
        ({"kernel": 70, "stride": 3, "dtype": "float32", "precision": "tf32"}, 0),
    ],
)
def test_rows_of_one_channel_are_folded(parameters: dict[str, Any], overlapped: int) -> None:
    """What a window sees becomes one tap. It is written for each position unless that moves by 16 bytes."""
    workload = conv1d(**{"channels": 1, "length": 150, "filters": 24, **parameters})
    schedule = legal_schedule_of(SKETCH, workload, mma_n=32, atoms_m=1, overlapped=overlapped)
    images, filters = SKETCH.lower(workload, H200, schedule).workspace
    assert parameters["kernel"] in filters.shape[:-1] or filters.shape[-1] >= parameters["kernel"]
    assert len(images.shape) == (5 if overlapped else 6)
    check(workload, H200, schedule)


def test_long_rows_that_are_those_of_a_matrix_are_not_folded() -> None:
    few = conv1d(channels=1, length=150, kernel=16, stride=8)
    assert [s.name for s in sketches_for(few, H200)] == ["cuda_conv_few_channels", "cuda_gemm_mma"]


def test_a_7x7_window_on_colours_becomes_four_taps() -> None:
    workload = conv2d(
        batch=32, channels=3, height=224, width=224, filters=64, kernel_h=7, kernel_w=7, padding=3, stride=2
    )
    kernel = SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, overlapped=1))
    images, filters = kernel.workspace
    assert images.shape == (32, 115, 229, 2, 4) and filters.shape == (4, 56, 64)
    assert sum(r.spill_bytes for r in build_kernel(kernel, H200).resources.values()) == 0
