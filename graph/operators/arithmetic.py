"""Arithmetic, comparisons, choices and casts of elements."""

from collections.abc import Sequence

import numpy as np

from ...core.dtypes import DTYPES, boolean, float16, float32, int32
from ...core.errors import InvalidGraph
from ...ir.expr import Expr
from ...te import build as te
from ...te.operators.parameter import Integer, Parameter, Values
from .attributes import DTYPE
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
    wide,
)
from .pointwise import ANY, BOOLS, FLOATS, INTEGERS, NUMBERS, WIDE_INTEGERS, pointwise


def _cast_numpy(operands: Sequence[Array], v: Values) -> Array:
    x, dtype = operands[0], DTYPES[v.text("dtype")]
    with np.errstate(all="ignore"):
        if dtype.is_bool:
            return np.asarray(x != 0)
        if dtype.is_float:
            return x.astype(dtype.numpy).astype(np.float64)
        if x.dtype.kind == "f":
            low, high = dtype.integer_range
            x = np.where(np.isnan(x), 0.0, np.trunc(x))
            inside = np.where((x > low) & (x < high), x, 0.0).astype(np.int64)
            return np.where(x >= high, high, np.where(x <= low, low, inside)).astype(dtype.numpy)
        return x.astype(dtype.numpy)


def _cast(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    x, dtype = operands[0], DTYPES[v.text("dtype")]
    return Element(x.shape, dtype, lambda at: te.cast(x[at], dtype))


def _where_type(operands: Sequence[TensorType], v: Values) -> TensorType:
    condition, a, b = operands
    if condition.dtype != boolean or a.dtype != b.dtype:
        raise InvalidGraph(f"where of {condition}, {a} and {b}; needed: bool and two of one dtype", field="operands")
    return TensorType(broadcast([o.shape for o in operands]), a.dtype)


def _where(operands: Sequence[GraphOperand], v: Values) -> GraphOperand:
    shape = broadcast([o.shape for o in operands])

    def at(to: tuple[Expr, ...]) -> Expr:
        condition, a, b = (wide(broadcast_read(o, to)) for o in operands)
        return te.select(condition, a, b)

    return Element(shape, operands[1].dtype, at)


CAST = GraphOperator(
    "cast", Kind.POINTWISE, "the operand in another dtype",
    lambda o, v: TensorType(o[0].shape, DTYPES[v.text("dtype")]), _cast_numpy, _cast,
    tuple(Case((TensorType((3, 5), a),), {"dtype": b.name})
          for a, b in ((float32, int32), (float32, float16), (int32, float32), (int32, boolean), (boolean, float32))),
    (DTYPE,),
)  # fmt: skip
WHERE = GraphOperator(
    "where", Kind.POINTWISE, "the second operand where the first holds, else the third", _where_type,
    lambda o, v: np.where(*o), _where,
    (Case((TensorType((3, 1), boolean), TensorType((3, 5), float32), TensorType((), float32))),), (), (3, 3),
)  # fmt: skip

_DIVISOR = Parameter("divisor", "what is divided by", Integer(1, (1 << 31) - 1))

ARITHMETIC = (
    pointwise("add", "a + b", lambda a, b: a + b, np.add, takes=NUMBERS, count=2),
    pointwise("sub", "a - b", lambda a, b: a - b, np.subtract, takes=NUMBERS, count=2),
    pointwise("mul", "a * b", lambda a, b: a * b, np.multiply, takes=NUMBERS, count=2),
    pointwise("div", "a / b", lambda a, b: a / b, np.divide, takes=FLOATS, count=2),
    pointwise("floor_divide", "a / divisor of integers, rounded down", lambda a, v: a // v.integer("divisor"),
              lambda a, v: a // v.integer("divisor"), takes=WIDE_INTEGERS, attributes=(_DIVISOR,),
              example={"divisor": 3}),
    pointwise("modulo", "what is left by that, from 0 to divisor - 1", lambda a, v: a % v.integer("divisor"),
              lambda a, v: a % v.integer("divisor"), takes=WIDE_INTEGERS, attributes=(_DIVISOR,),
              example={"divisor": 3}),
    pointwise("pow", "a to the b", te.power, np.power, takes=FLOATS, count=2),
    pointwise("maximum", "the greater, or NaN", te.maximum, np.maximum, takes=NUMBERS, count=2),
    pointwise("minimum", "the lesser, or NaN", te.minimum, np.minimum, takes=NUMBERS, count=2),
    pointwise("bitwise_and", "the bits that both have", te.bitwise_and, np.bitwise_and, takes=INTEGERS, count=2),
    pointwise("bitwise_or", "the bits that either has", te.bitwise_or, np.bitwise_or, takes=INTEGERS, count=2),
    pointwise("bitwise_xor", "the bits that one has", te.bitwise_xor, np.bitwise_xor, takes=INTEGERS, count=2),
    pointwise("shift_left", "the bits of a moved up by b", te.shift_left, np.left_shift, takes=INTEGERS, count=2),
    pointwise("shift_right", "the bits of a moved down by b, with copies of the sign", te.shift_right, np.right_shift,
              takes=INTEGERS, count=2),
    CAST,
    WHERE,
)  # fmt: skip

COMPARISONS = (
    pointwise("eq", "a == b", te.equal, np.equal, takes=ANY, count=2, gives=boolean),
    pointwise("ne", "a != b", te.not_equal, np.not_equal, takes=ANY, count=2, gives=boolean),
    pointwise("lt", "a < b", lambda a, b: a < b, np.less, takes=NUMBERS, count=2, gives=boolean),
    pointwise("le", "a <= b", lambda a, b: a <= b, np.less_equal, takes=NUMBERS, count=2, gives=boolean),
    pointwise("gt", "a > b", lambda a, b: a > b, np.greater, takes=NUMBERS, count=2, gives=boolean),
    pointwise("ge", "a >= b", lambda a, b: a >= b, np.greater_equal, takes=NUMBERS, count=2, gives=boolean),
    pointwise("logical_and", "a and b", te.all_of, np.logical_and, takes=BOOLS, count=2, gives=boolean),
    pointwise("logical_or", "a or b", te.any_of, np.logical_or, takes=BOOLS, count=2, gives=boolean),
    pointwise("logical_not", "not a", te.negated, np.logical_not, takes=BOOLS, gives=boolean),
)
