"""Products whose columns of B stay in shared memory for all tiles of a CTA."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.schedule.agreement import assert_computes
from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.stmt import Allocate, walk_statements
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device with two multiprocessors: a CTA works through many tiles even of a small product."""
F16 = {"dtype": "float16"}
PIXEL = {"kernel_h": 1, "kernel_w": 1, "layout": "NHWC", **F16}
POINTWISE = workload_of("conv2d", batch=32, height=112, width=112, channels=32, filters=16, **PIXEL)
PRODUCT = {"m": 300, "n": 72, "k": 200, **F16}
RESIDENT = {"resident_b": 1, "consumer_warpgroups": 1, "atoms_m": 1}

CASES: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "rows of B along k": ("matmul", {**PRODUCT, "transpose_b": True}, {}),
    "rows of B along n": ("matmul", PRODUCT, {"ctas_per_sm": 2}),
    "B is multicast": ("matmul", {**PRODUCT, "transpose_b": True}, {"cluster_m": 2, "mma_n": 80}),
    "CTAs of a cluster keep different columns": ("matmul", PRODUCT, {"cluster_n": 2, "mma_n": 64}),
    "more k iterations than stages": ("matmul", {**PRODUCT, "k": 1000, "transpose_b": True}, {"mma_n": 80}),
    "two accumulators": (
        "gated_linear",
        {"rows": 300, "inputs": 136, "outputs": 72, **F16},
        {"mma_n": 160},
    ),
    "promoted": (
        "scaled_matmul",
        {"m": 300, "n": 72, "k": 400, "scales": "block", "result": "float32"},
        {"mma_n": 80},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    operator, parameters, knobs = CASES[case]
    workload = workload_of(operator, **parameters)
    schedule = legal_schedule_of(CUDA_GEMM, workload, FEW, **RESIDENT, **knobs)
    assert_computes(finish(CUDA_GEMM.lower(workload, FEW, schedule), FEW), workload)


def test_b_takes_a_stage_for_each_k_iteration_and_leaves_the_others_to_a() -> None:
    workload = workload_of("matmul", **{**PRODUCT, "m": 100_000}, transpose_b=True)
    knobs = {**RESIDENT, "mma_n": 80, "k_atoms": 1, "epilogue_stages": 0, "ctas_per_sm": 1, "cluster_m": 1}
    staged = []
    for resident in (0, 1):
        schedule = legal_schedule_of(CUDA_GEMM, workload, **{**knobs, "resident_b": resident})
        kernel = finish(CUDA_GEMM.lower(workload, H200, schedule), H200)
        launch = backend_for(H200).emit(kernel, H200).launches[0]
        said = CUDA_GEMM.derive(workload, H200, [schedule])
        assert 0 <= int(said["shared_bytes"][0]) - launch.shared_bytes <= 64
        held = {s.buffer.name: s.buffer.shape[0] for s in walk_statements(kernel.body) if isinstance(s, Allocate)}
        assert held["a"] == held["full"] == int(said["stages"][0])
        staged.append((held["a"], held["b"]))
    assert staged == [(12, 12), (12, 4)]


def test_pointwise_convolutions_of_few_channels_keep_their_filters() -> None:
    """All that is promising does, where CTAs have several tiles, and the prior ranks it first."""
    space = CUDA_GEMM.space(POINTWISE, H200)
    assert space.prior_seconds is not None
    assert space.column("resident_b")[np.argmin(space.prior_seconds)] == 1
    legal = CUDA_GEMM.space(POINTWISE, H200, policy=EVERY_LEGAL)
    for row in np.flatnonzero(np.asarray(space.column("resident_b")) == 0).tolist():
        schedule = space.schedule(row)
        twin = Schedule.of(schedule.sketch, schedule.version, {**dict(schedule.knobs), "resident_b": 1})
        assert legal.row_of(twin) is None


MEASURED: Mapping[tuple[int, int, int, int], float] = {
    (3, 4, 2, 1): 14.1,
    (1, 1, 2, 1): 17.0,
    (3, 4, 2, 0): 18.9,
    (2, 4, 2, 0): 22.4,
    (1, 1, 1, 1): 22.9,
    (3, 2, 2, 0): 23.6,
    (2, 2, 2, 0): 29.6,
    (3, 1, 2, 0): 31.5,
    (2, 1, 2, 0): 41.0,
    (1, 1, 2, 0): 69.0,
}
"""consumer_warpgroups, cluster_m, ctas_per_sm, resident_b -> microseconds of ``POINTWISE`` on an H200."""


def test_the_prior_knows_what_lines_cost_that_all_ctas_ask_for() -> None:
    names = ("consumer_warpgroups", "cluster_m", "ctas_per_sm", "resident_b")
    plain = {"ping_pong": 0, "atoms_m": 1, "mma_n": 32, "cluster_n": 1, "epilogue_stages": 1, "producer_warpgroup": 0}
    schedules = [
        legal_schedule_of(CUDA_GEMM, POINTWISE, **plain, **dict(zip(names, setting, strict=True)))
        for setting in MEASURED
    ]
    prior, measured = CUDA_GEMM.prior_seconds(POINTWISE, H200, schedules), np.array(list(MEASURED.values()))
    assert int(prior.argmin()) == 0
    agreeing = [
        (prior[a] < prior[b]) == (measured[a] < measured[b])
        for a in range(len(measured))
        for b in range(a)
        if abs(measured[a] - measured[b]) > 3
    ]
    assert np.mean(agreeing) >= 0.9


@pytest.mark.parametrize(
    "other", [{"ping_pong": 1, "consumer_warpgroups": 2}, {"stream_k": 1}, {"mma_n": 32}], ids=["a", "b", "c"]
)
def test_tiles_of_other_columns_are_refused(other: Mapping[str, int]) -> None:
    workload = workload_of("matmul", **PRODUCT)
    plain = dict(legal_schedule_of(CUDA_GEMM, workload, FEW, resident_b=0, cluster_n=1, cluster_m=1, **other).knobs)
    with pytest.raises(IllegalSchedule, match="with resident_b a CTA has several tiles"):
        CUDA_GEMM.lower(workload, FEW, Schedule.of("cuda_gemm", CUDA_GEMM.version, {**plain, "resident_b": 1}))
