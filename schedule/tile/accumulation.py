"""Says how a reducer accumulates: the state it keeps in registers, its identity, and how values and states are
combined."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.dtypes import DType, boolean, float32, int32
from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import Binary, BinaryOp, Cast, Compare, CompareOp, Const, Expr, Logic, LogicOp, Select, const
from ...te.functions import cast, equal
from ...te.workload import Reducer

_OPERATIONS = {
    "sum": BinaryOp.ADD,
    "prod": BinaryOp.MUL,
    "max": BinaryOp.MAX,
    "min": BinaryOp.MIN,
}
_BETTER = {"argmax": CompareOp.GT, "argmin": CompareOp.LT}


def register_dtype(dtype: DType) -> DType:
    """Return the dtype that a value is kept in: float32 for 16-bit floats, which is what they are computed in."""
    return float32 if dtype.is_float and dtype.bits == 16 else dtype


@dataclass(frozen=True, slots=True)
class Accumulation:
    """How ``reducer`` reduces values of ``value_dtype`` to a result of ``result_dtype``.

    A state is one number. For argmax and argmin it is two: the best value, and its position.
    """

    reducer: Reducer
    value_dtype: DType
    result_dtype: DType

    @property
    def accumulator_dtype(self) -> DType:
        """The dtype that values are accumulated in: float32 for 16-bit floats, int32 for 8-bit integers."""
        return int32 if self.value_dtype.bits == 8 else register_dtype(self.value_dtype)

    @property
    def state_dtypes(self) -> tuple[DType, ...]:
        """The dtypes of the numbers of a state."""
        return (self.accumulator_dtype,) if self.reducer in _OPERATIONS else (self.accumulator_dtype, int32)

    @property
    def identity(self) -> tuple[Expr, ...]:
        """The state before any value.

        For positions this is the first one, which is the result where all values are the worst that there is.
        """
        if self.reducer in ("sum", "prod"):
            return (const(int(self.reducer == "prod"), self.accumulator_dtype),)
        worst = limit_of(self.accumulator_dtype, low=self.reducer in ("max", "argmax"))
        return (worst,) if self.reducer in _OPERATIONS else (worst, const(0, int32))

    def accumulate(self, state: Sequence[Expr], value: Expr, position: Expr) -> tuple[Expr, ...]:
        """``state`` with one more value, whose position is after those of the values before (see ``store_state``)."""
        wide = cast(value, self.accumulator_dtype)
        if self.reducer in _OPERATIONS:
            return (Binary(_OPERATIONS[self.reducer], state[0], wide),)
        better = Compare(_BETTER[self.reducer], wide, state[0])
        return Select(better, wide, state[0]), Select(better, Cast(position, int32), state[1])

    def combine(self, a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return two states as one. Of equal values the first position is kept."""
        if self.reducer in _OPERATIONS:
            return (Binary(_OPERATIONS[self.reducer], a[0], b[0]),)
        earlier = Logic(LogicOp.AND, equal(b[0], a[0]), b[1] < a[1])
        better = Logic(LogicOp.OR, Compare(_BETTER[self.reducer], b[0], a[0]), earlier)
        return Select(better, b[0], a[0]), Select(better, b[1], a[1])

    def result(self, state: Sequence[Expr]) -> Expr:
        """Return the result of a state that all values are in."""
        return cast(state[-1], self.result_dtype)


def limit_of(dtype: DType, *, low: bool) -> Const:
    """Return the lowest value of a dtype, or the highest one: an infinity where the dtype has it."""
    if dtype.is_float:
        return Const(float("-inf") if low else float("inf"), dtype)
    if dtype == boolean:
        return Const(not low, dtype)
    least, greatest = dtype.integer_range
    return const(least if low else greatest, dtype)


def store_state(w: Writer, buffers: Sequence[Buffer], indices: tuple[Expr, ...], state: Sequence[Expr]) -> None:
    """Store the numbers of a state that is computed from the old one. The new position reads the old best value, so it
    is stored first."""
    for buffer, number in reversed(list(zip(buffers, state, strict=True))):
        w.store(buffer, indices, number)
