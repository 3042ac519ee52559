"""The region where an expression is evaluated: the box of the axes, cut by the conditions of enclosing selects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..core.dtypes import INDEX
from ..ir.expr import Binary, BinaryOp, Compare, CompareOp, Const, Expr, Logic, LogicOp, Unary, UnaryOp, Var, index
from ..ir.linear_form import LinearForm, affine_form
from .limits import MAX_CONSTRAINTS

Box: TypeAlias = Mapping[str, tuple[int, int]]
"""The inclusive bounds of each axis."""

_MACHINE = 1 << 63


def box_bounds(f: LinearForm, box: Box) -> tuple[int, int]:
    """Return the least and the greatest value of ``f`` in ``box``."""
    low = high = f.constant
    for atom, c in f.terms.items():
        assert isinstance(atom, Var)
        a, b = box[atom.name]
        a, b = c * a, c * b
        low, high = (low + a, high + b) if a <= b else (low + b, high + a)
    return low, high


@dataclass(frozen=True, slots=True)
class Region:
    """The points of ``box`` where every one of ``constraints`` is at least 0. Conditions on one axis are part of the
    box. Those that are not affine are left out, so a region may be larger than what its conditions say, never smaller.
    """

    box: Box
    constraints: tuple[LinearForm, ...] = ()

    def where(self, condition: Expr, holds: bool) -> "Region":
        """Return the part of this region where ``condition`` is ``holds``."""
        added = _constraints(condition, holds, self.box)
        if not added:
            return self
        constraints = (*self.constraints, *(g for g in added if len(g.terms) > 1))[:MAX_CONSTRAINTS]
        box = _tightened(self.box, added)
        for _ in range(3):  # bounds of one axis may tighten the next one's; more rounds gain nothing for affine guards
            before, box = box, _tightened(box, constraints)
            if box == before:
                break
        return Region(box, constraints)

    @property
    def is_empty(self) -> bool:
        """Whether the bounds alone show that no point is left."""
        return any(low > high for low, high in self.box.values())

    def bounds(self, f: LinearForm) -> tuple[int, int]:
        """Inclusive bounds of ``f`` over this region. They are sound, and exact for the guards that people write."""
        low, high = box_bounds(f, self.box)
        for g in self.constraints:
            for atom, g_coefficient in g.terms.items():
                # f <= f + r*g for any r >= 0: pick r so that one axis cancels, times |g_coefficient|.
                f_coefficient = f.terms.get(atom)
                if f_coefficient is None:
                    continue
                scale = abs(g_coefficient)
                least, most = box_bounds(f.scaled(scale).plus(g, -f_coefficient * g_coefficient // scale), self.box)
                if f_coefficient * g_coefficient < 0:
                    high = min(high, most // scale)
                else:
                    low = max(low, -(-least // scale))
        return low, high


def _constraints(condition: Expr, holds: bool, box: Box) -> list[LinearForm]:
    """LinearForm forms that are at least 0 where ``condition`` is ``holds``. Forms that could leave 64 bits are left
    out."""
    match condition:
        case Unary(op=UnaryOp.NOT, value=value):
            return _constraints(value, not holds, box)
        case Logic(op=op, a=a, b=b) if (op is LogicOp.AND) == holds:
            return _constraints(a, holds, box) + _constraints(b, holds, box)
        case Compare(op=compare, a=Binary(op=BinaryOp.FLOORDIV, a=of, b=Const(value=n)), b=Const(value=c)) if (
            compare in _OF_QUOTIENT and of.dtype == INDEX
        ):
            of_quotient, further = _OF_QUOTIENT[compare]
            return _constraints(Compare(of_quotient, of, index((int(c) + further) * int(n))), holds, box)
        case Compare(op=compare, a=left, b=right) if left.dtype == INDEX:
            a_affine, b_affine = affine_form(left), affine_form(right)
            if a_affine is None or b_affine is None or not (_fits(a_affine, box) and _fits(b_affine, box)):
                return []
            difference = a_affine - b_affine
            return [difference.scaled(s) + c for s, c in _AT_LEAST_ZERO[compare if holds else _NEGATION[compare]]]
    return []


def _fits(f: LinearForm, box: Box) -> bool:
    return all(name in box for name in f.variables) and all(-_MACHINE <= v < _MACHINE for v in box_bounds(f, box))


_OF_QUOTIENT = {
    CompareOp.LT: (CompareOp.LT, 0),
    CompareOp.GE: (CompareOp.GE, 0),
    CompareOp.LE: (CompareOp.LT, 1),
    CompareOp.GT: (CompareOp.GE, 1),
}
"""``x // n`` compared with ``c`` is ``x`` compared, as said here, with ``(c + further) * n``."""

_NEGATION = {
    CompareOp.LT: CompareOp.GE,
    CompareOp.GE: CompareOp.LT,
    CompareOp.LE: CompareOp.GT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
}

_AT_LEAST_ZERO: dict[CompareOp, list[tuple[int, int]]] = {
    CompareOp.LT: [(-1, -1)],
    CompareOp.LE: [(-1, 0)],
    CompareOp.GT: [(1, -1)],
    CompareOp.GE: [(1, 0)],
    CompareOp.EQ: [(1, 0), (-1, 0)],
    CompareOp.NE: [],
}
"""``a - b`` compared with 0, as (s, c) with ``s * (a - b) + c >= 0``."""


def _tightened(box: Box, constraints: Sequence[LinearForm]) -> Box:
    """Return the bounds of each axis after solving each constraint for it, with the other axes at their most favourable
    values."""
    tight = dict(box)
    for g in constraints:
        most = box_bounds(g, tight)[1]
        for name, coefficient in g.coefficients.items():
            low, high = tight[name]
            if coefficient > 0:
                low = max(low, -((most - coefficient * high) // coefficient))
            else:
                high = min(high, (most - coefficient * low) // -coefficient)
            tight[name] = (low, high)
    return tight
