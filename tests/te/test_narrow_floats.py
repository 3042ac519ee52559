"""Expressions of wide floats are computed in the narrow one that holds their values, and only there."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.core.dtypes import float16, float32
from tilewright.ir.expr import Cast, Expr
from tilewright.te.data import random_inputs
from tilewright.te.narrow_floats import cast_outside
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

NARROW = (
    "max(float32(A[i]), 0.0)",
    "select(i < 7, -float32(A[i]), 0.5)",
    "abs(min(float32(A[i]), float32(B[i])))",
    "select(B[i] < A[i], max(float32(A[i]), -2.0), float32(B[i]))",
)
WIDE = (
    "float32(A[i])",  # a cast already
    "max(float32(A[i]), 0.1)",  # no float16
    "float32(A[i]) * 2.0",  # may be infinite in float16
    "max(float32(A[i]), C[i])",
    "max(float32(A[i]), float32(D[i]))",
)


def _of(body: str) -> Workload:
    inputs = "A: float16[40]\nB: float16[40]\nC: float32[40]\nD: bfloat16[40]\n"
    return parse_workload(
        f"{inputs}Y[i] = {body}\nZ[i] = float32(A[i]) + float32(B[i]) + C[i] + float32(D[i])  # output"
    )


def _with_body(workload: Workload, body: Expr) -> Workload:
    first, *others = workload.stages
    return replace(workload, stages=(replace(first, body=body), *others))


@pytest.mark.parametrize("body", NARROW)
def test_it_is_a_cast_of_the_same_values(body: str) -> None:
    workload = _of(body)
    found = cast_outside(workload.stages[0].body)
    assert isinstance(found, Cast) and (found.value.dtype, found.dtype) == (float16, float32)
    inputs = random_inputs(workload, 0)
    name = workload.stages[0].name
    expected, values = (reference(w, inputs)[name] for w in (workload, _with_body(workload, found)))
    assert np.array_equal(expected, values)


@pytest.mark.parametrize("body", WIDE)
def test_what_a_narrow_float_does_not_hold_stays(body: str) -> None:
    before = _of(body).stages[0].body
    assert cast_outside(before) is before
