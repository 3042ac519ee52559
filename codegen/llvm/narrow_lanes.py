"""Index vectors in lanes of 32 bits, where their values fit. Processors have gathers with such indices, and multiply
and divide them by constants, but divide no vectors of 64 bits."""

from collections.abc import Callable

from ...core.dtypes import INDEX, int32
from ...ir.bounds import Interval
from ...ir.expr import Binary, BinaryOp, Expr
from ...ir.lane_offsets import lane_offsets
from ...ir.linear_form import linear_form
from .arithmetic import binary
from .function_context import FunctionContext
from .values import LlvmValue, constant

Evaluate = Callable[[FunctionContext, Expr, LlvmValue | None], LlvmValue]
"""Computes an expression under a lane mask. It is ``expressions.evaluate``, passed as an argument because the files
need each other."""

_INT32 = Interval(-(1 << 31), (1 << 31) - 1)
_OPERATORS = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX})


def narrow_lanes(ctx: FunctionContext, expr: Expr, ev: Evaluate) -> LlvmValue | None:
    """Return an index vector as ``i32``; None where it, or what it is computed from, may not fit, or may be no sum,
    product, quotient or remainder of loop variables and numbers."""
    if expr.dtype != INDEX or expr.lanes == 1 or not ctx.interval(expr).within(_INT32):
        return None
    w, found = ctx.w, lane_offsets(linear_form(expr))
    if found is not None:
        scalar, offsets = found[0].to_expr(), found[1]
        if found[0].is_constant and len(set(offsets)) == 1:
            return constant(found[0].constant + offsets[0], "i32", expr.lanes)
        if not ctx.interval(scalar).within(_INT32) or not all(o in _INT32 for o in offsets):
            return None
        steps = LlvmValue(f"<{', '.join(f'i32 {offset}' for offset in offsets)}>", "i32", expr.lanes)
        return w.op("add", w.splat(w.convert("trunc", ev(ctx, scalar, None), "i32"), expr.lanes), steps)
    if not isinstance(expr, Binary):
        return None
    positive = is_positive_division(ctx, expr)
    if expr.op not in _OPERATORS and not positive:
        return None
    a, b = narrow_lanes(ctx, expr.a, ev), narrow_lanes(ctx, expr.b, ev)
    return None if a is None or b is None else binary(w, expr.op, a, b, int32, positive=positive)


def is_positive_division(ctx: FunctionContext, expr: Binary) -> bool:
    """Say whether ``expr`` divides an index that is never negative by one that is always positive."""
    if expr.op not in (BinaryOp.FLOORDIV, BinaryOp.MOD) or expr.dtype != INDEX:
        return False
    return ctx.interval(expr.a).low >= 0 and ctx.interval(expr.b).low > 0
