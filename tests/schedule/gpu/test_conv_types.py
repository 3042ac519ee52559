"""Convolutions of float32 as TF32, and of 8-bit integers: values, what the kernels are made of, what is refused."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.test_conv import conv1d, conv2d, conv3d, transposed
from tests.schedule.gpu.tiles import H200, assert_agrees, legal_schedule_of, schedule_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.errors import InvalidParameter
from tilewright.ir.gpu.tma import TmaLoad
from tilewright.ir.gpu.wgmma import WarpgroupMma
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Kernel, walk_statements
from tilewright.schedule.gpu.conv.space import CUDA_CONV as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

TF32 = {"dtype": "float32", "precision": "tf32"}
SMALL = {"batch": 1, "channels": 36, "height": 4, "width": 16, "filters": 24}

CASES: Mapping[str, Callable[[], Workload]] = {
    "packed": lambda: conv2d(**TF32, **SMALL, kernel_w=2),
    "fused": lambda: conv2d(**TF32, **SMALL, filters_first=True, bias=True, residual=True, activation="relu"),
    "strided, odd channels": lambda: conv2d(**TF32, **{**SMALL, "channels": 18, "filters": 19}, stride=2),
    "groups": lambda: conv2d(**TF32, **{**SMALL, "channels": 48}, groups=2, filters_first=True, bias=True),
    "groups of 4 channels": lambda: conv2d(**TF32, **{**SMALL, "channels": 16}, groups=4, filters_first=True),
    "line, packed groups": lambda: conv1d(**TF32, batch=1, padding=1, channels=32, groups=2, bias=True),
    "volume": lambda: conv3d(**TF32, batch=1, filters=24, filters_first=True),
    "transposed": lambda: transposed(**TF32, batch=1, channels=32, filters=24, bias=True),
    "8-bit integers": lambda: conv2d(**SMALL, dtype="int8", bias=True),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 1) == 1


STEMS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "7x7": ({"kernel_h": 7, "kernel_w": 7, "padding": 3, "stride": 2}, {"overlapped": 1, "pixels": "im2col"}),
    "7x7, halo": ({"kernel_h": 7, "kernel_w": 7, "padding": 3, "stride": 2}, {"pixels": "halo_1x8x8"}),
    "narrow window": ({"kernel_w": 2, "padding": 0, "width": 9, "channels": 2}, {"overlapped": 0}),
    "one channel": ({"channels": 1, "kernel_h": 5, "kernel_w": 5}, {"overlapped": 1, "pixels": "im2col"}),
    "8-bit integers": ({"dtype": "int8", "precision": "ieee", "stride": 2}, {"overlapped": 1}),
}


@pytest.mark.parametrize("case", STEMS)
def test_few_channels_are_folded(case: str) -> None:
    """Folded filters are K-major, in rows at multiples of 16 bytes."""
    parameters, knobs = STEMS[case]
    stem = {**TF32, "batch": 1, "channels": 3, "height": 16, "width": 16, "filters": 20, **parameters}
    workload = conv2d(**stem)
    schedule = legal_schedule_of(SKETCH, workload, mma_n=32, atoms_m=1, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    _, filters = kernel.workspace
    assert kernel.launches[0].name == "fold"
    assert filters.shape[0] == 20 and filters.strides[0] * filters.dtype.bytes % 16 == 0
    _check(workload, kernel)


JOINED: Mapping[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "of 8 channels": ({"filters_first": True, "bias": True}, {"pixels": "im2col"}, (16, 8)),
    "packed, cluster": ({"channels": 128, "width": 8}, {"cluster_m": 2, "pixels": "2x4x8"}, (16, 16)),
    "of 4 channels": ({"channels": 32}, {"pixels": "halo_2x4x8", "widened_groups": 2}, (32, 8)),
}


@pytest.mark.parametrize("case", JOINED)
def test_groups_of_few_channels_are_joined(case: str) -> None:
    """Filters of a group arrive in the places of k that its channels have in a row of A."""
    parameters, knobs, (filters, k) = JOINED[case]
    workload = conv2d(**{**TF32, "channels": 64, "groups": 8, "filters": 128, "height": 4, **parameters})
    schedule = legal_schedule_of(SKETCH, workload, joined_groups=32 // k, atoms_m=1, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    assert {(s.n, s.k) for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)} == {(filters, k)}
    _check(workload, kernel)


def _check(workload: Workload, kernel: Kernel) -> None:
    inputs, (output,) = random_inputs(workload, 1), workload.outputs
    got = interpret(finish(kernel, H200), inputs)[output]
    absolute, relative = tolerance(workload)[output]
    np.testing.assert_allclose(got, reference(workload, inputs)[output], relative, absolute)


def _launches(kernel: Kernel) -> list[str]:
    return [launch.name for launch in kernel.launches[:-1]]


def test_filters_that_are_k_major_are_not_packed() -> None:
    packed, plain = (
        SKETCH.lower(w, H200, schedule_of(SKETCH, w)) for w in (conv2d(**TF32), conv2d(**TF32, filters_first=True))
    )
    assert _launches(packed) == ["pack_n"] and packed.workspace[0].shape == (9, 40, 64)
    assert not _launches(plain) and not plain.workspace
    assert {s.source.name for s in walk_statements(plain.body) if isinstance(s, TmaLoad)} == {"X", "W"}


def test_a_row_of_shared_memory_has_32_channels() -> None:
    """What is behind the last channel of a row is not multiplied."""
    workload = conv2d(**TF32, filters_first=True)
    knobs: dict[str, Any] = {"pixels": "halo_2x4x8", "atoms_m": 1, "mma_n": 48}
    kernel = SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, **knobs))
    boxes = {s.box[-1] for s in walk_statements(kernel.body) if isinstance(s, TmaLoad)}
    multiplied = {(s.k, s.b_transposed) for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)}
    assert boxes == {32} and multiplied == {(32, False)}
    few = conv2d(**TF32, channels=12, filters_first=True)
    kernel = SKETCH.lower(few, H200, schedule_of(SKETCH, few))
    assert {s.k for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)} == {16}


def test_what_it_takes_and_what_it_leaves_to_others() -> None:
    def taken(workload: Workload) -> bool:
        return "cuda_conv" in [s.name for s in sketches_for(workload, H200)]

    assert taken(conv2d(**TF32)) and taken(conv2d(dtype="int8")) and taken(conv2d(precision="tf32"))
    assert not taken(conv2d(dtype="float32"))  # nobody lets it round
    assert not taken(conv2d(**TF32, layout="NCHW"))
    assert taken(conv2d(**TF32, groups=2, channels=80))  # as one group
    # The last row would hold channels of the next group, and 31 groups are too many to be one.
    assert not taken(conv2d(**TF32, groups=31, channels=31 * 36, filters=62))
    depthwise = conv2d(**TF32, groups=64, filters=64)
    assert [s.name for s in sketches_for(depthwise, H200)] == ["cuda_window"]
    point = conv2d(**TF32, kernel_h=1, kernel_w=1, padding=0, batch=32, filters_first=True)
    assert [s.name for s in sketches_for(point, H200)] == ["cuda_gemm"]
    with pytest.raises(InvalidParameter, match="filters_first is true in the layout NCHW; allowed: only in NHWC"):
        conv2d(layout="NCHW", filters_first=True)


COMPILED: Mapping[str, tuple[Callable[[], Workload], dict[str, Any]]] = {
    "halo": (
        lambda: conv2d(**TF32, batch=32, height=28, width=28, filters_first=True, bias=True, residual=True),
        {"pixels": "halo_4x4x4"},
    ),
    "packed, by im2col": (
        lambda: conv2d(**TF32, batch=32, height=28, width=28, channels=128, filters=128),
        {"pixels": "im2col"},
    ),
    "folded": (
        lambda: conv2d(
            **TF32, batch=32, channels=3, height=224, width=224, filters=64, kernel_h=7, kernel_w=7, padding=3, stride=2
        ),
        {"overlapped": 1},
    ),
    "widened": (lambda: conv2d(**TF32, channels=128, filters=128, groups=32, filters_first=True), {}),
}


@pytest.mark.parametrize("case", COMPILED)
def test_kernels_compile_without_spills(case: str) -> None:
    make, knobs = COMPILED[case]
    workload = make()
    kernel = SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, **knobs))
    assert sum(r.spill_bytes + r.stack_bytes for r in build_kernel(kernel, H200).resources.values()) == 0
    source = backend_for(H200).emit(finish(kernel, H200), H200)
    assert ".f32.tf32.tf32" in source.text
    rounded = [m for launch in source.launches for m in launch.tensor_maps if m.rounds_to_tf32]
    assert any(m.im2col is not None or len(m.box) > 3 for m in rounded)
