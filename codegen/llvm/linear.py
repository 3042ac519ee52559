"""Indices taken apart: which lanes of a vector index are evenly spaced, and what the scalar part is a sum of."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.delinearize import joined_digits
from ...ir.expr import Binary, BinaryOp, Broadcast, Const, Expr, Ramp


@dataclass(frozen=True, slots=True)
class Linear:
    """``sum(coefficient * term) + constant + stride * lane``; terms are scalar expressions, kept whole."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int = 0
    stride: int = 0

    def shifted(self, elements: int) -> "Linear":
        """The same, ``elements`` further."""
        return Linear(self.terms, self.constant + elements, self.stride)


class _Sum:
    """A Linear being added up. ``vectors``: whether vectors whose lanes are not evenly spaced may be among the terms
    for the time being."""

    def __init__(self, *, vectors: bool = False) -> None:
        self.vectors = vectors
        self.terms: dict[Expr, int] = {}
        self.constant = 0
        self.stride = 0

    def add(self, expr: Expr, factor: int) -> bool:
        """Add ``factor * expr``; False for a vector whose lanes are not evenly spaced."""
        if isinstance(expr, Const):
            self.constant += factor * int(expr.value)
            return True
        if isinstance(expr, Broadcast):
            return self.add(expr.value, factor)
        if isinstance(expr, Ramp):
            self.stride += factor * expr.stride
            return self.add(expr.base, factor)
        if isinstance(expr, Binary):
            if expr.op is BinaryOp.ADD:
                return self.add(expr.a, factor) and self.add(expr.b, factor)
            if expr.op is BinaryOp.SUB:
                return self.add(expr.a, factor) and self.add(expr.b, -factor)
            if expr.op is BinaryOp.MUL:
                for number, other in ((expr.b, expr.a), (expr.a, expr.b)):
                    while isinstance(number, Broadcast):
                        number = number.value
                    if isinstance(number, Const):
                        return self.add(other, factor * int(number.value))
        if expr.lanes != 1 and not self.vectors:
            return False
        self.terms[expr] = self.terms.get(expr, 0) + factor
        return True

    def joined(self) -> bool:
        """Put digits together; False where vectors are left."""
        while (fewer := joined_digits(self.terms, _are_congruent)) is not None:
            self.terms = {}
            for term, coefficient in fewer.items():
                self.add(term, coefficient)
        return all(term.lanes == 1 for term, coefficient in self.terms.items() if coefficient)

    def result(self) -> Linear:
        return Linear(tuple((t, c) for t, c in self.terms.items() if c != 0), self.constant, self.stride)


def _are_congruent(a: Expr, b: Expr, divisor: int) -> bool:
    difference = linear_difference(a, b)
    if difference is None:
        return False
    numbers = (difference.constant, difference.stride, *(c for _, c in difference.terms))
    return all(n % divisor == 0 for n in numbers)


def linear_difference(a: Expr, b: Expr) -> Linear | None:
    """``a - b``; None where its lanes are not evenly spaced."""
    total = _Sum()
    return total.result() if total.add(a, 1) and total.add(b, -1) else None


def flat_index(indices: Sequence[Expr], strides: Sequence[int]) -> Linear | None:
    """The element number that the indices of a row-major buffer stand for; None as above."""
    total = _Sum(vectors=True)
    for index, stride in zip(indices, strides, strict=True):
        total.add(index, stride)
    return total.result() if total.joined() else None
