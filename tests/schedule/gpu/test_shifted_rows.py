"""Products whose operands have rows that begin anywhere, without a copy of them: values, resources, what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.golden import check_golden
from tests.schedule.gpu.tiles import H200, WHOLE, assert_schedule_agrees, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.errors import IllegalSchedule, KernelFault
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Target
from tilewright.ir.gpu.fence import AsyncProxyFence
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import map_statements
from tilewright.ir.stmt import Seq, Stmt
from tilewright.schedule.gpu.gemm.row_reduction_space import CUDA_GEMM_ROW_REDUCTION
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM as SKETCH
from tilewright.schedule.sketch import Sketch
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
PLAIN: Mapping[str, KnobValue] = {"repacked": 0, "consumer_warpgroups": 1, "atoms_m": 1, "mma_n": 80, "k_atoms": 1}
TF32 = {"dtype": "float32", "precision": "tf32"}
NEAREST = """
N: float32[75]
A: float16[70, 77]
B: float16[75, 77]
D[i < 70, j < 75] = sum over k < 77 of float32(A[i, k]) * float32(B[j, k])
M[i] = min over j < 75 of N[j] - 2 * D[i, j]
"""
CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, KnobValue]]] = {
    "A, odd": ({"m": 131, "n": 72, "k": 137}, {}),
    "A, even, whole vectors": ({"m": 136, "n": 72, "k": 138}, {"k_atoms": 2}),
    "A, pairs of pairs, many tiles": ({"m": 300, "n": 200, "k": 140}, {"consumer_warpgroups": 2, "cluster_m": 2}),
    "B, odd": ({"m": 136, "n": 75, "k": 72}, {"cluster_n": 2, "mma_n": 48}),
    "B, pairs": ({"m": 72, "n": 90, "k": 64}, {"mma_n": 96}),
    "A and B along n": ({"m": 70, "n": 75, "k": 77}, {"ctas_per_sm": 2}),
    "A and B along k": ({"m": 70, "n": 75, "k": 141, "transpose_b": True, "dtype": "bfloat16"}, {"k_atoms": 4}),
    "A, and a small B is copied": ({"m": 650, "n": 75, "k": 77, "transpose_b": True}, {"mma_n": 80}),
    "A along m, B along n": ({"m": 131, "n": 75, "k": 70, "transpose_a": True}, {"atoms_m": 2}),
    "A along m, B along k": ({"m": 69, "n": 80, "k": 67, "transpose_a": True, "transpose_b": True}, {}),
    "B of whole rows": ({"m": 300, "n": 72, "k": 131}, {"resident_b": 1}),
    "B of odd rows stays": ({"m": 300, "n": 71, "k": 131, "transpose_b": True}, {"resident_b": 1}),
    "wide tiles": ({"m": 131, "n": 250, "k": 77, "transpose_b": True}, {"mma_n": 256, "consumer_warpgroups": 2}),
    "TF32, A and B along k": ({"m": 131, "n": 75, "k": 37, "transpose_b": True, **TF32}, {"k_atoms": 2}),
    "TF32, A along k, B packed": ({"m": 131, "n": 75, "k": 37, **TF32}, {}),
    "bias": ({"m": 72, "n": 71, "k": 77, "bias": True, "activation": "relu"}, {}),
}


def _schedule(workload: Workload, target: Target, **knobs: KnobValue) -> Schedule:
    return legal_schedule_of(SKETCH, workload, target, **{**PLAIN, **knobs})


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    parameters, knobs = CASES[case]
    workload = workload_of("matmul", **{"dtype": "float16", **parameters})
    schedule = _schedule(workload, FEW, **knobs)
    copies = [b.name for b in SKETCH.lower(workload, FEW, schedule).workspace]
    assert copies == (["B_repacked"] if "small B" in case else ["B_packed"] if "packed" in case else [])
    assert_schedule_agrees(SKETCH, workload, schedule, FEW)


@pytest.mark.parametrize(
    ("sketch", "workload"),
    [
        (SKETCH, workload_of("batch_matmul", batch=3, m=72, n=80, k=77, dtype="bfloat16", transpose_b=True)),
        (SKETCH, workload_of("batch_matmul", batch=5, m=68, n=75, k=1101, dtype="float16")),
        (SKETCH, workload_of("gated_linear", rows=200, inputs=137, outputs=152, dtype="float16")),
        (CUDA_GEMM_ROW_REDUCTION, parse_workload(NEAREST)),
    ],
    ids=["batch", "batch along n", "two accumulators", "reduced rows"],
)
def test_batches_several_products_and_reduced_rows_need_no_copy_either(sketch: Sketch, workload: Workload) -> None:
    schedule = legal_schedule_of(sketch, workload, FEW, repacked=0)
    assert_schedule_agrees(sketch, workload, schedule, FEW)


def test_what_lies_beyond_a_row_is_not_multiplied() -> None:
    """Infinities of the next row, and of the last elements of a tensor, stay in their rows."""
    workload = workload_of("matmul", m=70, n=72, k=77, dtype="float16")
    inputs = random_inputs(workload, 1)
    inputs["A"][[3, 69], [0, 76]] = np.inf
    kernel = SKETCH.lower(workload, FEW, _schedule(workload, FEW))
    found = np.isfinite(interpret(finish(kernel, FEW), inputs)["C"]).all(axis=1)
    assert np.flatnonzero(~found).tolist() == [3, 69]


def test_threads_fence_what_they_copy() -> None:
    workload = workload_of("matmul", m=70, n=72, k=77, dtype="float16")
    kernel = finish(SKETCH.lower(workload, FEW, _schedule(workload, FEW, epilogue_stages=0)), FEW)

    def unfenced(stmt: Stmt) -> Stmt:
        return Seq(()) if isinstance(stmt, AsyncProxyFence) else stmt

    with pytest.raises(KernelFault, match="no async_proxy_fence"):
        interpret(replace(kernel, body=map_statements(kernel.body, unfenced)), random_inputs(workload, 1))


def test_a_schedule_of_before_repacks() -> None:
    workload = workload_of("matmul", m=300, n=72, k=203, dtype="float16")
    repacked = legal_schedule_of(SKETCH, workload, H200, repacked=1)
    before = Schedule.of("cuda_gemm", SKETCH.version, {k: v for k, v in repacked.knobs if k != "repacked"})
    assert len(SKETCH.lower(workload, H200, before).workspace) == 1


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (workload_of("matmul", m=300, n=512, k=203, dtype="float16"), {"producer_warpgroup": 0}),
        (workload_of("matmul", m=300, n=512, k=203, dtype="float16"), {"cluster_n": 2}),
        (workload_of("matmul", m=300, n=512, k=203, dtype="float16"), {"ping_pong": 1}),
        (workload_of("matmul", m=512, n=203, k=512, dtype="float16"), {"cluster_m": 2}),
        (workload_of("matmul", m=300, n=512, k=203, precision="tf32x3"), {}),
        (workload_of("matmul", m=301, n=512, k=200, transpose_a=True, transpose_b=True, precision="tf32"), {}),
        (workload_of("scaled_matmul", m=300, n=512, k=203), {}),
    ],
    ids=str,
)
def test_what_is_refused(workload: Workload, knobs: Mapping[str, KnobValue]) -> None:
    legal = legal_schedule_of(SKETCH, workload, H200, producer_warpgroup=1, cluster_m=1, cluster_n=1, split_k=1)
    wanted = {**dict(legal.knobs), "repacked": 0, **knobs}
    with pytest.raises(IllegalSchedule):
        SKETCH.lower(workload, H200, Schedule.of("cuda_gemm", SKETCH.version, wanted))


@pytest.mark.parametrize(
    "parameters",
    [
        {"m": 65536, "n": 64, "k": 999},
        {"m": 65536, "n": 64, "k": 999, "transpose_b": True},
        {"m": 8192, "n": 512, "k": 2049},
        {"m": 4096, "n": 1001, "k": 512, "transpose_a": True},
        {"m": 4000000, "n": 64, "k": 999},
    ],
    ids=str,
)
def test_the_best_without_a_copy_by_the_prior_compiles_without_spills(parameters: Mapping[str, int]) -> None:
    workload = workload_of("matmul", **parameters, dtype="float16")
    space = SKETCH.space(workload, H200, limit=100_000)
    assert space.prior_seconds is not None
    best = np.where(space.column("repacked") == 0, space.prior_seconds, np.inf).argmin()
    schedule = space.schedule(int(best))
    assert schedule["repacked"] == 0
    kernel = SKETCH.lower(workload, H200, schedule)
    launches = build_kernel(kernel, H200).resources.values()  # refuses what spills
    assert all(resources.stack_bytes == 0 for resources in launches)
    backend = backend_for(H200)
    code = backend.assembly(backend.emit(finish(kernel, H200), H200), H200)
    assert "LDG.E.128" in code and "HGMMA" in code


def test_short_results_gain_and_long_sums_of_many_tiles_do_not() -> None:
    """The prior weighs the copy against what threads take to shift rows."""

    def gain(**sides: int) -> float:
        workload = workload_of("matmul", **sides, dtype="float16")
        space = SKETCH.space(workload, H200, policy=WHOLE, limit=50_000)
        assert space.prior_seconds is not None
        repacked = space.column("repacked") == 1
        return float(space.prior_seconds[repacked].min() / space.prior_seconds[~repacked].min())

    assert gain(m=65536, n=64, k=999) > 1.5 and gain(m=4096, n=4096, k=4097) < 1


def test_the_kernel_of_one() -> None:
    workload = workload_of("matmul", m=20000, n=128, k=1001, dtype="float16")
    tile = {"consumer_warpgroups": 1, "atoms_m": 2, "mma_n": 128, "k_atoms": 1, "epilogue_stages": 2}
    kernel = SKETCH.lower(workload, H200, _schedule(workload, H200, **tile))
    check_golden("schedule/golden/cuda_gemm_shifted_rows.cu", backend_for(H200).emit(finish(kernel, H200), H200).text)
