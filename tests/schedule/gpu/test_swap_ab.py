"""Products whose sides change places, so that rows of the result are columns of tiles."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.schedule.agreement import assert_computes
from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, compiled, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.core.target import Target
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.schedule.gpu.gemm.swap_ab_space import CUDA_GEMM_SWAP_AB as SKETCH
from tilewright.schedule.sketches import sketches_for

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device with two multiprocessors: a CTA works through many tiles even of a small product."""
F16 = {"dtype": "float16"}
PIXEL = {"kernel_h": 1, "kernel_w": 1, "layout": "NHWC", **F16}
CONVOLUTION = {"batch": 32, "height": 14, "width": 14, "channels": 1024, "filters": 256, **PIXEL}
LINEAR = {"rows": 200, "inputs": 136, "outputs": 144, "dtype": "bfloat16"}

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "rows of B along n": ("matmul", {"m": 200, "n": 136, "k": 136, **F16}),
    "rows of B along k": ("matmul", {"m": 136, "n": 72, "k": 200, "transpose_b": True, **F16}),
    "rows of A along m": ("matmul", {"m": 200, "n": 136, "k": 136, "transpose_a": True, **F16}),
    "epilogue": ("linear", {**LINEAR, "bias": True, "activation": "gelu_tanh", "residual": True}),
    "batch of few rows": ("batch_matmul", {"batch": 3, "m": 24, "n": 72, "k": 136, **F16}),
    "batch, rows of B along n": ("batch_matmul", {"batch": 2, "m": 75, "n": 136, "k": 72, "transpose_b": False, **F16}),
    "few rows, an odd number": ("linear", {**LINEAR, "rows": 75, "bias": True}),
    "images": ("conv2d", {**CONVOLUTION, "batch": 2, "height": 9, "channels": 72, "filters": 80}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    operator, parameters = CASES[case]
    workload = workload_of(operator, **parameters)
    assert assert_agrees(SKETCH, workload, 2, FEW, EVERY_LEGAL) == 2
    assert assert_agrees(SKETCH, workload, 1, H200, EVERY_LEGAL) == 1


@pytest.mark.parametrize(
    "knobs",
    [
        {"epilogue_stages": 2, "mma_n": 80, "atoms_m": 2},
        {"epilogue_stages": 1, "mma_n": 208, "consumer_warpgroups": 2, "ping_pong": 1},
        {"split_k": 4, "mma_n": 48},
        {"stream_k": 1},
        {"cluster_m": 2, "cluster_n": 2},
        {"mma_n": 256, "split_k": 2, "consumer_warpgroups": 2},
    ],
    ids=str,
)
def test_all_ways_to_store_are_transposed(knobs: Mapping[str, int]) -> None:
    workload = workload_of("linear", **{**LINEAR, "inputs": 328})
    target = H200 if "split_k" in knobs else FEW
    assert_computes(
        finish(SKETCH.lower(workload, target, legal_schedule_of(SKETCH, workload, target, **knobs)), target), workload
    )


def test_one_wave_of_tiles_covers_what_takes_two_otherwise() -> None:
    """By the prior, and in blocks: 66 x 2 tiles of 96 pixels x 128 filters."""
    workload = workload_of("conv2d", **CONVOLUTION)
    assert [s.name for s in sketches_for(workload, H200)] == ["cuda_gemm", "cuda_gemm_swap_ab"]
    plain, swapped = CUDA_GEMM.space(workload, H200), SKETCH.space(workload, H200)
    assert plain.prior_seconds is not None and swapped.prior_seconds is not None
    assert swapped.prior_seconds.max() < 0.98 * plain.prior_seconds.min()
    knobs = {"consumer_warpgroups": 2, "atoms_m": 1, "mma_n": 96, "cluster_m": 1, "cluster_n": 1}
    source = backend_for(H200).emit(
        finish(SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, **knobs, split_k=1, stream_k=0)), H200),
        H200,
    )
    assert source.launches[0].blocks[0] == H200.threads


def test_nothing_spills_and_tma_stores_what_stmatrix_transposes() -> None:
    workload = workload_of("conv2d", **CONVOLUTION)
    knobs = {"consumer_warpgroups": 2, "atoms_m": 1, "mma_n": 96, "epilogue_stages": 2}
    resources = compiled(SKETCH, workload, **knobs)
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0


def test_one_setting_shares_any_rows_evenly_among_tiles() -> None:
    for rows, wide in ((75, 80), (150, 152), (256, 256), (300, 152), (600, 200)):
        workload = workload_of("linear", **{**LINEAR, "rows": rows})
        schedule = legal_schedule_of(SKETCH, workload, mma_n=256, consumer_warpgroups=2, atoms_m=1, split_k=1)
        source = backend_for(H200).emit(finish(SKETCH.lower(workload, H200, schedule), H200), H200)
        assert f"m64n{wide}k16" in source.text


def test_it_is_the_default_where_rows_would_be_padded() -> None:
    layer = {"inputs": 14336, "outputs": 4096, "dtype": "bfloat16"}
    chosen = [default_schedule(workload_of("linear", rows=rows, **layer), H200).sketch for rows in (128, 200)]
    assert chosen == ["cuda_gemm", "cuda_gemm_swap_ab"]


def test_where_nothing_is_gained_little_is_tried() -> None:
    whole_waves = workload_of("matmul", m=4096, n=2048, k=2048, transpose_b=True, **F16)
    assert len(SKETCH.space(whole_waves, H200)) <= 16


def test_what_it_leaves_to_others() -> None:
    def taken(**parameters: object) -> bool:
        return SKETCH.matches(workload_of("matmul", **{"m": 200, "n": 136, "k": 72, **F16, **parameters}), H200)

    assert taken() and taken(dtype="bfloat16") and taken(m=6272, n=1024)
    assert not taken(m=8192, n=8000)  # many waves
    assert taken(m=128) and taken(m=136) and not taken(m=1544, n=1552)  # few rows, or more than columns
    assert taken(m=201) and not taken(n=132)  # what TMA cannot store
    residual = workload_of("linear", **{**LINEAR, "rows": 217, "residual": True})
    assert not SKETCH.matches(residual, H200)  # pairs of rows
    assert not taken(dtype="float32", precision="tf32", transpose_b=True) and not taken(m=64)
    assert not SKETCH.matches(workload_of("gated_linear", rows=200, inputs=136, outputs=136, **F16), H200)
    assert not SKETCH.matches(workload_of("batch_matmul", batch=2, m=200, n=132, k=72, **F16), H200)
