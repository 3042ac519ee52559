"""Scatters: what the class takes, what its kernels compute, and in which order they add terms."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, legal_schedule_of, schedule_of
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.ir.interpret import interpret
from tilewright.schedule.gpu.scatter.atomic_space import CUDA_SCATTER_ATOMIC as ATOMIC
from tilewright.schedule.gpu.scatter.in_place import in_place_reduction
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
WIDE = {"embedding", "graph"}
"""Those whose terms are rows of many numbers."""


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = parse_workload(CASES[case])
    sketches = sketches_for(workload, H200)
    others = ["cuda_scatter_private"] * (case in FEW) + ["cuda_scatter_atomic"] * (case not in WIDE)
    assert [s.name for s in sketches] == ["cuda_scatter", *others]
    assert all(assert_agrees(sketch, workload, 4, policy=WHOLE) == 4 for sketch in sketches)


@pytest.mark.parametrize("case", CASES)
def test_kernels_compile(case: str) -> None:
    workload = parse_workload(CASES[case])
    for sketch in sketches_for(workload, H200):
        kernel = build_kernel(sketch.lower(workload, H200, schedule_of(sketch, workload)), H200)
        assert len(kernel.resources) >= (3 if sketch is SKETCH else 2) and all(
            r.spill_bytes == 0 for r in kernel.resources.values()
        )


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


SUM = "I: int32[{0}]\nD: {2}[{0}]\nG[v < {1}] = sum over i < {0} of select(int64(I[i]) == v, {3}, 0.0)"


def _reduced(text: str, inputs: Mapping[str, NDArray[Any]], **knobs: int) -> NDArray[Any]:
    """The output of a kernel whose terms are reduced in memory."""
    workload = parse_workload(text)
    kernel = finish(ATOMIC.lower(workload, H200, legal_schedule_of(ATOMIC, workload, **knobs)), H200)
    (output,) = interpret(kernel, inputs).values()
    return output


@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_in_memory_are_exact_and_depend_on_no_order(dtype: str, copies: int) -> None:
    """Floats of all exponents, with a few that are infinite or NaN. Sums are rounded once, in whatever order."""
    draw = np.random.default_rng(1)
    place = draw.integers(-1, 40, 3000, np.int32)
    bits = draw.integers(0, 1 << 16, 3000, np.uint32)
    source = parse_workload(SUM.format(3000, 40, dtype, "float32(D[i])")).inputs[1].dtype.numpy
    values = (bits << 16).view(np.float32) if dtype == "float32" else bits.astype(np.uint16).view(source)
    values[~np.isfinite(values.astype(np.float32))] = 3
    place[:5] = 1, 2, 2, 3, 4
    values[:5] = np.nan, np.inf, -np.inf, -np.inf, np.inf
    values[place == 14] = -0.0
    values[(place > 14) & (place < 18)] = np.asarray([3e-5, -6e-8, 65504])[place[(place > 14) & (place < 18)] - 15]
    text = SUM.format(3000, 40, dtype, "D[i]" if dtype == "float32" else "float32(D[i])")
    order = draw.permutation(3000)
    got = _reduced(text, {"I": place, "D": values}, copies=copies, threads=128)
    again = _reduced(text, {"I": place[order], "D": values[order]}, copies=0, threads=256)
    np.testing.assert_array_equal(got.view(np.int32), again.view(np.int32))
    for v in range(40):
        own = values[place == v].astype(np.float64)
        wanted = math.fsum(own) if np.isfinite(own).all() else (np.nan, np.nan, -np.inf, np.inf)[v - 1]
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got[v], np.float32(wanted))


@pytest.mark.parametrize("copies", [0, 1])
def test_one_place_takes_all_terms(copies: int) -> None:
    """The largest terms, as many as there are: no sum of 64 bits overflows."""
    place, values = np.zeros(4096, np.int32), np.full(4096, np.float32(15.999999), np.float32)
    got = _reduced(SUM.format(4096, 3, "float32", "D[i]"), {"I": place, "D": -values}, copies=copies)
    np.testing.assert_array_equal(got, np.asarray([values[0] * -4096, 0, 0], np.float32))


@pytest.mark.parametrize("op", ["max", "min"])
def test_the_greatest_and_the_least_in_memory(op: str) -> None:
    """NaN is the result wherever it is among the terms; an element without terms has the identity."""
    draw, worst = np.random.default_rng(2), "-inf" if op == "max" else "inf"
    place = draw.integers(0, 30, 2000, np.int32)
    values = draw.standard_normal(2000).astype(np.float32)
    values[place == 4] = np.abs(values[place == 4])
    values[place == 5] = -np.abs(values[place == 5])
    values[(place == 6) & (values > 0)] = np.nan
    place[place == 7] = -3
    text = "I: int32[2000]\nD: float32[2000]\n"
    text += f"G[v < 30] = {op} over i < 2000 of select(int64(I[i]) == v, D[i], {worst})"
    wanted = [getattr(np, op)(values[place == v], initial=float(worst)) for v in range(30)]
    for copies in (0, 4):
        got = _reduced(text, {"I": place, "D": values}, copies=copies)
        np.testing.assert_array_equal(got, np.asarray(wanted, np.float32))


def test_what_is_reduced_in_memory() -> None:
    """Products, and sums of float64, depend on the order. Equal terms are counted."""
    text = "I: int32[600]\nD: {0}[600]\nG[v < 40] = {1} over i < 600 of select(int64(I[i]) == v, {2})"
    for dtype, reducer, term in (
        ("float64", "sum", "D[i], 0.0f64"),
        ("float32", "prod", "D[i], 1.0"),
    ):
        assert not ATOMIC.matches(parse_workload(text.format(dtype, reducer, term)), H200)
    for dtype, term, count in (
        ("float64", "0.5f64, 0.0f64", 1),
        ("int64", "D[i], 0", 1),
        ("float16", "float32(D[i]), 0.0", 2),
        ("uint8", "float32(D[i]), 0.0", 1),
        ("float32", "D[i], 0.0", 11),
        ("float16", "float32(D[i]) * 0.3, 0.0", 11),
    ):
        problem = scatter_problem(parse_workload(text.format(dtype, "sum", term)))
        assert problem is not None
        how = in_place_reduction(problem)
        assert how is not None and how.count == count, term


def test_counts_are_the_output_itself() -> None:
    """A launch that only converts what is counted is left out where nothing is to be converted."""
    place = np.random.default_rng(3).integers(-2, 45, 3000, np.int32)
    inside = place[(place >= 0) & (place < 40)]
    for term, weights, launches in (
        ("int64(I[i]), 0", inside, 2),
        ("1i32, 0i32", None, 2),
        ("1, 0", None, 2),
        ("3, 0", np.full(len(inside), 3), 3),
        ("-2.5, 0.0", np.full(len(inside), -2.5), 3),
    ):
        text = f"I: int32[3000]\nG[v < 40] = sum over i < 3000 of select(int64(I[i]) == v, {term})"
        workload, wanted = parse_workload(text), np.bincount(inside, weights, 40)
        for copies in (0, 8):
            schedule = legal_schedule_of(ATOMIC, workload, copies=copies, threads=256)
            kernel = finish(ATOMIC.lower(workload, H200, schedule), H200)
            assert len(kernel.launches) == launches
            np.testing.assert_array_equal(interpret(kernel, {"I": place})["G"], wanted)


@pytest.mark.parametrize("key_parts", [1, 4])
def test_copies_of_many_elements_are_of_one_unit(key_parts: int) -> None:
    """Other floats, such as 1000, are added in global memory. Blocks may have a part of the elements."""
    draw, elements = np.random.default_rng(4), 19_999
    place, values = draw.integers(-1, elements + 1, 3000, np.int32), np.full(3000, 0.1, np.float32)
    values[::3], place[::7], values[:2], place[:2] = 1000.3, elements - 1, -np.inf, 7
    inside = (place >= 0) & (place < elements)
    wanted = np.zeros(elements)
    np.add.at(wanted, place[inside], values[inside])
    text = SUM.format(3000, elements, "float32", "D[i]")
    got = _reduced(text, {"I": place, "D": values}, copies=1, threads=256, key_parts=key_parts)
    np.testing.assert_array_equal(got, wanted.astype(np.float32))


def test_how_many_copies_fit() -> None:
    """Where not even those of a part of the elements do, all terms are reduced in global memory."""
    for elements, most in ((2000, 4), (9000, 2), (20_000, 4), (400_000, 0)):
        space = ATOMIC.space(parse_workload(SUM.format(3000, elements, "float32", "D[i]")), H200, policy=WHOLE)
        assert space.column("copies").max() == most
        alone = space.column("copies") == 0
        assert alone.any() and (space.column("key_parts")[alone] == 1).all()


def test_scatters_of_the_same_terms_are_one_kernel() -> None:
    """Sums, counts and means of segments; the mean and the variance, by bins, of batches with columns; the range."""
    one = "I: int32[700]\nX: float32[700]\nS[v < 40] = sum over i < 700 of select(int64(I[i]) == v, X[i], 0.0)"
    count = "C[v < 40] = sum over j < 700 of select(int64(I[j]) == v, 1.0, 0.0)"
    binned = "select(int64(floor(X[n, i, d] * 5.0)) + 5 == b and W[i] > 0.0"
    for text, outputs in (
        (f"{one}   # output\n{count}   # output\nM[v] = S[v] / max(C[v], 1.0)", 3),
        (f"{one}\n{count}\nM[v] = S[v] / max(C[v], 1.0)", 1),
        (
            "X: float32[2, 500, 3]\nW: float32[500]\n"
            f"A[n < 2, b < 10, d < 3] = sum over i < 500 of {binned}, W[i], 0.0)\n"
            f"B[n < 2, b < 10, d < 3] = sum over i < 500 of {binned}, W[i] * W[i], 0.0)\n"
            "V[n, b, d] = B[n, b, d] - A[n, b, d] * A[n, b, d]",
            1,
        ),
        (
            "I: int32[700]\nX: float32[700]\nA[v < 40] = max over i < 700 of select(int64(I[i]) == v, X[i], -inf)\n"
            "B[v < 40] = min over i < 700 of select(int64(I[i]) == v, X[i], inf)\nR[v] = A[v] - B[v]",
            1,
        ),
    ):
        workload = parse_workload(text)
        assert len(workload.outputs) == outputs and not SKETCH.matches(workload, H200)
        assert assert_agrees(ATOMIC, workload, 8, policy=WHOLE) == 8


def test_scatters_of_other_terms_are_none() -> None:
    """By another index, to elements along another axis, over another range of terms; and one beside a plain sum."""
    one = "I: int32[700]\nX: float32[700]\nS[v < 40] = sum over i < 700 of select(int64(I[i]) == v, X[i], 0.0)\n"
    for other in (
        "C[v < 40] = sum over i < 700 of select(int64(I[i]) + 1 == v, 1.0, 0.0)",
        "C[v < 40] = sum over i < 600 of select(int64(I[i]) == v, 1.0, 0.0)",
        "C[v < 40] = sum over i < 700 of X[i]",
        "C[v < 40] = prod over i < 700 of select(int64(I[i]) == v, X[i], 1.0)",
    ):
        assert not ATOMIC.matches(parse_workload(f"{one}{other}\nM[v] = S[v] / C[v]"), H200)
