"""Priors of kernels on processors: from measured ceilings, and of the right size where kernels were measured."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import workload_of
from tilewright.core.dtypes import float32, float64, int32
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.schedule.cpu.peaks import cpu_peaks
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.parse import parse_workload

AVX512 = ("avx2", "avx512bf16", "avx512bw", "avx512dq", "avx512f", "avx512vl", "avx512vnni", "fma")
TARGET = Target("llvm", "x86-64", AVX512, threads=2, vector_bytes=64)
EPYC = {
    "peak_float32_flops_per_second": 2.357e11,
    "peak_float64_flops_per_second": 1.178e11,
    "copy_bytes_per_second": 3.41e10,
    "read_bytes_per_second": 3.67e10,
    "launch_seconds": 1.1e-7,
}
"""What was measured on two cores of an EPYC (benchmarks/results)."""
XEON = {
    "peak_float32_flops_per_second": 4.32e11,
    "peak_float64_flops_per_second": 2.20e11,
    "copy_bytes_per_second": 2.78e10,
    "read_bytes_per_second": 3.10e10,
    "l2_read_bytes_per_second": 3.85e11,
    "launch_seconds": 4.3e-7,
}
"""What was measured on two cores of an Intel Xeon with AVX-512."""

Case = tuple[str, dict[str, Any], str, dict[str, int | str], float]
IMAGE: dict[str, Any] = {"batch": 1, "layout": "NHWC", "constant_weights": True}
WEIGHTS_FROM_MEMORY: dict[str, Case] = {
    "128 tokens": (
        "linear", {"rows": 128, "inputs": 768, "outputs": 3072, "constant_weights": True}, "cpu_gemm",
        {"mr": 8, "nr_vectors": 3, "m_blocks": 1, "n_blocks": 8, "kc": 768, "pack_a": "never", "pack_b": "whole"},
        1713e-6,
    ),
    "197 tokens": (
        "linear", {"rows": 197, "inputs": 3072, "outputs": 768, "constant_weights": True}, "cpu_gemm",
        {"mr": 8, "nr_vectors": 3, "m_blocks": 1, "n_blocks": 2, "kc": 768, "pack_a": "never", "pack_b": "whole"},
        2542e-6,
    ),
    "one pixel": (
        "conv2d", {"channels": 512, "height": 7, "width": 7, "filters": 2048, "kernel_h": 1, "kernel_w": 1, **IMAGE},
        "cpu_gemm",
        {"mr": 7, "nr_vectors": 3, "m_blocks": 1, "n_blocks": 4, "kc": 512, "pack_a": "never", "pack_b": "whole"},
        301e-6,
    ),
    "nine pixels": (
        "conv2d",
        {"channels": 512, "height": 7, "width": 7, "filters": 512, "kernel_h": 3, "kernel_w": 3, "padding": 1, **IMAGE},
        "cpu_winograd",
        {"mr": 8, "nr_vectors": 2, "m_blocks": 1, "n_blocks": 2, "kc": 512, "pack_a": "task", "pack_b": "whole"},
        521e-6,
    ),
}  # fmt: skip
"""The fastest of some twenty settings on that Xeon, each with weights that other calls had pushed out of the caches."""
MEASURED: dict[str, Case] = {
    "matmul": (
        "matmul", {"m": 1024, "n": 1024, "k": 1024}, "cpu_gemm",
        {"mr": 4, "nr_vectors": 4, "m_blocks": 16, "n_blocks": 4, "kc": 1024, "pack_a": "never", "pack_b": "whole"},
        9746e-6,
    ),
    "bytes": (
        "matmul", {"m": 1024, "n": 1024, "k": 1024, "dtype": "int8"}, "cpu_gemm_dot",
        {"mr": 6, "nr_vectors": 4, "m_blocks": 1, "n_blocks": 4, "kc": 1024, "pack_a": "whole", "pack_b": "task"},
        2781e-6,
    ),
    "one row": (
        "matmul", {"m": 1, "n": 4096, "k": 4096}, "cpu_gemv",
        {"k_unroll": 4, "vectors": 2, "n_blocks": 1, "split_k": 8}, 1560e-6,
    ),
    "softmax": (
        "softmax", {"rows": 4096, "columns": 1024}, "cpu_loops",
        {"lanes": 16, "vectors": 8, "rows": 128, "store": "non_temporal"}, 798e-6,
    ),
    "rows that are not aligned": (
        "transpose", {"shape": [2047, 2049], "axes": [1, 0]}, "cpu_loops",
        {"lanes": 16, "vectors": 1, "rows": 16, "row_tiles": 32, "column_tiles": 16, "order": "rows_inside",
         "store": "cached"}, 1100e-6,
    ),
}  # fmt: skip
"""The best schedules that search found there, with their times."""


@pytest.mark.parametrize(
    ("case", "peaks"),
    [*((case, EPYC) for case in MEASURED.values()), *((case, XEON) for case in WEIGHTS_FROM_MEMORY.values())],
    ids=[*MEASURED, *WEIGHTS_FROM_MEMORY],
)
def test_the_best_schedules_found_are_near_the_least_estimate(case: Case, peaks: dict[str, float]) -> None:
    operator, parameters, sketch, knobs, seconds = case
    workload = workload_of(operator, **parameters)
    space = SKETCHES[sketch].space(workload, TARGET, policy=SpacePolicy(prune=False), peaks=peaks)
    assert space.prior_seconds is not None
    schedule = Schedule.of(sketch, space.version, knobs)
    (estimate,) = SKETCHES[sketch].prior_seconds(workload, TARGET, [schedule], peaks)
    assert 0.5 < estimate / seconds < 2
    assert estimate <= 1.1 * space.prior_seconds.min() and np.median(space.prior_seconds) > estimate


@pytest.mark.parametrize("name", MEASURED)
def test_faster_devices_have_lower_estimates(name: str) -> None:
    operator, parameters, sketch, knobs, _ = MEASURED[name]
    workload, schedule = workload_of(operator, **parameters), Schedule.of(sketch, SKETCHES[sketch].version, knobs)
    twice = {key: value * (0.5 if key == "launch_seconds" else 2) for key, value in EPYC.items()}
    slow, fast = (SKETCHES[sketch].prior_seconds(workload, TARGET, [schedule], peaks)[0] for peaks in (EPYC, twice))
    assert fast == pytest.approx(slow / 2)


def test_ceilings_that_were_not_measured_are_nominal() -> None:
    nominal, measured = cpu_peaks(TARGET, {}), cpu_peaks(TARGET, EPYC)
    assert nominal.float32_flops == 2 * nominal.float64_flops == 2 * 2 * 16 * 2 * nominal.clock_hz
    assert measured.float32_flops == EPYC["peak_float32_flops_per_second"]
    assert measured.memory_bytes_per_second == EPYC["copy_bytes_per_second"]
    assert measured.vector_flops(float64) == EPYC["peak_float64_flops_per_second"]
    assert measured.vector_flops(int32) == measured.vector_flops(float32)
    more = cpu_peaks(replace(TARGET, threads=64), {})
    assert more.float32_flops == 32 * nominal.float32_flops
    assert more.memory_bytes_per_second < 32 * nominal.memory_bytes_per_second
    tiles = cpu_peaks(TARGET, {"peak_tensor_bfloat16_flops_per_second": 3e12}).tile_flops
    assert tiles["bfloat16"] == 3e12 and tiles["int8"] == 2 * nominal.tile_flops["bfloat16"]


def test_gathers_that_are_transposed_cost_less_the_more_of_them_there_are() -> None:
    """And what is stored past the caches gains nothing where the rows of the output are not aligned."""
    knobs: dict[str, int | str] = {"lanes": 16, "vectors": 1, "row_tiles": 4, "column_tiles": 4, "order": "rows_inside"}
    workload = workload_of("transpose", shape=[2047, 2049], axes=[1, 0])
    settings = [(16, "cached"), (4, "cached"), (3, "cached"), (16, "non_temporal")]
    version = SKETCHES["cpu_loops"].version
    schedules = [Schedule.of("cpu_loops", version, {**knobs, "rows": r, "store": s}) for r, s in settings]
    sixteen, four, three, past = SKETCHES["cpu_loops"].prior_seconds(workload, TARGET, schedules, EPYC)
    assert sixteen < four < three and sixteen < past


def test_parts_of_many_lines_gain_nothing_past_the_caches() -> None:
    """Rows of 56 floats begin amid lines. An EPYC took 456 us with 6 rows at once, 1930 us with 16, and 348 us through
    its caches."""
    workload = parse_workload("X: float32[376, 128, 56]\nF: float32[56]\nY[a, b, c < 56] = X[a, b, c] * F[c] + 1.0")
    knobs: dict[str, int | str] = {"lanes": 8, "vectors": 1, "row_tiles": 16, "column_tiles": 8}
    settings = [(3, 2, "non_temporal"), (4, 4, "non_temporal"), (4, 4, "cached")]
    version = SKETCHES["cpu_loops"].version
    schedules = [
        Schedule.of("cpu_loops", version, {**knobs, "order": "columns_inside", "rows": r, "planes": p, "store": s})
        for r, p, s in settings
    ]
    six, sixteen, cached = SKETCHES["cpu_loops"].prior_seconds(workload, TARGET, schedules, EPYC)
    assert six < cached < sixteen


def _first(sketch: str, operator: str, **parameters: Any) -> dict[str, Any]:
    """Return the knobs of the least estimate."""
    space = SKETCHES[sketch].space(workload_of(operator, **parameters), TARGET, peaks=EPYC)
    assert space.prior_seconds is not None
    return dict(space.schedule(int(space.prior_seconds.argmin())).knobs)


@pytest.mark.parametrize(("sketch", "n", "rows"), [("cpu_gemm", 16, "mr"), ("cpu_loops", 12, "rows")])
def test_no_more_rows_are_read_in_place_than_a_set_of_a_cache_holds(sketch: str, n: int, rows: str) -> None:
    """Rows of 2048 floats are two pages apart. An EPYC took 704 us for 968x16x2048 with 16 rows, and 288 with 8."""
    assert _first(sketch, "matmul", m=968, n=n, k=2048)[rows] <= 8
    assert _first(sketch, "matmul", m=968, n=n, k=2064)[rows] > 8


def test_few_terms_of_a_column_do_not_fill_vectors() -> None:
    """An EPYC took 1,540 us where vectors held the nine places of a row, and 120 where they held columns."""
    image = {"batch": 1, "channels": 48, "height": 56, "width": 56, "filters": 48, "groups": 48, "stride": 2}
    parameters = {**image, "kernel_h": 9, "kernel_w": 9, "padding": 4, "layout": "NCHW"}
    assert _first("cpu_loops", "conv2d", **parameters)["padding"] == "inline"
