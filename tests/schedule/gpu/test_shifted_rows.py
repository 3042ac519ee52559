"""Products whose operands have rows that begin anywhere, without a copy of them: values, resources, what is refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.schedule.gpu.tiles import assert_schedule_agrees, legal_schedule_of, workload_of
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Target
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM as SKETCH
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
PLAIN: Mapping[str, KnobValue] = {"repacked": 0, "consumer_warpgroups": 1, "atoms_m": 1, "mma_n": 80, "k_atoms": 1}
CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, KnobValue]]] = {
    "A, odd": ({"m": 131, "n": 72, "k": 137}, {}),
    "A, even, whole vectors": ({"m": 136, "n": 72, "k": 138}, {"k_atoms": 2}),
    "A, pairs of pairs, many tiles": ({"m": 300, "n": 200, "k": 140}, {"consumer_warpgroups": 2, "cluster_m": 2}),
    "B, odd": ({"m": 136, "n": 75, "k": 72}, {"cluster_n": 2, "mma_n": 48}),
    "B, pairs": ({"m": 72, "n": 90, "k": 64}, {"mma_n": 96}),
    "A and B along n": ({"m": 70, "n": 75, "k": 77}, {"ctas_per_sm": 2}),
    "A and B along k": ({"m": 70, "n": 75, "k": 141, "transpose_b": True, "dtype": "bfloat16"}, {"k_atoms": 4}),
    "A along m, B along n": ({"m": 131, "n": 75, "k": 70, "transpose_a": True}, {"atoms_m": 2}),
    "A along m, B along k": ({"m": 69, "n": 80, "k": 67, "transpose_a": True, "transpose_b": True}, {}),
    "B of whole rows": ({"m": 300, "n": 72, "k": 131}, {"resident_b": 1}),
    "B of odd rows stays": ({"m": 300, "n": 71, "k": 131, "transpose_b": True}, {"resident_b": 1}),
    "ping-pong": ({"m": 520, "n": 72, "k": 75}, {"consumer_warpgroups": 2, "ping_pong": 1}),
    "wide tiles": ({"m": 131, "n": 250, "k": 77, "transpose_b": True}, {"mma_n": 256, "consumer_warpgroups": 2}),
    "bias": ({"m": 72, "n": 71, "k": 77, "bias": True, "activation": "relu"}, {}),
}


def _schedule(workload: Workload, target: Target, **knobs: KnobValue) -> Schedule:
    return legal_schedule_of(SKETCH, workload, target, **{**PLAIN, **knobs})


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    parameters, knobs = CASES[case]
    workload = workload_of("matmul", **{"dtype": "float16", **parameters})
    schedule = _schedule(workload, FEW, **knobs)
    copies = [b for b in SKETCH.lower(workload, FEW, schedule).workspace if "repacked" in b.name]
    assert not copies
    assert_schedule_agrees(SKETCH, workload, schedule, FEW)
