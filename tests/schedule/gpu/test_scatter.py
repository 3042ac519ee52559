"""Scatters: what the class takes, what its kernels compute, and that equal inputs give equal bits."""

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, legal_schedule_of, schedule_of
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.ir.interpret import interpret
from tilewright.schedule.gpu.scatter.space import CUDA_SCATTER as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload

CASES = {
    "embedding": "I: int64[300]\nD: float16[300, 24]\n"
    "S[v < 70, d] = sum over i < 300 of select(I[i] == v, float32(D[i, d]), 0.0)\nG[v, d] = float16(S[v, d])",
    "many elements": "I: int32[900]\nD: float32[900, 12]\n"
    "G[v < 1500, d] = sum over i < 900 of select(int64(I[i]) == v, D[i, d], 0.0)",
    "histogram": "I: uint8[1000]\nH[b < 16] = sum over i < 1000 of select(int64(I[i]) == b, 1.0, 0.0)",
    "graph": "S: int32[400]\nT: int32[400]\nB: float32[400]\nX: float32[90, 3, 8]\n"
    "Y[v < 90, h, d] = sum over e < 400 of "
    "select(int64(T[e]) == v, X[min(max(int64(S[e]), 0), 89), h, d] * B[e], 0.0)",
    "batches of pairs": "I: int64[3, 10, 9]\nJ: int64[3, 10, 9]\nD: float32[3, 10, 9, 5]\n"
    "G[n < 3, v < 4, w < 3, d < 5] = sum over i < 10, j < 9 of "
    "select(I[n, i, j] == v and J[n, i, j] == w and j > 1, D[n, i, j, d], 0.0)",
    "greatest": "I: int64[300]\nD: float32[300, 2]\n"
    "G[d < 2, v < 40] = max over i < 300 of select(I[i] == v, D[i, d], -inf)",
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = parse_workload(CASES[case])
    assert [s.name for s in sketches_for(workload, H200)] == ["cuda_scatter"]
    assert assert_agrees(SKETCH, workload, 6, policy=WHOLE) == 6


@pytest.mark.parametrize("case", CASES)
def test_kernels_compile(case: str) -> None:
    workload = parse_workload(CASES[case])
    kernel = build_kernel(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload)), H200)
    assert len(kernel.resources) >= 3 and all(r.spill_bytes == 0 for r in kernel.resources.values())


@pytest.mark.parametrize(("terms", "elements"), [(300, 20), (2500, 1100), (4500, 1100)])
def test_terms_are_added_in_their_order(terms: int, elements: int) -> None:
    """Most belong to one element, whose bucket takes several rounds, and some to none. So the sums have the bits of
    those of a loop over all terms."""
    workload = parse_workload(
        f"I: int32[{terms}]\nD: float32[{terms}]\n"
        f"G[v < {elements}] = sum over i < {terms} of select(int64(I[i]) == v, D[i], 0.0)"
    )
    inputs = random_inputs(workload, 1)
    index = inputs["I"].copy()
    index[np.arange(terms) % 7 > 0] = 11
    index[::9] = -1
    index[::10] = elements
    schedule = legal_schedule_of(SKETCH, workload, splits=1, unroll=4)
    got = interpret(finish(SKETCH.lower(workload, H200, schedule), H200), {**inputs, "I": index})["G"]
    wanted = np.zeros(elements, np.float32)
    for i, value in zip(index, inputs["D"], strict=True):
        if 0 <= i < elements:
            wanted[i] += value
    np.testing.assert_array_equal(got, wanted)


def test_a_key_beyond_what_buckets_hold_is_left_to_others() -> None:
    text = "I: int64[300]\nG[v < {0}] = sum over i < 300 of select(I[i] == v, 1.0, 0.0)"
    assert SKETCH.matches(parse_workload(text.format(1 << 20)), H200)
    assert not SKETCH.matches(parse_workload(text.format((1 << 20) + 1)), H200)
