"""Reductions of the rows that belong to each segment, such as the gradient of an embedding or messages of a graph."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DTYPES, INDEX, DType
from ...ir.expr import Expr
from ..build import Reduction, cast, compute, constant, max, min, placeholder, reduce_axis, select, sum
from ..build import workload as finished
from ..functions import equal
from ..scan import identity_of
from ..workload import Reducer, Workload
from .operator import Operator, accumulation, accumulation_parameter, widened
from .parameter import NUMBERS, Choice, Integer, Parameter, Values, dtype_parameter

_KINDS = {"sum": sum, "max": max, "min": min}
_NUMPY = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _build(v: Values) -> Workload:
    terms, segments, columns, kind = v.integer("terms"), v.integer("segments"), v.integer("columns"), v.text("kind")
    wide, wanted = _dtypes(v)
    x, ids = placeholder((terms, columns), v.text("dtype"), "X"), placeholder((terms,), "int32", "I")
    i = reduce_axis(terms, "i")
    identity = constant(identity_of(Reducer(kind), wide), wide)

    def of_segment(s: Expr, d: Expr) -> Reduction:
        return _KINDS[kind](select(equal(cast(ids[i], INDEX), s), cast(x[i, d], wide), identity), axis=i)

    y = compute((segments, columns), of_segment, "Y" if wide == wanted else "reduced")
    if wide != wanted:
        total = y
        y = compute((segments, columns), lambda *at: cast(total[at], wanted), "Y")
    return finished(y, [x, ids])


def _dtypes(v: Values) -> tuple[DType, DType]:
    """Return what is accumulated in, and what is returned."""
    given, sums = DTYPES[v.text("dtype")], accumulation(v)
    return sums if v.text("kind") == "sum" else (given, given)


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    kind = v.text("kind")
    wide, wanted = _dtypes(v)
    x = inputs["X"].astype(wide.numpy) if kind == "sum" else widened(inputs["X"])
    identity = np.asarray(identity_of(Reducer(kind), wide)).astype(wide.numpy).astype(x.dtype)
    y = np.full((v.integer("segments"), x.shape[1]), identity, x.dtype)
    _NUMPY[kind].at(y, inputs["I"], x)
    return (y.astype(wanted.numpy, copy=False),)


SEGMENT_REDUCE = Operator(
    name="segment_reduce",
    summary="Y[s, d] = the sum, greatest or least of X[i, d] over all i with I[i] = s; of none the identity",
    parameters=(
        Parameter("terms", "rows of X, and elements of I", Integer()),
        Parameter("segments", "rows of Y", Integer()),
        Parameter("columns", "columns of X and Y", Integer(), 1),
        Parameter("kind", "how rows are combined", Choice(tuple(_KINDS)), "sum"),
        dtype_parameter(*NUMBERS),
        accumulation_parameter("float32", "float64", "int32", "int64"),
    ),
    examples=(
        {"terms": 211, "segments": 13, "columns": 24},
        {"terms": 1, "segments": 3, "columns": 2},
        {"terms": 600, "segments": 7},
        {"terms": 60, "segments": 1031, "columns": 4, "dtype": "float16"},
        {"terms": 157, "segments": 6, "columns": 3, "kind": "max"},
        {"terms": 97, "segments": 5, "kind": "min", "dtype": "int32"},
    ),
    build=_build,
    baseline=_numpy,
)
