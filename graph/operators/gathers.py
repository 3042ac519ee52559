"""Operators that read at places which other operands hold.

Places are integers. Negative ones count from the end; what is still out of bounds is the nearest end, so that no kernel
reads what is not there.
"""

from collections.abc import Sequence

import numpy as np

from ...core.dtypes import float32, int64
from ...core.errors import InvalidGraph
from ...ir.expr import Expr
from ...te import build as te
from ...te.limits import MAX_RANK
from ...te.operators.parameter import Parameter, Values
from .attributes import DIMENSION
from .operator import Array, Case, Element, GraphOperand, GraphOperator, Kind, TensorType, dimension

_DIM = Parameter("dim", "the dimension", DIMENSION)


def _place(e: Expr, extent: int) -> Expr:
    e = te.cast(e, int64)
    return te.within(te.select(e < 0, e + extent, e), extent)


def _places_numpy(places: Array, extent: int) -> Array:
    places = places.astype(np.int64)
    return np.clip(np.where(places < 0, places + extent, places), 0, extent - 1)


def _check_places(operands: Sequence[TensorType], v: Values) -> int:
    if not operands[1].dtype.is_integer:
        raise InvalidGraph(f"places are {operands[1]}; allowed: integers", field="operands")
    d = dimension(v, "dim", len(operands[0].shape))
    if operands[0].shape[d] == 0:
        raise InvalidGraph(f"no places along dimension {d} of {operands[0]}", field="operands")
    return d


def _gather_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    d, (x, places) = _check_places(operands, v), operands
    shape = (*x.shape[:d], *places.shape, *x.shape[d + 1 :])
    if len(shape) > MAX_RANK:
        raise InvalidGraph(f"a result of {len(shape)} dimensions; allowed: {MAX_RANK}", field="operands")
    return TensorType(shape, x.dtype)


def _gather(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, places = operands
    d, rank = v.integer("dim"), len(operands[1].shape)

    def at(to: tuple[Expr, ...]) -> Expr:
        return x[(*to[:d], _place(places[to[d : d + rank]], x.shape[d]), *to[d + rank :])]

    return Element((*x.shape[:d], *places.shape, *x.shape[d + 1 :]), x.dtype, at)


def _gather_numpy(operands: Sequence[Array], v: Values) -> Array:
    x, places = operands
    d = v.integer("dim")
    return np.asarray(np.take(x, _places_numpy(places, x.shape[d]), axis=d))


def _elements_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    d, (x, places) = _check_places(operands, v), operands
    fits = len(x.shape) == len(places.shape) and all(
        n <= m for e, (n, m) in enumerate(zip(places.shape, x.shape, strict=True)) if e != d
    )
    if not fits:
        raise InvalidGraph(f"places {places} in {x} along dimension {d}", field="operands")
    return TensorType(places.shape, x.dtype)


def _gather_elements(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, places = operands
    d = v.integer("dim")
    at = lambda to: x[(*to[:d], _place(places[to], x.shape[d]), *to[d + 1 :])]  # noqa: E731
    return Element(places.shape, x.dtype, at)


def _elements_numpy(operands: Sequence[Array], v: Values) -> Array:
    x, places = operands
    d = v.integer("dim")
    part = x[tuple(slice(None) if e == d else slice(n) for e, n in enumerate(places.shape))]
    return np.asarray(np.take_along_axis(part, _places_numpy(places, x.shape[d]), axis=d))


_TABLE, _ROWS = TensorType((6, 4, 3), float32), TensorType((2, 5), int64)

GATHERS = (
    GraphOperator(
        "gather", Kind.POINTWISE, "slices along a dimension, at places that the second operand holds", _gather_type,
        _gather_numpy, _gather, (Case((_TABLE, _ROWS), {"dim": 0}), Case((_TABLE, _ROWS), {"dim": 2})), (_DIM,), (2, 2),
    ),
    GraphOperator(
        "gather_elements", Kind.POINTWISE, "elements along a dimension, each at a place of its own", _elements_type,
        _elements_numpy, _gather_elements,
        (Case((_TABLE, TensorType((6, 2, 3), int64)), {"dim": 1}),
         Case((_TABLE, TensorType((9, 3, 2), int64)), {"dim": 0})), (_DIM,), (2, 2),
    ),
)  # fmt: skip
