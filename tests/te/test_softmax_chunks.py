"""Softmax of long rows in chunks: the steps compute what the workload does, and nothing else has them."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.test_decomposition import HOST
from tests.sketch_agreement import check_schedules
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.softmax_chunks import softmax_chunk_steps
from tilewright.te.workload import Workload

COLUMNS = 1 << 18


def _softmax(rows: int, columns: int) -> Workload:
    return OPERATORS["softmax"].workload({"rows": rows, "columns": columns})


def _by_steps(workload: Workload, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {"X": x}
    for name, steps in softmax_chunk_steps(workload):
        assert name == "softmax_chunks"
        for step in steps:
            tensors |= reference(step, {b.name: tensors[b.name].astype(np.float32) for b in step.inputs})
    return tensors


def test_steps_give_a_softmax_even_where_chunks_are_hidden() -> None:
    x = np.random.default_rng(0).normal(size=(2, COLUMNS)).astype(np.float32) * 3
    x[0, :5000] = -np.inf  # the first chunk as a whole, and a part of the next one
    x[1, 7] = 90.0
    workload = _softmax(2, COLUMNS)
    expected = reference(workload, {"X": x})["Y"]
    found = _by_steps(workload, x)["Y"]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-12)
    assert np.isfinite(found).all() and not found[0, :5000].any()


def test_outputs_may_be_the_logarithms_of_sums() -> None:
    rows = f"X: float32[2, {COLUMNS}]\nM[i] = max over k < {COLUMNS} of X[i, k]\n"
    rows += f"S[i] = sum over j < {COLUMNS} of exp(X[i, j] - M[i])\nY[i] = log(S[i]) + M[i]"
    workload = parse_workload(rows)
    x = np.random.default_rng(1).normal(size=(2, COLUMNS)).astype(np.float32)
    np.testing.assert_allclose(_by_steps(workload, x)["Y"], reference(workload, {"X": x})["Y"], rtol=1e-5)


def test_a_processor_computes_them() -> None:
    workload = _softmax(3, COLUMNS)
    assert [s.name for s in sketches_for(workload, HOST)] == ["cpu_loops", "cpu_decomposed"]
    assert check_schedules("cpu_decomposed", HOST, workload, 0, 3) == 3


@pytest.mark.parametrize(
    "text",
    [
        "S[i] = sum over j < 262144 of exp(X[i, j] - M[i] * 2)\nY[i] = S[i] + M[i]",
        "S[i] = sum over j < 262144 of exp(X[i, 262143 - j] - M[i])\nY[i] = S[i] + M[i]",
        "S[i] = max over j < 262144 of exp(X[i, j] - M[i])\nY[i] = S[i] + M[i]",
    ],
    ids=["another power", "another order", "another reduction"],
)
def test_what_is_no_softmax_has_no_chunks(text: str) -> None:
    workload = parse_workload(f"X: float32[2, 262144]\nM[i] = max over k < 262144 of X[i, k]\n{text}")
    assert softmax_chunk_steps(workload) == []


@pytest.mark.parametrize("columns", [4096, 262147], ids=["short", "prime"])
def test_short_rows_and_those_of_no_chunks_are_left(columns: int) -> None:
    assert softmax_chunk_steps(_softmax(2, columns)) == []
