"""Divisions by what many elements have in common, as products."""

from collections.abc import Callable

from ...ir.expr import Binary, BinaryOp, Expr, const
from ...ir.rewrite import map_expr


def with_reciprocals(body: Expr, varies: Callable[[Expr], bool]) -> Expr:
    """``body`` with a product with the reciprocal in place of every division of what ``varies`` from element to element
    by what does not.

    The reciprocal is then computed once for all of them. The error is at most 1.5 units in the last place instead of
    0.5; float64 stays as it is.
    """

    def rewritten(e: Expr) -> Expr:
        match e:
            case Binary(op=BinaryOp.DIV, a=a, b=b) if e.dtype.bits <= 32 and varies(a):
                return e if varies(b) else a * Binary(BinaryOp.DIV, const(1, e.dtype), b)
        return e

    return map_expr(body, rewritten)
