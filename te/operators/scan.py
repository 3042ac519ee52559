"""Scans along a dimension of a tensor: running sums, products, greatest and least elements."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DTYPES, DType
from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Reduction, Tensor, cast, compute, constant, max, min, placeholder, prod, reduce_axis, select, sum
from ..build import workload as finished
from ..limits import MAX_RANK
from ..scan import identity_of
from ..workload import Reducer, Workload
from .operator import Operator, accumulation, accumulation_parameter, widened
from .parameter import NUMBERS, Choice, Flag, Integer, ListOf, Parameter, Values, dtype_parameter

_KINDS = {"sum": sum, "prod": prod, "max": max, "min": min}
_NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _build(v: Values) -> Workload:
    shape, d, kind = v.integers("shape"), _dimension(v), v.text("kind")
    wide, wanted = _dtypes(v)
    x = placeholder(shape, v.text("dtype"), "X")
    mask = placeholder(shape, "bool", "M") if v.flag("masked") else None
    k = reduce_axis(shape[d], "k")
    identity = constant(identity_of(Reducer(kind), wide), wide)

    def up_to(*at: Expr) -> Reduction:
        place = (*at[:d], k, *at[d + 1 :])
        value = cast(x[place], wide)
        value = value if mask is None else select(mask[place], value, identity)
        if v.flag("reverse"):
            inside = k > at[d] if v.flag("exclusive") else k >= at[d]
        else:
            inside = k < at[d] if v.flag("exclusive") else k <= at[d]
        return _KINDS[kind](select(inside, value, identity), axis=k)

    y = compute(shape, up_to, "Y" if wide == wanted else "up_to")
    if wide != wanted:
        y = _narrowed(y, wanted)
    return finished(y, [x] if mask is None else [x, mask])


def _narrowed(wide: Tensor, dtype: DType) -> Tensor:
    return compute(wide.shape, lambda *at: cast(wide[at], dtype), "Y")


def _dimension(v: Values) -> int:
    d, rank = v.integer("axis"), len(v.integers("shape"))
    if d >= rank:
        raise InvalidParameter(f"axis is {d}, but shape has {rank} dimensions; allowed: 0 to {rank - 1}", field="axis")
    return d


def _dtypes(v: Values) -> tuple[DType, DType]:
    """Return what is accumulated in, and what is returned."""
    given, sums = DTYPES[v.text("dtype")], accumulation(v)
    return (given, given) if v.text("kind") in ("max", "min") else sums


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    d, kind = _dimension(v), v.text("kind")
    wide, wanted = _dtypes(v)
    identity = np.asarray(identity_of(Reducer(kind), wide)).astype(wide.numpy)
    x = widened(inputs["X"]) if kind in ("max", "min") else inputs["X"].astype(wide.numpy)
    if v.flag("masked"):
        x = np.where(inputs["M"], x, identity.astype(x.dtype))
    turned = np.flip(x, d) if v.flag("reverse") else x
    y = _NUMPY[kind].accumulate(turned, axis=d, dtype=x.dtype)
    if v.flag("exclusive"):
        first = np.full_like(np.take(y, [0], axis=d), identity)
        y = np.concatenate([first, np.take(y, range(y.shape[d] - 1), axis=d)], axis=d)
    y = np.flip(y, d) if v.flag("reverse") else y
    return (np.ascontiguousarray(y).astype(wanted.numpy, copy=False),)


SCAN = Operator(
    name="scan",
    summary="Y = along one dimension of X, the sum, product, greatest or least of all elements up to each",
    parameters=(
        Parameter("shape", "extents of X", ListOf(Integer())),
        Parameter("axis", "the dimension, counted from 0", Integer(0, MAX_RANK - 1)),
        Parameter("kind", "how elements are combined", Choice(tuple(_KINDS)), "sum"),
        Parameter("reverse", "whether the scan begins at the last element", Flag(), False),
        Parameter("exclusive", "whether an element itself is left out of its result", Flag(), False),
        Parameter("masked", "whether only elements count where the input M, of bools, is true", Flag(), False),
        dtype_parameter(*NUMBERS),
        accumulation_parameter("float32", "float64", "int32", "int64"),
    ),
    examples=(
        {"shape": [5, 37], "axis": 1},
        {"shape": [41, 6], "axis": 0},
        {"shape": [1], "axis": 0},
        {"shape": [3, 11, 8], "axis": 1, "reverse": True},
        {"shape": [7, 64], "axis": 1, "reverse": True, "exclusive": True},
        {"shape": [2, 72], "axis": 1, "exclusive": True, "masked": True},
        {"shape": [3, 9], "axis": 1, "kind": "max", "reverse": True},
        {"shape": [9, 4], "axis": 0, "kind": "min", "masked": True, "dtype": "int32"},
        {"shape": [4, 5], "axis": 1, "kind": "prod"},
    ),
    build=_build,
    baseline=_numpy,
)
