"""Writes what is computed in float32 and rounded to float16 as arithmetic on pairs of float16, where that is the same.

    float16(float32(a) * float32(b))           float32 holds the product exactly: it is rounded once in either way
    float16(float32(x & 15) - 8)               float16 holds these whole numbers
    float16(c)                                 of a float of 8 bits: one conversion for two

A whole number x below 1024 is the last bits of the float16 number 1024 + x. So numbers of 4 or 8 bits take an operation
on bits and a subtraction for two of them, and no conversion.
"""

from dataclasses import dataclass

from ....core.dtypes import float8_e4m3fn, float16, float32, int8, uint8
from ....ir.expr import Binary, BinaryOp, Broadcast, Cast, Const, Expr, Load, Ramp, index, rebuild
from .expressions import ExpressionEmitter
from .memory import raw_bits

_HELD = 1 << 11
"""Whole numbers up to here are float16 numbers."""
_WHOLE = 1 << 10
"""Whole numbers below this are the last bits of as many more than it."""
_SIGN = 1 << 7
LEAST_CAPABILITY, LEAST_CAPABILITY_FLOAT8 = 80, 89
"""From which devices on there are such instructions, and those for floats of 8 bits."""


@dataclass(frozen=True, slots=True)
class _HalfPair:
    """Two float16 numbers in the word ``text``; ``most``: they are whole numbers of at most that magnitude. ``behind``:
    what is still to be subtracted from both."""

    text: str
    most: int | None = None
    behind: int = 0


class ExactHalves:
    """Writes two neighbouring lanes of vectors, from ``lane`` on."""

    def __init__(self, emitter: ExpressionEmitter, lane: int) -> None:
        self.emitter, self.fn, self.lane = emitter, emitter.fn, lane

    def rounded(self, value: Expr) -> str | None:
        """Return the word with both lanes of ``value``, of float16; None where it is computed in another way."""
        if not isinstance(value, Cast) or value.type != float16 or self.fn.capability < LEAST_CAPABILITY:
            return None
        inner = value.value
        pair = self._exact(inner)
        if pair is not None:
            return self._whole(pair)
        if isinstance(inner, Binary) and inner.op is BinaryOp.MUL and inner.dtype == float32:
            a, b = self._exact(inner.a), self._exact(inner.b)
            if a is not None and b is not None:
                return f"{self.fn.use('mul_half2')}({self._whole(a)}, {self._whole(b)})"
        return None

    def _exact(self, e: Expr) -> _HalfPair | None:
        """Return ``e``, whose values float16 holds."""
        if isinstance(e, Broadcast):
            return self._exact_cast(e.value, broadcast=True)
        if isinstance(e, Binary) and e.op is BinaryOp.SUB and e.dtype == float32:
            a, b = self._exact(e.a), e.b.value if isinstance(e.b, Broadcast) else e.b
            if a is None or a.most is None:
                return None
            if isinstance(b, Const):
                whole = int(b.value) if float(b.value).is_integer() and 0 <= b.value < _WHOLE else None
                within = whole is not None and a.most + whole <= _HELD and a.behind + whole <= _HELD
                return _HalfPair(a.text, a.most + whole, a.behind + whole) if whole is not None and within else None
            other = self._exact(e.b)
            if other is None or other.most is None or a.most + other.most > _HELD:
                return None
            text = f"{self.fn.use('sub_half2')}({self._whole(a)}, {self._whole(other)})"
            return _HalfPair(text, a.most + other.most)
        return self._exact_cast(e, broadcast=False)

    def _exact_cast(self, e: Expr, *, broadcast: bool) -> _HalfPair | None:
        """Return a cast of what float16 holds, or such a load."""
        value = e.value if isinstance(e, Cast) and e.type in (float32, float16) else e
        if value is e and not isinstance(e, Load):
            return None
        low, high = (value, value) if broadcast else (_lane_of(value, self.lane + n) for n in range(2))
        if value.dtype == float16 or (value.dtype == float8_e4m3fn and self.fn.capability >= LEAST_CAPABILITY_FLOAT8):
            return self._of_bits(low, high, 16 if value.dtype == float16 else 8)
        most = _most(value)
        if most is None:
            return None
        a, b = (self.emitter.value(x) for x in (low, high))
        if value.dtype == int8:
            word = f"{self.fn.use('pair_of_bytes')}({a.unary} ^ 0x80, {b.unary} ^ 0x80)"
            return _HalfPair(word, _SIGN, _WHOLE + _SIGN)
        return _HalfPair(f"{self.fn.use('pair_of_whole')}({a.text}, {b.text})", most, _WHOLE)

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
        bits = _bits_of_whole(pair.behind)
        return f"{self.fn.use('sub_half2')}({pair.text}, 0x{bits << 16 | bits:08x}u)"


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
    return least if 0 <= least < _WHOLE else None


def _bits_of_whole(value: int) -> int:
    """Return the bits of a whole number as float16."""
    return int(float16.numpy.type(value).view("uint16"))


def _lane_of(e: Expr, lane: int) -> Expr:
    """Return one lane of a vector as a scalar."""
    if e.lanes == 1:
        return e
    if isinstance(e, Broadcast):
        return e.value
    if isinstance(e, Ramp):
        return e.base + index(lane * e.stride)
    return rebuild(e, [_lane_of(c, lane) for c in e.children])
