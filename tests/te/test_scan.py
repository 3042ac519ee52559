"""Scans in tensor expressions: which stages are one, what they compute, and that an element takes one step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.expr import Expr
from tilewright.te import build as te
from tilewright.te.cost import flops
from tilewright.te.data import random_inputs
from tilewright.te.evaluate import Evaluator
from tilewright.te.join import COMBINE
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.scan import scan_of
from tilewright.te.text import workload_text
from tilewright.te.workload import Workload

N = 9
Condition = Callable[[Any, Any, Any], Any]


def _sum_where(condition: Condition, otherwise: float = 0.0) -> Workload:
    """Y[i, j] = the sum over k of X[i, k] where ``condition(i, j, k)`` holds, and of ``otherwise`` elsewhere."""
    x, k = te.placeholder((N, N), name="X"), te.reduce_axis(N, "k")

    def body(i: Expr, j: Expr) -> te.Reduction:
        return te.sum(te.select(condition(i, j, k), x[i, k], otherwise), axis=k)

    return te.workload(te.compute((N, N), body, "Y"))


@pytest.mark.parametrize(
    ("condition", "reverse", "exclusive"),
    [
        (lambda i, j, k: k <= j, False, False),
        (lambda i, j, k: k < j, False, True),
        (lambda i, j, k: k >= j, True, False),
        (lambda i, j, k: k > j, True, True),
        (lambda i, j, k: j >= k, False, False),
        (lambda i, j, k: j < k, True, True),
    ],
)
def test_a_sum_of_what_a_triangle_holds_is_a_scan(condition: Condition, reverse: bool, exclusive: bool) -> None:
    workload = _sum_where(condition)
    scan = scan_of(workload.stages[0])
    assert scan is not None and (scan.axis.name, scan.reverse, scan.exclusive) == ("j", reverse, exclusive)
    assert flops(workload) == N * N
    assert parse_workload(workload_text(workload)) == workload
    inputs = random_inputs(workload, 0)
    j, k = np.meshgrid(np.arange(N), np.arange(N), indexing="ij")
    wanted = inputs["X"].astype(np.float64) @ condition(None, j, k).T
    np.testing.assert_allclose(reference(workload, inputs)["Y"], wanted, atol=1e-12)


def test_a_mask_beside_the_triangle_is_part_of_the_values() -> None:
    workload = _sum_where(lambda i, j, k: te.all_of(i < 5, k <= j, k > 2))
    assert scan_of(workload.stages[0]) is not None
    inputs = random_inputs(workload, 0)
    kept = inputs["X"] * ((np.arange(N)[:, None] < 5) & (np.arange(N) > 2))
    np.testing.assert_allclose(reference(workload, inputs)["Y"], kept.cumsum(1, np.float64), atol=1e-12)


@pytest.mark.parametrize("condition", [
    lambda i, j, k: k <= j + 1,
    lambda i, j, k: te.all_of(k <= j, j > 3),
    lambda i, j, k: te.any_of(k <= j, i > 3),
    lambda i, j, k: te.all_of(k <= j, k + 3 > j),
    lambda i, j, k: te.equal(k, j),
])  # fmt: skip
def test_other_conditions_are_no_scan(condition: Condition) -> None:
    """The last but one is a window: what it adds up leaves it again."""
    assert scan_of(_sum_where(condition).stages[0]) is None


def test_what_is_added_beyond_the_triangle_must_be_the_identity() -> None:
    assert scan_of(_sum_where(lambda i, j, k: k <= j, 1.0).stages[0]) is None


def test_long_scans_have_a_reference_at_once() -> None:
    """As written this one takes 10^12 steps."""
    workload = OPERATORS["scan"].workload({"shape": [1, 1_000_000], "axis": 1, "dtype": "int64", "reverse": True})
    x = np.arange(1_000_000)[None]
    (found,) = reference(workload, {"X": x}).values()
    np.testing.assert_array_equal(found, x[:, ::-1].cumsum(1)[:, ::-1])


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    kind=st.sampled_from(["sum", "prod", "max", "min"]),
    flags=st.fixed_dictionaries({name: st.booleans() for name in ("reverse", "exclusive", "masked")}),
)
def test_any_scan_is_what_its_stages_say_step_by_step(
    shape: list[int], axis: int, kind: str, flags: dict[str, bool]
) -> None:
    """The reference by running values against the expression as it is written, all n² points of it."""
    parameters = {"shape": shape, "axis": axis % len(shape), "kind": kind, "dtype": "int32", **flags}
    workload = OPERATORS["scan"].workload(parameters)
    inputs, (stage,) = random_inputs(workload, 0), workload.stages
    assert stage.reducer is not None and (scan_of(stage) is not None)
    grid = {a.name: (0, a.extent) for a in (*stage.axes, *stage.reduce_axes)}
    points = np.broadcast_to(Evaluator(inputs, grid)(stage.body), [n for _, n in grid.values()])
    wanted = COMBINE[stage.reducer].reduce(points, axis=-1, dtype=np.int32)
    np.testing.assert_array_equal(reference(workload, inputs)["Y"], wanted)
