"""Products whose rows are reduced at once: what is recognised, and what kernels compute."""

import re
from collections.abc import Mapping

import numpy as np
import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, legal_schedule_of
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.schedule.gpu.gemm.row_reduction_space import CUDA_GEMM_ROW_REDUCTION as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device with two multiprocessors: a CTA works through many tiles even of a small product."""


def _product(m: int, n: int, k: int, dtype: str = "float16", name: str = "D") -> str:
    """``D[i, j] = sum over k of A[i, k] * B[j, k]``, in float32."""
    text = f"A: {dtype}[{m}, {k}]\nB: {dtype}[{n}, {k}]\n"
    factors = "A[i, k] * B[j, k]" if dtype == "float32" else "float32(A[i, k]) * float32(B[j, k])"
    return text + f"{name}[i < {m}, j < {n}] = sum over k < {k} of {factors}\n"


def _nearest(m: int, n: int, k: int, reducer: str = "min", dtype: str = "float16") -> str:
    distance = "N[j] - 2 * D[i, j]"
    return f"N: float32[{n}]\n" + _product(m, n, k, dtype) + f"M[i] = {reducer} over j < {n} of {distance}"


def _log_sum_exp(m: int, n: int, k: int, logit: str = "L[i, j]", inputs: str = "") -> str:
    return (
        inputs
        + _product(m, n, k, name="L")
        + f"M[i] = max over j < {n} of {logit}\n"
        + f"S[i] = sum over j < {n} of exp({logit} - M[i])\n"
        + "Y[i] = log(S[i]) + M[i]"
    )


CASES: Mapping[str, str] = {
    "the least distance": _nearest(200, 333, 72),
    "its position": _nearest(200, 328, 72, "argmin"),
    "both": _nearest(130, 328, 72) + "\nP[i] = argmin over j < 328 of N[j] - 2 * D[i, j]",
    "one tile along n": _nearest(300, 40, 72, "argmax"),
    "bfloat16": _nearest(200, 300, 72, "max", "bfloat16"),
    "8-bit floats": _nearest(200, 320, 128, "max", "float8_e4m3fn"),
    "8-bit integers": (
        "A: int8[200, 64]\nB: int8[320, 64]\n"
        "D[i < 200, j < 320] = sum over k < 64 of int32(A[i, k]) * int32(B[j, k])\n"
        "M[i] = argmax over j < 320 of D[i, j]"
    ),
    "float32 as TF32": "precision: tf32\n" + _nearest(200, 300, 72, "min", "float32"),
    "float32 in parts": "precision: tf32x3\n" + _nearest(200, 300, 72, "min", "float32"),
    "logarithm of a sum of exponentials": _log_sum_exp(200, 333, 72),
    "causal logits": _log_sum_exp(200, 328, 72, "select(j <= i * 2, L[i, j] * 0.5 + C[j], -inf)", "C: float32[328]\n"),
    "exponentials of rounded logits": _log_sum_exp(200, 333, 72, "float32(bfloat16(L[i, j]))"),
    "cross entropy": "T: int64[200]\n"
    + _log_sum_exp(200, 333, 72, "L[i, j] * 0.5").replace(
        "log(S[i]) + M[i]", "float16(log(S[i]) + M[i] - 0.5 * L[i, min(max(T[i], 0), 332)])"
    ),
    "the logits of pairs": (
        _product(200, 200, 72, name="L")
        + "M[i] = max over j < 200 of L[i, j] * 3\n"
        + "S[i] = sum over j < 200 of exp(L[i, j] * 3 - M[i])\n"
        + "Y[i] = log(S[i]) + M[i] - L[i, i] * 3"
    ),
    "the greatest of one element and zeros": (
        "T: int32[200]\n" + _product(200, 333, 72) + "M[i] = max over j < 333 of select(int32(j) == T[i], D[i, j], 0.0)"
    ),
    "the position of the largest logit, too": (
        _log_sum_exp(200, 328, 72, "L[i, j] * 0.5 + 1", "") + "\nP[i] = argmax over j < 328 of L[i, j] * L[i, j]"
    ),
    "columns are reduced": (
        "N: float32[200]\n" + _product(200, 304, 72) + "M[j] = min over i < 200 of N[i] - 2 * D[i, j]"
    ),
    "a sum of functions": _product(200, 304, 72) + "S[i] = sum over j < 304 of max(D[i, j], 0.0)",
    "squares, scaled": (
        "R: float16[200]\n"
        + _product(200, 301, 72)
        + "S[i] = sum over j < 301 of D[i, j] * D[i, j]\nY[i] = float16(sqrt(S[i]) * float32(R[i]))"
    ),
    "a matrix beside the product": (
        "C: float16[200, 304]\nR: float32[200]\n"
        + _product(200, 304, 72)
        + "M[i] = max over j < 304 of D[i, j] * R[i] + float32(C[i, j])"
    ),
    "rounded logits": _product(200, 304, 72) + "M[i] = argmax over j < 304 of float16(D[i, j])",
    "a batch": (
        "A: float16[3, 100, 72]\nB: float16[3, 304, 72]\nN: float32[3, 304]\n"
        "D[b < 3, i < 100, j < 304] = sum over k < 72 of float32(A[b, i, k]) * float32(B[b, j, k])\n"
        "M[b, i] = min over j < 304 of N[b, j] - 2 * D[b, i, j]"
    ),
    "rows of two axes": (
        "A: float16[20, 9, 72]\nB: float16[72, 200]\n"
        "D[h < 20, i < 9, j < 200] = sum over k < 72 of float32(A[h, i, k]) * float32(B[k, j])\n"
        "M[h, i] = max over j < 200 of D[h, i, j]"
    ),
    "rows that are split": (
        _product(200, 328, 72)
        + "M[h < 8, i < 25] = max over j < 328 of D[h * 25 + i, j]\n"
        + "P[h < 8, i < 25] = argmax over j < 328 of D[h * 25 + i, j]\n"
        + "Y[h, i < 25] = M[h, i] + D[h * 25 + i, 7]"
    ),
    "columns and rows change places": (
        _product(200, 304, 72) + "M[j < 304] = max over i < 200 of D[i, j]\nY[j] = M[j] - D[3, j]"
    ),
    "odd rows of operands": _nearest(200, 301, 71),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = parse_workload(CASES[case])
    assert [s.name for s in sketches_for(workload, H200)] == [SKETCH.name]
    assert assert_agrees(SKETCH, workload, 2) == 2
    assert assert_agrees(SKETCH, workload, 2, FEW, EVERY_LEGAL) == 2


@pytest.mark.parametrize("reducer", ["argmin", "argmax"])
@pytest.mark.parametrize(
    "knobs",
    [
        {"ping_pong": 1, "consumer_warpgroups": 2, "atoms_m": 1, "mma_n": 64},
        {"ping_pong": 0, "atoms_m": 2, "mma_n": 48, "cluster_n": 2},
        {"ping_pong": 1, "consumer_warpgroups": 3, "atoms_m": 1, "mma_n": 128},
        {"cluster_m": 2, "mma_n": 256},
    ],
    ids=str,
)
def test_of_equal_values_the_first_position_is_found(reducer: str, knobs: Mapping[str, int]) -> None:
    """Small integers, whose products are exact and often equal."""
    workload = parse_workload(_nearest(200, 301, 16, reducer))
    draw = np.random.default_rng(3)
    a, b = (draw.integers(-1, 2, (rows, 16)).astype(np.float16) for rows in (200, 301))
    n = draw.integers(0, 3, 301).astype(np.float32)
    values = n - 2 * (a.astype(np.float32) @ b.astype(np.float32).T)
    best = values.min(1) if reducer == "argmin" else values.max(1)
    assert ((values == best[:, None]).sum(1) > 1).any(), "some best values are found twice"
    kernel = SKETCH.lower(workload, FEW, legal_schedule_of(SKETCH, workload, FEW, **knobs))
    found = interpret(finish(kernel, FEW), {"N": n, "A": a, "B": b})["M"]
    np.testing.assert_array_equal(found, getattr(values, reducer)(1))


def test_values_that_take_the_place_of_accumulators_leave_other_results_alone() -> None:
    """The position is that of the greatest square, though the exponentials are those of a function of the product."""
    workload = parse_workload(CASES["the position of the largest logit, too"])
    draw = np.random.default_rng(4)
    a, b = (draw.integers(-3, 4, (rows, 72)).astype(np.float16) for rows in (200, 328))
    kernel = SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, mma_n=96))
    found = interpret(finish(kernel, H200), {"A": a, "B": b})["P"]
    product = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(found, (product * product).argmax(1))


def test_the_logit_of_a_target_is_that_of_its_column() -> None:
    """Targets beyond the ends are the first and the last column."""
    text = "T: int32[200]\n" + _product(200, 333, 24) + "M[i] = max over j < 333 of D[i, j]\n"
    workload = parse_workload(text + "Y[i] = D[i, min(max(int64(T[i]), 0), 332)] + M[i] * 0")
    draw = np.random.default_rng(5)
    a, b = (draw.integers(-3, 4, (rows, 24)).astype(np.float16) for rows in (200, 333))
    targets = draw.integers(-20, 350, 200).astype(np.int32)
    wanted = (a.astype(np.float32) @ b.astype(np.float32).T)[np.arange(200), targets.clip(0, 332)]
    for knobs in ({"mma_n": 80, "atoms_m": 2}, {"mma_n": 64, "ping_pong": 1, "consumer_warpgroups": 2}):
        kernel = SKETCH.lower(workload, FEW, legal_schedule_of(SKETCH, workload, FEW, **knobs))
        found = interpret(finish(kernel, FEW), {"T": targets, "A": a, "B": b})["Y"]
        np.testing.assert_array_equal(found, wanted)


def test_a_tile_without_a_finite_logit_adds_nothing() -> None:
    """The first columns are hidden from all rows, and whole tiles of them have minus infinity for their maximum."""
    text = _log_sum_exp(130, 200, 40, "select(j >= 150, L[i, j], -inf)")
    workload = parse_workload(text)
    inputs = random_inputs(workload, 1)
    kernel = SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, mma_n=64))
    found = np.asarray(interpret(finish(kernel, H200), inputs)["Y"])
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, reference(workload, inputs)["Y"], rtol=1e-5)


OTHERS: Mapping[str, str] = {
    "the product is an output, too": _nearest(200, 328, 72).replace(
        "* float32(B[j, k])", "* float32(B[j, k])  # output"
    ),
    "few rows": _nearest(64, 3000, 72),
    "few tiles with long sums": _nearest(128, 128, 10_000),
    "a variance": (
        _product(200, 304, 72)
        + "M[i] = sum over j < 304 of D[i, j]\n"
        + "V[i] = sum over j < 304 of (D[i, j] - M[i] / 304) * (D[i, j] - M[i] / 304)"
    ),
    "all rows together": _product(200, 304, 72) + "M[] = max over i < 200, j < 304 of D[i, j]",
    "an element of another row": (
        _product(200, 304, 72) + "M[i] = max over j < 304 of D[i, j]\nY[i] = M[i] - D[199 - i, 0]"
    ),
    "float64": _nearest(200, 304, 72).replace("float32", "float64"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_workloads_are_left_to_other_sketches(case: str) -> None:
    workload = parse_workload(OTHERS[case])
    assert not SKETCH.matches(workload, H200)
    assert sketches_for(workload, H200)


def test_nothing_of_the_size_of_the_product_is_stored() -> None:
    workload = parse_workload(_nearest(4096, 65536, 128, "argmin"))
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None
    kernel = SKETCH.lower(workload, H200, space.schedule(int(space.prior_seconds.argmin())))
    assert 0 < sum(b.bytes for b in kernel.workspace) <= 4096 * 65536 * 8 // 64


@pytest.mark.parametrize(
    "case", ["its position", "causal logits", "exponentials of rounded logits", "float32 in parts"]
)
def test_what_is_promising_does_not_spill(case: str) -> None:
    """The settings with the most accumulators of a thread."""
    workload = parse_workload(re.sub("328|333|300", "8192", CASES[case].replace("200", "4096")))
    space = SKETCH.space(workload, H200)
    accumulators = space.quantities["accumulator_registers"]
    for row in np.argsort(-accumulators, kind="stable")[:2]:
        kernel = SKETCH.lower(workload, H200, space.schedule(int(row)))
        assert all(r.spill_bytes == 0 for r in build_kernel(kernel, H200).resources.values())
