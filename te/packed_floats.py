"""Floats of less than a byte, and powers of two, as bytes hold them (OCP Microscaling Formats Specification).

Tensors of such numbers are ``uint8``, and expressions say what their bits mean. A product of NVFP4 is

    sum over k of e2m1(A[i, k // 2], k) * abs(cast(SA[i, k // 16])) * e2m1(B[j, k // 2], k) * abs(cast(SB[j, k // 16]))

with scales of ``float8_e4m3fn``, and one of MXFP4 has ``e8m0(SA[i, k // 32])`` in their place. Who can do better than
the arithmetic recognises it by ``e2m1_of`` and ``e8m0_of``.
"""

from ..core.dtypes import DType, float4_e2m1fn, uint8
from ..ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Unary, UnaryOp, walk
from .functions import bitwise_and, cast, constant, exp2, shift_right

E8M0_BIAS = 127.0
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12)
"""What the lower three bits of a float of 4 bits stand for, in halves."""
_TABLE = sum(steps << 4 * code for code, steps in enumerate(_STEPS)) - (1 << 32)
"""The same in 4 bits each, as an int32."""


def e2m1(byte: Expr, place: Expr) -> Expr:
    """Return one of the two floats of 4 bits (``float4_e2m1fn``) in ``byte`` (uint8), as float32. ``place``: its index
    in the row. Even places are in the lower half of a byte, as in ``float4_e2m1fn_x2`` of torch. 0 has no sign.

    The result is no product, so that it stays one factor where it is multiplied.
    """
    code = cast(shift_right(byte, cast(place % 2 * 4, uint8)), "int32")
    steps = bitwise_and(shift_right(constant(_TABLE, "int32"), bitwise_and(code, 7) * 4), 15)
    sign = 1 - shift_right(bitwise_and(code, 8), 2)
    return cast(steps * sign, "float32") / 2.0


def e2m1_of(e: Expr) -> tuple[Load, Expr] | None:
    """Return the byte and the place that ``e2m1`` was given, where the byte is read from a tensor; None where ``e`` is
    anything else."""
    if not isinstance(e, Binary) or e.op is not BinaryOp.DIV:
        return None
    shifts = (n for n in walk(e) if isinstance(n, Binary) and n.op is BinaryOp.SHR and isinstance(n.a, Load))
    match next(shifts, None):
        case Binary(a=Load() as byte, b=Cast(value=Binary(a=Binary(a=place)))) if byte.dtype == uint8:
            return (byte, place) if e == e2m1(byte, place) else None
    return None


def e8m0(byte: Expr) -> Expr:
    """Return the power of two that ``byte`` (uint8) stands for as float32: 2^(byte - 127). The format has NaN for 255;
    here that is 2^128, which no float32 holds."""
    return exp2(cast(byte, "float32") - E8M0_BIAS)


def e8m0_of(e: Expr) -> Load | None:
    """Return the byte that ``e8m0`` was given, where it is read from a tensor; None where ``e`` is anything else."""
    match e:
        case Unary(
            op=UnaryOp.EXP2,
            value=Binary(op=BinaryOp.SUB, a=Cast(value=Load() as byte), b=Const(value=bias)),
        ) if byte.dtype == uint8 and bias == E8M0_BIAS:
            return byte
    return None


def read_dtypes(e: Expr) -> set[DType]:
    """Return the dtypes of the numbers that an expression reads. Those that ``e2m1`` unpacks are ``float4_e2m1fn``."""
    if e2m1_of(e) is not None:
        return {float4_e2m1fn}
    own = {e.buffer.dtype} if isinstance(e, Load) else set()
    return own.union(*map(read_dtypes, e.children))
