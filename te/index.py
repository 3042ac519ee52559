"""Indices: where a stage reads. Whole multiples of axes, of quotients and of remainders, and a whole number:

2*i + j - 1,  i // 4,  i % 4,  (i + 1) // 2 * 8 + j
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core.dtypes import INDEX
from ..ir.expr import Binary, BinaryOp, Const, Expr, Unary, UnaryOp, Var, index
from ..ir.linear_form import LinearForm, affine_form, sum_of
from .region import Region


@dataclass(frozen=True, slots=True)
class Part:
    """``of // divisor`` or ``of % divisor`` (``op``), rounded down like Python's."""

    op: BinaryOp
    of: "Index"
    divisor: int

    def bounds(self, region: Region) -> tuple[int, int]:
        low, high = self.of.bounds(region)
        if self.op is BinaryOp.FLOORDIV:
            return low // self.divisor, high // self.divisor
        same = low // self.divisor == high // self.divisor
        return (low % self.divisor, high % self.divisor) if same else (0, self.divisor - 1)


@dataclass(frozen=True, slots=True)
class Index:
    """``affine`` plus the sum of ``coefficient * part``. Each part occurs once, and no coefficient is 0."""

    affine: LinearForm
    parts: tuple[tuple[Part, int], ...] = ()

    @property
    def variables(self) -> set[str]:
        """The axes that the index depends on."""
        return set(self.affine.variables).union(*(part.of.variables for part, _ in self.parts))

    @property
    def depth(self) -> int:
        """How deep quotients and remainders are nested. It is 1 where there are none."""
        return 1 + max((part.of.depth for part, _ in self.parts), default=0)

    @property
    def breadth(self) -> int:
        """The largest number of parts in one sum."""
        return max(len(self.parts), *(part.of.breadth for part, _ in self.parts), 0)

    @property
    def numbers(self) -> Iterator[int]:
        """Every coefficient, constant and divisor."""
        yield from (self.affine.constant, *self.affine.coefficients.values())
        for part, coefficient in self.parts:
            yield from (coefficient, part.divisor, *part.of.numbers)

    def bounds(self, region: Region) -> tuple[int, int]:
        """Inclusive bounds over a region. They are sound, and exact for what is affine there."""
        low, high = region.bounds(self.affine)
        for part, coefficient in self.parts:
            ends = [coefficient * end for end in part.bounds(region)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def plus(self, other: "Index", factor: int = 1) -> "Index":
        """``self + factor * other``."""
        parts = dict(self.parts)
        for part, coefficient in other.parts:
            parts[part] = parts.get(part, 0) + factor * coefficient
        return Index(self.affine.plus(other.affine, factor), tuple((p, c) for p, c in parts.items() if c))

    def expr(self, axes: Sequence[str]) -> Expr:
        """Return the one spelling of an index: its terms in the order of ``axes``, its parts, then the constant."""
        coefficients = self.affine.coefficients
        terms: list[tuple[Expr, int]] = [(Var(a), coefficients[a]) for a in axes if a in coefficients]
        terms += [(Binary(p.op, p.of.expr(axes), index(p.divisor)), c) for p, c in self.parts]
        return sum_of(terms, self.affine.constant)


def part_of(op: BinaryOp, of: Index, divisor: int) -> Index:
    """``of // divisor`` or ``of % divisor``. It is a plain number where ``of`` is one, or where ``divisor`` is 1."""
    if not of.parts and of.affine.is_constant:
        value = of.affine.constant
        return Index(LinearForm({}, value // divisor if op is BinaryOp.FLOORDIV else value % divisor))
    if divisor == 1:
        return of if op is BinaryOp.FLOORDIV else Index(LinearForm({}))
    return Index(LinearForm({}), ((Part(op, of, divisor), 1),))


def loaded_index(e: Expr, extent: int) -> Expr | None:
    """Return what ``within`` was given for a dimension of ``extent``; None where ``e`` has another form. The ends may
    be in either order."""
    if e.dtype != INDEX:
        return None
    match e:
        case Binary(op=BinaryOp.MIN, a=Binary(op=BinaryOp.MAX, a=value, b=Const(value=0)), b=Const(value=last)):
            return value if last == extent - 1 else None
        case Binary(op=BinaryOp.MAX, a=Binary(op=BinaryOp.MIN, a=value, b=Const(value=last)), b=Const(value=0)):
            return value if last == extent - 1 else None
    return None


def index_with_one_end(e: Expr, extent: int) -> tuple[BinaryOp, Expr] | None:
    """Return the operation and ``value`` of ``max(value, 0)`` or ``min(value, extent - 1)``; None where ``e`` has
    another form."""
    match e:
        case Binary(op=BinaryOp.MAX | BinaryOp.MIN as op, a=value, b=Const(value=end)) if e.dtype == INDEX:
            return (op, value) if end == (0 if op is BinaryOp.MAX else extent - 1) else None
    return None


def index_of(e: Expr) -> Index | None:
    """``e`` as an index, or None where it is none."""
    affine = affine_form(e)
    if affine is not None:
        return Index(affine)
    match e:
        case Unary(op=UnaryOp.NEG, value=value):
            inner = index_of(value)
            return None if inner is None else Index(LinearForm({})).plus(inner, -1)
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD as op, a=value, b=Const(value=divisor)) if divisor > 0:
            inner = index_of(value)
            return None if inner is None else part_of(op, inner, int(divisor))
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL as op):
            a = index_of(e.a)
            b = None if a is None else index_of(e.b)
            if a is None or b is None:
                return None
            if op is not BinaryOp.MUL:
                return a.plus(b, 1 if op is BinaryOp.ADD else -1)
            factor, other = (a, b) if not a.parts and a.affine.is_constant else (b, a)
            if factor.parts or not factor.affine.is_constant:
                return None
            return Index(LinearForm({})).plus(other, factor.affine.constant)
    return None
