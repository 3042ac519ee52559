"""Gradients of convolutions towards their filters: which match, what the kernels compute, what the compiler says."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.schedule.gpu.tiles import (
    H200,
    WHOLE,
    assert_agrees,
    assert_schedule_agrees,
    legal_schedule_of,
    schedule_of,
)
from tilewright.codegen.lowering import build_kernel
from tilewright.core.target import Target
from tilewright.ir.gpu.tma import TmaLoad
from tilewright.ir.gpu.wgmma import WarpgroupMma
from tilewright.ir.stmt import Launch, walk_statements
from tilewright.schedule.gpu.conv.weight_gradient import CUDA_CONV_WGRAD as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=8, vector_bytes=16)
"""A device with few multiprocessors, whose CTAs share the sums of some tiles alone."""


def gradient(
    size: int = 5,
    channels: int = 64,
    filters: int = 72,
    kernel: int = 3,
    padding: int = 1,
    stride: int = 1,
    order: str = "krsc",
    **changed: Any,
) -> Workload:
    """Return the gradient of a convolution of ``size`` by ``size`` pixels, with results in an ``order`` of the axes."""
    dtype, images, result = (
        changed.get(name, value) for name, value in (("dtype", "float16"), ("images", 3), ("result", ""))
    )
    count = (size + 2 * padding - kernel) // stride + 1
    seen = [f"{stride} * {p} + {t} - {padding}" for p, t in ("yr", "xs")]
    inside = " and ".join(f"{i} >= 0 and {i} < {size}" for i in seen)
    image = f"float32(I[n, {', '.join(seen)}, c])"
    extents = {"k": filters, "r": kernel, "s": kernel, "c": channels}
    axes = ", ".join(f"{a} < {extents[a]}" for a in order)
    text = (
        f"D: {dtype}[{images}, {count}, {count}, {filters}]\nI: {dtype}[{images}, {size}, {size}, {channels}]\n"
        f"G[{axes}] = sum over n < {images}, y < {count}, x < {count} of float32(D[n, y, x, k]) * "
        + (f"select({inside}, {image}, 0.0)" if padding else image)
    )
    at = ", ".join(order)
    return parse_workload(text + f"\nZ[{at}] = {result}(G[{at}])" * bool(result))


def _volume(width: int, dilation: int) -> Workload:
    """A volume whose window is dilated along its last dimension, and the sum in another order."""
    positions = width - 2 * dilation
    return parse_workload(
        f"D: bfloat16[2, 3, 4, {positions}, 64]\nI: bfloat16[2, 3, 4, {width}, 64]\n"
        f"G[k, a < 3, r < 2, s < 3, c] = sum over x < {positions}, n < 2, z < 3, y < 4 of "
        "float32(D[n, z, y, x, k]) * select(z + a >= 1 and z + a < 4 and y + r < 4, "
        f"float32(I[n, z + a - 1, y + r, x + {dilation} * s, c]), 0.0)"
    )


CASES: dict[str, Callable[[], Workload]] = {
    "3x3": gradient,
    "bfloat16, cast": lambda: gradient(dtype="bfloat16", result="bfloat16", filters=64),
    "strided": lambda: gradient(size=9, stride=2, channels=128, result="float16"),
    "one place, strided": lambda: gradient(size=7, kernel=1, padding=0, stride=2, result="float16"),
    "5x5, one image": lambda: gradient(kernel=5, padding=2, images=1, filters=40),
    "no padding": lambda: gradient(padding=0, channels=192),
    "filters last": lambda: gradient(order="rsck", result="float16"),
    "filters last, in float32": lambda: gradient(order="rsck", filters=64),
    "taps last": lambda: gradient(order="kcrs", result="float16"),
    "channels that fill a part of a row": lambda: gradient(channels=96, result="float16"),
    "the same, filters last": lambda: gradient(channels=40, order="rsck", result="float16"),
    "rows between multiples of 16 bytes": lambda: gradient(channels=36, filters=50, result="float16"),
    "volume": lambda: _volume(10, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 2, FEW, WHOLE) == 2


KERNELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cluster": ({}, {"cluster_m": 2, "cluster_n": 2, "atoms_m": 2, "consumer_warpgroups": 1, "mma_n": 128}),
    "split_k": ({"size": 15, "filters": 72}, {"split_k": 2, "k_atoms": 2, "mma_n": 256}),
    "stream_k": ({}, {"stream_k": 1, "mma_n": 192, "consumer_warpgroups": 2}),
    "ping_pong": ({}, {"ping_pong": 1, "mma_n": 256}),
    "resident_b": ({"kernel": 1, "filters": 1032}, {"resident_b": 1, "mma_n": 64, "consumer_warpgroups": 1}),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_images_may_be_loaded_in_every_kernel(kernel: str) -> None:
    sizes, knobs = KERNELS[kernel]
    workload = gradient(**{"size": 8, "filters": 264, "stride": 2, "result": "float16", **sizes})
    assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, FEW, **knobs), FEW)


PATCHES: dict[str, tuple[Workload, dict[str, Any]]] = {
    "patches": (gradient(size=8, channels=128), {"pixels": "1x8x8", "k_atoms": 2, "split_k": 2}),
    "halo, taps of two units of channels": (
        gradient(size=4, images=4, channels=128, result="float16"),
        {"pixels": "halo_4x4x4", "stream_k": 1},
    ),
    "halo, channels that fill a part of a row": (
        gradient(size=8, channels=96, order="rsck", result="float16"),
        {"pixels": "halo_1x8x8", "k_atoms": 2},
    ),
    "halo, taps last": (gradient(size=8, filters=136, order="kcrs"), {"pixels": "halo_1x8x8", "ping_pong": 1}),
    "halo in a volume": (_volume(10, 1), {"pixels": "halo_2x1x4x8"}),
}


@pytest.mark.parametrize("case", PATCHES)
def test_pixels_may_come_in_patches(case: str) -> None:
    workload, knobs = PATCHES[case]
    assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, H200, **knobs))


def test_the_taps_of_a_halo_read_from_one_patch() -> None:
    workload = gradient(size=28, images=32, channels=128, filters=256)
    kernel = SKETCH.lower(
        workload, H200, legal_schedule_of(SKETCH, workload, pixels="halo_4x4x4", k_atoms=1, atoms_m=1)
    )
    (load,) = (s for s in walk_statements(kernel.body) if isinstance(s, TmaLoad) and s.source.name == "I")
    (multiplied,) = (s for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma))
    assert load.box == (6, 4, 4, 64) and (multiplied.n, multiplied.b_leading_lines) == (192, 16)


def test_nothing_is_copied_and_images_are_loaded_by_im2col() -> None:
    workload = gradient(result="float16")
    kernel = SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, split_k=2, pixels="im2col"))
    loads = [s for s in walk_statements(kernel.body) if isinstance(s, TmaLoad)]
    assert {s.source.name: s.im2col is not None for s in loads} == {"D": False, "I": True}
    assert sum(isinstance(s, Launch) for s in walk_statements(kernel.body)) == 1 and not kernel.workspace


def test_a_long_sum_is_shared_by_as_many_ctas_as_there_are() -> None:
    """Eleven CTAs share each of twelve tiles, where those of a product are shared by eight at most."""
    workload = gradient(size=28, images=32, channels=128, filters=256, result="float16")
    schedule = schedule_of(SKETCH, workload, stream_k=1, atoms_m=1, consumer_warpgroups=2, mma_n=192)
    kernel = SKETCH.lower(workload, H200, schedule)
    first, _ = (s for s in walk_statements(kernel.body) if isinstance(s, Launch))
    assert first.axes[0].extent == 132
    assert sum(r.spill_bytes for r in build_kernel(kernel, H200).resources.values()) == 0


def test_what_it_takes_and_what_it_leaves_to_others() -> None:
    def takers(workload: Workload) -> list[str]:
        return [s.name for s in sketches_for(workload, H200)]

    assert takers(gradient(size=28)) == ["cuda_conv_wgrad"]
    assert "cuda_gemm" in takers(gradient(kernel=1, padding=0))
    for other in (
        gradient(dtype="float32"),
        gradient(channels=24),  # most of each row of 64 places would be zeros
        gradient(channels=66),
        gradient(filters=24),
    ):
        assert not SKETCH.matches(other, H200)
