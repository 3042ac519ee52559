"""The dimensions of a tensor in another order."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import compute, placeholder, workload
from ..limits import MAX_RANK
from ..workload import Workload
from .operator import Operator
from .parameter import EVERY, Integer, ListOf, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    shape, order = v.integers("shape"), v.integers("axes")
    if sorted(order) != list(range(len(shape))):
        raise InvalidParameter(
            f"axes is {list(order)}; allowed for a shape of {len(shape)} dimensions: "
            f"the numbers 0 to {len(shape) - 1} in some order",
            field="axes",
        )
    x = placeholder(shape, v.text("dtype"), "X")

    def body(*at: Expr) -> Expr:
        return x[tuple(at[order.index(d)] for d in range(len(shape)))]

    return workload(compute([shape[d] for d in order], body, "Y"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    return (np.ascontiguousarray(inputs["X"].transpose(v.integers("axes"))),)


TRANSPOSE = Operator(
    name="transpose",
    summary="Y = X with its dimensions in the order of axes: Y has extent shape[axes[d]] along d",
    parameters=(
        Parameter("shape", "extents of X", ListOf(Integer())),
        Parameter(
            "axes", "the dimension of X behind each dimension of Y", ListOf(Integer(0, MAX_RANK - 1), unique=True)
        ),
        dtype_parameter(*EVERY),
    ),
    examples=(
        {"shape": [5, 37], "axes": [1, 0]},
        {"shape": [1], "axes": [0]},
        {"shape": [2, 3, 5, 7], "axes": [2, 0, 3, 1]},
        {"shape": [16, 8, 4], "axes": [0, 2, 1]},
    ),
    build=_build,
    baseline=_numpy,
)
