"""Random inputs: seeded, in their dtypes, over their ranges."""

import numpy as np
import pytest

from tilewright.te import build as te
from tilewright.te import data as data_module
from tilewright.te.data import WIDE_INTEGERS, random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.rename import renamed


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float64", -1, 1),
        ("float32", -1, 1),
        ("float16", -1, 1),
        ("bfloat16", -1, 1),
        ("int8", -128, 127),
        ("uint8", 0, 255),
        ("int32", -WIDE_INTEGERS, WIDE_INTEGERS),
        ("int64", -WIDE_INTEGERS, WIDE_INTEGERS),
        ("bool", 0, 1),
    ],
)
def test_ranges(dtype: str, low: float, high: float) -> None:
    x = te.placeholder((200, 50), dtype, "X")
    w = te.workload(te.compute((1,), lambda i: x[i, i]))
    array = random_inputs(w, 0)["X"]
    assert array.dtype == x.dtype.numpy and array.shape == (200, 50)
    values = array.astype(np.float64)
    assert low <= values.min() < low + 0.01 * (high - low) + 0.01
    assert high >= values.max() > high - 0.01 * (high - low) - 0.01


def test_seeds_and_positions_decide_not_names() -> None:
    w = OPERATORS["matmul"].workload({"m": 4, "n": 4, "k": 4})
    a, other = random_inputs(w, 0), random_inputs(w, 1)
    assert (a["A"] != a["B"]).any() and (a["A"] != other["A"]).any()
    again = random_inputs(renamed(w, {"A": "B", "B": "A"}), 0)
    np.testing.assert_array_equal(again["B"], a["A"])


def test_inputs_without_dimensions() -> None:
    x = te.placeholder((), "float16", "X")
    w = te.workload(te.compute((), lambda: x[()]))
    assert random_inputs(w, 0)["X"].shape == ()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_threads_draw_the_same(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = te.placeholder((7, 101), dtype, "X")
    w = te.workload(te.compute((1,), lambda i: x[i, i]))
    whole = random_inputs(w, 0, threads=1)["X"]
    monkeypatch.setattr(data_module, "_BLOCK", 64)
    for threads in (1, 3):
        np.testing.assert_array_equal(random_inputs(w, 0, threads)["X"], whole)
