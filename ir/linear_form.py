"""Linear forms: a constant plus integer multiples of atoms. Index arithmetic is taken apart into them everywhere.

    i*64 + j//8*8 + 3        LinearForm({i: 64, j//8: 8}, 3)
    ramp(i*8, 4) + 1         LinearForm({i: 8, LANE: 1}, 1, lanes=4)

An atom is a variable, ``LANE``, or an expression that is taken as a whole.

``linear_form`` gives the form of any index expression: what is not linear becomes an atom of its own. ``affine_form``
gives one whose atoms are variables alone, or none. ``flat_form`` gives the element that the indices of an access stand
for. The arithmetic on forms is exact, that of the index type is modulo 2^64: whoever needs a form within 64 bits asks
for ``wrapped``. (The simplifier does, and what it knows of ranges is in ``index_analysis``.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..core.dtypes import INDEX
from .expr import Binary, BinaryOp, Broadcast, Cast, Const, Expr, Ramp, Unary, UnaryOp, Var, index

LANE = Var("%lane")
"""The atom that counts the lanes of a vector from 0. No other variable is called so."""

_HALF, _WHOLE = 1 << 63, 1 << 64


@dataclass(slots=True)
class LinearForm:
    """``constant + sum(coefficient * atom)`` in ``lanes`` lanes.

    ``terms`` holds the coefficient of every atom, none of which is 0, in the order in which the atoms were met; equal
    forms compare equal whatever that order. A form is never changed once it is built. It is not frozen because the
    simplifier builds a great many, and frozen ones take twice as long to build.
    """

    terms: Mapping[Expr, int]
    constant: int = 0
    lanes: int = 1

    def __hash__(self) -> int:
        return hash((frozenset(self.terms.items()), self.constant, self.lanes))

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def stride(self) -> int:
        """Return how much the form grows from lane to lane, its vector atoms left aside."""
        return self.terms.get(LANE, 0)

    @property
    def varies(self) -> bool:
        """Return whether the lanes may differ."""
        return self.lanes > 1 and any(a == LANE or a.lanes > 1 for a in self.terms)

    @property
    def is_strided(self) -> bool:
        """Return whether the lanes are evenly spaced: no atom is a vector. A scalar is strided."""
        return all(a.lanes == 1 for a in self.terms)

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the names of the variables among the atoms, sorted."""
        return tuple(self.coefficients)

    @property
    def coefficients(self) -> dict[str, int]:
        """Return the coefficient of every variable among the atoms by its name, sorted."""
        return dict(sorted((a.name, c) for a, c in self.terms.items() if isinstance(a, Var) and a.name != LANE.name))

    @property
    def base(self) -> "LinearForm":
        """Return the scalar form of lane 0 of a strided form."""
        return (
            self if self.lanes == 1 else LinearForm({a: c for a, c in self.terms.items() if a != LANE}, self.constant)
        )

    def coefficient(self, variable: str) -> int:
        """Return the coefficient of a variable; 0 where it does not occur."""
        return self.terms.get(Var(variable), 0)

    def plus(self, other: "LinearForm", factor: int = 1) -> "LinearForm":
        """Return ``self + factor * other``."""
        lanes = self.lanes if self.lanes > other.lanes else other.lanes
        constant = self.constant + factor * other.constant
        if not other.terms:
            return LinearForm(self.terms, constant, lanes)
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            _accumulate(terms, atom, factor * c)
        return LinearForm(terms, constant, lanes)

    def __add__(self, other: "LinearForm | int") -> "LinearForm":
        if isinstance(other, int):
            return LinearForm(self.terms, self.constant + other, self.lanes)
        return self.plus(other)

    def __sub__(self, other: "LinearForm | int") -> "LinearForm":
        return self + -other if isinstance(other, int) else self.plus(other, -1)

    def scaled(self, factor: int) -> "LinearForm":
        """Return ``factor`` times the form."""
        if factor == 1:
            return self
        terms = {a: c * factor for a, c in self.terms.items()} if factor else {}
        return LinearForm(terms, self.constant * factor, self.lanes)

    def only(self, atoms: Iterable[Expr]) -> "LinearForm":
        """Return the terms of ``atoms`` alone, without the constant."""
        kept = frozenset(atoms)
        return LinearForm({a: c for a, c in self.terms.items() if a in kept}, 0, self.lanes)

    def without(self, atoms: Iterable[Expr]) -> "LinearForm":
        """Return the form with the terms of ``atoms`` left out."""
        dropped = frozenset(atoms)
        return LinearForm({a: c for a, c in self.terms.items() if a not in dropped}, self.constant, self.lanes)

    def substituted(self, variable: str, value: int) -> "LinearForm":
        """Return the form where a variable has one value."""
        return self.without((Var(variable),)) + self.coefficient(variable) * value

    def at(self, values: Mapping[str, int]) -> int:
        """Return the value of an affine form where every variable has the value given; KeyError for one that has
        none."""
        return self.constant + sum(c * values[name] for name, c in self.coefficients.items())

    def uniform(self) -> "LinearForm":
        """Return the one-lane form of a vector whose lanes are all the same (see ``varies``)."""
        return self if self.lanes == 1 else LinearForm(self.terms, self.constant)

    def widened(self, lanes: int) -> "LinearForm":
        """Return the same form in ``lanes`` lanes."""
        return self if self.lanes == lanes else LinearForm(self.terms, self.constant, lanes)

    def wrapped(self) -> "LinearForm":
        """Return the form with its numbers modulo 2^64, each from -2^63 to 2^63 - 1: its value as an index is the
        same."""
        if -_HALF <= self.constant < _HALF:
            for c in self.terms.values():  # a generator would take twice as long
                if not -_HALF <= c < _HALF:
                    break
            else:
                return self
        terms = {a: w for a, c in self.terms.items() if (w := _wrap(c))}
        return LinearForm(terms, _wrap(self.constant), self.lanes)

    def to_expr(self) -> Expr:
        """Return the form as an index expression, its terms in order: ``i*64 + j*8 + k - 3``. The scalar terms of a
        vector come first, as the base of one Ramp or Broadcast."""
        if self.lanes == 1:
            return sum_of(self.terms.items(), self.constant)
        scalars: list[tuple[Expr, int]] = []
        vectors: list[tuple[Expr, int]] = []
        for atom, c in self.terms.items():
            if atom != LANE:
                (vectors if atom.lanes > 1 else scalars).append((atom, c))
        total: Expr | None = None
        if self.stride or scalars or self.constant or not vectors:
            base = sum_of(scalars, self.constant)
            total = Ramp(base, self.stride, self.lanes) if self.stride else Broadcast(base, self.lanes)
        for vector, c in vectors:
            term = vector if c == 1 else Binary(BinaryOp.MUL, vector, Broadcast(index(c), self.lanes))
            total = term if total is None else Binary(BinaryOp.ADD, total, term)
        assert total is not None
        return total


# Forms of expressions ------------------------------------------------------------------------------------------


def linear_form(expr: Expr) -> LinearForm:
    """Return the linear form of an integer expression; what is not linear becomes an atom of its own."""
    terms: dict[Expr, int] = {}
    constant = _add(expr, 1, terms)
    assert constant is not None
    return LinearForm(terms, constant, expr.lanes)


def affine_form(expr: Expr) -> LinearForm | None:
    """Return the form of a scalar index expression in variables alone; None where it has none.

    Understands variables, constants, ``+``, ``-``, negation, products with a constant side, and casts of an index to
    the index type.
    """
    terms: dict[Expr, int] = {}
    constant = _add(expr, 1, terms, affine=True)
    return None if constant is None else LinearForm(terms, constant)


def flat_form(indices: Sequence[Expr], strides: Sequence[int], *, lower: bool = False) -> LinearForm:
    """Return the element that ``indices`` stand for in a buffer with these ``strides``, before any swizzle. Quotients
    and remainders of one number are put together (see ``recombined``), so that a flat number that runs over several
    dimensions is that number again."""
    terms: dict[Expr, int] = {}
    constant, lanes = 0, 1
    for i, stride in zip(indices, strides, strict=True):
        constant += _add(i, stride, terms) or 0
        lanes = max(lanes, i.lanes)
    return recombined(LinearForm(terms, constant, lanes), lower=lower)


def _add(expr: Expr, factor: int, terms: dict[Expr, int], *, affine: bool = False) -> int | None:
    """Add ``factor * expr`` to ``terms``, in place, and give back its constant. ``affine``: None, and terms that mean
    nothing, where the expression is no scalar affine one."""
    match expr:
        case Var():
            _accumulate(terms, expr, factor)
            return 0
        case Const(value=value, type=dtype):
            return None if affine and dtype != INDEX else factor * int(value)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB as op, a=a, b=b):
            left = _add(a, factor, terms, affine=affine)
            right = None if left is None else _add(b, factor if op is BinaryOp.ADD else -factor, terms, affine=affine)
            return None if left is None or right is None else left + right
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            for number, other in ((_number(b), a), (_number(a), b)):
                if number is not None:
                    return _add(other, factor * number, terms, affine=affine)
        case Unary(op=UnaryOp.NEG, value=value):
            return _add(value, -factor, terms, affine=affine)
        case Cast(value=value, type=dtype) if dtype == INDEX and value.dtype == INDEX:
            return _add(value, factor, terms, affine=affine)
        case Broadcast(value=value, count=count) if count == 1 or not affine:
            return _add(value, factor, terms, affine=affine)
        case Ramp(base=base, stride=stride, count=count) if count == 1 or not affine:
            if count > 1:
                _accumulate(terms, LANE, factor * stride)
            return _add(base, factor, terms, affine=affine)
    if affine:
        return None
    _accumulate(terms, expr, factor)
    return 0


def _number(expr: Expr) -> int | None:
    """Return the number that an integer expression is in every lane; None where it is none."""
    match expr:
        case Const(value=value):
            return int(value)
        case Broadcast(value=value):
            return _number(value)
        case Binary() | Unary():
            form = linear_form(expr)
            return form.constant if form.is_constant else None
    return None


def _accumulate(terms: dict[Expr, int], atom: Expr, coefficient: int) -> None:
    total = terms.get(atom, 0) + coefficient
    if total:
        terms[atom] = total
    else:
        terms.pop(atom, None)


def _wrap(value: int) -> int:
    return (value + _HALF) % _WHOLE - _HALF


# Quotients and remainders --------------------------------------------------------------------------------------


def recombined(form: LinearForm, *, lower: bool = False) -> LinearForm:
    """Return ``form`` with the quotients and remainders of one number put together, however often that can be done.

    x // n * n + x % n           is  x           always
    x // (m*n) * n + x // m % n  is  x // m      unless ``lower``
    x // n % m * n + x % n       is  x % (m*n)   where ``lower``
    y // n * (k*n) + x % (k*n)   is  x           where x is y*k and a number of the lane below k
    y // n % m * (k*n) + x % (k*n)   is  x % (m*k*n)   where ``lower``, for such an x

    Of three indices x // 20, x // 4 % 5 and x % 4 with strides 20, 4 and 1 the upper two are joined first, or the
    ``lower`` two; both ways end with x. Where one of the three is missing they differ. CUDA joins the lower two, LLVM
    the upper two: all schedules were measured with kernels made so.
    """
    for low, c in form.terms.items():
        n = _divisor(low, BinaryOp.MOD)
        if n is None:
            continue
        for high, high_c in form.terms.items():
            number = _undivided(high, low, n, lower) if high_c == c * n and high is not low else None
            if number is not None:
                return recombined(form.without((low, high)).plus(linear_form(number), c), lower=lower)
    return form


def _undivided(high: Expr, low: Expr, n: int, lower: bool) -> Expr | None:
    """Return what ``high * n + low`` is where ``low`` is a remainder of a division by ``n``; None for nothing
    simpler."""
    assert isinstance(low, Binary)
    if (d := _divisor(high, BinaryOp.FLOORDIV)) is not None:
        assert isinstance(high, Binary)
        if d == n and congruent(high.a, low.a, n):
            return high.a
        if n % d == 0 and (x := _multiple_and_lanes(high.a, low.a, n // d, n)) is not None:
            return x
        m = None if lower else _divisor(low.a, BinaryOp.FLOORDIV)
        if m is not None and d == m * n and isinstance(low.a, Binary) and low.a.a == high.a:
            return low.a
    elif lower and (m := _divisor(high, BinaryOp.MOD)) is not None:
        assert isinstance(high, Binary)
        if (d := _divisor(high.a, BinaryOp.FLOORDIV)) is not None and n % d == 0:
            assert isinstance(high.a, Binary)
            y = high.a.a
            whole = y if d == n and congruent(y, low.a, n) else _multiple_and_lanes(y, low.a, n // d, n)
            if whole is not None:
                by = index(m * n)
                return Binary(BinaryOp.MOD, whole, by if whole.lanes == 1 else Broadcast(by, whole.lanes))
    return None


def _multiple_and_lanes(y: Expr, x: Expr, k: int, n: int) -> Expr | None:
    """Return ``y * k`` plus what ``x`` has besides it up to multiples of ``n``, if that is from 0 to ``k - 1`` in every
    lane; None where it is not."""
    whole = linear_form(y).scaled(k)
    difference = linear_form(x) - whole
    rest = LinearForm({a: c for a, c in difference.terms.items() if c % n}, difference.constant % n, difference.lanes)
    if k == 1 or any(a != LANE for a in rest.terms) or rest.stride < 0:
        return None
    return (whole + rest).to_expr() if rest.constant + rest.stride * (rest.lanes - 1) < k else None


def _divisor(expr: Expr, op: BinaryOp) -> int | None:
    """Return the positive constant that a quotient or remainder (``op``) divides by; None for anything else."""
    if isinstance(expr, Binary) and expr.op is op:
        by = expr.b.value if isinstance(expr.b, Broadcast) else expr.b
        if isinstance(by, Const) and by.value > 0:
            return int(by.value)
    return None


def congruent(a: Expr, b: Expr, n: int) -> bool:
    """Return whether two indices provably differ by a multiple of ``n``."""
    if a == b:
        return True
    difference = linear_form(a) - linear_form(b)
    return all(c % n == 0 for c in (difference.constant, *difference.terms.values()))


# Sums as expressions -------------------------------------------------------------------------------------------


def sum_of(terms: Iterable[tuple[Expr, int]], constant: int) -> Expr:
    """Return ``constant`` plus the terms (index expression, coefficient not 0) in their order, written without
    needless ``*1``, ``+ -3`` or ``+ 0``."""
    total: Expr | None = None
    later: list[tuple[Expr, int]] = []
    for atom, c in terms:
        if total is None and c < 0:
            later.append((atom, c))  # start with something positive where there is such a term
        else:
            total = _plus_term(total, atom, c)
    if total is None and constant > 0 and later:
        total, constant = index(constant), 0
    for atom, c in later:
        total = _plus_term(total, atom, c)
    if total is None:
        return index(constant)
    if constant > 0 or constant == -_HALF:  # -2^63 is the one index whose negation is none
        return Binary(BinaryOp.ADD, total, index(constant))
    return Binary(BinaryOp.SUB, total, index(-constant)) if constant < 0 else total


def _plus_term(total: Expr | None, atom: Expr, c: int) -> Expr:
    if total is None:
        if c == -1:
            return Unary(UnaryOp.NEG, atom)
        return atom if c == 1 else Binary(BinaryOp.MUL, atom, index(c))
    adds = c > 0 or c == -_HALF
    term = atom if c in (1, -1) else Binary(BinaryOp.MUL, atom, index(c if adds else -c))
    return Binary(BinaryOp.ADD if adds else BinaryOp.SUB, total, term)
