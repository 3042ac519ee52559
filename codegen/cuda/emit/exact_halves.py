"""Writes what is computed in float32 and rounded to 16 bits as arithmetic on pairs of such floats, where that is the
same.

    float16(float32(a) * float32(b))           float32 holds the product exactly: it is rounded once in either way
    float16(float32(x & 15) - 8)               float16 holds these whole numbers
    float16(c)                                 of a float of 8 bits: one conversion for two

A whole number x below 1024 is the last bits of the float16 number 1024 + x, and one below 128 those of the bfloat16
number 128 + x. So numbers of 4 or 8 bits take an operation on bits and a subtraction for two of them, and no
conversion.

A product of two bfloat16 numbers may be too small for float32 to hold it. One of them is a whole number here: then
float32 holds the product, which is a multiple of the least bfloat16 number.
"""

from dataclasses import dataclass

import numpy as np

from ....core.dtypes import DType, bfloat16, float8_e4m3fn, float16, float32, int8, uint8
from ....ir.expr import Binary, BinaryOp, Broadcast, Cast, Const, Expr, Load, Ramp, index, rebuild
from .expressions import ExpressionEmitter
from .memory import raw_bits
from .types import half_name

_SIGN = 1 << 7
LEAST_CAPABILITY_FLOAT8 = 89
"""From which devices on floats of 8 bits have instructions."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A float of 16 bits. ``held``: whole numbers up to here are such floats. ``whole``: those below it are the last
    bits of as much more than it. ``least_capability``: from which devices on there is arithmetic on pairs."""

    held: int
    whole: int
    least_capability: int


_FORMATS: dict[DType, _Format] = {
    float16: _Format(1 << 11, 1 << 10, 80),
    bfloat16: _Format(1 << 8, 1 << 7, 90),
}


@dataclass(frozen=True, slots=True)
class _HalfPair:
    """Two floats of 16 bits in the word ``text``. ``most``: they are whole numbers of at most that magnitude.
    ``behind``: what is still to be subtracted from both."""

    text: str
    most: int | None = None
    behind: int = 0


class ExactHalves:
    """Writes two neighbouring lanes of vectors of ``dtype``, from ``lane`` on."""

    def __init__(self, emitter: ExpressionEmitter, lane: int, dtype: DType) -> None:
        self.emitter, self.fn, self.lane, self.dtype = emitter, emitter.fn, lane, dtype
        self.format, self.name = _FORMATS[dtype], half_name(dtype)

    def rounded(self, value: Expr) -> str | None:
        """Return the word with both lanes of ``value``; None where it is computed in another way."""
        if not isinstance(value, Cast) or value.type != self.dtype:
            return None
        if self.fn.capability < self.format.least_capability:
            return None
        inner = value.value
        pair = self._exact(inner)
        if pair is not None:
            return self._whole(pair)
        if isinstance(inner, Binary) and inner.op is BinaryOp.MUL and inner.dtype == float32:
            a, b = self._exact(inner.a), self._exact(inner.b)
            if a is None or b is None or (self.dtype == bfloat16 and a.most is None and b.most is None):
                return None
            return f"{self.fn.use(f'mul_{self.name}2')}({self._whole(a)}, {self._whole(b)})"
        return None

    def _exact(self, e: Expr) -> _HalfPair | None:
        """Return ``e``, whose values the float of 16 bits holds."""
        if isinstance(e, Broadcast):
            return self._exact_cast(e.value, broadcast=True)
        if isinstance(e, Binary) and e.op is BinaryOp.SUB and e.dtype == float32:
            a, b = self._exact(e.a), e.b.value if isinstance(e.b, Broadcast) else e.b
            if a is None or a.most is None:
                return None
            held = self.format.held
            if isinstance(b, Const):
                whole = int(b.value) if float(b.value).is_integer() and 0 <= b.value < self.format.whole else None
                within = whole is not None and a.most + whole <= held and a.behind + whole <= held
                return _HalfPair(a.text, a.most + whole, a.behind + whole) if whole is not None and within else None
            other = self._exact(e.b)
            if other is None or other.most is None or a.most + other.most > held:
                return None
            text = f"{self.fn.use(f'sub_{self.name}2')}({self._whole(a)}, {self._whole(other)})"
            return _HalfPair(text, a.most + other.most)
        return self._exact_cast(e, broadcast=False)

    def _exact_cast(self, e: Expr, *, broadcast: bool) -> _HalfPair | None:
        """Return a cast of what the float of 16 bits holds, or such a load."""
        value = e.value if isinstance(e, Cast) and e.type in (float32, self.dtype) else e
        if value is e and not isinstance(e, Load):
            return None
        low, high = (value, value) if broadcast else (_lane_of(value, self.lane + n) for n in range(2))
        if value.dtype == self.dtype:
            return self._of_bits(low, high, 16)
        if value.dtype == float8_e4m3fn and self.dtype == float16 and self.fn.capability >= LEAST_CAPABILITY_FLOAT8:
            return self._of_bits(low, high, 8)
        most, whole = _most(value), self.format.whole
        if most is None or most >= whole:
            return None
        a, b = (self.emitter.value(x) for x in (low, high))
        if value.dtype == int8:
            word = f"{self.fn.use('pair_of_bytes')}({a.unary} ^ 0x80, {b.unary} ^ 0x80)"
            return _HalfPair(word, _SIGN, whole + _SIGN)
        return _HalfPair(f"{self.fn.use(f'{self.name}_pair_of_whole')}({a.text}, {b.text})", most, whole)

    def _of_bits(self, low: Expr, high: Expr, bits: int) -> _HalfPair | None:
        a, b = raw_bits(self.emitter, low), raw_bits(self.emitter, high)
        if a is None or b is None:
            return None
        word = f"((unsigned){a.unary} | (unsigned){b.unary} << {bits})"
        return _HalfPair(word if bits == 16 else f"{self.fn.use('e4m3_to_half2')}({word})")

    def _whole(self, pair: _HalfPair) -> str:
        """Return a pair with nothing left to be subtracted."""
        if not pair.behind:
            return pair.text
        bits = int(np.asarray(pair.behind, self.dtype.numpy).view(np.uint16))
        return f"{self.fn.use(f'sub_{self.name}2')}({pair.text}, 0x{bits << 16 | bits:08x}u)"


def _most(e: Expr) -> int | None:
    """Return the greatest value of a few bits of a word without a sign, or the greatest magnitude of a byte; None for
    anything else."""
    if e.dtype in (uint8, int8) and isinstance(e, Load):
        return 255 if e.dtype == uint8 else _SIGN
    if isinstance(e, Cast) and e.dtype.is_integer and e.value.dtype == uint8:
        return _most(e.value)
    if not isinstance(e, Binary) or e.op is not BinaryOp.BIT_AND:
        return None
    masks = [c.value if isinstance(c, Broadcast) else c for c in e.children]
    least = min((int(c.value) for c in masks if isinstance(c, Const)), default=-1)
    return least if least >= 0 else None


def _lane_of(e: Expr, lane: int) -> Expr:
    """Return one lane of a vector as a scalar."""
    if e.lanes == 1:
        return e
    if isinstance(e, Broadcast):
        return e.value
    if isinstance(e, Ramp):
        return e.base + index(lane * e.stride)
    return rebuild(e, [_lane_of(c, lane) for c in e.children])
