"""The priors of products with few rows and of perceptrons, against what was measured on an H200."""

import numpy as np
import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, workload_of
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.workload import Workload

H200_PEAKS = {
    "copy_bytes_per_second": 4.284e12,
    "peak_float32_flops_per_second": 61.9e12,
    "launch_seconds": 0.54e-6,
}
GEMV = workload_of("linear", rows=1, inputs=4096, outputs=4096, dtype="float16", bias=False)
GEMV_MICROSECONDS: dict[tuple[KnobValue, ...], float] = {
    (4, 2, 16, 1): 8.32, (2, 1, 8, 2): 8.47, (1, 1, 4, 4): 8.62, (2, 2, 4, 1): 8.81, (1, 4, 1, 4): 9.87,
    (2, 4, 1, 4): 11.17, (4, 4, 2, 1): 11.62, (4, 4, 1, 4): 12.74, (4, 4, 1, 2): 13.19, (8, 4, 1, 2): 18.67,
}  # fmt: skip
"""rows_per_warp, warps_n, warps_k, unroll -> time."""
MLP = workload_of("mlp", rows=32, width=128, layers=3, dtype="float16")
MLP_MICROSECONDS: dict[tuple[KnobValue, ...], float] = {
    (1, 8, 128, 1, 1): 4.43, (1, 4, 64, 1, 1): 4.61, (1, 8, 32, 1, 1): 5.63, (1, 2, 128, 1, 1): 6.35,
    (1, 16, 64, 1, 1): 6.52, (2, 4, 64, 1, 1): 6.86, (2, 8, 32, 1, 1): 7.55, (2, 2, 128, 1, 1): 10.28,
    (2, 16, 32, 1, 1): 11.34,
}  # fmt: skip
"""atoms_m, warps_n, tile_k, cluster_n, ctas_per_sm -> time."""


@pytest.mark.parametrize(
    ("sketch", "workload", "measured"),
    [("cuda_gemv", GEMV, GEMV_MICROSECONDS), ("cuda_mlp", MLP, MLP_MICROSECONDS)],
    ids=["gemv", "mlp"],
)
def test_estimates_rank_what_was_measured(
    sketch: str, workload: Workload, measured: dict[tuple[KnobValue, ...], float]
) -> None:
    """The settings stand in the order of their measured times."""
    names = [k.name for k in SKETCHES[sketch].space(workload, H200).knobs]
    version = SKETCHES[sketch].version
    settings = [Schedule(sketch, version, tuple(zip(names, values, strict=True))) for values in measured]
    estimated = SKETCHES[sketch].prior_seconds(workload, H200, settings, H200_PEAKS) * 1e6
    ranks = np.argsort(np.argsort(estimated))
    assert np.corrcoef(ranks, np.arange(len(ranks)))[0, 1] > 0.75
    ratio = estimated / np.array(list(measured.values()))
    assert ratio.min() > 0.7 and ratio.max() < 1.5


@pytest.mark.parametrize(("rows", "sketch"), [(1, "cuda_gemv"), (8, "cuda_skinny_mma"), (64, "cuda_skinny_tma")])
def test_estimates_follow_the_device_and_bound_what_is_promising(rows: int, sketch: str) -> None:
    workload = workload_of("linear", rows=rows, inputs=4096, outputs=4096, dtype="float16", bias=False)
    every = SKETCHES[sketch].space(workload, H200, policy=EVERY_LEGAL, peaks=H200_PEAKS)
    slow = {**H200_PEAKS, "copy_bytes_per_second": 2.1e12}
    slower = SKETCHES[sketch].space(workload, H200, policy=EVERY_LEGAL, peaks=slow)
    assert every.prior_seconds is not None and slower.prior_seconds is not None
    memory = 4096 * 4096 * 2 / 4.284e12
    assert memory < every.prior_seconds.min() < 1.5 * memory
    assert 1.5 < slower.prior_seconds.min() / every.prior_seconds.min() < 2.2
    promising = SKETCHES[sketch].space(workload, H200, peaks=H200_PEAKS).prior_seconds
    assert promising is not None and np.median(promising) < np.median(every.prior_seconds)
