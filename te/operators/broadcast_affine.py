"""A scale for each column and a shift for each row."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ...core.dtypes import DTYPES
from ..build import cast, compute, placeholder, workload
from ..workload import Workload
from .operator import Operator, accumulator, widened
from .parameter import NUMBERS, Integer, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    rows, columns, dtype = v.integer("rows"), v.integer("columns"), v.text("dtype")
    wide = accumulator(dtype) if DTYPES[dtype].is_float else DTYPES[dtype]
    x = placeholder((rows, columns), dtype, "X")
    scale, shift = placeholder((columns,), dtype, "S"), placeholder((rows,), dtype, "T")
    y = compute(
        (rows, columns),
        lambda i, j: cast(cast(x[i, j], wide) * cast(scale[j], wide) + cast(shift[i], wide), dtype),
        "Y",
    )
    return workload(y, inputs=[x, scale, shift])


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    y = widened(inputs["X"]) * widened(inputs["S"])
    y += widened(inputs["T"])[:, None]
    return (y.astype(inputs["X"].dtype, copy=False),)


BROADCAST_AFFINE = Operator(
    name="broadcast_affine",
    summary="Y[i, j] = X[i, j] * S[j] + T[i]; integers wrap in their own dtype",
    parameters=(
        Parameter("rows", "how many rows", Integer()),
        Parameter("columns", "length of a row", Integer()),
        dtype_parameter(*NUMBERS),
    ),
    examples=(
        {"rows": 5, "columns": 37},
        {"rows": 1, "columns": 1},
        {"rows": 8, "columns": 64},
        {"rows": 61, "columns": 2},
    ),
    build=_build,
    baseline=_numpy,
)
