"""Bounds the values that an index takes while its loops run."""

from collections.abc import Mapping

from ...ir.expr import Binary, BinaryOp, Const, Expr, Var
from ...ir.linear_form import linear_form
from ...ir.stmt import For, Launch, Stmt, walk_statements


def extents_of(stmt: Stmt) -> dict[str, int]:
    """Return variable -> how many values it takes, for all loops and launches in ``stmt``."""
    extents: dict[str, int] = {}
    for below in walk_statements(stmt):
        if isinstance(below, For):
            extents[below.var] = below.extent
        elif isinstance(below, Launch):
            extents.update({b.var: b.extent for b in below.axes})
    return extents


def index_bounds(expr: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the least and the greatest value of a scalar index whose variables run over ``0..extent-1``; None where
    they are not known."""
    form = linear_form(expr)
    low = high = form.constant
    for atom, coefficient in form.terms.items():
        bounds = _atom_bounds(atom, extents)
        if bounds is None:
            return None
        low += coefficient * (bounds[0] if coefficient > 0 else bounds[1])
        high += coefficient * (bounds[1] if coefficient > 0 else bounds[0])
    return low, high


def _atom_bounds(atom: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    match atom:
        case Var(name=name):
            return (0, extents[name] - 1) if name in extents else None
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD as op, a=a, b=Const(value=divisor)) if divisor > 0:
            bounds = index_bounds(a, extents)
            if bounds is None:
                return (0, int(divisor) - 1) if op is BinaryOp.MOD else None
            low, high = bounds
            if op is BinaryOp.FLOORDIV:
                return low // int(divisor), high // int(divisor)
            same = low // int(divisor) == high // int(divisor)
            return (low % int(divisor), high % int(divisor)) if same else (0, int(divisor) - 1)
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX as op, a=a, b=b):
            left, right = index_bounds(a, extents), index_bounds(b, extents)
            if left is None or right is None:
                return None
            pick = min if op is BinaryOp.MIN else max
            return pick(left[0], right[0]), pick(left[1], right[1])
    return None
