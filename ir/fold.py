"""Constant folding: arithmetic on constants, exactly as a kernel would carry it out. The answer is None where that must
be left to the kernel."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.dtypes import DType
from .expr import Binary, BinaryOp, Cast, Compare, CompareOp, Const, Expr, Unary, UnaryOp

Number = int | float


def wrap(value: int, dtype: DType) -> int:
    """Return ``value`` as an integer of ``dtype`` holds it: modulo 2^bits."""
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    return (value - low) % (1 << dtype.bits) + low


_INTEGERS: dict[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.ADD: lambda a, b: a + b,
    BinaryOp.SUB: lambda a, b: a - b,
    BinaryOp.MUL: lambda a, b: a * b,
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
}
_FLOATS: dict[BinaryOp, np.ufunc] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.DIV: np.divide,
}
BIT_OPERATIONS: dict[BinaryOp, np.ufunc] = {
    BinaryOp.BIT_AND: np.bitwise_and,
    BinaryOp.BIT_OR: np.bitwise_or,
    BinaryOp.BIT_XOR: np.bitwise_xor,
    BinaryOp.SHL: np.left_shift,
    BinaryOp.SHR: np.right_shift,
}
"""What each operation on bits gives for integers, or for arrays element by element."""
COMPARISONS: dict[CompareOp, Callable[[Any, Any], Any]] = {
    CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le,
    CompareOp.GT: operator.gt,
    CompareOp.GE: operator.ge,
    CompareOp.EQ: operator.eq,
    CompareOp.NE: operator.ne,
}
"""What each comparison gives for numbers, or for arrays element by element."""


def fold_binary(expr: Binary) -> Const | None:
    """Return the constant that an operation on two constants gives."""
    a, b = expr.a, expr.b
    if not (isinstance(a, Const) and isinstance(b, Const)):
        return None
    if a.type.is_integer:
        x, y = int(a.value), int(b.value)
        if expr.op in (BinaryOp.FLOORDIV, BinaryOp.MOD):
            return None if y == 0 else Const(wrap(x // y if expr.op is BinaryOp.FLOORDIV else x % y, a.type), a.type)
        operation = _INTEGERS.get(expr.op)
        return None if operation is None else Const(wrap(operation(x, y), a.type), a.type)
    return _fold_float(expr.op, a, b) if a.type.is_float else None


def _fold_float(op: BinaryOp, a: Const, b: Const) -> Const | None:
    ufunc = _FLOATS.get(op)
    if ufunc is None or a.type.bits < 32:  # 16-bit floats may be computed wider, and the kernel says where they round
        return None
    with np.errstate(all="ignore"):
        value = float(ufunc(a.type.numpy.type(a.value), a.type.numpy.type(b.value)))
    return None if value != value else Const(value, a.type)


def fold_compare(expr: Compare) -> bool | None:
    """Return the truth of a comparison of two constants."""
    if isinstance(expr.a, Const) and isinstance(expr.b, Const):
        return bool(COMPARISONS[expr.op](expr.a.value, expr.b.value))
    return None


def fold_unary(expr: Unary) -> Const | None:
    """Return the constant that ``neg``, ``abs`` or ``not`` of a constant gives. Other functions are left to the
    kernel."""
    value = expr.value
    if not isinstance(value, Const):
        return None
    if expr.op is UnaryOp.NOT:
        return Const(not value.value, value.type)
    if expr.op is UnaryOp.NEG or expr.op is UnaryOp.ABS:
        result = -value.value if expr.op is UnaryOp.NEG else abs(value.value)
        return Const(result if value.type.is_float else wrap(int(result), value.type), value.type)
    return None


def fold_cast(expr: Cast) -> Const | None:
    """Return the constant that a cast of a constant gives, where every way to compute it agrees."""
    value, dtype = expr.value, expr.type
    if not isinstance(value, Const):
        return None
    if dtype.is_bool:
        return Const(bool(value.value != 0), dtype)
    if dtype.is_integer:
        return None if value.type.is_float else Const(wrap(int(value.value), dtype), dtype)
    with np.errstate(all="ignore"):
        rounded = float(dtype.numpy.type(value.value))
    return Const(rounded, dtype) if rounded == value.value else None


def is_constant(expr: Expr, value: Number) -> bool:
    """Return whether ``expr`` is the number constant ``value``, telling 0.0 from -0.0."""
    return (
        isinstance(expr, Const) and expr.value == value and not expr.type.is_bool and _sign(expr.value) == _sign(value)
    )


def _sign(value: Number) -> bool:
    return str(value).startswith("-")
