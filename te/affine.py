"""Affine functions of axes: the form of every index, and of the conditions that guard a load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..core.dtypes import INDEX
from ..ir.expr import Binary, BinaryOp, Compare, CompareOp, Const, Expr, Logic, LogicOp, Unary, UnaryOp, Var, index
from .limits import MAX_CONSTRAINTS

Box: TypeAlias = Mapping[str, tuple[int, int]]
"""Inclusive bounds of each axis."""

_MACHINE = 1 << 62
"""Affine values stay well inside the 64 bits of INDEX, so that exact and machine arithmetic agree."""


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum(coefficient * axis)``; no coefficient is 0."""

    terms: Mapping[str, int]
    constant: int

    def __add__(self, other: "Affine") -> "Affine":
        return self.plus(other, 1)

    def plus(self, other: "Affine", factor: int) -> "Affine":
        """``self + factor * other``."""
        terms = dict(self.terms)
        for name, coefficient in other.terms.items():
            terms[name] = terms.get(name, 0) + factor * coefficient
        return Affine({n: c for n, c in terms.items() if c}, self.constant + factor * other.constant)

    def scaled(self, factor: int) -> "Affine":
        return Affine({n: c * factor for n, c in self.terms.items() if factor}, self.constant * factor)

    def low(self, box: Box) -> int:
        """The least value in ``box``."""
        return self.constant + sum(c * box[n][0 if c > 0 else 1] for n, c in self.terms.items())

    def high(self, box: Box) -> int:
        """The greatest value in ``box``."""
        return self.constant + sum(c * box[n][1 if c > 0 else 0] for n, c in self.terms.items())


def affine_of(expr: Expr) -> Affine | None:
    """``expr`` as an affine function of its variables, or None when it is none (or leaves 62 bits on the way)."""
    match expr:
        case Var(name=name):
            return Affine({name: 1}, 0)
        case Const(value=value, type=dtype) if dtype == INDEX:
            return _small(Affine({}, int(value)))
        case Unary(op=UnaryOp.NEG, value=value):
            a = affine_of(value)
            return None if a is None else a.scaled(-1)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL as op, a=left, b=right):
            a, b = affine_of(left), affine_of(right)
            if a is None or b is None:
                return None
            if op is not BinaryOp.MUL:
                return _small(a.plus(b, 1 if op is BinaryOp.ADD else -1))
            if a.terms and b.terms:
                return None
            return _small(a.scaled(b.constant) if a.terms else b.scaled(a.constant))
    return None


def _small(a: Affine) -> Affine | None:
    return a if all(abs(v) < _MACHINE for v in (a.constant, *a.terms.values())) else None


def expr_of(affine: Affine, order: Sequence[str]) -> Expr:
    """The one spelling of ``affine``: terms in the order of ``order``, then the constant; see ``check``."""
    result: Expr | None = None
    for name in order:
        coefficient = affine.terms.get(name, 0)
        if coefficient:
            term: Expr = Var(name) if coefficient == 1 else Var(name) * coefficient
            result = term if result is None else result + term
    if result is None:
        return index(affine.constant)
    return result + affine.constant if affine.constant else result


@dataclass(frozen=True, slots=True)
class Region:
    """The points of ``box`` where every one of ``constraints`` is at least 0. Conditions that are not affine are
    left out, so a region may be larger than what its conditions say, never smaller."""

    box: Box
    constraints: tuple[Affine, ...] = ()

    def where(self, condition: Expr, holds: bool) -> "Region":
        """The part of this region where ``condition`` is ``holds``."""
        added = tuple(c for c in _constraints(condition, holds) if _fits(c, self.box))
        if not added:
            return self
        region = Region(self.box, (self.constraints + added)[:MAX_CONSTRAINTS])
        for _ in range(3):  # bounds of one axis may tighten the next one's; more rounds gain nothing for affine guards
            region = Region(_tightened(region), region.constraints)
        return region

    @property
    def is_empty(self) -> bool:
        """Whether the bounds alone show that no point is left."""
        return any(low > high for low, high in self.box.values())

    def bounds(self, f: Affine) -> tuple[int, int]:
        """Inclusive bounds of ``f`` over this region: sound, and exact for the guards people write."""
        low, high = f.low(self.box), f.high(self.box)
        for g in self.constraints:
            for name, g_coefficient in g.terms.items():
                # f <= f + r*g for any r >= 0: pick r so that one axis cancels, times |g_coefficient|.
                f_coefficient = f.terms.get(name, 0)
                scale = abs(g_coefficient)
                if f_coefficient * g_coefficient < 0:
                    high = min(high, f.scaled(scale).plus(g, abs(f_coefficient)).high(self.box) // scale)
                elif f_coefficient * g_coefficient > 0:
                    low = max(low, -(-f.scaled(scale).plus(g, -abs(f_coefficient)).low(self.box) // scale))
        return low, high


def _fits(a: Affine, box: Box) -> bool:
    return abs(a.low(box)) < _MACHINE and abs(a.high(box)) < _MACHINE


def _constraints(condition: Expr, holds: bool) -> list[Affine]:
    match condition:
        case Unary(op=UnaryOp.NOT, value=value):
            return _constraints(value, not holds)
        case Logic(op=op, a=a, b=b) if (op is LogicOp.AND) == holds:
            return _constraints(a, holds) + _constraints(b, holds)
        case Compare(op=compare, a=left, b=right):
            a_affine, b_affine = affine_of(left), affine_of(right)
            if a_affine is None or b_affine is None or left.dtype != INDEX:
                return []
            difference = a_affine.plus(b_affine, -1)
            return [difference.scaled(s) + Affine({}, c) for s, c in _AT_LEAST_ZERO[_negated(compare, holds)]]
    return []


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


def _negated(compare: CompareOp, holds: bool) -> CompareOp:
    return compare if holds else _NEGATION[compare]


def _tightened(region: Region) -> Box:
    """The bounds of each axis, from each constraint solved for it with the other axes at their most favourable."""
    box = dict(region.box)
    for g in region.constraints:
        for name, coefficient in g.terms.items():
            rest = Affine({n: c for n, c in g.terms.items() if n != name}, g.constant).high(box)
            low, high = box[name]
            if coefficient > 0:
                low = max(low, -(rest // coefficient))
            else:
                high = min(high, rest // -coefficient)
            box[name] = (low, high)
    return box
