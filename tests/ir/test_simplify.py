"""The simplifier: what it must find, and that it never changes a value."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.ir.integers import Draw, Integers, lanes_of, points_of
from tests.ir.kernels import load, loop, store
from tilewright.core.dtypes import INDEX, float16, float32, int8, int32
from tilewright.ir.bounds import Interval, interval_of
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import (
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
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
from tilewright.ir.interpret import interpret
from tilewright.ir.simplify import prove, simplify, simplify_kernel
from tilewright.ir.stmt import Allocate, If, Kernel, LoopKind, Stmt, seq
from tilewright.ir.text import expr_text, kernel_text
from tilewright.ir.verify import verify

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
    (compare(CompareOp.LT, ramp(X * 8), splat(64)), "splat(x < 8, 8)"),
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


@settings(max_examples=1000, deadline=None)
@example(3202, 4, 3)  # of a conjunction, one part alone was implied by another term
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
    points = points_of({name: range(r.low, r.high + 1) for name, r in ranges.items()})
    before, after = lanes_of(expr, points), lanes_of(simple, points)
    assert before.shape == after.shape == (lanes, len(points["x"]))
    assert (before == after).all(), f"{expr_text(expr)} => {expr_text(simple)} at {_first(before != after, points)}"
    outside = (before < bounds.low) | (before > bounds.high)
    assert not outside.any(), f"{expr_text(expr)} not in {bounds} at {_first(outside, points)}"


def _first(wrong: Any, points: Mapping[str, Integers]) -> dict[str, int]:
    """The first point at which any lane is wrong."""
    at = int(np.asarray(wrong, dtype=bool).any(axis=0).argmax())
    return {name: int(values[at]) for name, values in points.items()}


COEFFICIENTS = st.sampled_from([-16, -8, -4, -3, -1, 0, 1, 1, 2, 3, 4, 6, 8, 8, 16])
DIVISORS = st.sampled_from([2, 3, 4, 8, 8, 12, 16])
EXTENTS = st.tuples(*[st.sampled_from([1, 2, 4, 7, 8, 9])] * 3)


@settings(max_examples=150, deadline=None)
@given(st.tuples(COEFFICIENTS, COEFFICIENTS, COEFFICIENTS), st.integers(-40, 40), EXTENTS, DIVISORS, DIVISORS)
def test_affine_arithmetic_keeps_its_value(
    coefficients: tuple[int, int, int], offset: int, extents: tuple[int, int, int], divisor: int, other: int
) -> None:
    form = X * coefficients[0] + Y * coefficients[1] + Z * coefficients[2] + offset
    lanes = Broadcast(form, 4) + Ramp(index(0), coefficients[2], 4)
    by, then = Broadcast(index(divisor), 4), Broadcast(index(other), 4)
    candidates: list[Expr] = [Compare(op, form, index(0)) for op in CompareOp]
    candidates += [form // divisor, form % divisor, form // divisor // other, form % divisor % other]
    candidates += [form // divisor * divisor + form % divisor, form // divisor % other, form % divisor // other]
    candidates += [lanes // by, lanes % by, lanes // by % then, Compare(CompareOp.LT, lanes, by)]
    ranges = {name: Interval(0, extent - 1) for name, extent in zip("xyz", extents, strict=True)}
    simple = [simplify(e, ranges) for e in candidates]
    every = points_of({name: range(extent) for name, extent in zip("xyz", extents, strict=True)})
    some = np.arange(len(every["x"])) % (len(every["x"]) // 60 + 1) == 0
    corners = np.all([(every[n] == 0) | (every[n] == r.high) for n, r in ranges.items()], axis=0)
    points = {name: values[some | corners] for name, values in every.items()}
    for before, after in zip(candidates, simple, strict=True):
        wrong = lanes_of(before, points) != lanes_of(after, points)
        assert not wrong.any(), f"{expr_text(before)} => {expr_text(after)} at {_first(wrong, points)}"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from([1, 8]), st.integers(1, 5))
def test_simplifying_twice_is_simplifying_once(seed: int, lanes: int, depth: int) -> None:
    ranges = {"x": Interval(0, 7), "y": Interval(0, 3), "z": Interval(-4, 4)}
    once = simplify(Draw(seed).number(depth, lanes, INDEX), ranges)
    assert len(expr_text(simplify(once, ranges))) <= len(expr_text(once))


WIDTH = 4
RESULT = Buffer("R", (3, 5, WIDTH), INDEX)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(1, 4), st.booleans())
def test_simplifying_a_kernel_never_changes_what_it_computes(seed: int, depth: int, vectors: bool) -> None:
    draw = Draw(seed)
    lanes = WIDTH if vectors else 1
    place = (X, Y, Ramp(index(0), 1, WIDTH) if vectors else Z)
    clear = loop("x0", 3, loop("y0", 5, loop("z0", WIDTH, store(RESULT, (Var("x0"), Var("y0"), Var("z0")), index(7)))))
    value = draw.number(depth, lanes, INDEX)
    mask = draw.truth(depth, lanes) if draw.random.random() < 0.5 else None
    inner: Stmt = If(draw.truth(depth, 1), store(RESULT, place, value, mask))
    if draw.random.random() < 0.5:
        inner = If(draw.truth(1, 1), inner)
    kernel = Kernel("k", (), (RESULT,), (), seq(clear, loop("x", 3, loop("y", 5, loop("z", WIDTH, inner)))))
    simple = simplify_kernel(kernel)
    verify(simple)
    before, after = interpret(kernel, {})["R"], interpret(simple, {})["R"]
    assert (before == after).all(), kernel_text(kernel) + kernel_text(simple)


def test_conditions_around_are_used_and_what_is_dead_goes() -> None:
    """Guards known from the loops or from outer guards go, and with them dead stores, loops and allocations."""
    out = Buffer("O", (64,), float32)
    scratch = Buffer("L", (8,), float32, MemoryScope.LOCAL)
    i, j, one = Var("i"), Var("j"), Var("one")
    write = store(out, (i * 8 + j,), load(A, one, i * 8 + j))
    nest = If(
        i * 8 + j < index(60),
        seq(
            If(i * 8 + j < index(61), If(i < index(8), write)),
            If(i * 8 + j >= index(60), store(out, (index(0),), const(1.0, float32))),
            store(scratch, (j,), const(1.0, float32)),
        ),
    )
    body = Allocate(scratch, loop("i", 8, loop("one", 1, loop("j", 8, nest, kind=LoopKind.VECTORIZED))))
    empty = loop("e", 4, If(Var("e") >= index(4), store(out, (index(0),), const(1.0, float32))))
    simple = simplify_kernel(Kernel("k", (A,), (out,), (), seq(empty, body)))
    assert kernel_text(simple) == (
        "kernel k(A: float32[100, 100]) -> (O: float32[64]):\n"
        "  for i in 8:\n"
        "    vectorized for j in 8:\n"
        "      if i*8 + j < 60:\n"
        "        O[i*8 + j] = A[0, i*8 + j]\n"
    )


def test_a_simple_kernel_is_left_as_it_is() -> None:
    simple = simplify_kernel(Kernel("k", (A,), (A,), (), loop("x", 3, store(A, (X, X), load(A, X, X + 1)))))
    assert simplify_kernel(simple).body == simple.body


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from([1, WIDTH]), st.integers(1, 5))
def test_the_interpreter_agrees_with_a_plain_reading(seed: int, lanes: int, depth: int) -> None:
    expr = Draw(seed).number(depth, lanes, INDEX)
    place = (X, Y, Ramp(index(0), 1, WIDTH) if lanes > 1 else Z)
    nest = loop("x", 3, loop("y", 5, loop("z", WIDTH, store(RESULT, place, expr))))
    result = interpret(Kernel("k", (), (RESULT,), (), nest), {})["R"]
    # the last store of a vector is the one that stays
    last = range(WIDTH) if lanes == 1 else [WIDTH - 1]
    wanted = lanes_of(expr, points_of({"x": range(3), "y": range(5), "z": last}))
    assert np.array_equal(wanted.T.reshape(result.shape), result)
