"""Axes of quotients and remainders: the same values, from a sum of whole strides."""

import pytest

from tests.sketch_agreement import agree
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.phases import with_phases
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload


def _transposed(**parameters: object) -> Workload:
    sizes = {"batch": 2, "channels": 3, "height": 4, "width": 5, "filters": 2, "kernel_h": 3, "kernel_w": 4}
    return OPERATORS["conv2d_transpose"].workload({**sizes, "stride": 2, "padding": 1, **parameters})


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("parameters", [
    {},
    {"padding": 0},
    {"stride": 3, "padding": 2, "kernel_h": 5, "kernel_w": 5},
    {"bias": True, "residual": True, "activation": "relu", "dtype": "float16"},
    {"dilation": 2, "kernel_w": 3},
    {"dtype": "int8", "channels": 4, "groups": 2},
])  # fmt: skip
def test_values_stay(parameters: dict[str, object], layout: str) -> None:
    workload = _transposed(**parameters, layout=layout)
    phased = with_phases(workload)
    assert phased is not None and phased.output_buffers == workload.output_buffers
    inputs = random_inputs(workload, 1)
    agree("phased", reference(phased, inputs), reference(workload, inputs), tolerance(workload))


def test_the_sum_has_whole_strides() -> None:
    phased = with_phases(_transposed(kernel_w=3))
    assert phased is not None and phased.output_buffers[0].shape == (2, 2, 7, 9)
    assert [s.tensor.shape for s in phased.stages if s.reducer is not None] == [(2, 2, 4, 2, 5, 2)]


def test_positions_that_a_factor_reads_as_a_whole() -> None:
    text = "Q: float32[6, 4, 5]\nK: float32[2, 7, 5]\nS[h, q, k] = sum over d < 5 of Q[h, q, d] * K[h // 3, k, d]"
    workload = parse_workload(text)
    phased = with_phases(workload, whole=True)
    assert phased is not None and with_phases(workload) is None
    assert phased.stages[0].tensor.shape == (3, 2, 4, 7)
    inputs = random_inputs(workload, 1)
    agree("phased", reference(phased, inputs), reference(workload, inputs), tolerance(workload))


@pytest.mark.parametrize(
    "text",
    [
        "X: float32[8]\nW: float32[2, 3]\nY[y < 8, o < 3] = sum over t < 2 of X[y // 2 * 2 + t] * W[t, o]",
        "X: float32[8]\nW: float32[2, 2]\nY[y < 7] = sum over t < 2 of X[y + t] * W[t, y % 2]",
        "X: float32[8]\nW: float32[2, 3]\nY[y < 7] = sum over t < 2 of X[y // 2 + t] * W[t, y % 3]",
        "X: float32[8]\nW: float32[2, 2]\nY[y < 8] = X[y // 2] * W[1, y % 2]",
    ],
    ids=["no remainder", "whole position", "two divisors", "no sum"],
)
def test_what_has_no_phases(text: str) -> None:
    assert with_phases(parse_workload(text)) is None
