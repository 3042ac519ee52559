"""Every rule of the verifier has a kernel that breaks it and nothing else; legal kernels pass."""

from dataclasses import replace

import pytest

from tests.ir.kernels import load, loop, padded_shift, store, tiled_matmul, vector_matmul
from tests.ir.test_verify_launch import BROKEN as BROKEN_LAUNCHES
from tilewright.core.dtypes import INDEX, boolean, float16, float32, float64, int8, int32
from tilewright.core.errors import InvalidKernel
from tilewright.ir.buffer import Buffer, MemoryScope
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
    const,
    index,
)
from tilewright.ir.stmt import Allocate, If, Kernel, LoopKind, Stmt, seq
from tilewright.ir.verify import RULES, verify

P = Var("p")
IN, OUT = Buffer("I", (8,), float32), Buffer("O", (8,), float32)
WIDE = Buffer("W", (8, 8), float32)
LOCAL = Buffer("L", (8,), float32, MemoryScope.LOCAL)
REGISTER = Buffer("R", (8,), float32, MemoryScope.REGISTER)
LANES = Ramp(index(0), 1, 8)
X = const(1.0, float32)
TRUE = const(True, boolean)


def kernel(*body: Stmt) -> Kernel:
    return Kernel("k", (IN,), (OUT,), (WIDE,), seq(*body))


def put(value: Expr, at: Expr = P) -> Kernel:
    """A kernel that stores ``value`` inside a loop over p."""
    return kernel(loop("p", 8, store(OUT, (at,), value)))


PUT = store(OUT, (index(0),), X)
EIGHT = Broadcast(X, 8)
GOOD = put(X)
BROKEN: list[tuple[str, str, Kernel]] = [
    ("parameters", "constant W is no input", replace(GOOD, constants=frozenset({"W"}))),
    ("names", "p is bound twice", kernel(loop("p", 8, loop("p", 2, PUT)))),
    ("names", "p is bound twice", kernel(loop("p", 8, PUT), loop("p", 2, PUT))),
    ("names", "I is bound twice", replace(GOOD, outputs=(OUT, IN))),
    ("names", "L is bound twice", kernel(Allocate(LOCAL, PUT), Allocate(LOCAL, PUT))),
    ("names", "O is bound twice", kernel(loop("O", 8, PUT))),
    ("names", "'p.0' is no identifier", kernel(loop("p.0", 8, PUT))),
    ("parameters", "there is no output", replace(GOOD, outputs=(), workspace=(OUT,))),
    ("parameters", "I has scope local", replace(GOOD, inputs=(replace(IN, scope=MemoryScope.LOCAL),))),
    ("parameters", r"I has shape \[0\]", replace(GOOD, inputs=(replace(IN, shape=(0,)),))),
    ("written", "nothing stores to output O", kernel(store(WIDE, (index(0), index(0)), X))),
    ("extent", "loop p has extent 0", kernel(loop("p", 0, PUT))),
    ("scope", "variable q is not bound here", put(load(IN, Var("q")))),
    ("scope", "variable p is not bound here", kernel(loop("p", 8, PUT), store(OUT, (P,), X))),
    (
        "scope",
        "buffer L is not bound here",
        kernel(Allocate(LOCAL, PUT), store(OUT, (index(0),), load(LOCAL, index(0)))),
    ),
    ("scope", "buffer I is accessed as", put(load(replace(IN, shape=(9,)), P))),
    ("allocation", "G has scope global", kernel(Allocate(Buffer("G", (8,), float32), PUT))),
    ("allocation", r"shape \[0, 2\]", kernel(Allocate(replace(LOCAL, shape=(0, 2)), PUT))),
    ("types", "add of float32 and int32", put(Binary(BinaryOp.ADD, X, const(1, int32)))),
    ("types", "floordiv of float32", put(X // 2)),
    ("types", "div of int32", put(Cast(const(1, int32) / 2, float32))),
    ("types", "pow of int64", put(Cast(Binary(BinaryOp.POW, P, P), float32))),
    ("types", "add of bool", put(Cast(Binary(BinaryOp.ADD, TRUE, TRUE), float32))),
    ("types", "lt of float32 and float64", put(Select(Compare(CompareOp.LT, X, const(1.0, float64)), X, X))),
    ("types", "and of int64", put(Select(Logic(LogicOp.AND, P, P), X, X))),
    ("types", "exp of int64", put(Cast(Unary(UnaryOp.EXP, P), float32))),
    ("types", "not of float32", put(Unary(UnaryOp.NOT, X))),
    ("types", "neg of bool", put(Cast(Unary(UnaryOp.NEG, TRUE), float32))),
    ("types", "select of float32 and float16", put(Select(TRUE, X, const(1.0, float16)))),
    ("types", "select on int64", put(Select(P, X, X))),
    ("types", "1.5 is no constant of int32", put(Cast(Const(1.5, int32), float32))),
    ("types", "128 is no constant of int8", put(Cast(Const(128, int8), float32))),
    ("types", "1 is no constant of bool", put(Cast(Const(1, boolean), float32))),
    ("types", "nan is no constant of float32", put(Const(float("nan"), float32))),
    ("types", "a ramp from float32", kernel(store(OUT, (LANES,), Ramp(X, 1, 8)))),
    ("types", "lanes of float32 combined by sub", put(ReduceLanes(BinaryOp.SUB, EIGHT))),
    ("types", "Stmt is no statement", kernel(PUT, Stmt())),
    ("types", "Expr is no expression", put(Expr())),
    ("lanes", "add of 8 and 1 lanes", kernel(store(OUT, (LANES,), Binary(BinaryOp.ADD, EIGHT, X)))),
    ("lanes", "select on 1 lanes between values of 8", kernel(store(OUT, (LANES,), Select(TRUE, EIGHT, EIGHT)))),
    ("lanes", "a ramp of 4 lanes from 8", kernel(store(OUT, (Ramp(LANES, 1, 4),), Broadcast(X, 4)))),
    ("lanes", "a broadcast to 8 lanes from 8", kernel(store(OUT, (LANES,), Broadcast(EIGHT, 8)))),
    ("lanes", "indices of W have 8 and 4", kernel(PUT, store(WIDE, (LANES, Ramp(index(0), 1, 4)), EIGHT))),
    ("indices", "2 indices for I of 1 dim", put(load(IN, P, P))),
    ("indices", "index 0 of I is int32, not int64", put(load(IN, Cast(P, int32)))),
    ("indices", "index 0 of O is float32", put(X, at=X)),
    ("mask", "the mask of I is float32, the access has 1", put(load(IN, P, mask=X))),
    ("mask", "the mask of O is bool, the access has 8", kernel(store(OUT, (LANES,), EIGHT, TRUE))),
    ("store", "a int64 is stored to O, which holds float32", put(P)),
    ("store", "8 lanes are stored to 1 elements", put(EIGHT)),
    ("store", "1 lanes are stored to 8 elements", put(X, at=LANES)),
    ("inputs", "I is an input", kernel(PUT, store(IN, (index(0),), X))),
    ("condition", "the condition is int64 in 1", kernel(If(index(1), PUT))),
    ("condition", "the condition is bool in 8", kernel(If(Broadcast(TRUE, 8), PUT))),
    (
        "nesting",
        "parallel loop q is inside the vectorised loop p",
        kernel(loop("p", 8, loop("q", 2, PUT, kind=LoopKind.PARALLEL), kind=LoopKind.VECTORIZED)),
    ),
    (
        "nesting",
        "vectorized loop q is inside the vectorised loop p",
        kernel(loop("p", 8, loop("q", 2, PUT, kind=LoopKind.VECTORIZED), kind=LoopKind.VECTORIZED)),
    ),
]
FINAL: list[tuple[str, Kernel]] = [
    ("loop p is still unrolled", kernel(loop("p", 8, PUT, kind=LoopKind.UNROLLED))),
    ("loop p is still vectorized", kernel(loop("p", 8, PUT, kind=LoopKind.VECTORIZED))),
    ("register buffer R is accessed", kernel(Allocate(REGISTER, loop("p", 8, store(REGISTER, (P,), X), PUT)))),
    ("register buffer R is accessed", kernel(Allocate(REGISTER, loop("p", 8, store(OUT, (P,), load(REGISTER, P)))))),
    (
        "register buffer R is accessed",
        kernel(Allocate(REGISTER, loop("p", 8, PUT, If(load(REGISTER, P) < 1.0, PUT)))),
    ),
]


@pytest.mark.parametrize(("rule", "detail", "broken"), BROKEN, ids=[f"{r}: {d}" for r, d, _ in BROKEN])
def test_a_broken_rule_is_named(rule: str, detail: str, broken: Kernel) -> None:
    with pytest.raises(InvalidKernel, match=f"kernel k: .*{detail}.*; rule {rule}: "):
        verify(broken)


@pytest.mark.parametrize(("detail", "broken"), FINAL, ids=[str(i) for i in range(len(FINAL))])
def test_final_kernels_are_held_to_more(detail: str, broken: Kernel) -> None:
    verify(broken)
    with pytest.raises(InvalidKernel, match=f"{detail}.*; rule final: "):
        verify(broken, final=True)


def test_every_rule_has_a_kernel_that_breaks_it() -> None:
    assert {rule for rule, _, _ in [*BROKEN, *BROKEN_LAUNCHES]} | {"final"} == RULES.keys()


def test_the_error_says_where() -> None:
    broken = loop("i", 8, loop("j", 8, If(Var("j") < index(3), store(OUT, (Var("i"),), load(IN, Var("k"))))))
    with pytest.raises(InvalidKernel, match=r"in `O\[i\] = I\[k\]`") as caught:
        verify(kernel(broken))
    assert caught.value.field == "i / j"


def test_legal_kernels_pass() -> None:
    for good in (GOOD, tiled_matmul(3, 13, 5), vector_matmul(3, 13, 5), padded_shift(9)):
        verify(good)
    verify(vector_matmul(3, 13, 5), final=True)
    vectors = loop("p", 8, store(REGISTER, (LANES,), EIGHT), PUT, kind=LoopKind.PARALLEL)
    verify(kernel(Allocate(REGISTER, vectors)), final=True)
    indices = Buffer("N", (8,), INDEX)
    verify(Kernel("k", (IN, indices), (OUT,), (), loop("p", 8, store(OUT, (P,), load(IN, load(indices, P))))))
