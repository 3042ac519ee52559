"""Reductions over some dimensions of a tensor."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DTYPES, DType, int64
from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Reduction, argmax, argmin, cast, compute, max, min, placeholder, prod, reduce_axis, sum, workload
from ..limits import MAX_RANK
from ..workload import Workload
from .operator import Operator, accumulation, accumulation_parameter, widened
from .parameter import NUMBERS, Choice, Integer, ListOf, Parameter, Values, dtype_parameter

_POSITIONS = ("argmax", "argmin")
_KINDS = ("sum", "mean", "max", "min", "prod", *_POSITIONS)


def _build(v: Values) -> Workload:
    shape, over, kind, dtype = v.integers("shape"), v.integers("axes"), v.text("kind"), v.text("dtype")
    _check(shape, over, kind, dtype)
    wide, wanted = _dtypes(v)
    kept = [d for d in range(len(shape)) if d not in over]
    x = placeholder(shape, dtype, "X")
    axes = {d: reduce_axis(shape[d], f"k{d}") for d in sorted(over)}
    reducer = {"max": max, "min": min, "prod": prod}.get(kind, sum)

    def body(*at: Expr) -> Reduction:
        places = dict(zip(kept, at, strict=True)) | axes
        element = x[tuple(places[d] for d in range(len(shape)))]
        if kind in _POSITIONS:
            return (argmax if kind == "argmax" else argmin)(element, axes[over[0]])
        return reducer(cast(element, wide), axis=list(axes.values()))

    finished = kind != "mean" and wide == wanted
    y = compute([shape[d] for d in kept], body, "Y" if finished else "total")
    if not finished:
        total, length = y, math.prod(shape[d] for d in over)

        def last(*at: Expr) -> Expr:
            return cast(total[at] * (1.0 / length) if kind == "mean" else total[at], wanted)

        y = compute(total.shape, last, "Y")
    return workload(y)


def _check(shape: tuple[int, ...], over: tuple[int, ...], kind: str, dtype: str) -> None:
    beyond = [d for d in over if d >= len(shape)]
    if beyond:
        raise InvalidParameter(
            f"axes has {beyond[0]}, but shape has {len(shape)} dimensions; allowed: 0 to {len(shape) - 1}", field="axes"
        )
    if kind == "mean" and not DTYPES[dtype].is_float:
        allowed = ", ".join(k for k in _KINDS if k != "mean")
        raise InvalidParameter(f"kind is mean, which does not take {dtype}; allowed: {allowed}", field="kind")
    if kind in _POSITIONS and len(over) > 1:
        raise InvalidParameter(f"axes has {len(over)} dimensions, and kind is {kind}; allowed: one", field="axes")


def _dtypes(v: Values) -> tuple[DType, DType]:
    """Return what is accumulated in, and what is returned."""
    given, kind, sums = DTYPES[v.text("dtype")], v.text("kind"), accumulation(v)
    if kind in _POSITIONS:
        return int64, int64
    return (given, given) if kind in ("max", "min") else sums


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    kind, axes, x = v.text("kind"), v.integers("axes"), inputs["X"]
    wide, wanted = _dtypes(v)
    if kind in _POSITIONS:
        y = (np.argmax if kind == "argmax" else np.argmin)(widened(x), axis=axes[0])
    elif kind == "prod":
        y = np.prod(x, axis=axes, dtype=wide.numpy)
    elif kind in ("max", "min"):
        y = (np.max if kind == "max" else np.min)(widened(x), axis=axes)
    else:
        y = np.sum(x, axis=axes, dtype=wide.numpy)
        if kind == "mean":
            y = y / wide.numpy.type(math.prod(x.shape[d] for d in axes))
    return (np.asarray(y).astype(wanted.numpy, copy=False),)


REDUCE = Operator(
    name="reduce",
    summary="Y = the sum, mean, greatest, least or product of X over some of its dimensions; or, int64, the position "
    "of the first greatest (argmax) or least (argmin) along one",
    parameters=(
        Parameter("shape", "extents of X", ListOf(Integer())),
        Parameter(
            "axes", "the dimensions that are reduced, counted from 0", ListOf(Integer(0, MAX_RANK - 1), unique=True)
        ),
        Parameter("kind", "how elements are combined", Choice(_KINDS), "sum"),
        dtype_parameter(*NUMBERS),
        accumulation_parameter("float32", "float64", "int32", "int64"),
    ),
    examples=(
        {"shape": [5, 37], "axes": [1]},
        {"shape": [7, 3, 11], "axes": [2, 0], "kind": "max"},
        {"shape": [1], "axes": [0]},
        {"shape": [13, 17], "axes": [0], "kind": "min"},
        {"shape": [2, 64], "axes": [0, 1]},
        {"shape": [3, 5, 7], "axes": [1, 0], "kind": "mean", "dtype": "float16"},
        {"shape": [3, 11], "axes": [1], "accumulate": "float64", "dtype": "float32"},
        {"shape": [7, 41], "axes": [1], "kind": "argmax"},
        {"shape": [19, 5], "axes": [0], "kind": "argmin"},
        {"shape": [5, 3, 2], "axes": [0, 2], "kind": "prod"},
    ),
    build=_build,
    baseline=_numpy,
)
