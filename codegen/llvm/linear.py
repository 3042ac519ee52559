"""Indices taken apart: which lanes of a vector index are evenly spaced, and what the scalar part is a sum of."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.expr import Binary, BinaryOp, Broadcast, Const, Expr, Ramp, Var


@dataclass(frozen=True, slots=True)
class Linear:
    """``sum(coefficient * term) + constant + stride * lane``; terms are scalar expressions, kept whole."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int = 0
    stride: int = 0

    def plus(self, other: "Linear", factor: int = 1) -> "Linear":
        terms = dict(self.terms)
        for term, coefficient in other.terms:
            terms[term] = terms.get(term, 0) + factor * coefficient
        kept = tuple((t, c) for t, c in terms.items() if c != 0)
        return Linear(kept, self.constant + factor * other.constant, self.stride + factor * other.stride)

    def times(self, factor: int) -> "Linear":
        return Linear(()).plus(self, factor)

    @property
    def is_constant(self) -> bool:
        return not self.terms and self.stride == 0


def linear(expr: Expr) -> Linear | None:
    """``expr`` as a Linear; None for a vector whose lanes are not evenly spaced. A scalar always has one."""
    match expr:
        case Const(value=value):
            return Linear((), int(value))
        case Var():
            return Linear(((expr, 1),))
        case Broadcast(value=value):
            return linear(value)
        case Ramp(base=base, stride=stride):
            start = linear(base)
            return None if start is None else start.plus(Linear((), 0, stride))
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB, a=a, b=b):
            left, right = linear(a), linear(b)
            if left is not None and right is not None:
                return left.plus(right, 1 if expr.op is BinaryOp.ADD else -1)
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            left, right = linear(a), linear(b)
            if left is not None and right is not None:
                if right.is_constant:
                    return left.times(right.constant)
                if left.is_constant:
                    return right.times(left.constant)
    return Linear(((expr, 1),)) if expr.lanes == 1 else None


def flat_index(indices: Sequence[Expr], strides: Sequence[int]) -> Linear | None:
    """The element number that the indices of a row-major buffer stand for."""
    total = Linear(())
    for index, stride in zip(indices, strides, strict=True):
        part = linear(index)
        if part is None:
            return None
        total = total.plus(part, stride)
    return total
