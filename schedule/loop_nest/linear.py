"""Linear forms over opaque terms: the index arithmetic behind regions and dependences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...ir.affine import sum_of
from ...ir.delinearize import joined_digits
from ...ir.expr import Binary, BinaryOp, Const, Expr, Unary, UnaryOp


@dataclass(frozen=True, slots=True)
class Linear:
    """``sum(coefficient * term) + constant``; terms are expressions that are no sums or multiples themselves
    (variables, quotients, remainders, minima, …), told apart by structure. No coefficient is zero."""

    terms: Mapping[Expr, int]
    constant: int = 0

    def __add__(self, other: "Linear") -> "Linear":
        terms = dict(self.terms)
        for term, coefficient in other.terms.items():
            terms[term] = terms.get(term, 0) + coefficient
        return Linear({t: c for t, c in terms.items() if c}, self.constant + other.constant)

    def __mul__(self, factor: int) -> "Linear":
        if factor == 0:
            return Linear({})
        return Linear({t: c * factor for t, c in self.terms.items()}, self.constant * factor)

    def __sub__(self, other: "Linear") -> "Linear":
        return self + other * -1

    def part(self, terms: Iterable[Expr]) -> "Linear":
        """Only the given terms, without the constant."""
        return Linear({t: self.terms[t] for t in terms})

    @property
    def expr(self) -> Expr:
        """The form as an expression, its terms in the order they were met."""
        return sum_of(self.terms.items(), self.constant)


def linear(expr: Expr) -> Linear:
    """``expr`` (an integer) as a linear form; what is not linear becomes a term of its own."""
    match expr:
        case Const(value=value):
            return Linear({}, int(value))
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            return linear(a) + linear(b)
        case Binary(op=BinaryOp.SUB, a=a, b=b):
            return linear(a) - linear(b)
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            left, right = linear(a), linear(b)
            if not right.terms:
                return left * right.constant
            if not left.terms:
                return right * left.constant
        case Unary(op=UnaryOp.NEG, value=operand):
            return linear(operand) * -1
    return Linear({expr: 1})


def joined(form: Linear) -> Linear:
    """``form`` with the digits of places put together (see ``ir.digits``)."""
    while (fewer := joined_digits(form.terms, _are_congruent)) is not None:
        again = Linear({}, form.constant)
        for term, coefficient in fewer.items():
            again += linear(term) * coefficient
        form = again
    return form


def _are_congruent(a: Expr, b: Expr, divisor: int) -> bool:
    difference = linear(a) - linear(b)
    return all(n % divisor == 0 for n in (difference.constant, *difference.terms.values()))
