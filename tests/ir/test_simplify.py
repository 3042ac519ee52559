"""The simplifier: what it must find, and that it never changes a value."""

import itertools
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.dtypes import INDEX, DType, boolean, float16, float32, int8, int32
from tilewright.core.streams import stream
from tilewright.ir.bounds import Interval, interval_of
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
    logical_and,
    maximum,
    minimum,
)
from tilewright.ir.simplify import prove, simplify
from tilewright.ir.text import expr_text

X, Y, Z, F = Var("x"), Var("y"), Var("z"), Var("f")
RANGES = {"x": Interval(0, 15), "y": Interval(0, 7), "f": Interval(0, 999)}
A = Buffer("A", (100, 100), float32)
N = Buffer("N", (100,), int32)


def ramp(base: Expr, stride: int = 1) -> Expr:
    return Ramp(base, stride, 8)


def splat(value: Expr | int) -> Expr:
    return Broadcast(index(value) if isinstance(value, int) else value, 8)


def compare(op: CompareOp, a: Expr, b: Expr) -> Expr:
    return Compare(op, a, b)


LANES_BELOW_100 = compare(CompareOp.LT, ramp(X * 8), splat(100))
FINDS: list[tuple[Expr, str]] = [
    ((X * 8 + Y) // 8, "x"),
    ((X * 8 + Y) % 8, "y"),
    ((X * 8 + Y + 3) // 8, "x + (y + 3)//8"),
    ((X * 16 + Y) // 8, "x*2"),
    ((X * 12 + Y * 4 + 3) // 8, "(x*3 + y)//2"),
    ((X * 12 + Y * 4 + 3) % 8, "(x + y)%2*4 + 3"),
    (F // 8 * 8 + F % 8, "f"),
    (F // 50 * 50 + F // 10 % 5 * 10 + F % 10, "f"),
    (F // 10 // 5, "f//50"),
    (F % 30 % 10, "f%10"),
    (F % 1000, "f"),
    (F // 1000, "0"),
    ((X + Y) * 3 - X * 3, "y*3"),
    (Z + 3 - Z, "3"),
    (-(X - 5), "5 - x"),
    (0 - X, "-x"),
    (X * 0 + 1 * Y, "y"),
    (minimum(X * 8 + Y, index(200)), "x*8 + y"),
    (minimum(X, index(9)), "min(x, 9)"),
    (maximum(F - Y, F - Y + 3), "f - y + 3"),
    (Unary(UnaryOp.ABS, Y - 9), "9 - y"),
    (Cast(X + 1, INDEX) - 1, "x"),
    (X * 8 + Y < index(128), "true"),
    (X * 8 + Y < index(100), "x*8 + y < 100"),
    (X * 8 + Y < index(64), "x < 8"),
    (X * 8 < index(100), "x < 13"),
    (X - 1 >= index(0), "x >= 1"),
    (index(3) - X <= index(0), "x >= 3"),
    (Z < Z + 1, "true"),
    (compare(CompareOp.EQ, X * 2, index(7)), "false"),
    (compare(CompareOp.NE, X * 2, index(8)), "x != 4"),
    (logical_and(X < index(10), X < index(12), X >= index(-1)), "x < 10"),
    (Logic(LogicOp.OR, X < index(10), X < index(12)), "x < 12"),
    (Logic(LogicOp.OR, X < index(10), X < index(16)), "true"),
    (Unary(UnaryOp.NOT, X < index(10)), "x >= 10"),
    (Select(F < index(1000), Load(A, (X, Y)), const(0.0, float32)), "A[x, y]"),
    (Select(X < index(4), X + 1, 1 + X), "x + 1"),
    (splat(X * 8) + ramp(Y, 2), "ramp(x*8 + y, 8, 2)"),
    (ramp(X) - ramp(Y), "splat(x - y, 8)"),
    (ramp(X) * splat(3) + splat(1), "ramp(x*3 + 1, 8, 3)"),
    (ramp(X * 8) // splat(8), "splat(x, 8)"),
    (ramp(X * 8) % splat(16), "ramp(x%2*8, 8)"),
    (ramp(X * 8) // splat(64), "splat(x//8, 8)"),
    (ramp(X * 8) % splat(8), "ramp(0, 8)"),
    (compare(CompareOp.LT, ramp(X * 8), splat(128)), "splat(true, 8)"),
    (compare(CompareOp.GE, ramp(X * 8), splat(128)), "splat(false, 8)"),
    (LANES_BELOW_100, "ramp(x*8, 8) < splat(100, 8)"),
    (logical_and(LANES_BELOW_100, compare(CompareOp.LT, splat(X), splat(20))), "ramp(x*8, 8) < splat(100, 8)"),
    (Load(A, (splat(X), ramp(Y)), compare(CompareOp.LT, ramp(Y), splat(15))), "A[x, ramp(y, 8)]"),
    (Load(A, (splat(X), ramp(Y)), compare(CompareOp.LT, ramp(Y), splat(-1))), "splat(0.0, 8)"),
    (Load(A, (splat(X), splat(Y))), "splat(A[x, y], 8)"),
    (ReduceLanes(BinaryOp.MAX, Broadcast(Load(A, (X, Y)), 8)), "A[x, y]"),
    (Load(A, (X, Y)) * 1.0, "A[x, y]"),
    (Load(A, (X, Y)) + 0.0, "A[x, y] + 0.0"),
    (const(1.5, float32) * 2.0 + Load(A, (X, Y)), "3.0 + A[x, y]"),
    (const(1.5, float16) * 2.0, "1.5f16 * 2.0f16"),
    (const(100, int8) + 100, "-56i8"),
    (Load(N, (X,)) * 0 + Load(N, (Y,)), "N[y]"),
]


@pytest.mark.parametrize(("given_expr", "expected"), FINDS, ids=[expr_text(e) for e, _ in FINDS])
def test_finds_the_simple_form(given_expr: Expr, expected: str) -> None:
    assert expr_text(simplify(given_expr, RANGES)) == expected


def test_prove_says_what_it_does_not_know() -> None:
    assert prove(X * 8 + Y < index(128), RANGES) is True
    assert prove(X * 8 + Y >= index(128), RANGES) is False
    assert prove(X * 8 + Y < index(127), RANGES) is None


def test_wrapping_arithmetic_is_not_taken_for_whole_numbers() -> None:
    huge = {"x": Interval(0, 1 << 62)}
    assert prove(X * 4 >= index(0), huge) is None
    assert prove(X * 4 // 4 >= X, huge) is None
    wide = Load(Buffer("W", (4,), INDEX), (index(0),))
    assert prove(wide < wide + 1, {}) is None


# Values do not change ------------------------------------------------------------------------------------------


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


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from([1, 1, 4, 8]), st.integers(1, 5))
def test_simplifying_never_changes_a_value(seed: int, lanes: int, depth: int) -> None:
    draw = Draw(seed)
    if draw.random.random() < 0.5:
        expr = draw.number(depth, lanes, draw.random.choice([INDEX, INDEX, INDEX, int8]))
    else:
        expr = draw.truth(depth, lanes)
    ranges = {}
    for name in "xyz":
        low = draw.random.choice([0, 0, 0, -3, 5])
        ranges[name] = Interval(low, low + draw.random.choice([0, 1, 3, 6, 7]))
    simple = simplify(expr, ranges)
    assert simple.lanes == expr.lanes
    assert simple.dtype == expr.dtype
    bounds = interval_of(expr, ranges)
    for values in itertools.product(*(range(r.low, r.high + 1) for r in ranges.values())):
        env = dict(zip(ranges, values, strict=True))
        before = lanes_of(expr, env)
        assert lanes_of(simple, env) == before, f"{expr_text(expr)} => {expr_text(simple)} at {env}"
        assert all(value in bounds for value in before), f"{expr_text(expr)} not in {bounds} at {env}"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from([1, 8]), st.integers(1, 5))
def test_simplifying_twice_is_simplifying_once(seed: int, lanes: int, depth: int) -> None:
    ranges = {"x": Interval(0, 7), "y": Interval(0, 3), "z": Interval(-4, 4)}
    once = simplify(Draw(seed).number(depth, lanes, INDEX), ranges)
    assert len(expr_text(simplify(once, ranges))) <= len(expr_text(once))
