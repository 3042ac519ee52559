"""Tensors one behind the other along a dimension."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import compute, placeholder, select, workload
from ..limits import MAX_RANK
from ..workload import Workload
from .operator import Operator
from .parameter import EVERY, Integer, ListOf, Parameter, Values, dtype_parameter

_MOST = 16


def _build(v: Values) -> Workload:
    shape, axis, extents = v.integers("shape"), v.integer("axis"), v.integers("extents")
    if axis >= len(shape):
        raise InvalidParameter(f"axis is {axis}; allowed: 0 to {len(shape) - 1}, the dimensions of shape", field="axis")
    parts = [
        placeholder((*shape[:axis], extent, *shape[axis + 1 :]), v.text("dtype"), f"X{n}")
        for n, extent in enumerate(extents)
    ]
    starts = [0, *accumulate(extents)]

    def body(*at: Expr) -> Expr:
        def read(n: int) -> Expr:
            return parts[n][tuple(i - starts[n] if d == axis and starts[n] else i for d, i in enumerate(at))]

        e = read(len(parts) - 1)
        for n in reversed(range(len(parts) - 1)):
            e = select(at[axis] < starts[n + 1], read(n), e)
        return e

    return workload(compute((*shape[:axis], starts[-1], *shape[axis + 1 :]), body, "Y"), inputs=parts)


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    return (np.concatenate([inputs[f"X{n}"] for n in range(len(v.integers("extents")))], axis=v.integer("axis")),)


CONCATENATE = Operator(
    name="concatenate",
    summary="Y = X0, X1, … one behind the other along axis",
    parameters=(
        Parameter("shape", "extents of every X, that along axis disregarded", ListOf(Integer())),
        Parameter("axis", "the dimension along which they stand, counted from 0", Integer(0, MAX_RANK - 1)),
        Parameter("extents", "extents along axis of X0, X1, …", ListOf(Integer(), 1, _MOST)),
        dtype_parameter(*EVERY),
    ),
    examples=(
        {"shape": [5, 1], "axis": 1, "extents": [7, 3]},
        {"shape": [3, 1, 2], "axis": 0, "extents": [1, 5, 2, 11]},
        {"shape": [1], "axis": 0, "extents": [17]},
    ),
    build=_build,
    baseline=_numpy,
)
