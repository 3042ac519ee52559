"""Slices of workloads give what whole tensors give, bit for bit, and take the memory of a slice."""

import numpy as np
import pytest

from tests.random_expressions import random_workload
from tilewright.te import reference as module
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference, reference_slicing
from tilewright.te.slicing import slicing_of
from tilewright.te.workload import Workload
from tilewright.workers.reference_data import needed_bytes

ATTENTION = {"heads": 3, "queries_per_key": 2, "queries": 13, "keys": 17, "depth": 16, "dtype": "float16"}

TEXTS = {
    "a mask of the axis that is cut": (
        "X: float32[6, 10]\nS[i, j] = select(j <= i, X[i, j] * 2, X[i, j] - float32(i))\n"
        "Y[a < 6] = sum over k < 10 of S[a, k]"
    ),
    "a stage ahead that has no cut axis": (
        "X: float32[6, 10]\nW: float32[10]\nC[c < 10] = W[c] * 2\nS[i < 6, j < 10] = X[i, j] * C[j]\n"
        "Y[a < 6] = max over k < 10 of S[a, k]"
    ),
    "a stage that has one axis of two": (
        "X: float32[4, 6, 5]\nW: float32[4, 7, 5]\nK[h, j, d] = W[h, j, d] * 2\n"
        "S[a < 4, i < 6, n < 7] = sum over r < 5 of X[a, i, r] * K[a, n, r]\n"
        "Y[b < 4, m < 6] = max over o < 7 of S[b, m, o]"
    ),
    "two outputs": (
        "X: float32[6, 10]\nS[i, j] = X[i, j] * 3\nM[a < 6] = max over k < 10 of S[a, k]    # output\n"
        "Y[b < 6, c < 10] = S[b, c] - M[b]    # output"
    ),
    "whole numbers": (
        "A: int8[6, 8]\nB: int8[8, 5]\nS[i < 6, j < 5] = sum over k < 8 of int32(A[i, k]) * int32(B[k, j])\n"
        "Y[a < 6, b < 5] = S[a, b] // 3"
    ),
    "part of a stage": "X: float32[6, 10]\nS[i, j] = X[i, j] * 2\nY[a < 4] = sum over k < 9 of S[a + 1, k]",
}


def _small_slices(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(module, "_SLICED", 0)
    monkeypatch.setattr(module, "_SLICE", elements)


def _same(workload: Workload, monkeypatch: pytest.MonkeyPatch, elements: int) -> bool:
    """Assert that slices give the same; return whether there are any."""
    inputs = random_inputs(workload, 0)
    whole = reference(workload, inputs)
    with monkeypatch.context() as patch:
        _small_slices(patch, elements)
        cut, sliced = reference(workload, inputs), reference_slicing(workload)
    for name, values in whole.items():
        assert np.array_equal(cut[name], values, equal_nan=values.dtype.kind == "f"), name
    return sliced is not None


@pytest.mark.parametrize("elements", [1, 40, 1000])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_cut_along_heads_and_queries(monkeypatch: pytest.MonkeyPatch, causal: bool, elements: int) -> None:
    workload = OPERATORS["attention"].workload({**ATTENTION, "causal": causal})
    found = slicing_of(workload)
    assert found is not None and found.extents == (3, 2, 13)
    assert _same(workload, monkeypatch, elements)


@pytest.mark.parametrize("name", TEXTS)
def test_expressions_in_slices(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert _same(parse_workload(TEXTS[name]), monkeypatch, 12) == (name != "part of a stage")


def test_random_workloads_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(_same(random_workload(seed), monkeypatch, 7) for seed in range(150)) >= 3


def test_what_reads_all_of_a_stage_is_not_cut() -> None:
    text = (
        "X: float32[6, 10]\nS[i, j] = X[i, j] * 2\nT[] = sum over a < 6, b < 10 of S[a, b]\n"
        "Y[c < 6, d < 10] = S[c, d] / T[]"
    )
    assert slicing_of(parse_workload(text)) is None
    transposed = "X: float32[6, 6]\nS[i, j] = X[i, j] * 2\nY[a < 6, b < 6] = S[a, b] + S[b, a]"
    assert slicing_of(parse_workload(transposed)) is None


def test_long_attention_needs_the_memory_of_its_slices() -> None:
    """The scores of all heads would take 34 GB, three times."""
    workload = OPERATORS["attention"].workload(
        {**ATTENTION, "heads": 16, "queries_per_key": 1, "queries": 16384, "keys": 16384, "depth": 128}
    )
    assert needed_bytes(workload) < 4 << 30
