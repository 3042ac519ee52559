"""Products of heads that share keys and values in groups: classes take them, and their kernels compute them."""

import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees
from tests.sketch_agreement import check_schedules
from tilewright.core.target import Target
from tilewright.schedule.problems.gemm import gemm_of
from tilewright.schedule.sketches import class_sketches
from tilewright.te.parse import parse_workload

PROCESSOR = Target("llvm", "x86-64", ("avx2", "f16c", "fma"), threads=2, vector_bytes=32)
SCORES = "T[b, h < 8, k] = sum over d < 64 of float32(Q[b, h, d]) * float32(K[b, k, h // 4, d])"
PRODUCTS = {
    "scores of a token": f"Q: float16[2, 8, 64]\nK: float16[2, 96, 2, 64]\n{SCORES}",
    "scaled": f"Q: float16[2, 8, 64]\nK: float16[2, 96, 2, 64]\n{SCORES}\nS[b, h, k] = float16(T[b, h, k] * 0.1)",
    "float32": f"Q: float32[2, 8, 64]\nK: float32[2, 96, 2, 64]\n{SCORES}",
    "values": "P: float16[2, 8, 96]\nV: float16[2, 96, 2, 64]\n"
    "O[b, h < 8, d] = sum over k < 96 of float32(P[b, h, k]) * float32(V[b, k, h // 4, d])",
    "scores": "Q: float16[2, 40, 8, 64]\nK: float16[2, 96, 2, 64]\n"
    "S[b, h < 8, q, k] = sum over d < 64 of float32(Q[b, q, h, d]) * float32(K[b, k, h // 4, d])",
    "values, heads last": "P: float16[2, 8, 40, 96]\nV: float16[2, 96, 2, 64]\n"
    "O[b, q, h < 8, d] = sum over k < 96 of float32(P[b, h, q, k]) * float32(V[b, k, h // 4, d])",
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = parse_workload(PRODUCTS[case])
    found = {s.name: assert_agrees(s, workload, 2, policy=EVERY_LEGAL) for s in class_sketches(workload, H200)}
    assert found["cuda_gemm_simt" if case == "float32" else "cuda_gemm"] == 2
    for sketch in class_sketches(workload, PROCESSOR):
        assert check_schedules(sketch.name, PROCESSOR, workload, 1, 2, EVERY_LEGAL) == 2


def test_rows_are_queries_of_a_head_or_the_heads_of_a_group() -> None:
    token, queries = (gemm_of(parse_workload(PRODUCTS[case])) for case in ("scores of a token", "values, heads last"))
    assert token is not None and [a.extent for a in (*token.batch, token.m, token.n)] == [2, 2, 4, 96]
    assert queries is not None and [a.extent for a in (*queries.batch, queries.m, queries.n)] == [2, 2, 4, 40, 64]
