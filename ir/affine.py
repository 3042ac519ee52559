"""Affine forms of index expressions: a constant plus whole multiples of variables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.dtypes import INDEX
from .expr import Binary, BinaryOp, Broadcast, Cast, Const, Expr, Unary, UnaryOp, Var, index

_LOWEST = -(1 << 63)  # the one index whose negation is none


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum(coefficient * variable)``.

    ``terms`` holds (variable, coefficient) sorted by name, no coefficient 0: equal forms compare equal. Build one
    with ``Affine.of``.
    """

    terms: tuple[tuple[str, int], ...]
    constant: int

    @staticmethod
    def of(coefficients: Mapping[str, int] | Iterable[tuple[str, int]], constant: int = 0) -> "Affine":
        """The form with these coefficients; zeros are dropped."""
        terms = coefficients.items() if isinstance(coefficients, Mapping) else coefficients
        return Affine(tuple(sorted((name, c) for name, c in terms if c != 0)), constant)

    @property
    def coefficients(self) -> dict[str, int]:
        """Coefficient by variable, those that are not 0."""
        return dict(self.terms)

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.terms)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def coefficient(self, variable: str) -> int:
        """The coefficient of ``variable``; 0 where it does not occur."""
        return next((c for name, c in self.terms if name == variable), 0)

    def without(self, variables: Iterable[str]) -> "Affine":
        """The form with the terms of ``variables`` left out."""
        left_out = frozenset(variables)
        return Affine(tuple(t for t in self.terms if t[0] not in left_out), self.constant)

    def only(self, variables: Iterable[str]) -> "Affine":
        """The terms of ``variables`` alone, without the constant."""
        kept = frozenset(variables)
        return Affine(tuple(t for t in self.terms if t[0] in kept), 0)

    def __add__(self, other: "Affine | int") -> "Affine":
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        coefficients = dict(self.terms)
        for name, c in other.terms:
            coefficients[name] = coefficients.get(name, 0) + c
        return Affine.of(coefficients, self.constant + other.constant)

    def __sub__(self, other: "Affine | int") -> "Affine":
        return self + (-other if isinstance(other, int) else other.scaled(-1))

    def scaled(self, factor: int) -> "Affine":
        """``factor`` times the form."""
        return Affine.of(((name, c * factor) for name, c in self.terms), self.constant * factor)

    def at(self, values: Mapping[str, int]) -> int:
        """The value where every variable has the value given; KeyError for one that has none."""
        return self.constant + sum(c * values[name] for name, c in self.terms)

    def to_expr(self) -> Expr:
        """The form as an index expression, largest coefficients first: ``i*64 + j*8 + k - 3``."""
        ordered = sorted(self.terms, key=lambda t: (t[1] < 0, -abs(t[1]), t[0]))
        return sum_of([(Var(name), c) for name, c in ordered], self.constant)


def sum_of(terms: Iterable[tuple[Expr, int]], constant: int) -> Expr:
    """``constant`` plus the terms (index expression, coefficient not 0) in their order, written without
    needless ``*1``, ``+ -3`` or ``+ 0``."""
    total: Expr | None = None
    later: list[tuple[Expr, int]] = []
    for atom, c in terms:
        if total is None and c < 0:
            later.append((atom, c))  # start with something positive where there is such a term
        else:
            total = _plus(total, atom, c)
    if total is None and constant > 0 and later:
        total, constant = index(constant), 0
    for atom, c in later:
        total = _plus(total, atom, c)
    if total is None:
        return index(constant)
    if constant > 0 or constant == _LOWEST:
        return Binary(BinaryOp.ADD, total, index(constant))
    return Binary(BinaryOp.SUB, total, index(-constant)) if constant < 0 else total


def _plus(total: Expr | None, atom: Expr, c: int) -> Expr:
    if total is None:
        if c == -1:
            return Unary(UnaryOp.NEG, atom)
        return atom if c == 1 else Binary(BinaryOp.MUL, atom, index(c))
    adds = c > 0 or c == _LOWEST
    term = atom if c in (1, -1) else Binary(BinaryOp.MUL, atom, index(c if adds else -c))
    return Binary(BinaryOp.ADD if adds else BinaryOp.SUB, total, term)


def affine_of(expr: Expr) -> Affine | None:
    """The affine form of a scalar index expression, or None where it has none.

    Understands variables, constants, ``+``, ``-``, negation, products with a constant side, and casts of an index
    to the index type.
    """
    match expr:
        case Var(name=name):
            return Affine(((name, 1),), 0)
        case Const(value=value, type=dtype) if dtype == INDEX:
            return Affine((), int(value))
        case Cast(value=value, type=dtype) if dtype == INDEX and value.dtype == INDEX:
            return affine_of(value)
        case Broadcast(value=value, count=1):
            return affine_of(value)
        case Unary(op=UnaryOp.NEG, value=value):
            inner = affine_of(value)
            return None if inner is None else inner.scaled(-1)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL as op):
            a = affine_of(expr.a)
            b = None if a is None else affine_of(expr.b)
            if a is None or b is None:
                return None
            if op is not BinaryOp.MUL:
                return a + b if op is BinaryOp.ADD else a - b
            if b.is_constant:
                return a.scaled(b.constant)
            return b.scaled(a.constant) if a.is_constant else None
    return None
