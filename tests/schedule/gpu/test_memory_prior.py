"""The prior of kernels that memory bounds: what makes it longer, and how far it is from times of an H200."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, workload_of
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.schedule.gpu.memory_prior import LOAD_LATENCY_SECONDS, MemoryTraffic, memory_bound_seconds
from tilewright.schedule.gpu.peaks import gpu_peaks
from tilewright.schedule.sketches import SKETCHES

PEAKS = gpu_peaks(H200, {})
COPY = MemoryTraffic(blocks=132 * 80, resident=8, memory_bytes=1e9, l2_bytes=1e9, accesses=1e9 / 512)


def _seconds(traffic: MemoryTraffic) -> float:
    return float(memory_bound_seconds(PEAKS, traffic)[()])


def test_a_large_copy_takes_what_its_bytes_take() -> None:
    assert _seconds(COPY) == pytest.approx(1e9 / PEAKS.memory_bytes_per_second, rel=0.08)


@pytest.mark.parametrize(
    "more",
    [
        {"memory_bytes": 2e9},
        {"l2_bytes": 1e10},
        {"shared_bytes": 1e11},
        {"operations": 1e12},
        {"accesses": 1e9},
        {"rounds": 100.0},
        {"blocks": 1_000_000},
        {"resident": 1},
    ],
    ids=lambda more: next(iter(more)),
)
def test_every_figure_counts(more: dict[str, float]) -> None:
    assert _seconds(replace(COPY, **more)) > 1.05 * _seconds(COPY)


def test_what_is_not_in_flight_takes_the_latency() -> None:
    """One wave moves no faster than a latency allows, however few its bytes are, and few blocks use few units."""
    little = replace(COPY, blocks=132 * 8, memory_bytes=1e5, l2_bytes=1e5, accesses=200)
    assert _seconds(little) >= PEAKS.launch_seconds + LOAD_LATENCY_SECONDS
    few, all_busy = (replace(COPY, blocks=n, operations=1e11, rounds=1.0) for n in (33, 132))
    assert _seconds(few) > 3 * _seconds(all_busy)


def test_the_device_at_hand_counts() -> None:
    slower = gpu_peaks(H200, {"copy_bytes_per_second": PEAKS.memory_bytes_per_second / 2})
    assert memory_bound_seconds(slower, COPY)[()] == pytest.approx(2 * _seconds(COPY), rel=0.1)
    workload = workload_of("transpose", shape=[4096, 4096], axes=[1, 0], dtype="float16")
    sketch, a100 = SKETCHES["cuda_permute"], Target("cuda", "sm_80", (), threads=108, vector_bytes=16)
    priors = [sketch.space(workload, target).prior_seconds for target in (H200, a100)]
    assert all(p is not None for p in priors)
    assert np.min(priors[1]) > 2 * np.min(priors[0])  # type: ignore[arg-type]


Case = tuple[str, int, str, dict[str, Any]]
TRANSPOSE: Case = ("cuda_permute", 2, "transpose", {"shape": [4096, 4096], "axes": [1, 0], "dtype": "float16"})
DEPTHWISE: Case = (
    "cuda_windows", 2, "conv2d",
    {
        "batch": 32, "channels": 128, "height": 56, "width": 56, "filters": 128, "kernel_h": 3, "kernel_w": 3,
        "padding": 1, "groups": 128, "layout": "NHWC", "dtype": "float16",
    },
)  # fmt: skip
TIMED: list[tuple[Case, tuple[int | str, ...], float]] = [
    (TRANSPOSE, (4, 64, 64, 256, "pad", "sink", 0), 17.35e-6),
    (TRANSPOSE, (4, 64, 64, 512, "pad", "sink", 0), 18.91e-6),
    (TRANSPOSE, (8, 128, 128, 256, "pad", "source", 0), 20.93e-6),
    (DEPTHWISE, (2, 4, 8, 64), 15.02e-6),
    (DEPTHWISE, (4, 2, 4, 256), 17.64e-6),
    (DEPTHWISE, (4, 2, 8, 256), 20.36e-6),
]
"""(Sketch, version, operator, parameters), values of the knobs as they were called then, median time on an H200."""
KNOBS = {
    "cuda_permute": ("vector", "tile_source", "tile_sink", "threads", "layout", "order", "stream"),
    "cuda_windows": ("vector", "run", "rows", "threads"),
}
MEASURED = {"copy_bytes_per_second": 4.284e12, "peak_float32_flops_per_second": 61.94e12, "launch_seconds": 0.54e-6}


def test_estimates_are_near_what_was_timed() -> None:
    estimates = []
    for (name, version, operator, parameters), values, _ in TIMED:
        knobs = dict(zip(KNOBS[name], values, strict=True))
        schedule = Schedule.from_json({"sketch": name, "version": version, "knobs": knobs})
        sketch = SKETCHES[schedule.sketch]
        workload = workload_of(operator, **parameters)
        estimates.append(float(sketch.prior_seconds(workload, H200, [schedule], MEASURED)[0]))
    times = np.array([seconds for _, _, seconds in TIMED])
    np.testing.assert_allclose(estimates, times, rtol=0.15)
    assert list(np.argsort(estimates[:3])) == list(np.argsort(times[:3]))
    assert list(np.argsort(estimates[3:])) == list(np.argsort(times[3:]))


@pytest.mark.parametrize(
    ("sketch", "operator", "parameters"),
    [
        ("cuda_pointwise", "elementwise", {"shape": [8192, 8192], "functions": ["gelu_tanh"], "dtype": "float16"}),
        ("cuda_permute", "transpose", {"shape": [8192, 8192], "axes": [1, 0], "dtype": "float16"}),
        ("cuda_window", "conv2d", DEPTHWISE[3]),
        ("cuda_loops", "matmul", {"m": 512, "n": 768, "k": 1024}),
    ],
)
def test_the_prior_agrees_with_the_rules_of_thumb(sketch: str, operator: str, parameters: dict[str, Any]) -> None:
    """Among all legal settings those are not far from the first that were promising by measured rules."""
    workload = workload_of(operator, **parameters)
    every = SKETCHES[sketch].space(workload, H200, policy=SpacePolicy(prune=False)).prior_seconds
    promising = SKETCHES[sketch].space(workload, H200).prior_seconds
    assert every is not None and promising is not None
    assert promising.min() <= 1.3 * every.min()
    assert np.median(promising) <= np.median(every)
