"""What is known of index values at one place of a kernel, and what follows from it.

An ``IndexAnalysis`` holds a range for every variable and a list of *facts*: scalar linear forms that are not negative
at that place, taken from the conditions of the enclosing ``If`` statements. It divides, bounds and compares linear
forms. Everything here is sound; where nothing can be told the answer is None or the expression as it was.
"""

from collections.abc import Iterable
from math import gcd

from .bounds import UNKNOWN_VARIABLE, Interval, Ranges, interval_of
from .expr import Binary, BinaryOp, Broadcast, Compare, CompareOp, Const, Expr, Var, index
from .lanes import scalar_of, truth
from .linear_form import LANE, LinearForm

_SAFE = Interval(-(1 << 61), 1 << 61)  # sums and differences of two such numbers never wrap
_FLIPPED = {CompareOp.LT: CompareOp.GE, CompareOp.GE: CompareOp.LT}


class IndexAnalysis:
    """It holds ranges and facts, and is never changed once it is built. Facts must be scalar forms that do not wrap."""

    def __init__(self, ranges: Ranges, facts: Iterable[LinearForm] = ()) -> None:
        self.ranges = ranges
        self.facts = tuple(facts)
        self._intervals: dict[Expr, Interval] = {}
        self._dividends: dict[Expr, LinearForm] = {}  # for every ``e // c`` and ``e % c`` made here: the form of e

    def interval(self, form: LinearForm) -> Interval:
        """Return bounds of a form over all lanes, as if it were computed without wrapping."""
        return Interval(*self._bounds(form))

    def _bounds(self, form: LinearForm) -> tuple[int, int]:
        """Return the two numbers of ``interval``: most callers need no object."""
        low = high = form.constant
        for atom, c in form.terms.items():
            known = self._atom_interval(atom, form.lanes)
            if c > 0:
                low, high = low + c * known.low, high + c * known.high
            else:
                low, high = low + c * known.high, high + c * known.low
        return low, high

    def _atom_interval(self, atom: Expr, lanes: int) -> Interval:
        if isinstance(atom, Var):
            found = self.ranges.get(atom.name)
            if found is None:
                found = Interval(0, lanes - 1) if atom == LANE else UNKNOWN_VARIABLE
            return found
        found = self._intervals.get(atom)
        if found is None:
            found = self._intervals[atom] = interval_of(atom, self.ranges)
        return found

    def fits(self, form: LinearForm) -> bool:
        """Return whether the form stays so far from wrapping around that its value is what it says, and that the same
        holds for the sum and the difference of two such forms."""
        low, high = self._bounds(form)
        if low < _SAFE.low or high > _SAFE.high or form.constant not in _SAFE:
            return False
        for c in form.terms.values():  # a generator would take as long as the rest
            if c not in _SAFE:
                return False
        return True

    def not_negative(self, form: LinearForm) -> bool:
        """Return whether a form (that fits) is known to be >= 0 in all lanes."""
        if self._bounds(form)[0] >= 0:
            return True
        return any(self._bounds(form - fact)[0] >= 0 for fact in self.facts)

    def assuming(self, facts: Iterable[LinearForm]) -> "IndexAnalysis":
        """Return this analysis with more facts. The ranges of variables shrink where the new facts bound them."""
        added = tuple(facts)
        ranges = dict(self.ranges)
        for fact in added:
            for atom, c in fact.terms.items():
                if isinstance(atom, Var) and atom != LANE:
                    self._narrow(ranges, fact, atom, c)
        return IndexAnalysis(ranges, (*self.facts, *added))

    def _narrow(self, ranges: dict[str, Interval], fact: LinearForm, variable: Var, c: int) -> None:
        rest, name = fact.without((variable,)), variable.name
        most = self.interval(rest).high  # c * name >= -most
        known = ranges.get(name, UNKNOWN_VARIABLE)
        low, high = known.low, known.high
        if c > 0:
            low = max(low, -(most // c))
        else:
            high = min(high, most // -c)
        if low <= high:  # otherwise this place is never reached, and any range will do
            ranges[name] = Interval(low, high)

    # Division --------------------------------------------------------------------------------------------------

    def _split(self, form: LinearForm, divisor: int) -> tuple[LinearForm, LinearForm]:
        """Split ``form = divisor * quotient + rest``: the terms that the divisor divides, and the others."""
        quotient: dict[Expr, int] = {}
        rest: dict[Expr, int] = {}
        for atom, c in form.terms.items():
            if c % divisor == 0:
                quotient[atom] = c // divisor
            else:
                rest[atom] = c
        whole, part = divmod(form.constant, divisor)
        return LinearForm(quotient, whole, form.lanes), LinearForm(rest, part, form.lanes)

    def floordiv(self, form: LinearForm, divisor: int) -> LinearForm | None:
        """Return ``form // divisor`` for a divisor > 0; None where nothing can be said because the form may wrap."""
        if divisor == 1:
            return form
        if not self.fits(form):
            return None
        quotient, rest = self._split(form, divisor)
        bounds = self.interval(rest)
        if bounds.low // divisor == bounds.high // divisor:
            return quotient + bounds.low // divisor
        if not bounds.within(_SAFE):
            return None
        coarse = self._coarse(rest, divisor)
        if coarse is not None:
            step, high, _ = coarse
            inner_quotient = self.floordiv(high, divisor // step)
            if inner_quotient is not None:
                return quotient + inner_quotient
        nested = self._nested(BinaryOp.FLOORDIV, rest)
        if nested is not None and nested[1] * divisor <= _SAFE.high:
            whole = self.floordiv(nested[0], nested[1] * divisor)
            if whole is not None:
                return quotient + whole
        return quotient + self._opaque(BinaryOp.FLOORDIV, rest, divisor)

    def _coarse(self, form: LinearForm, divisor: int) -> tuple[int, LinearForm, LinearForm] | None:
        """Return (step, high, low) with ``form = step * high + low``, 0 <= low < step, and step > 1 a factor of the
        divisor: then ``form // divisor`` is ``high // (divisor // step)``."""
        for step in sorted({gcd(c, divisor) for c in form.terms.values()}, reverse=True):
            if step > 1:
                high, low = self._split(form, step)
                bounds = self.interval(low)
                if 0 <= bounds.low and bounds.high < step and self.fits(high):
                    return step, high, low
        return None

    def mod(self, form: LinearForm, divisor: int) -> LinearForm | None:
        """Return ``form % divisor`` for a divisor > 0; None where nothing can be said because the form may wrap."""
        if divisor == 1:
            return LinearForm({}, 0, form.lanes)
        if not self.fits(form):
            return None
        _, rest = self._split(form, divisor)
        terms = {atom: c % divisor if c > 0 else -(-c % divisor) for atom, c in rest.terms.items()}
        rest = LinearForm(terms, rest.constant, rest.lanes)
        bounds = self.interval(rest)
        if bounds.low // divisor == bounds.high // divisor:
            return rest - divisor * (bounds.low // divisor)
        if not bounds.within(_SAFE):
            return None
        coarse = self._coarse(rest, divisor)
        if coarse is not None:
            step, high, low = coarse
            reduced = self.mod(high, divisor // step)
            if reduced is not None:
                return reduced.scaled(step) + low
        nested = self._nested(BinaryOp.MOD, rest)
        if nested is not None and nested[1] % divisor == 0:
            return self.mod(nested[0], divisor)
        return self._opaque(BinaryOp.MOD, rest, divisor)

    def _nested(self, op: BinaryOp, form: LinearForm) -> tuple[LinearForm, int] | None:
        """Return the (form of e, c) where ``form`` is nothing but ``e op c``."""
        if len(form.terms) == 1 and form.constant == 0:
            ((atom, c),) = form.terms.items()
            if c == 1 and isinstance(atom, Binary) and atom.op is op and atom in self._dividends:
                divisor = _constant_of(atom.b)
                return None if divisor is None else (self._dividends[atom], divisor)
        return None

    def _opaque(self, op: BinaryOp, form: LinearForm, divisor: int) -> LinearForm:
        """Return the atom ``form op divisor``; scalar where all lanes are the same."""
        lanes = form.lanes
        dividend = form if form.varies else form.uniform()
        by = index(divisor) if dividend.lanes == 1 else Broadcast(index(divisor), lanes)
        atom = Binary(op, dividend.to_expr(), by)
        self._dividends[atom] = dividend
        return _atom(atom, lanes)

    def recombined(self, form: LinearForm) -> LinearForm:
        """Return ``e // c * (c * k) + e % c * k`` put together to ``e * k`` wherever both stand in the form."""
        for atom, k in form.terms.items():
            if isinstance(atom, Binary) and atom.op is BinaryOp.MOD:
                dividend, divisor = self._dividends.get(atom), _constant_of(atom.b)
                if dividend is None or not divisor or all(c % (k * divisor) for c in form.terms.values()):
                    continue  # no other term may be one of the quotient
                quotient = self.floordiv(dividend, divisor)
                if quotient is None:
                    continue
                if quotient.terms and all(form.terms.get(a) == k * divisor * c for a, c in quotient.terms.items()):
                    without = form.without((atom,)).plus(quotient, -k * divisor)
                    return self.recombined(without.plus(dividend, k))
        return form

    # Order -----------------------------------------------------------------------------------------------------

    def smaller(self, a: LinearForm, b: LinearForm) -> LinearForm | None:
        """Return whichever of the two never exceeds the other, in all lanes; None where that is not known of either."""
        if self.fits(a) and self.fits(b):
            if self.not_negative(b - a):
                return a.widened(max(a.lanes, b.lanes))
            if self.not_negative(a - b):
                return b.widened(max(a.lanes, b.lanes))
        return None

    def compared(self, op: CompareOp, a: LinearForm, b: LinearForm) -> Expr:
        """Return ``a op b`` decided, or else in normal form: ``<``, ``>=``, ``==`` or ``!=`` with no common factors,
        positive terms on the left, the constant on the right."""
        lanes = max(a.lanes, b.lanes)
        if not (self.fits(a) and self.fits(b)):
            return Compare(op, a.widened(lanes).to_expr(), b.widened(lanes).to_expr())
        if op in (CompareOp.GT, CompareOp.LE):  # a > b is a - b - 1 >= 0, a <= b is a - b - 1 < 0
            difference, op = a - b - 1, CompareOp.GE if op is CompareOp.GT else CompareOp.LT
        else:
            difference = a - b
        if not difference.varies:
            difference = difference.uniform()
        if not self.fits(difference):
            return _against_zero(op, difference.wrapped().widened(lanes))
        if op in (CompareOp.EQ, CompareOp.NE):
            result = self._equality(op, difference)
        else:
            result = self._order(op, difference)
        return Broadcast(result, lanes) if result.lanes < lanes else result

    def _equality(self, op: CompareOp, difference: LinearForm) -> Expr:
        bounds = self.interval(difference)
        common = _common(difference, 0)
        lanes = difference.lanes
        if 0 not in bounds or (common and difference.constant % common):
            return truth(op is CompareOp.NE, lanes)
        if bounds.is_point:
            return truth(op is CompareOp.EQ, lanes)
        if common > 1:
            terms = {atom: c // common for atom, c in difference.terms.items()}
            difference = LinearForm(terms, difference.constant // common, lanes)
        if all(c < 0 for c in difference.terms.values()):
            difference = difference.scaled(-1)
        return self._sides(op, difference)

    def _order(self, op: CompareOp, difference: LinearForm) -> Expr:
        """Return ``difference < 0`` or ``difference >= 0``, decided or in normal form."""
        if self.not_negative(difference):
            return truth(op is CompareOp.GE, difference.lanes)
        if self.not_negative(difference.scaled(-1) - 1):
            return truth(op is CompareOp.LT, difference.lanes)
        for divisor in sorted({abs(c) for c in difference.terms.values() if abs(c) > 1}):
            # d < 0 just where d // divisor < 0; it pays where the quotient drops terms or common factors
            quotient, rest = self._split(difference, divisor)
            bounds = self.interval(rest)
            if quotient.terms and 0 <= bounds.low and bounds.high < divisor:
                return self._order(op, quotient)
        if all(c < 0 for c in difference.terms.values()):
            op, difference = _FLIPPED[op], difference.scaled(-1) - 1
        return self._sides(op, difference)

    def _sides(self, op: CompareOp, difference: LinearForm) -> Expr:
        """Return ``difference op 0`` with the negative terms and the constant moved to the right."""
        if not difference.varies:
            difference = difference.uniform()
        left = LinearForm({a: c for a, c in difference.terms.items() if c > 0}, 0, difference.lanes)
        right = left - difference
        if not (self.fits(left) and self.fits(right)):
            return _against_zero(op, difference)
        return Compare(op, left.to_expr(), right.to_expr())

    def facts_of(self, condition: Expr, a: LinearForm, b: LinearForm) -> tuple[LinearForm, ...]:
        """Return the forms that are >= 0 where the comparison ``condition`` of the forms ``a`` and ``b`` is true."""
        if not isinstance(condition, Compare) or not (self.fits(a) and self.fits(b)):
            return ()
        difference = a - b
        negated = difference.scaled(-1)
        if not (self.fits(difference) and self.fits(negated)):
            return ()
        match condition.op:
            case CompareOp.LT:
                return (negated - 1,)
            case CompareOp.LE:
                return (negated,)
            case CompareOp.GT:
                return (difference - 1,)
            case CompareOp.GE:
                return (difference,)
            case CompareOp.EQ:
                return (difference, negated)
        return ()


def _against_zero(op: CompareOp, form: LinearForm) -> Expr:
    return Compare(op, form.to_expr(), LinearForm({}, 0, form.lanes).to_expr())


def _atom(atom: Expr, lanes: int) -> LinearForm:
    return LinearForm({atom: 1}, 0, lanes)


def _constant_of(expr: Expr) -> int | None:
    """Return the number an index constant, or a Broadcast of one, stands for."""
    scalar = scalar_of(expr)
    return int(scalar.value) if isinstance(scalar, Const) else None


def _common(form: LinearForm, start: int) -> int:
    """Return the greatest common divisor of ``start`` and all coefficients."""
    common = start
    for c in form.terms.values():
        common = gcd(common, c)
    return common
