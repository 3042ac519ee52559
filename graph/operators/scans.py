"""Running sums, products, and greatest and least elements along a dimension."""

from collections.abc import Callable, Sequence

import numpy as np

from ...core.dtypes import DTYPES, DType, float32, int64
from ...core.errors import InvalidGraph
from ...ir.expr import Expr
from ...te import build as te
from ...te.operators.parameter import Flag, Parameter, Values
from ...te.scan import identity_of
from ...te.workload import Reducer
from .attributes import DIMENSION
from .operator import Array, Case, Element, GraphOperand, GraphOperator, Kind, TensorType, dimension, stored, wide

_REDUCERS = {
    "running_sum": Reducer.SUM,
    "running_product": Reducer.PROD,
    "running_max": Reducer.MAX,
    "running_min": Reducer.MIN,
}


def neutral(name: str, dtype: DType) -> float:
    """Return the element that changes none in a scan: an int for integers."""
    found = identity_of(_REDUCERS[name], dtype)
    return int(found) if dtype.is_integer else found


def _type(operands: Sequence[TensorType], v: Values) -> TensorType:
    x = operands[0]
    dimension(v, "dim", len(x.shape))
    if x.dtype.is_bool:
        raise InvalidGraph(f"a scan of {x}; allowed: numbers", field="operands")
    return x


def _build(name: str, reduce: Callable[..., te.Reduction]) -> Callable[..., GraphOperand]:
    """y[i] = the reduction of all x[k] with k <= i, which ``te.scan`` recognises. A reversed one has those with
    k >= i, and an exclusive one not k = i."""

    def build(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
        x, d = operands[0], v.integer("dim")
        k = te.reduce_axis(max(1, x.shape[d]), "k")

        def up_to(*at: Expr) -> te.Reduction:
            element = wide(x[(*at[:d], k, *at[d + 1 :])])
            if v.flag("reverse"):
                inside = k > at[d] if v.flag("exclusive") else k >= at[d]
            else:
                inside = k < at[d] if v.flag("exclusive") else k <= at[d]
            nothing = te.constant(neutral(name, element.dtype), element.dtype)
            return reduce(te.select(inside, element, nothing), axis=k)

        result = stored(x.shape, up_to, "up_to")
        return Element(x.shape, x.dtype, lambda to: result[to])

    return build


def _numpy(name: str, accumulate: Callable[..., Array]) -> Callable[[Sequence[Array], Values], Array]:
    def evaluate(operands: Sequence[Array], v: Values) -> Array:
        x, d = operands[0], v.integer("dim")
        turned = np.flip(x, d) if v.flag("reverse") else x
        y = np.asarray(accumulate(turned, axis=d, dtype=x.dtype))
        if v.flag("exclusive") and x.shape[d]:
            y = np.roll(y, 1, d)
            y[tuple(slice(0, 1) if e == d else slice(None) for e in range(y.ndim))] = neutral(
                name, DTYPES[x.dtype.name]
            )
        return np.ascontiguousarray(np.flip(y, d)) if v.flag("reverse") else y

    return evaluate


def _operator(
    name: str, summary: str, reduce: Callable[..., te.Reduction], accumulate: Callable[..., Array]
) -> GraphOperator:
    x, y = TensorType((3, 21), float32), TensorType((5, 1, 4), int64)
    cases = (
        Case((x,), {"dim": 1}),
        Case((x,), {"dim": 0, "reverse": True}),
        Case((x,), {"dim": 1, "exclusive": True}),
        Case((x,), {"dim": 1, "reverse": True, "exclusive": True}),
        Case((y,), {"dim": 0}),
        Case((y,), {"dim": 1, "exclusive": True}),
    )
    attributes = (
        Parameter("dim", "the dimension", DIMENSION),
        Parameter("reverse", "whether it begins at the last element", Flag(), False),
        Parameter("exclusive", "whether an element is left out of its own result", Flag(), False),
    )
    return GraphOperator(
        name, Kind.REDUCTION, summary, _type, _numpy(name, accumulate), _build(name, reduce), cases, attributes
    )


SCANS = (
    _operator("running_sum", "the sum of all elements up to each along a dimension", te.sum, np.cumsum),
    _operator("running_product", "the product of all elements up to each along a dimension", te.prod, np.cumprod),
    _operator("running_max", "the greatest of all elements up to each", te.max, np.maximum.accumulate),
    _operator("running_min", "the least of all elements up to each", te.min, np.minimum.accumulate),
)
SCAN_NAMES = frozenset(scan.name for scan in SCANS)
