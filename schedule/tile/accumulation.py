"""How each reducer accumulates inside a thread: what it keeps, what it starts from, how a value is taken in."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.dtypes import DType, boolean, float32, int32
from ...ir.expr import Binary, BinaryOp, Cast, Compare, CompareOp, Const, Expr, Logic, LogicOp, Select, const
from ...te.workload import Reducer

_COMBINED_BY = {
    "sum": BinaryOp.ADD,
    "prod": BinaryOp.MUL,
    "max": BinaryOp.MAX,
    "min": BinaryOp.MIN,
}
_BETTER = {"argmax": CompareOp.GT, "argmin": CompareOp.LT}


@dataclass(frozen=True, slots=True)
class Accumulation:
    """``reducer`` of values of one dtype into a result of another. A state is one number, or the best value and its
    position; it is kept wider than 16-bit floats and 8-bit integers are."""

    reducer: Reducer
    value: DType
    result: DType

    @property
    def wide(self) -> DType:
        """What values are accumulated in."""
        if self.value.is_float and self.value.bits == 16:
            return float32
        return int32 if self.value.bits == 8 else self.value

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Of the numbers of a state."""
        return (self.wide,) if self.reducer in _COMBINED_BY else (self.wide, int32)

    @property
    def neutral(self) -> tuple[Expr, ...]:
        """The state of nothing. Of positions the first: it stands where all values are the worst there is."""
        if self.reducer in ("sum", "prod"):
            return (const(int(self.reducer == "prod"), self.wide),)
        greatest = self.reducer in ("max", "argmax")
        worst = limit_of(self.wide, low=greatest)
        return (worst,) if self.reducer in _COMBINED_BY else (worst, const(0, int32))

    def taken(self, state: Sequence[Expr], value: Expr, position: Expr) -> tuple[Expr, ...]:
        """``state`` with one more value, which stands after those it has. The second number goes by the old first."""
        wide = value if value.dtype == self.wide else Cast(value, self.wide)
        if self.reducer in _COMBINED_BY:
            return (Binary(_COMBINED_BY[self.reducer], state[0], wide),)
        better = Compare(_BETTER[self.reducer], wide, state[0])
        return Select(better, wide, state[0]), Select(better, Cast(position, int32), state[1])

    def combined(self, a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...]:
        """Two states as one; of equal values the first position."""
        if self.reducer in _COMBINED_BY:
            return (Binary(_COMBINED_BY[self.reducer], a[0], b[0]),)
        earlier = Logic(LogicOp.AND, Compare(CompareOp.EQ, b[0], a[0]), Compare(CompareOp.LT, b[1], a[1]))
        better = Logic(LogicOp.OR, Compare(_BETTER[self.reducer], b[0], a[0]), earlier)
        return Select(better, b[0], a[0]), Select(better, b[1], a[1])

    def finished(self, state: Sequence[Expr]) -> Expr:
        """The result of a complete state."""
        found = state[-1]
        return found if found.dtype == self.result else Cast(found, self.result)


def limit_of(dtype: DType, *, low: bool) -> Const:
    """The lowest (or highest) value: minus infinity where there is one."""
    if dtype.is_float:
        return Const(float("-inf") if low else float("inf"), dtype)
    if dtype == boolean:
        return Const(not low, dtype)
    least, greatest = dtype.integer_range
    return const(least if low else greatest, dtype)
