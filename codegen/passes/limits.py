"""What values an index takes while its loops run."""

from collections.abc import Mapping

from ...ir.expr import Binary, BinaryOp, Const, Expr, walk
from ...ir.expr import Var as Variable
from ...ir.linear_form import linear_form
from ...ir.stmt import For, Launch, Stmt, walk_statements


def extents_of(stmt: Stmt) -> dict[str, int]:
    """Variable -> how many values it takes, for all loops and launches in ``stmt``."""
    extents: dict[str, int] = {}
    for below in walk_statements(stmt):
        if isinstance(below, For):
            extents[below.var] = below.extent
        elif isinstance(below, Launch):
            extents.update({b.var: b.extent for b in below.axes})
    return extents


def limits(expr: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """Least and greatest value of a scalar index when each variable runs over ``0..extent-1``; None when unknown."""
    form = linear_form(expr)
    low = high = form.constant
    for atom, coefficient in form.terms.items():
        span = _atom_limits(atom, extents)
        if span is None:
            return None
        low += coefficient * (span[0] if coefficient > 0 else span[1])
        high += coefficient * (span[1] if coefficient > 0 else span[0])
    return low, high


def _atom_limits(atom: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    match atom:
        case Variable(name=name):
            return (0, extents[name] - 1) if name in extents else None
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD as op, a=a, b=Const(value=divisor)) if divisor > 0:
            span = limits(a, extents)
            if span is None:
                return (0, int(divisor) - 1) if op is BinaryOp.MOD else None
            low, high = span
            if op is BinaryOp.FLOORDIV:
                return low // int(divisor), high // int(divisor)
            same = low // int(divisor) == high // int(divisor)
            return (low % int(divisor), high % int(divisor)) if same else (0, int(divisor) - 1)
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX as op, a=a, b=b):
            left, right = limits(a, extents), limits(b, extents)
            if left is None or right is None:
                return None
            pick = min if op is BinaryOp.MIN else max
            return pick(left[0], right[0]), pick(left[1], right[1])
    return None


def variables(expr: Expr) -> frozenset[str]:
    """Names of the variables that occur in ``expr``."""
    return frozenset(e.name for e in walk(expr) if isinstance(e, Variable))
