"""How terms are reduced in memory in any order, so that the result is the same bits every time.

Sums of integers, and the greatest and the least number, depend on no order. Nor do sums of floats as they are made
here: each float is a whole number of some unit, and is added as such to a sum of 64 bits. Which unit that is, its
exponent alone decides, so that each float is one such number exactly; there are a dozen units or two. Hence there are
no rounding errors, whatever the terms are, before the sums of all units are added up in float64. Infinities and NaN are
counted. (Kulisch: complete arithmetic; Demmel and Nguyen: indexed summation.)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....core.dtypes import DType, float32, float64, int32, int64
from ....ir.buffer import MemoryScope
from ....ir.build import Writer
from ....ir.expr import BinaryOp, Cast, Const, Expr, Load, Select, Unary, UnaryOp, const, index, logical_and
from ....ir.simplify import simplify
from ....te.functions import cast, equal, negated, not_equal, within
from ...problems.scatter import ScatterProblem
from ...tile.accumulation import Accumulation

_COMMON_EXPONENT = 3
"""The exponent of the first bit of the largest floats of the unit that most belong to: those are below 16."""
_OPERATIONS = {"sum": BinaryOp.ADD, "max": BinaryOp.MAX, "min": BinaryOp.MIN}

Reduce = Callable[[Expr, Expr], None]
"""Writes how a total is reduced with a value: given the number of the total, and that."""


class InPlaceReduction(ABC):
    """An element has ``count`` totals of ``dtype``, each of which is ``identity`` at first. ``op`` reduces a total with
    a value, and joins two totals. Copies, of ``copy_dtype``, are of the totals ``copied``; others are hardly needed."""

    op: BinaryOp = BinaryOp.ADD

    @property
    @abstractmethod
    def dtype(self) -> DType: ...

    @property
    def copy_dtype(self) -> DType:
        return self.dtype

    @property
    def count(self) -> int:
        return 1

    @property
    def copied(self) -> range:
        return range(self.count)

    @property
    def with_least_copies(self) -> "InPlaceReduction":
        """The same with copies of as few totals as there may be."""
        return self

    @property
    def identity(self) -> Expr:
        return const(0, self.dtype)

    @property
    def is_result(self) -> bool:
        """Whether the one total is the reduced terms as they stand."""
        return False

    @abstractmethod
    def reduce(self, w: Writer, value: Expr, reduce: Reduce) -> None:
        """Write what a term of ``value``, a load from registers, does to the totals of its element."""

    @abstractmethod
    def result(self, totals: Sequence[Expr]) -> Expr:
        """Return the reduced terms from all totals."""


@dataclass(frozen=True)
class PlainReduction(InPlaceReduction):
    """The total is the reduced terms."""

    how: Accumulation
    op: BinaryOp

    @property
    def dtype(self) -> DType:
        return self.how.accumulator_dtype

    @property
    def identity(self) -> Expr:
        return self.how.identity[0]

    @property
    def is_result(self) -> bool:
        return self.how.result_dtype == self.dtype

    def reduce(self, w: Writer, value: Expr, reduce: Reduce) -> None:
        reduce(index(0), value)

    def result(self, totals: Sequence[Expr]) -> Expr:
        return self.how.result(totals)


@dataclass(frozen=True)
class Count(InPlaceReduction):
    """All terms are the same finite ``value``: the total is how many there are."""

    value: Const
    result_dtype: DType

    @property
    def dtype(self) -> DType:
        return self.result_dtype if self.is_result else int32

    @property
    def copy_dtype(self) -> DType:
        return int32

    @property
    def is_result(self) -> bool:
        return self.value.value == 1 and self.result_dtype in (int32, int64)

    def reduce(self, w: Writer, value: Expr, reduce: Reduce) -> None:
        reduce(index(0), const(1, int32))

    def result(self, totals: Sequence[Expr]) -> Expr:
        return cast(cast(totals[0], self.value.dtype) * self.value, self.result_dtype)


@dataclass(frozen=True)
class _Floats:
    """Those of a dtype, or integers: ``mantissa`` bits, of which the last one of the smallest has the exponent
    ``least_bit``, and the first one of the largest has ``greatest_exponent``."""

    mantissa: int
    least_bit: int
    greatest_exponent: int
    finite: bool = False

    def joined(self, other: "_Floats") -> "_Floats":
        """Return those of which both are a part."""
        return _Floats(
            max(self.mantissa, other.mantissa),
            min(self.least_bit, other.least_bit),
            max(self.greatest_exponent, other.greatest_exponent),
            self.finite and other.finite,
        )


_FLOATS = {
    "float32": _Floats(24, -149, 127),
    "float16": _Floats(11, -24, 15),
    "bfloat16": _Floats(8, -133, 127),
    "int8": _Floats(8, 0, 7, finite=True),
    "uint8": _Floats(8, 0, 7, finite=True),
    "bool": _Floats(1, 0, 0, finite=True),
}


def _floats_of(term: Expr) -> _Floats:
    """Return what a term, which is added as a float32, may be. What is computed has more bits than its dtype."""
    match term:
        case Cast(value=Load(buffer=buffer)) | Load(buffer=buffer):
            return _FLOATS.get(buffer.dtype.name, _FLOATS["float32"])
        case Select(then=then, otherwise=otherwise):
            return _floats_of(then).joined(_floats_of(otherwise))
        case Const(value=value) if value in (0, 1):
            return _FLOATS["bool"]
    return _FLOATS["float32"]


@dataclass(frozen=True)
class ExactSum(InPlaceReduction):
    """A sum of ``terms`` such ``floats`` at most, as a whole number of each unit, the smallest one first. Unless all
    are finite, one more total counts infinities and NaN: those that are no minus infinity in its lower half, and those
    that are no infinity in its upper half.

    A sum of 64 bits has room for terms of ``bits`` bits. So the floats of a unit have one of ``step`` neighbouring
    exponents, and so far apart are those of neighbouring units. Copies are of the unit that most floats belong to, and
    of ``copied_beside`` units on either side of it.
    """

    terms: int
    floats: _Floats
    result_dtype: DType
    copied_beside: int = 1

    @property
    def dtype(self) -> DType:
        return int64

    @property
    def bits(self) -> int:
        return 63 - (self.terms - 1).bit_length()

    @property
    def step(self) -> int:
        return self.bits - self.floats.mantissa + 1

    @property
    def common(self) -> int:
        """The exponent of the unit that most floats belong to."""
        one, least = self.floats.greatest_exponent + 1 - self.bits <= self.floats.least_bit, self.floats.least_bit
        return least if one else max(_COMMON_EXPONENT + 1 - self.bits, least)

    @property
    def units(self) -> tuple[int, ...]:
        """The exponents of the units."""
        first = self.common - -(-(self.common - self.floats.least_bit) // self.step) * self.step
        last = self.floats.greatest_exponent + 1 - self.bits
        return tuple(range(first, max(first, last - 1 + self.step) + 1, self.step))

    @property
    def count(self) -> int:
        return len(self.units) + (not self.floats.finite)

    @property
    def copied(self) -> range:
        n, beside = self.units.index(self.common), self.copied_beside
        return range(max(n - beside, 0), min(n + beside + 1, len(self.units)))

    @property
    def with_least_copies(self) -> "ExactSum":
        return replace(self, copied_beside=0)

    def _least(self, unit: int) -> float:
        """Return the least float whose last bit is of a unit at least."""
        return 2.0 ** (unit + self.floats.mantissa - 1)

    def reduce(self, w: Writer, value: Expr, reduce: Reduce) -> None:
        size, units = Unary(UnaryOp.ABS, value), self.units
        n, is_common = units.index(self.common), list[Expr]()
        if n > 0:
            is_common.append(size >= self._least(self.common))
        if n < len(units) - 1 or not self.floats.finite:
            is_common.append(size < 2.0 ** min(self.common + self.bits, self.floats.greatest_exponent + 1))
        with w.when(*is_common):
            reduce(index(n), Cast(value * 2.0**-self.common, int64))
        if is_common:
            with w.when(negated(logical_and(*is_common)), not_equal(value, 0.0)):
                self._reduce_rare(w, value, size, reduce)

    def _reduce_rare(self, w: Writer, value: Expr, size: Expr, reduce: Reduce) -> None:
        """The unit is found by halving: floats that belong beyond the middle are scaled by so many steps."""
        infinity = const(float("inf"), value.dtype)
        if len(self.units) > 1:
            with w.when(size < infinity):
                scaled = w.allocate("scaled", (), float64, MemoryScope.REGISTER)
                number = w.allocate("number", (), int32, MemoryScope.REGISTER)
                w.store(scaled, (), Cast(value, float64))
                w.store(number, (), const(0, int32))
                for power in reversed(range((len(self.units) - 1).bit_length())):
                    steps, now = 1 << power, Load(scaled, ())
                    with w.when(Unary(UnaryOp.ABS, now) >= self._least(self.units[0] + steps * self.step)):
                        w.store(scaled, (), now * 2.0 ** -(steps * self.step))
                        w.store(number, (), Load(number, ()) + const(steps, int32))
                whole = Cast(Load(scaled, ()) * 2.0 ** -self.units[0], int64)
                reduce(within(Load(number, ()), len(self.units)), whole)
        if not self.floats.finite:
            with w.when(negated(size < infinity)):
                low = Select(equal(value, -infinity), const(0, int64), const(1, int64))
                high = Select(equal(value, infinity), const(0, int64), const(1 << 32, int64))
                reduce(index(len(self.units)), low + high)

    def result(self, totals: Sequence[Expr]) -> Expr:
        total: Expr = const(0.0, float64)
        for unit, whole in zip(self.units, totals, strict=False):
            total = total + Cast(whole, float64) * 2.0**unit
        if not self.floats.finite:
            zero, infinity = const(0.0, float64), const(float("inf"), float64)
            above = Select(not_equal(totals[-1] % (1 << 32), 0), infinity, zero)
            below = Select(totals[-1] >= 1 << 32, infinity, zero)
            total = total + (above - below)  # infinity - infinity is NaN
        return cast(total, self.result_dtype)


def in_place_reduction(problem: ScatterProblem) -> InPlaceReduction | None:
    """Return how the terms of a scatter are reduced in memory; None where the result would depend on the order."""
    how, term = problem.accumulation, simplify(problem.scatter.term, {})
    dtype, op = how.accumulator_dtype, _OPERATIONS.get(how.reducer)
    if op is BinaryOp.ADD and isinstance(term, Const) and abs(term.value) < float("inf") and problem.terms < 1 << 31:
        return Count(term, how.result_dtype)
    if op is not None and (dtype in (int32, int64) or (dtype == float32 and op is not BinaryOp.ADD)):
        return PlainReduction(how, op)
    if op is not BinaryOp.ADD or dtype != float32:
        return None
    return ExactSum(problem.terms, _floats_of(term), how.result_dtype)
