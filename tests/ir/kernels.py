"""Kernels for the tests of the IR, written by hand."""

from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import (
    BinaryOp,
    Broadcast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    ReduceLanes,
    Select,
    Var,
    const,
    index,
    logical_and,
)
from tilewright.ir.stmt import Allocate, For, If, Kernel, LoopKind, Stmt, Store, seq


def loop(var: str, extent: int, *body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> For:
    return For(var, extent, kind, seq(*body))


def load(buffer: Buffer, *indices: Expr, mask: Expr | None = None) -> Load:
    return Load(buffer, indices, mask)


def store(buffer: Buffer, indices: tuple[Expr, ...], value: Expr, mask: Expr | None = None) -> Store:
    return Store(buffer, indices, value, mask)


def zero() -> Expr:
    return const(0.0, float32)


def tiled_matmul(m: int, n: int, k: int, tile: int = 8) -> Kernel:
    """A[m, k] B[k, n] with rows in parallel, columns in guarded vectorised tiles, accumulated locally."""
    a, b, c = Buffer("A", (m, k), float32), Buffer("B", (k, n), float32), Buffer("C", (m, n), float32)
    acc = Buffer("acc", (tile,), float32, MemoryScope.LOCAL)
    i, jo, kk = Var("i"), Var("jo"), Var("k")
    ji, jz, jw = Var("ji"), Var("jz"), Var("jw")
    inside = jo * tile + ji < index(n)
    update = If(
        inside,
        store(acc, (ji,), load(acc, ji) + load(a, i, kk) * load(b, kk, jo * tile + ji)),
    )
    body = Allocate(
        acc,
        seq(
            loop("jz", tile, store(acc, (jz,), zero()), kind=LoopKind.VECTORIZED),
            loop("k", k, loop("ji", tile, update, kind=LoopKind.VECTORIZED)),
            loop(
                "jw",
                tile,
                If(jo * tile + jw < index(n), store(c, (i, jo * tile + jw), load(acc, jw))),
                kind=LoopKind.UNROLLED,
            ),
        ),
    )
    rows = loop("i", m, loop("jo", -(-n // tile), body), kind=LoopKind.PARALLEL)
    return Kernel("matmul", (a, b), (c,), (), rows)


def vector_matmul(m: int, n: int, k: int, lanes: int = 8) -> Kernel:
    """The same after vectorising: ramps, masks and a vector accumulator."""
    a, b, c = Buffer("A", (m, k), float32), Buffer("B", (k, n), float32), Buffer("C", (m, n), float32)
    acc = Buffer("acc", (lanes,), float32, MemoryScope.REGISTER)
    i, jo, kk = Var("i"), Var("jo"), Var("k")
    columns, all_lanes = Ramp(jo * lanes, 1, lanes), Ramp(index(0), 1, lanes)
    mask = Compare(CompareOp.LT, columns, Broadcast(index(n), lanes))
    product = Broadcast(load(a, i, kk), lanes) * load(b, kk, columns, mask=mask)
    body = Allocate(
        acc,
        seq(
            store(acc, (all_lanes,), Broadcast(zero(), lanes)),
            loop("k", k, store(acc, (all_lanes,), load(acc, all_lanes) + product)),
            store(c, (i, columns), load(acc, all_lanes), mask),
        ),
    )
    rows = loop("i", m, loop("jo", -(-n // lanes), body), kind=LoopKind.PARALLEL)
    return Kernel("matmul", (a, b), (c,), (), rows)


def padded_shift(n: int) -> Kernel:
    """O[i] = I[i - 1] + I[i + 1], zero outside; through a workspace, then summed by lanes of 4."""
    source, out = Buffer("I", (n,), float32), Buffer("O", (n,), float32)
    total = Buffer("T", (), float32)
    wide = Buffer("W", (n + 3,), float32)
    i, j, s, v = Var("i"), Var("j"), Var("s"), Var("v")
    before = Select(i >= index(1), load(source, i - 1), zero())
    after = Select(logical_and(i < index(n - 1), i >= index(0)), load(source, i + 1), zero())
    four = load(wide, Ramp(v * 4, 1, 4))
    vectors = (n + 3) // 4
    body = seq(
        loop("i", n, store(out, (i,), before + after), kind=LoopKind.PARALLEL),
        loop("j", n, store(wide, (j,), load(out, j))),
        loop("s", 3, store(wide, (s + n,), zero())),
        store(total, (), zero()),
        loop("v", vectors, store(total, (), load(total) + ReduceLanes(BinaryOp.ADD, four))),
    )
    return Kernel("padded_shift", (source,), (out, total), (wide,), body)
