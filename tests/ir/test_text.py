"""The text form: precedence, suffixes, and golden files of whole kernels."""

import pytest

from tests.golden import check_golden
from tests.ir.kernels import load, padded_shift, tiled_matmul, vector_matmul
from tests.ir.wgmma_gemm import FORMS, wgmma_gemm
from tilewright.core.dtypes import bfloat16, boolean, float16, float32, float64, int8, int32, uint8
from tilewright.core.errors import InvalidKernel
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
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
    logical_and,
    minimum,
)
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.stmt import Kernel, Seq, Stmt
from tilewright.ir.text import expr_text, kernel_text, statement_text

P, Q = Var("p"), Var("q")
A = Buffer("A", (8, 8), float32)
TEXTS: list[tuple[Expr, str]] = [
    (P * 8 + Q - 3, "p*8 + q - 3"),
    ((P + Q) * 8, "(p + q)*8"),
    (P - (Q - 1), "p - (q - 1)"),
    (P - (Q + 1) * 2, "p - (q + 1)*2"),
    (P // 8 % 4 * 2, "p//8%4*2"),
    (P // (Q * 2), "p // (q*2)"),
    (P % (Q % 2), "p % (q%2)"),
    (P * Q, "p * q"),
    (-P * 2, "-p*2"),
    (-(P + 1), "-(p + 1)"),
    (Unary(UnaryOp.NEG, -P), "-(-p)"),
    (P + index(-3), "p + -3"),
    (-index(-3), "-(-3)"),
    (load(A, P, Q) * 2.0 + 1.0, "A[p, q] * 2.0 + 1.0"),
    (load(A, P, Q) / (load(A, Q, P) / 2.0), "A[p, q] / (A[q, p] / 2.0)"),
    (load(A, P, Q, mask=P < index(3)), "masked(A[p, q], p < 3)"),
    (load(Buffer("S", (), int8)), "S[]"),
    (Select(P < Q, P, Q), "select(p < q, p, q)"),
    (minimum(P, Q + 1), "min(p, q + 1)"),
    (Binary(BinaryOp.POW, const(2.0, float32), const(0.5, float32)), "pow(2.0, 0.5)"),
    (Unary(UnaryOp.EXP, const(1.0, float64)), "exp(1.0f64)"),
    (logical_and(P < Q, P >= index(0), Q < index(5)), "p < q and p >= 0 and q < 5"),
    (Logic(LogicOp.OR, P < Q, logical_and(P < Q, Q < P)), "p < q or p < q and q < p"),
    (logical_and(P < Q, Logic(LogicOp.OR, P < Q, Q < P)), "p < q and (p < q or q < p)"),
    (logical_and(P < Q, logical_and(P < Q, Q < P)), "p < q and (p < q and q < p)"),
    (Unary(UnaryOp.NOT, logical_and(P < Q, Q < P)), "not (p < q and q < p)"),
    (logical_and(Unary(UnaryOp.NOT, P < Q), Q < P), "not p < q and q < p"),
    (Cast(P, float32), "float32(p)"),
    (const(1, int32), "1i32"),
    (const(-1, int8), "-1i8"),
    (const(1, uint8), "1u8"),
    (const(0.5, float16), "0.5f16"),
    (const(0.5, bfloat16), "0.5bf16"),
    (const(float("-inf"), float32), "-inf"),
    (const(-0.0, float32), "-0.0"),
    (const(True, boolean), "true"),
    (Ramp(P, 1, 8), "ramp(p, 8)"),
    (Ramp(P, 2, 8), "ramp(p, 8, 2)"),
    (Broadcast(const(0.0, float32), 8), "splat(0.0, 8)"),
    (ReduceLanes(BinaryOp.ADD, Broadcast(const(0.0, float32), 8)), "lanes_add(splat(0.0, 8))"),
]


@pytest.mark.parametrize(("expr", "expected"), TEXTS, ids=[t for _, t in TEXTS])
def test_expressions(expr: Expr, expected: str) -> None:
    assert expr_text(expr) == expected


KERNELS = {
    "tiled_matmul": tiled_matmul(16, 30, 64),
    "vector_matmul": vector_matmul(16, 30, 64),
    "padded_shift": padded_shift(9),
    "tiled_matmul_simplified": simplify_kernel(tiled_matmul(1, 32, 64)),
    "vector_matmul_simplified": simplify_kernel(vector_matmul(16, 32, 64)),
    "wgmma_gemm": wgmma_gemm(FORMS["cluster transposed"]),
    "padded_shift_simplified": simplify_kernel(padded_shift(9)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    check_golden(f"ir/golden/{name}.txt", kernel_text(KERNELS[name]))


def test_nothing_prints_as_pass() -> None:
    assert statement_text(Seq(())) == "pass\n"
    assert kernel_text(Kernel("k", (), (), (), Seq(()))) == "kernel k() -> ():\n  pass\n"


def test_unknown_nodes_have_no_text() -> None:
    with pytest.raises(InvalidKernel, match="Expr has no text form"):
        expr_text(Expr())
    with pytest.raises(InvalidKernel, match="Stmt has no text form"):
        statement_text(Stmt())
