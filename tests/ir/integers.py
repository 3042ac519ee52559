"""Random integer expressions, and a reading of them on its own, for the property tests of the IR."""

import itertools
import operator
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tilewright.core.dtypes import INDEX, DType, boolean, int8
from tilewright.core.streams import stream
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Unary,
    UnaryOp,
    Var,
)

Integers: TypeAlias = Any
"""An array of Python's integers, which never wrap by themselves: object[lanes, points]."""


def wrap(value: Integers, dtype: DType) -> Integers:
    half = 1 << (dtype.bits - 1)
    return (value + half) % (2 * half) - half


BINARY: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.FLOORDIV: operator.floordiv,
    BinaryOp.MOD: operator.mod,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
}
COMPARE: dict[CompareOp, Callable[[Any, Any], Any]] = {
    CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le,
    CompareOp.GT: operator.gt,
    CompareOp.GE: operator.ge,
    CompareOp.EQ: operator.eq,
    CompareOp.NE: operator.ne,
}


def points_of(values: Mapping[str, Iterable[int]]) -> dict[str, Integers]:
    """All combinations of the values of the variables, for ``lanes_of``; the last variable changes fastest."""
    names, points = list(values), list(itertools.product(*values.values()))
    return {name: np.array([p[n] for p in points], dtype=object) for n, name in enumerate(names)}


def lanes_of(expr: Expr, points: Mapping[str, Integers]) -> Integers:
    """The value of an integer or bool expression in every lane and at every point (object[points] for each variable): a
    reading of the IR on its own, for the tests."""

    def at(e: Expr) -> Integers:
        return lanes_of(e, points)

    def truths(found: Any) -> Integers:
        return np.asarray(found, dtype=bool).astype(np.int64).astype(object)

    match expr:
        case Var(name=name):
            return points[name][None]
        case Const(value=value):
            return np.full((1, len(next(iter(points.values())))), int(value), dtype=object)
        case Binary(op=op, a=a, b=b):
            return wrap(BINARY[op](at(a), at(b)), expr.dtype)
        case Compare(op=compare_op, a=a, b=b):
            return truths(COMPARE[compare_op](at(a), at(b)))
        case Logic(op=LogicOp.AND, a=a, b=b):
            return at(a) & at(b)
        case Logic(a=a, b=b):
            return at(a) | at(b)
        case Unary(op=UnaryOp.NEG, value=value):
            return wrap(-at(value), expr.dtype)
        case Unary(op=UnaryOp.ABS, value=value):
            return wrap(abs(at(value)), expr.dtype)
        case Unary(value=value):
            return 1 - at(value)
        case Select(condition=c, then=a, otherwise=b):
            return np.where(at(c).astype(bool), at(a), at(b))
        case Cast(value=value, type=dtype):
            return truths(at(value) != 0) if dtype == boolean else wrap(at(value), dtype)
        case Ramp(base=base, stride=stride, count=count):
            return wrap(at(base) + stride * np.arange(count).astype(object)[:, None], INDEX)
        case Broadcast(value=value, count=count):
            return np.repeat(at(value), count, axis=0)
        case ReduceLanes(op=op, value=value):
            total, *rest = at(value)
            for lane in rest:
                total = wrap(BINARY[op](total, lane), expr.dtype)
            return total[None]
    raise AssertionError(type(expr))


class Draw:
    """Random well-typed integer expressions over x, y, z."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(int(stream(seed, "expressions").integers(1 << 62)))

    def number(self, depth: int, lanes: int, dtype: DType) -> Expr:
        pick = self.random.random()
        if depth == 0 or pick < 0.1:
            return self.leaf(lanes, dtype)
        if lanes > 1 and pick < 0.3:
            scalar = self.number(depth - 1, 1, dtype)
            if dtype == INDEX and self.random.random() < 0.6:
                return Ramp(scalar, self.random.choice([-2, -1, 0, 1, 1, 1, 3, 8]), lanes)
            return Broadcast(scalar, lanes)
        if pick < 0.75:
            op = self.random.choice(
                [BinaryOp.ADD, BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX]
            )
            return Binary(op, self.number(depth - 1, lanes, dtype), self.number(depth - 1, lanes, dtype))
        if pick < 0.87:
            op = self.random.choice([BinaryOp.FLOORDIV, BinaryOp.MOD])
            divisor = self.constant(self.random.choice([1, 2, 3, 4, 4, 6, 8, 8, 16, -3]), lanes, dtype)
            return Binary(op, self.number(depth - 1, lanes, dtype), divisor)
        if pick < 0.92:
            return Unary(self.random.choice([UnaryOp.NEG, UnaryOp.ABS]), self.number(depth - 1, lanes, dtype))
        if pick < 0.96:
            return Cast(self.number(depth - 1, lanes, self.random.choice([INDEX, int8])), dtype)
        return Select(
            self.truth(depth - 1, lanes), self.number(depth - 1, lanes, dtype), self.number(depth - 1, lanes, dtype)
        )

    def truth(self, depth: int, lanes: int) -> Expr:
        pick = self.random.random()
        if depth == 0 or pick < 0.6:
            dtype = self.random.choice([INDEX, INDEX, INDEX, int8])
            below = max(depth - 1, 0)
            a, b = self.number(below, lanes, dtype), self.number(below, lanes, dtype)
            return Compare(self.random.choice(list(CompareOp)), a, b)
        if pick < 0.7:
            return Unary(UnaryOp.NOT, self.truth(depth - 1, lanes))
        return Logic(self.random.choice(list(LogicOp)), self.truth(depth - 1, lanes), self.truth(depth - 1, lanes))

    def leaf(self, lanes: int, dtype: DType) -> Expr:
        if self.random.random() < 0.4:
            return self.constant(self.random.choice([-9, -1, 0, 1, 2, 3, 4, 8, 8, 16, 100]), lanes, dtype)
        scalar: Expr = Var(self.random.choice("xyz"))
        if dtype != INDEX:
            scalar = Cast(scalar, dtype)
        elif lanes > 1 and self.random.random() < 0.5:
            return Ramp(scalar, 1, lanes)
        return scalar if lanes == 1 else Broadcast(scalar, lanes)

    def constant(self, value: int, lanes: int, dtype: DType) -> Expr:
        scalar = Const(value, dtype)
        return scalar if lanes == 1 else Broadcast(scalar, lanes)
