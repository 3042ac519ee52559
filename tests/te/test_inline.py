"""Stages substituted into their readers: the same values, bounded growth, indices as ``check`` spells them."""

import numpy as np
import pytest

from tests.random_expressions import random_workload
from tilewright.ir.expr import Expr
from tilewright.te import build as te
from tilewright.te.check import check
from tilewright.te.data import random_inputs
from tilewright.te.inline import MAX_INLINED_NODES, inline_stages
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload


def _assert_equal(workload: Workload) -> None:
    inlined = inline_stages(workload)
    assert inlined.inputs == workload.inputs and inlined.outputs == workload.outputs
    assert all(s.reducer is not None or s.name in workload.outputs for s in inlined.stages)
    inputs = random_inputs(workload, 3)
    wanted, got, limits = reference(workload, inputs), reference(inlined, inputs), tolerance(workload)
    for name in workload.outputs:
        absolute, relative = limits[name]
        np.testing.assert_allclose(
            np.asarray(got[name], np.float64), np.asarray(wanted[name], np.float64), rtol=relative, atol=absolute
        )


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_keep_their_values(name: str) -> None:
    for example in OPERATORS[name].examples:
        _assert_equal(OPERATORS[name].workload(example))


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions_keep_their_values(seed: int) -> None:
    _assert_equal(random_workload(seed))


def test_a_padded_convolution_becomes_one_guarded_reduction_and_its_cast() -> None:
    parameters = {"batch": 2, "channels": 4, "height": 5, "width": 6, "filters": 4, "kernel_h": 3, "kernel_w": 3}
    workload = OPERATORS["conv2d"].workload(parameters | {"padding": 1, "dtype": "float16"})
    inlined = inline_stages(workload)
    assert [s.name for s in inlined.stages] == [s.name for s in workload.stages if s.name != "padded"]
    assert check(inlined) == inlined  # in bounds by its own guards, and spelled in the one way


def test_growth_is_bounded() -> None:
    def step(x: te.Tensor, name: str) -> te.Tensor:
        return te.compute((8,), lambda i: x[i] * x[i] + x[i], name)

    current = te.placeholder((8,), "float32", "X")
    for n in range(24):
        current = step(current, f"s{n}")
    inlined = inline_stages(te.workload(current))
    assert 1 < len(inlined.stages) < 24  # 3 copies a stage: some must stay

    def nodes(e: Expr) -> int:
        return 1 + sum(nodes(c) for c in e.children)

    assert max(nodes(s.body) for s in inlined.stages) <= MAX_INLINED_NODES


def test_outputs_that_are_read_stay() -> None:
    x = te.placeholder((4, 6), "float32", "X")
    half = te.compute((4, 6), lambda i, j: x[i, j] * 0.5, "half")
    y = te.compute((4, 6), lambda i, j: half[i, j] + 1.0, "Y")
    inlined = inline_stages(te.workload([half, y]))
    assert [s.name for s in inlined.stages] == ["half", "Y"]
