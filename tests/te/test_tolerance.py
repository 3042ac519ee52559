"""Tolerances: tight where arithmetic is benign, wide where it is not, and the same every time."""

import math

import pytest

from tilewright.te import build as te
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload


def _of(name: str, **parameters: object) -> tuple[float, float]:
    [limits] = tolerance(OPERATORS[name].workload(parameters)).values()
    return limits


def test_copies_are_nearly_exact_and_integers_exact() -> None:
    absolute, relative = _of("transpose", shape=[64, 64], axes=[1, 0])
    assert absolute < 1e-30 and relative < 1e-6
    assert _of("matmul", m=64, n=64, k=512, dtype="int8") == (0.0, 0.0)
    assert _of("transpose", shape=[5], axes=[0], dtype="bool") == (0.0, 0.0)


def test_products_grow_with_their_length_and_shrink_with_precision() -> None:
    short, long = _of("matmul", m=8, n=8, k=64)[0], _of("matmul", m=8, n=8, k=4096)[0]
    assert 4 * short < long < 200 * short
    assert 1e-5 < _of("matmul", m=1024, n=1024, k=1024)[0] < 1e-3
    assert _of("matmul", m=8, n=8, k=64, dtype="float64")[0] < 1e-12
    half = _of("matmul", m=8, n=8, k=64, dtype="float16")
    assert half[0] < 0.01 and half[1] < 0.01


def test_a_dropped_term_of_a_long_product_is_seen() -> None:
    """A term of a product of uniform inputs is 0.25 in the mean; a convolution of 4608 terms loses it at a border."""
    absolute, relative = _of("conv2d", batch=1, channels=512, height=14, width=14, filters=512, kernel_h=3, kernel_w=3)
    assert absolute + relative * math.sqrt(4608) < 0.05


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_function_of_a_long_sum_may_err_where_the_sum_is_near_zero(dtype: str) -> None:
    """Most sums of 13,916 products are far from 0, where silu is flat or a copy. Matrix units of an H200 erred by up to
    5.4e-4 where it is near 0, those of cuDNN's kernels too."""
    convolution = {
        "batch": 16,
        "channels": 284,
        "height": 32,
        "width": 32,
        "filters": 128,
        "kernel_h": 7,
        "kernel_w": 7,
    }
    absolute, _ = _of("conv2d", **convolution, padding=9, dilation=3, dtype=dtype, activation="silu")
    assert 5.4e-4 < absolute < 5e-3


def test_softmax_is_relative() -> None:
    absolute, relative = _of("softmax", rows=4096, columns=1024)
    assert absolute < 1e-7 and relative < 1e-4


def test_it_repeats() -> None:
    w = OPERATORS["layer_norm"].workload({"rows": 64, "columns": 64})
    assert tolerance(w) == tolerance(w)


def _one(dtype: str, scale: float) -> Workload:
    x = te.placeholder((64,), "float32", "X")
    return te.workload(te.compute((64,), lambda i: te.cast(x[i] * scale, dtype), "Y"))


def test_whole_numbers_from_computed_floats_may_be_one_off() -> None:
    assert tolerance(_one("int8", 16.0)) == {"Y": (0.0, 0.0)}  # exact: a power of two
    assert tolerance(_one("int8", 100.0)) == {"Y": (2.0, 0.0)}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_tolerance_is_finite_even_where_values_are_not(dtype: str) -> None:
    x = te.placeholder((8,), dtype, "X")
    w = te.workload(te.compute((8,), lambda i: te.log(x[i]) + te.sqrt(x[i]) / (x[i] - x[i])))
    [(absolute, relative)] = tolerance(w).values()
    assert math.isfinite(absolute) and math.isfinite(relative) and relative > 0


def test_masked_scores_are_exact() -> None:
    """Of a causal attention most rows have infinities among their scores; they say nothing about the others' errors."""
    [absolute, relative] = _of("attention", heads=1, queries=7, keys=7, depth=4, causal=True)
    assert 1e-7 < absolute < 1e-4 and relative < 1e-4


def test_a_weight_is_never_above_one() -> None:
    """Scores far apart, such as those of ALiBi, are below their maximum, whatever scores a tolerance is sampled at."""
    text = """X: float32[64, 4096]
    A: float32[64]
    L[i, j] = X[i, j] - A[i] * float32(i - j)
    T[i] = max over t < 4096 of L[i, t]
    P[i, j] = exp(L[i, j] - T[i])
    U[i] = sum over u < 4096 of P[i, u]
    Y[i, j] = P[i, j] / U[i]"""
    [(absolute, relative)] = tolerance(parse_workload(text)).values()
    assert absolute < 0.1 and relative < 0.1


def test_a_mask_that_hides_all_independent_draws_leaves_the_weights_of_real_rows() -> None:
    """Keys of the same document: two draws are hardly ever of one, and each row of a tensor has several."""
    text = """S: float32[64, 64]
    D: int32[64]
    V: float16[64, 16]
    L[i, j] = select(D[i] == D[j], S[i, j], -inf)
    T[i] = max over t < 64 of L[i, t]
    P[i, j] = exp(L[i, j] - T[i])
    U[i] = sum over u < 64 of P[i, u]
    O[i, e] = sum over w < 64 of float32(float16(P[i, w])) * float32(V[w, e])
    Y[i, e] = float16(O[i, e] / U[i])"""
    [(absolute, _)] = tolerance(parse_workload(text)).values()
    assert 1e-4 < absolute < 1e-1
