"""How pointwise operators are made: a scalar expression and the NumPy function that it equals."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.dtypes import DType, boolean, float32, int64
from ...core.errors import InvalidGraph
from ...ir.expr import Expr
from ...te.operators.parameter import Parameter, Values
from .operator import (
    Array,
    Case,
    Element,
    GraphOperand,
    GraphOperator,
    Kind,
    TensorType,
    broadcast,
    broadcast_read,
    same_dtype,
    wide,
)

FLOATS: Callable[[DType], bool] = lambda d: d.is_float  # noqa: E731
NUMBERS: Callable[[DType], bool] = lambda d: not d.is_bool  # noqa: E731
WIDE_INTEGERS: Callable[[DType], bool] = lambda d: d.is_integer and d.bits > 8  # noqa: E731
INTEGERS: Callable[[DType], bool] = lambda d: d.is_integer  # noqa: E731
BOOLS: Callable[[DType], bool] = lambda d: d.is_bool  # noqa: E731
ANY: Callable[[DType], bool] = lambda d: True  # noqa: E731


def pointwise(
    name: str,
    summary: str,
    scalar: Callable[..., Expr],
    numpy: Callable[..., Any],
    *,
    takes: Callable[[DType], bool] = FLOATS,
    count: int = 1,
    gives: DType | None = None,
    uses: int = 1,
    attributes: tuple[Parameter, ...] = (),
    example: dict[str, object] | None = None,
) -> GraphOperator:
    """Return an operator of ``count`` operands of one dtype that broadcast.

    ``scalar`` and ``numpy`` are given the attributes behind the operands where there are attributes. ``takes`` says
    which dtypes the operands may have, ``gives`` which the result has (None: theirs), ``uses`` how often ``scalar``
    uses an operand at most.
    """

    def type_rule(operands: Sequence[TensorType], v: Values) -> TensorType:
        dtype = same_dtype(operands)
        if not takes(dtype):
            raise InvalidGraph(f"{name} does not take {dtype}", field="operands")
        return TensorType(broadcast([o.shape for o in operands]), gives or dtype)

    def evaluate(operands: Sequence[Array], v: Values) -> Array:
        with np.errstate(all="ignore"):
            result = numpy(*operands, v) if attributes else numpy(*operands)
        return np.asarray(result, gives.numpy if gives is not None else operands[0].dtype)

    def build(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
        shape = broadcast([o.shape for o in operands])

        def at(to: tuple[Expr, ...]) -> Expr:
            given = [wide(broadcast_read(o, to)) for o in operands]
            return scalar(*given, v) if attributes else scalar(*given)

        return Element(shape, gives or operands[0].dtype, at)

    dtype = boolean if takes is BOOLS else int64 if takes in (INTEGERS, WIDE_INTEGERS) else float32
    x, row = TensorType((3, 5), dtype), TensorType((5,), dtype)
    case = Case((x, *(row for _ in range(count - 1))), example or {})
    return GraphOperator(
        name, Kind.POINTWISE, summary, type_rule, evaluate, build, (case,), attributes, (count, count), uses
    )
