"""Sums of which a remainder selects the terms, such as the gradient of a convolution with strides, over these alone:

    total[y] = sum over r < 3 of select((y + 1 - r) % 2 == 0, D[(y + 1 - r) // 2], 0) * W[r]

    ->  total[y] = sum over t < 2 of D[y // 2 + 1 - t] * select(y % 2 + t * 2 >= 1, W[y % 2 + t * 2 - 1], 0)

That is a transposed convolution, whose phases ``te.phases`` finds. Where the divisor does not divide the extent of y,
phases are those of y + 1 as it is written, so that a kernel has fewer places for each. What is left out is zero times a
number, so that sums are the same where these numbers are finite.
"""

from dataclasses import dataclass, replace
from functools import reduce
from math import gcd

from ..core.dtypes import INDEX
from ..ir.expr import (
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Select,
    Var,
    const,
    index,
    rebuild,
)
from ..ir.linear_form import LinearForm, affine_form, linear_form
from ..ir.rewrite import free_variables
from .conditions import conditions_of_terms, without_condition
from .functions import all_of, factors_of
from .workload import Axis, Reducer, Stage


def with_congruent_terms(total: Stage, *, whole: bool = False) -> Stage:
    """Return a sum without the terms that a remainder leaves out; the sum itself where there are none. It reads
    quotients and remainders of axes of its tensor. Of terms beyond the axis a factor is 0; ``whole``: nothing of them
    is read, so that all indices stay inside."""
    if total.reducer is not Reducer.SUM:
        return total
    for condition in conditions_of_terms(total):
        congruence = _congruence_of(condition, total)
        if congruence is not None:
            return with_congruent_terms(congruence.solved(total, whole), whole=whole)
    return total


@dataclass(frozen=True, slots=True)
class _Congruence:
    """``condition`` says that ``term``, a reduction axis, is ``divisor * t + sign * phase + offset``. The phase is the
    remainder of ``axis + shift``, and the sign is 1 or -1."""

    condition: Expr
    axis: str
    shift: int
    divisor: int
    term: Axis
    sign: int
    offset: int

    @property
    def phase(self) -> Expr:
        return Binary(BinaryOp.MOD, self._shifted, index(self.divisor))

    @property
    def quotient(self) -> Expr:
        return Binary(BinaryOp.FLOORDIV, self._shifted, index(self.divisor))

    @property
    def _shifted(self) -> Expr:
        return Var(self.axis) + self.shift if self.shift else Var(self.axis)

    @property
    def least(self) -> int:
        """The least value of the solution."""
        return self.offset - (self.divisor - 1 if self.sign < 0 else 0)

    @property
    def taps(self) -> int:
        """How many values ``t`` takes."""
        return -(-(self.term.extent - self.least) // self.divisor)

    def solved(self, total: Stage, whole: bool) -> Stage:
        """Return the sum over the terms for which the condition holds. Some may lie beyond the axis, and are zero."""
        body = without_condition(total.body, self.condition)
        guarded = next((f for f in factors_of(body) if self._is_alone(f) and not whole), body)
        axes = tuple(Axis(a.name, self.taps) if a == self.term else a for a in total.reduce_axes)
        return replace(total, body=self._product(body, guarded), reduce_axes=axes)

    def _is_alone(self, factor: Expr) -> bool:
        """Return whether a factor reads the axis of the terms without that of the tensor."""
        names = free_variables(factor)
        return self.term.name in names and self.axis not in names

    def _product(self, e: Expr, guarded: Expr) -> Expr:
        """``e`` on the axis of the terms that are left. Its factor ``guarded`` is zero where there is no term."""
        if e is guarded:
            value, term = self._rewritten(e), self._solved(Var(self.term.name)).to_expr()
            inside = [term >= 0] if self.least < 0 else []
            inside += [term < self.term.extent] if self.least + self.taps * self.divisor > self.term.extent else []
            return Select(all_of(*inside), value, const(0, e.dtype)) if inside else value
        if isinstance(e, Binary) and e.op is BinaryOp.MUL:
            return rebuild(e, [self._product(child, guarded) for child in e.children])
        return self._rewritten(e)

    def _rewritten(self, e: Expr) -> Expr:
        if self.term.name not in free_variables(e):
            return e
        match e:
            case Compare(op=op, a=a, b=b) if a.dtype == INDEX and affine_form(a - b) is not None:
                compared = _compared(op, self._solved(a - b))
                if compared is not None:
                    return compared
            case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD as op, a=a, b=Const(value=n)) if affine_form(a) is not None:
                form = self._solved(a)
                if all(c % n == 0 for c in form.terms.values()):
                    terms = {atom: c // int(n) for atom, c in form.terms.items()}
                    quotient = LinearForm(terms, form.constant // int(n))
                    return quotient.to_expr() if op is BinaryOp.FLOORDIV else index(form.constant % int(n))
            case _ if e.dtype == INDEX and affine_form(e) is not None:
                return self._solved(e).to_expr()
        return rebuild(e, [self._rewritten(child) for child in e.children])

    def _solved(self, e: Expr) -> LinearForm:
        """Return an affine index with the solution in place of the term. What is left of an axis without its remainder
        is a multiple of the quotient."""
        form, n = linear_form(e), self.divisor
        c, whole = form.coefficient(self.term.name), form.coefficient(self.axis)
        solution = LinearForm({self.phase: self.sign, Var(self.term.name): n}, self.offset)
        form = form.without([Var(self.term.name)]).plus(solution, c)
        if whole == -self.sign * c != 0:
            form = form.without([self.phase, Var(self.axis)]).plus(LinearForm({self.quotient: n}, -self.shift), whole)
        return form


def _congruence_of(condition: Expr, total: Stage) -> _Congruence | None:
    """Return what a condition says of a reduction axis; None where it is no remainder of one of these and one axis of
    the tensor, each once or taken away once."""
    match condition:
        case Compare(op=CompareOp.EQ, a=Binary(op=BinaryOp.MOD, a=of, b=Const(value=n)), b=Const(value=rest)):
            form = affine_form(of)
        case _:
            return None
    if form is None or len(form.terms) != 2 or not all(abs(c) == 1 for c in form.terms.values()) or n < 2:
        return None
    term = next((a for a in total.reduce_axes if form.coefficient(a.name)), None)
    axis = next((a for a in total.axes if form.coefficient(a.name)), None)
    if term is None or axis is None:
        return None
    whole, divisor = form.coefficient(axis.name), int(n)
    sign = -whole * form.coefficient(term.name)
    shift = (form.constant - int(rest)) * whole % divisor  # the term is sign * (axis + shift), apart from multiples
    last = divisor - 1 if sign < 0 else 0
    if axis.extent % divisor == 0:
        offset = last - (last - sign * shift) % divisor
        return _Congruence(condition, axis.name, 0, divisor, term, sign, offset)
    return _Congruence(condition, axis.name, (shift - (sign < 0)) % divisor, divisor, term, sign, last)


def _compared(op: CompareOp, form: LinearForm) -> Expr | None:
    """Return an order of ``form`` and 0 as one of its least multiple and a number; None where ``op`` is none."""
    unit = reduce(gcd, form.terms.values(), 0) or 1
    multiple = LinearForm({atom: c // unit for atom, c in form.terms.items()}).to_expr()
    match op:
        case CompareOp.LT | CompareOp.GE:
            return Compare(op, multiple, index(-(form.constant // unit)))
        case CompareOp.LE | CompareOp.GT:
            below = CompareOp.LT if op is CompareOp.LE else CompareOp.GE
            return Compare(below, multiple, index(-((form.constant - 1) // unit)))
    return None
