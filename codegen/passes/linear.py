"""Index expressions as sums: integer coefficients over atoms, where what is not linear stays whole as an atom."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...core.dtypes import INDEX
from ...ir.expr import Binary, BinaryOp, Const, Expr, Unary, UnaryOp, index, walk
from ...ir.expr import Var as Variable


@dataclass(frozen=True, slots=True)
class Linear:
    """``sum(coefficient * atom) + constant``; an atom is a variable or an expression such as ``p // 8``."""

    terms: Mapping[Expr, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: "Linear", factor: int = 1) -> "Linear":
        """``self + factor * other``."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * coefficient
        return Linear({a: c for a, c in terms.items() if c}, self.constant + factor * other.constant)

    def times(self, factor: int) -> "Linear":
        return Linear({a: c * factor for a, c in self.terms.items()} if factor else {}, self.constant * factor)

    def expr(self) -> Expr:
        """Back to an expression, atoms in the order in which they were met."""
        total: Expr | None = None
        for atom, coefficient in self.terms.items():
            term = atom if abs(coefficient) == 1 else atom * abs(coefficient)
            if total is None:
                total = term if coefficient > 0 else index(0) - term
            else:
                total = total + term if coefficient > 0 else total - term
        if total is None:
            return index(self.constant)
        if self.constant == 0:
            return total
        return total + self.constant if self.constant > 0 else total - (-self.constant)


def linear(expr: Expr) -> Linear:
    """The linear form of a scalar integer expression; exact for any input, since the rest becomes atoms."""
    match expr:
        case Const(value=value) if expr.dtype == INDEX:
            return Linear({}, int(value))
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            return linear(a).plus(linear(b))
        case Binary(op=BinaryOp.SUB, a=a, b=b):
            return linear(a).plus(linear(b), -1)
        case Binary(op=BinaryOp.MUL, a=a, b=Const(value=value)):
            return linear(a).times(int(value))
        case Binary(op=BinaryOp.MUL, a=Const(value=value), b=b):
            return linear(b).times(int(value))
        case Unary(op=UnaryOp.NEG, value=inner):
            return linear(inner).times(-1)
    return Linear({expr: 1}, 0)


def limits(expr: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """Least and greatest value of a scalar index when each variable runs over ``0..extent-1``; None when unknown."""
    form = linear(expr)
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
