"""Transposed convolutions: phases, places of the kernel, and pixels that are left out."""

from typing import Any

import pytest

from tests.schedule.gpu.test_conv import FEW, check, conv2d, gradient, transposed
from tests.schedule.gpu.tiles import H200, legal_schedule_of
from tilewright.ir.stmt import For, If, walk_statements
from tilewright.schedule.gpu.conv.space import CUDA_CONV as SKETCH
from tilewright.schedule.gpu.gemm.k_atoms import tap_share
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.schedule.problems.implicit_gemm import implicit_gemm_of
from tilewright.schedule.sketches import sketches_for
from tilewright.te.workload import Workload


def test_a_transposed_convolution_skips_places_that_no_pixel_meets() -> None:
    """Of a 4x4 kernel with stride 2, each of the four phases takes 2x2 places."""
    gemm = implicit_gemm_of(transposed())
    assert gemm is not None and gemm.window is not None
    assert [a.extent for a in gemm.batch] == [2, 2] and gemm.k.extent == 4 * 64
    assert gemm.window.taps == (2, 2) and gemm.window.lower == (-1, -1) and gemm.window.most_shifted == 1
    odd = implicit_gemm_of(transposed(kernel_h=3, kernel_w=3, output_padding=1))
    assert odd is not None and odd.window is not None and odd.window.taps == (2, 2)  # one phase has but one


def test_the_gradient_of_a_convolution_with_strides_is_a_transposed_one() -> None:
    """It has the taps and the pixels of the operator."""
    gemm, same = (
        implicit_gemm_of(gradient(2, 3, 40, 8)),
        implicit_gemm_of(transposed(kernel_h=3, kernel_w=3, output_padding=1, width=4)),
    )
    assert gemm is not None and same is not None and gemm.window == same.window


def test_a_transposed_convolution_leaves_out_pixels_of_the_last_stride() -> None:
    """Y has 7 x 15 pixels, 8 x 16 in whole strides that begin one pixel ahead of it."""
    uneven = implicit_gemm_of(transposed(kernel_h=3, kernel_w=3))
    assert uneven is not None and uneven.window is not None and uneven.window.positions == (4, 8)
    assert [a.extent for a in uneven.batch] == [2, 2] and uneven.results[0].tensor.shape == (2, 7, 15, 40)
    assert len(uneven.results[0].inside) == 2  # of either dimension the first pixel is missing
    behind = implicit_gemm_of(transposed(kernel_h=3, kernel_w=3, padding=0))
    assert behind is not None and len(behind.results[0].inside) == 2 and behind.window is not None
    assert behind.window.positions == (5, 9)
    assert sketches_for(transposed(kernel_h=3, kernel_w=3), H200) == (SKETCH,)


@pytest.mark.parametrize(("kernel", "skips"), [(3, True), (4, False)])
def test_tiles_have_no_iterations_for_places_that_their_phase_lacks(kernel: int, skips: bool) -> None:
    """Of a 3x3 kernel with stride 2, phases have 2x2, 2x1, 1x2 and 1x1 places; of a 4x4 kernel all have 2x2."""
    workload = transposed(kernel_h=kernel, kernel_w=kernel)
    schedule = legal_schedule_of(SKETCH, workload, pixels="im2col", split_k=2, k_atoms=1, consumer_warpgroups=1)
    kernel_ir = SKETCH.lower(workload, H200, schedule)
    (loop,) = (s for s in walk_statements(kernel_ir.body) if isinstance(s, For) and s.var == "k_iter")
    assert loop.extent == 2 and isinstance(loop.body, If) == skips
    check(workload, H200, schedule)


PHASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tiles in turn": ({}, {"k_atoms": 1}),
    "ping_pong": ({}, {"ping_pong": 1, "consumer_warpgroups": 2}),
    "atoms that only some phases have": ({}, {"k_atoms": 2}),
    "taps_innermost": ({}, {"taps_innermost": 1, "k_atoms": 1}),
    "split_k": ({}, {"split_k": 4, "k_atoms": 1}),
    "stream_k": ({}, {"stream_k": 1, "k_atoms": 1}),
    "5x5": ({"kernel_h": 5, "kernel_w": 5, "padding": 2, "channels": 64}, {"k_atoms": 1}),
    "a phase without places": ({"kernel_h": 1, "kernel_w": 1, "padding": 0, "stride": 2}, {"k_atoms": 1}),
    "stride 3": ({"kernel_h": 4, "kernel_w": 2, "stride": 3, "padding": 0}, {"k_atoms": 1}),
}


@pytest.mark.parametrize("case", PHASES)
def test_phases_with_different_numbers_of_places_share_a_ctas_stages(case: str) -> None:
    """CTAs have several tiles here, of different phases, but for split_k."""
    changed, knobs = PHASES[case]
    workload = transposed(**{"kernel_h": 3, "kernel_w": 3, "channels": 136, **changed})
    target = H200 if "split_k" in knobs else FEW
    check(workload, target, legal_schedule_of(SKETCH, workload, target, pixels="im2col", mma_n=32, **knobs))


def test_estimates_know_which_taps_phases_have() -> None:
    """Taps along a halo are multiplied together."""
    plain = implicit_gemm_of(transposed(kernel_h=3, kernel_w=3))
    halo = implicit_gemm_of(transposed(kernel_h=3, kernel_w=3), (2, 4, 8), 0)
    even = implicit_gemm_of(transposed())
    assert plain is not None and halo is not None and even is not None
    assert (tap_share(plain), tap_share(halo), tap_share(even)) == (9 / 16, 12 / 16, 1.0)


def test_phases_of_one_image_are_products_of_all_pixels() -> None:
    """As a batch of plain products they would have one row of pixels each."""
    workload = transposed(batch=1, kernel_h=2, kernel_w=2, padding=0)
    assert SKETCH in sketches_for(workload, H200) and CUDA_GEMM in sketches_for(workload, H200)
    found = implicit_gemm_of(workload)
    assert found is not None and (found.m.extent, found.n.extent) == (4 * 8, 40)
    assert [axis.extent for axis in found.batch] == [2, 2]


def test_a_transposed_convolution_with_stride_1_has_patches_with_a_halo() -> None:
    def pixels(workload: Workload) -> set[object]:
        (knob,) = (k for k in SKETCH.knobs(workload, H200) if k.name == "pixels")
        return set(knob.values)

    workload = transposed(stride=1, kernel_h=3, kernel_w=3, height=4, width=16)
    assert workload.output_buffers[0].shape == (2, 4, 16, 40)
    assert pixels(workload) == pixels(conv2d()) > {"im2col"}
