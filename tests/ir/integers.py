"""Random integer expressions, and a reading of them on its own, for the property tests of the IR."""

import random
from collections.abc import Callable, Mapping

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


def wrap(value: int, dtype: DType) -> int:
    half = 1 << (dtype.bits - 1)
    return (value + half) % (2 * half) - half


BINARY: dict[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.ADD: lambda a, b: a + b,
    BinaryOp.SUB: lambda a, b: a - b,
    BinaryOp.MUL: lambda a, b: a * b,
    BinaryOp.FLOORDIV: lambda a, b: a // b,
    BinaryOp.MOD: lambda a, b: a % b,
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
}
COMPARE: dict[CompareOp, Callable[[int, int], bool]] = {
    CompareOp.LT: lambda a, b: a < b,
    CompareOp.LE: lambda a, b: a <= b,
    CompareOp.GT: lambda a, b: a > b,
    CompareOp.GE: lambda a, b: a >= b,
    CompareOp.EQ: lambda a, b: a == b,
    CompareOp.NE: lambda a, b: a != b,
}


def lanes_of(expr: Expr, env: Mapping[str, int]) -> list[int]:
    """The value of an integer or bool expression in every lane: a reading of the IR on its own, for the tests."""

    def at(e: Expr) -> list[int]:
        return lanes_of(e, env)

    match expr:
        case Var(name=name):
            return [env[name]]
        case Const(value=value):
            return [int(value)]
        case Binary(op=op, a=a, b=b):
            return [wrap(BINARY[op](p, q), expr.dtype) for p, q in zip(at(a), at(b), strict=True)]
        case Compare(op=compare_op, a=a, b=b):
            return [int(COMPARE[compare_op](p, q)) for p, q in zip(at(a), at(b), strict=True)]
        case Logic(op=LogicOp.AND, a=a, b=b):
            return [p & q for p, q in zip(at(a), at(b), strict=True)]
        case Logic(a=a, b=b):
            return [p | q for p, q in zip(at(a), at(b), strict=True)]
        case Unary(op=UnaryOp.NEG, value=value):
            return [wrap(-p, expr.dtype) for p in at(value)]
        case Unary(op=UnaryOp.ABS, value=value):
            return [wrap(abs(p), expr.dtype) for p in at(value)]
        case Unary(value=value):
            return [1 - p for p in at(value)]
        case Select(condition=c, then=a, otherwise=b):
            return [q if p else r for p, q, r in zip(at(c), at(a), at(b), strict=True)]
        case Cast(value=value, type=dtype):
            return [int(p != 0) if dtype == boolean else wrap(p, dtype) for p in at(value)]
        case Ramp(base=base, stride=stride, count=count):
            return [wrap(at(base)[0] + stride * i, INDEX) for i in range(count)]
        case Broadcast(value=value, count=count):
            return at(value) * count
        case ReduceLanes(op=op, value=value):
            total, *rest = at(value)
            for p in rest:
                total = wrap(BINARY[op](total, p), expr.dtype)
            return [total]
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
