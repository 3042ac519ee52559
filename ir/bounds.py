"""Bounds of integer and bool expressions: the values that one can have while its variables stay in given ranges."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.dtypes import DType
from ..core.errors import InvalidKernel
from ..core.frozen import quickly_built
from .expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Shuffle,
    Unary,
    UnaryOp,
    Var,
)
from .linear_form import LinearForm, affine_form


@quickly_built
@dataclass(frozen=True, slots=True)
class Interval:
    """The whole numbers from ``low`` to ``high``, both included. It is never empty. A bool is 0 or 1."""

    low: int
    high: int

    @property
    def is_point(self) -> bool:
        return self.low == self.high

    @property
    def count(self) -> int:
        """Return how many numbers are in it."""
        return self.high - self.low + 1

    def within(self, other: "Interval") -> bool:
        """Return whether every number of this interval is in ``other``."""
        return other.low <= self.low and self.high <= other.high

    def union(self, other: "Interval") -> "Interval":
        """Return the smallest interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: "Interval") -> "Interval":
        return Interval(self.low - other.high, self.high - other.low)

    def scaled(self, factor: int) -> "Interval":
        """Return the interval of all numbers times ``factor``."""
        a, b = self.low * factor, self.high * factor
        return Interval(a, b) if a <= b else Interval(b, a)


Ranges = Mapping[str, Interval]
"""The range of each variable, by name."""

UNKNOWN_VARIABLE = Interval(-(1 << 47), 1 << 47)
"""The range of a variable of which nothing is known. Loop variables count things in memory, and address spaces end at
2^47 bytes. So sums of such variables with small coefficients are known not to wrap around."""

BOOL = Interval(0, 1)


def dtype_interval(dtype: DType) -> Interval:
    """Return all values of an integer or bool dtype. Raises InvalidKernel for a float one."""
    found = _DTYPE_INTERVALS.get((dtype.kind, dtype.bits))
    if found is None:
        raise InvalidKernel(f"only integers and bools have bounds, not {dtype}")
    return found


_DTYPE_INTERVALS: dict[tuple[str, int], Interval] = {("bool", 8): BOOL}
for _bits in (8, 16, 32, 64):
    _DTYPE_INTERVALS["int", _bits] = Interval(-(1 << (_bits - 1)), (1 << (_bits - 1)) - 1)
    _DTYPE_INTERVALS["uint", _bits] = Interval(0, (1 << _bits) - 1)


def loop_range(extent: int) -> Interval:
    """Return the values of the variable of a loop with ``extent`` >= 1 iterations."""
    return Interval(0, extent - 1)


def affine_interval(form: LinearForm, ranges: Ranges) -> Interval:
    """Return the exact bounds of an affine form, as if it were computed without wrapping."""
    low = high = form.constant
    for name, c in form.coefficients.items():
        known = ranges.get(name, UNKNOWN_VARIABLE)
        if c > 0:
            low, high = low + c * known.low, high + c * known.high
        else:
            low, high = low + c * known.high, high + c * known.low
    return Interval(low, high)


def interval_of(expr: Expr, ranges: Ranges) -> Interval:
    """Return bounds of an integer or bool expression over all its lanes. They are sound, though not always tight.

    They are exact for affine expressions. Variables missing from ``ranges`` lie in ``UNKNOWN_VARIABLE``. Where
    arithmetic could wrap around, the answer is all of the dtype. Raises InvalidKernel for a float expression.
    """
    if isinstance(expr, Binary):
        form = affine_form(expr)
        if form is not None:
            return _fitted(affine_interval(form, ranges), expr.dtype)
    bound = _BOUNDS.get(type(expr))
    if bound is None:
        raise InvalidKernel(f"{type(expr).__name__} has no bounds")
    return bound(expr, ranges)


def floordiv_interval(a: Interval, b: Interval) -> Interval | None:
    """Return bounds of ``a // b``; None where ``b`` may be 0."""
    if 0 in b:
        return None
    corners = (a.low // b.low, a.low // b.high, a.high // b.low, a.high // b.high)
    return Interval(min(corners), max(corners))


def mod_interval(a: Interval, b: Interval) -> Interval | None:
    """Return bounds of ``a % b``, which has the sign of ``b``; None where ``b`` may be 0."""
    if 0 in b:
        return None
    if b.is_point and a.low // b.low == a.high // b.low:
        return Interval(a.low % b.low, a.high % b.low)
    if b.low > 0:
        return Interval(0, min(a.high, b.high - 1) if a.low >= 0 else b.high - 1)
    return Interval(b.low + 1, 0)


def compare_interval(op: CompareOp, a: Interval, b: Interval) -> Interval:
    """Return the values that comparing a number of ``a`` with one of ``b`` can have: 0, 1 or both."""
    if op in (CompareOp.GT, CompareOp.GE):
        a, b = b, a
        op = CompareOp.LT if op is CompareOp.GT else CompareOp.LE
    match op:
        case CompareOp.LT:
            return Interval(int(a.high < b.low), int(a.low < b.high))
        case CompareOp.LE:
            return Interval(int(a.high <= b.low), int(a.low <= b.high))
    equal = Interval(int(a.is_point and a == b), int(a.low <= b.high and b.low <= a.high))
    return equal if op is CompareOp.EQ else Interval(1 - equal.high, 1 - equal.low)


def _fitted(interval: Interval | None, dtype: DType) -> Interval:
    """Return ``interval`` where no value of it wraps around in ``dtype``, else all values of ``dtype``."""
    whole = dtype_interval(dtype)
    return interval if interval is not None and interval.within(whole) else whole


def _binary(expr: Binary, ranges: Ranges) -> Interval:
    a, b = interval_of(expr.a, ranges), interval_of(expr.b, ranges)
    return _fitted(binary_interval(expr.op, a, b), expr.dtype)


def binary_interval(op: BinaryOp, a: Interval, b: Interval) -> Interval | None:
    """Return bounds of ``a op b`` without wrapping; None where nothing is known."""
    match op:
        case BinaryOp.ADD:
            return a + b
        case BinaryOp.SUB:
            return a - b
        case BinaryOp.MUL:
            first, second = a.scaled(b.low), a.scaled(b.high)
            return first.union(second)
        case BinaryOp.FLOORDIV:
            return floordiv_interval(a, b)
        case BinaryOp.MOD:
            return mod_interval(a, b)
        case BinaryOp.MIN:
            return Interval(min(a.low, b.low), min(a.high, b.high))
        case BinaryOp.MAX:
            return Interval(max(a.low, b.low), max(a.high, b.high))
    return None


def _unary(expr: Unary, ranges: Ranges) -> Interval:
    value = interval_of(expr.value, ranges)
    match expr.op:
        case UnaryOp.NEG:
            return _fitted(value.scaled(-1), expr.dtype)
        case UnaryOp.ABS:
            return _fitted(absolute_interval(value), expr.dtype)
        case UnaryOp.NOT:
            return Interval(1 - value.high, 1 - value.low)
    return dtype_interval(expr.dtype)


def absolute_interval(value: Interval) -> Interval:
    """Return bounds of the absolute value, without wrapping."""
    low = 0 if 0 in value else min(abs(value.low), abs(value.high))
    return Interval(low, max(abs(value.low), abs(value.high)))


def _compare(expr: Compare, ranges: Ranges) -> Interval:
    if expr.a.dtype.is_float:
        return BOOL
    return compare_interval(expr.op, interval_of(expr.a, ranges), interval_of(expr.b, ranges))


def _logic(expr: Logic, ranges: Ranges) -> Interval:
    a, b = interval_of(expr.a, ranges), interval_of(expr.b, ranges)
    if expr.op is LogicOp.AND:
        return Interval(min(a.low, b.low), min(a.high, b.high))
    return Interval(max(a.low, b.low), max(a.high, b.high))


def _select(expr: Select, ranges: Ranges) -> Interval:
    condition = interval_of(expr.condition, ranges)
    if condition.is_point:
        return interval_of(expr.then if condition.low else expr.otherwise, ranges)
    return interval_of(expr.then, ranges).union(interval_of(expr.otherwise, ranges))


def _cast(expr: Cast, ranges: Ranges) -> Interval:
    if expr.value.dtype.is_float:
        return dtype_interval(expr.type)
    value = interval_of(expr.value, ranges)
    if expr.type.is_bool:
        return compare_interval(CompareOp.NE, value, Interval(0, 0))
    return _fitted(value, expr.type)


def _ramp(expr: Ramp, ranges: Ranges) -> Interval:
    last = Interval(0, expr.count - 1).scaled(expr.stride)
    return _fitted(interval_of(expr.base, ranges) + last, expr.dtype)


def _reduce(expr: ReduceLanes, ranges: Ranges) -> Interval:
    value, lanes = interval_of(expr.value, ranges), expr.value.lanes
    if expr.op in (BinaryOp.MIN, BinaryOp.MAX):
        return value
    return _fitted(value.scaled(lanes) if expr.op is BinaryOp.ADD else None, expr.dtype)


def _const(expr: Const, ranges: Ranges) -> Interval:
    if expr.type.is_float:
        raise InvalidKernel(f"only integers and bools have bounds, not {expr.type}")
    return Interval(int(expr.value), int(expr.value))


_BOUNDS: dict[type[Expr], Callable[[Any, Ranges], Interval]] = {
    Var: lambda e, ranges: ranges.get(e.name, UNKNOWN_VARIABLE),
    Const: _const,
    Binary: _binary,
    Compare: _compare,
    Logic: _logic,
    Unary: _unary,
    Select: _select,
    Cast: _cast,
    Load: lambda e, ranges: BOOL if e.dtype.is_bool else dtype_interval(e.dtype),
    Ramp: _ramp,
    Broadcast: lambda e, ranges: interval_of(e.value, ranges),
    ReduceLanes: _reduce,
    Shuffle: lambda e, ranges: interval_of(e.value, ranges),  # the value of some lane for which the ranges hold too
    ClusterLoad: lambda e, ranges: dtype_interval(e.dtype),
}
