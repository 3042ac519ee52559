"""Expressions of wide floats whose values narrow ones hold.

    max(float32(x), 0)                      = float32(max(x, 0))
    select(k <= i, float32(x), 0)           = float32(select(k <= i, x, 0))

Negations, magnitudes, maxima, minima and selections make no new values, so that they may be computed in the dtype that
their operands come from. A product of such factors is one of narrow floats, which matrix units multiply.
"""

from collections.abc import Iterator

from ..core.dtypes import DType
from ..ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Select, Unary, UnaryOp

_CHOOSING = (BinaryOp.MAX, BinaryOp.MIN)
_SIGN = (UnaryOp.NEG, UnaryOp.ABS)
_LAST_WHOLE = {"float16": 1 << 11, "bfloat16": 1 << 8}
"""All whole numbers up to here are numbers of the dtype."""


def cast_outside(e: Expr) -> Expr:
    """Return ``e`` as a cast of what it is in the narrow float that all of its values come from; ``e`` itself where
    there is no such float, or where it is a cast already."""
    if isinstance(e, Cast | Load | Const):
        return e
    sources = set(_sources(e))
    dtype = next(iter(sources), None)
    if len(sources) != 1 or dtype is None or not dtype.is_float or dtype.is_float8 or dtype.bits >= e.dtype.bits:
        return e
    narrow = _computed_in(e, dtype)
    return e if narrow is None else Cast(narrow, e.dtype)


def narrow_value(body: Expr, dtype: DType) -> Expr | None:
    """Return what ``body``, a float32, is in the 16-bit float ``dtype``, which holds all of its values; None where that
    is not known. They come from it or from 8 bits, or are whole numbers that are small enough."""
    outside = cast_outside(body)
    value = outside.value if isinstance(outside, Cast) else body
    if value.dtype == dtype:
        return value
    most = _most_whole(body)
    held = value.dtype.bits == 8 or (most is not None and most <= _LAST_WHOLE[dtype.name])
    return Cast(value, dtype) if held else None


def _most_whole(e: Expr) -> int | None:
    """Return the greatest magnitude of ``e`` if it is a whole number whatever is read; None where that is not known."""
    match e:
        case Const(value=value):
            return abs(int(value)) if float(value).is_integer() else None
        case Load():
            return {"uint8": 255, "int8": 128, "bool": 1}.get(e.dtype.name)
        case Cast(value=value) if not value.dtype.is_float:
            return _most_whole(value)
        case Binary(op=BinaryOp.BIT_AND, b=Const(value=mask)) if mask >= 0:
            return int(mask)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB, a=left, b=right):
            a, b = _most_whole(left), _most_whole(right)
            return None if a is None or b is None else a + b
    return None


def _sources(e: Expr) -> Iterator[DType | None]:
    """Yield the dtypes that the values of ``e`` come from; None for one that is computed."""
    match e:
        case Cast(value=value):
            yield value.dtype
        case Const():
            pass
        case Select(then=then, otherwise=otherwise):
            yield from _sources(then)
            yield from _sources(otherwise)
        case Unary(op=op, value=value) if op in _SIGN:
            yield from _sources(value)
        case Binary(op=op, a=a, b=b) if op in _CHOOSING:
            yield from _sources(a)
            yield from _sources(b)
        case _:
            yield None


def _computed_in(e: Expr, dtype: DType) -> Expr | None:
    """Return ``e``, whose values come from ``dtype`` or are constants, computed in it; None where it lacks one."""
    match e:
        case Cast(value=value):
            return value
        case Const(value=value):
            return Const(value, dtype) if float(dtype.numpy.type(value)) == value else None
        case Select(condition=condition, then=then, otherwise=otherwise):
            a, b = _computed_in(then, dtype), _computed_in(otherwise, dtype)
            return None if a is None or b is None else Select(condition, a, b)
        case Unary(op=op, value=value):
            inner = _computed_in(value, dtype)
            return None if inner is None else Unary(op, inner)
        case Binary(op=op, a=left, b=right):
            a, b = _computed_in(left, dtype), _computed_in(right, dtype)
            return None if a is None or b is None else Binary(op, a, b)
    return None
