"""Scatters: what the class takes, what its kernels compute, and in which order they add terms."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, legal_schedule_of, schedule_of
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.ir.interpret import interpret
from tilewright.schedule.gpu.scatter.kernel import scatter_kernel
from tilewright.schedule.gpu.scatter.private_space import CUDA_SCATTER_PRIVATE as PRIVATE
from tilewright.schedule.gpu.scatter.space import CUDA_SCATTER as SKETCH
from tilewright.schedule.gpu.scatter.space import ScatterPlan
from tilewright.schedule.problems.scatter import scatter_problem
from tilewright.schedule.sketches import sketches_for
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload

CASES = {
    "embedding": "I: int64[300]\nD: float16[300, 24]\n"
    "S[v < 70, d] = sum over i < 300 of select(I[i] == v, float32(D[i, d]), 0.0)\nG[v, d] = float16(S[v, d])",
    "many elements": "I: int32[600]\nD: float32[600, 12]\n"
    "G[v < 1100, d] = sum over i < 600 of select(int64(I[i]) == v, D[i, d], 0.0)",
    "histogram": "I: uint8[1000]\nH[b < 16] = sum over i < 1000 of select(int64(I[i]) == b, 1.0, 0.0)",
    "weights": "I: int32[5, 199]\nW: float16[5, 199]\nH[b < 50] = sum over i < 5, j < 199 of "
    "select(int64(I[i, j]) == b, float32(W[i, j]) * float32(b + 1), 0.0)\nY[b] = H[b] * 0.5",
    "rows of pixels": "I: uint8[3, 40, 8]\nH[n, b < 256] = max over i < 40, j < 8 of "
    "select(int64(I[n, i, j]) == b, int32(i), -2147483648i32)",
    "graph": "S: int32[400]\nT: int32[400]\nB: float32[400]\nX: float32[90, 3, 8]\n"
    "Y[v < 90, h, d] = sum over e < 400 of "
    "select(int64(T[e]) == v, X[min(max(int64(S[e]), 0), 89), h, d] * B[e], 0.0)",
    "batches of pairs": "I: int64[3, 10, 9]\nJ: int64[3, 10, 9]\nD: float32[3, 10, 9, 5]\n"
    "G[n < 3, v < 4, w < 3, d < 5] = sum over i < 10, j < 9 of "
    "select(I[n, i, j] == v and J[n, i, j] == w and j > 1, D[n, i, j, d], 0.0)",
    "greatest": "I: int64[300]\nD: float32[300, 2]\n"
    "G[d < 2, v < 40] = max over i < 300 of select(I[i] == v, D[i, d], -inf)",
}

FEW = {"histogram", "weights", "rows of pixels"}
"""Those to few elements, which threads may have copies of."""


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = parse_workload(CASES[case])
    sketches = sketches_for(workload, H200)
    assert [s.name for s in sketches] == ["cuda_scatter", "cuda_scatter_private"][: 2 if case in FEW else 1]
    assert all(assert_agrees(sketch, workload, 6, policy=WHOLE) == 6 for sketch in sketches)


@pytest.mark.parametrize("case", CASES)
def test_kernels_compile(case: str) -> None:
    workload = parse_workload(CASES[case])
    for sketch, launches in zip(sketches_for(workload, H200), (3, 2), strict=False):
        kernel = build_kernel(sketch.lower(workload, H200, schedule_of(sketch, workload)), H200)
        assert len(kernel.resources) >= launches and all(r.spill_bytes == 0 for r in kernel.resources.values())


def _added(values: Sequence[NDArray[np.float32]], groups: int) -> NDArray[np.float32]:
    """Sums of neighbouring values, added up in their order."""
    each = -(-len(values) // groups)
    parts = [values[n * each : (n + 1) * each] for n in range(groups)]
    zero = np.zeros_like(values[0])
    return functools.reduce(np.add, [functools.reduce(np.add, part, zero) for part in parts])


@pytest.mark.parametrize(("terms", "elements", "rows"), [(300, 20, 1), (300, 20, 4), (4500, 1100, 4)])
def test_terms_are_added_in_a_fixed_order(terms: int, elements: int, rows: int) -> None:
    """Most belong to one element, whose bucket takes several rounds, and some to none. So sums have the bits of those
    of a loop over all terms; but that element is shared by all threads of its block, if these have others."""
    workload = parse_workload(
        f"I: int32[{terms}]\nD: float32[{terms}, 32]\n"
        f"G[v < {elements}, d] = sum over i < {terms} of select(int64(I[i]) == v, D[i, d], 0.0)"
    )
    inputs = random_inputs(workload, 1)
    place = inputs["I"].copy()
    place[np.arange(terms) % 7 > 0] = 11
    place[::9] = -1
    place[::10] = elements
    knobs = {"splits": 1, "unroll": 2, "rows_per_cta": rows, "vector_width": 1, "vectors": 1}
    schedule = legal_schedule_of(SKETCH, workload, **knobs, threads_per_row=32)
    got = interpret(finish(SKETCH.lower(workload, H200, schedule), H200), {**inputs, "I": place})["G"]
    for element in range(elements):
        own = [inputs["D"][i] for i in np.flatnonzero(place == element)]
        wanted = _added(own, rows if len(own) > 32 else 1) if own else np.zeros(32, np.float32)
        np.testing.assert_array_equal(got[element], wanted)


def test_blocks_share_terms_of_an_element_where_these_are_many() -> None:
    """An element of random inputs never has many terms, so that no measurement would ask for it."""
    text = "I: int64[{0}]\nD: float32[{0}, 64]\nG[v < 5000, d] = sum over i < {0} of select(I[i] == v, D[i, d], 0.0)"
    for terms, shared in ((1000, 0), (20_000, 1)):
        space = SKETCH.space(parse_workload(text.format(terms)), H200)
        assert len(space) and set(space.column("split_rows").tolist()) == {shared}


def test_a_key_beyond_what_buckets_hold_is_left_to_others() -> None:
    text = "I: int64[300]\nG[v < {0}] = sum over i < 300 of select(I[i] == v, 1.0, 0.0)"
    assert SKETCH.matches(parse_workload(text.format(1 << 20)), H200)
    assert not SKETCH.matches(parse_workload(text.format((1 << 20) + 1)), H200)


def test_counts_of_threads_are_exact_and_begin_anywhere() -> None:
    """All terms are of one element, or of none."""
    workload = parse_workload("I: int32[5000]\nH[b < 9] = sum over i < 5000 of select(int64(I[i]) == b, 1.0, 0.0)")
    index = np.where(np.arange(5000) % 3 > 0, 8, -4).astype(np.int32)
    small = replace(H200, threads=4)
    for width, unroll, sms in ((4, 4, 1), (8, 1, 2), (1, 2, 8)):
        schedule = legal_schedule_of(PRIVATE, workload, small, vector_width=width, unroll=unroll, ctas_per_sm=sms)
        got = interpret(finish(PRIVATE.lower(workload, small, schedule), small), {"I": index})["H"]
        np.testing.assert_array_equal(got, [0] * 8 + [3333])


def test_chunks_that_take_several_rounds_are_sorted() -> None:
    """They do from 262,144 terms on; here there are fewer chunks."""
    text = "I: int32[9000]\nD: float32[9000]\nH[b < 50] = sum over i < 9000 of select(int64(I[i]) == b, D[i], 0.0)"
    workload = parse_workload(text)
    problem, schedule = scatter_problem(workload), schedule_of(SKETCH, workload)
    assert problem is not None
    plan = ScatterPlan(problem, H200)
    sizes = replace(plan.sizes_of(dict(schedule.knobs)), chunks=2)
    place, values = random_inputs(workload, 1)["I"], np.arange(9000, dtype=np.float32) % 8
    got = interpret(finish(scatter_kernel(problem, sizes), H200), {"I": place, "D": values})["H"]
    np.testing.assert_array_equal(got, np.bincount(place, values, 50))


@pytest.mark.parametrize(("elements", "rows", "splits"), [(20, 1, 4), (1100, 4, 1), (300, 1, 1)])
def test_pieces_of_an_element_make_its_sum(elements: int, rows: int, splits: int) -> None:
    """Whole numbers, whose sums are exact in any order. Most terms are of two neighbouring elements, some of none."""
    workload = parse_workload(
        f"I: int32[4500]\nD: float32[4500, 32]\n"
        f"G[v < {elements}, d] = sum over i < 4500 of select(int64(I[i]) == v, D[i, d], 0.0)"
    )
    draw = np.random.default_rng(1)
    place = draw.choice(np.asarray([-1, 11, 12, *range(elements)], np.int32), 4500)
    place[np.arange(4500) % 5 > 0] = 11
    place[np.arange(4500) % 5 == 2] = 12
    values = draw.integers(-9, 10, (4500, 32)).astype(np.float32)
    knobs = {"splits": splits, "unroll": 2, "rows_per_cta": rows, "vector_width": 1, "vectors": 1}
    schedule = legal_schedule_of(SKETCH, workload, **knobs, threads_per_row=32, split_rows=1)
    kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
    wanted = np.zeros((elements + 1, 32), np.float32)
    np.add.at(wanted, place, values)
    np.testing.assert_array_equal(interpret(kernel, {"I": place, "D": values})["G"], wanted[:elements])
