"""What several terms have for one place, combined: sums of segments, messages of a graph, gradients of embeddings."""

from collections.abc import Sequence

import numpy as np

from ...core.dtypes import float32, int64
from ...core.errors import InvalidGraph
from ...ir.expr import Expr, const
from ...te import build as te
from ...te.limits import MAX_EXTENT
from ...te.operators.parameter import Choice, Flag, Integer, Parameter, Values
from .attributes import DIMENSION
from .operator import Array, Case, Element, GraphOperand, GraphOperator, Kind, TensorType, dimension, stored, wide

_HOW = {"sum": (te.sum, 0.0, np.add), "max": (te.max, -np.inf, np.maximum), "min": (te.min, np.inf, np.minimum)}
"""How terms are combined -> in a tensor expression, what there is where there are no terms, and in NumPy."""


def _scatter_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    places, x = operands
    d = dimension(v, "dim", len(x.shape))
    if not places.dtype.is_integer or places.shape != x.shape:
        raise InvalidGraph(f"places {places} of {x}; allowed: integers, one for each term", field="operands")
    if x.dtype.is_bool or (v.text("how") != "sum" and not x.dtype.is_float) or not x.shape[d]:
        raise InvalidGraph(f"the {v.text('how')} of {x} along dimension {d}", field="operands")
    return TensorType((*x.shape[:d], v.integer("count"), *x.shape[d + 1 :]), x.dtype)


def _scatter(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    places, x = operands
    d, (combine, nothing, _) = v.integer("dim"), _HOW[v.text("how")]
    shape = (*x.shape[:d], v.integer("count"), *x.shape[d + 1 :])
    term = te.reduce_axis(x.shape[d], "term")

    def terms(*at: Expr) -> te.Reduction:
        own = (*at[:d], term, *at[d + 1 :])
        value = wide(x[own])
        place = te.cast(places[own], int64)
        place = te.select(place < 0, place + shape[d], place) if v.flag("from_end") else place
        here = te.equal(place, at[d])
        return combine(te.select(here, value, const(nothing, value.dtype)), axis=term)

    total = stored(shape, terms, "found", [f"i{n}" for n in range(len(shape))])
    return Element(shape, x.dtype, lambda at: total[at])


def _scatter_numpy(operands: Sequence[Array], v: Values) -> Array:
    places, x = operands
    d, count, (_, nothing, combine) = v.integer("dim"), v.integer("count"), _HOW[v.text("how")]
    result = np.full((*x.shape[:d], count, *x.shape[d + 1 :]), nothing, x.dtype)
    here: Array = places.astype(np.int64)
    here = np.where(here < 0, here + count, here) if v.flag("from_end") else here
    inside = (here >= 0) & (here < count)
    at: list[Array] = [*np.indices(x.shape)]
    at[d] = here
    combine.at(result, tuple(i[inside] for i in at), x[inside])
    return result


_TERMS, _PLACES = TensorType((5, 3), float32), TensorType((5, 3), int64)

SCATTER = GraphOperator(
    "scatter", Kind.REDUCTION, "what terms combine to at the places along a dimension that an operand holds; terms at "
    "other places are left out", _scatter_type, _scatter_numpy, _scatter,
    (Case((_PLACES, _TERMS), {"dim": 0, "count": 4}), Case((_PLACES, _TERMS), {"dim": 1, "count": 2, "how": "max"}),
     Case((_PLACES, _TERMS), {"dim": 0, "count": 3, "how": "min"}),
     Case((_PLACES, _TERMS), {"dim": 0, "count": 2, "from_end": True})),
    (Parameter("dim", "the dimension", DIMENSION), Parameter("count", "how many places it has", Integer(1, MAX_EXTENT)),
     Parameter("how", "how terms are combined", Choice(tuple(_HOW)), "sum"),
     Parameter("from_end", "whether negative places count from the end", Flag(), False)),
    (2, 2),
)  # fmt: skip
