"""Partitioned loops have main bodies without guards, and tails."""

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.passes.nests import guarded_copy
from tilewright.codegen.passes.partition import partition, unrolled_stores
from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Binary, BinaryOp, Load, Select, Var, const, index, logical_and
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import For, If, Kernel, LoopKind, Seq, Store, walk_statements
from tilewright.ir.text import kernel_text
from tilewright.ir.verify import verify


def _same(before: Kernel, after: Kernel) -> None:
    verify(after)
    rng = np.random.default_rng(0)
    inputs = {b.name: rng.standard_normal(b.shape).astype(b.dtype.numpy) for b in before.inputs}
    wanted, given = interpret(before, inputs), interpret(after, inputs)
    for name, result in wanted.items():
        np.testing.assert_array_equal(given[name], result)


@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.PARALLEL])
@pytest.mark.parametrize("extent, factor", [(30, 8), (32, 8), (7, 8), (1, 4), (33, 32)])
def test_tails_are_split_off(extent: int, factor: int, kind: LoopKind) -> None:
    kernel = guarded_copy(extent, factor, kind, LoopKind.UNROLLED)
    after = partition(kernel)
    _same(kernel, after)
    guards = [s for s in walk_statements(after.body) if isinstance(s, If) and isinstance(s.then, Store)]
    assert len(guards) == (1 if extent % factor else 0)
    parallel = [s for s in walk_statements(after.body) if isinstance(s, For) and s.kind is LoopKind.PARALLEL]
    assert len(parallel) == (1 if kind is LoopKind.PARALLEL else 0)


def test_a_padded_window_has_an_inside_without_conditions() -> None:
    """In ``Y[i] = sum over a window of X``, zero outside, the middle rows read without a test."""
    x, y = Buffer("X", (20,), float32), Buffer("Y", (20,), float32)
    at = Var("i") + Var("r") - 2
    inside = logical_and(at >= 0, at < 20)
    start = Store(y, (Var("i"),), const(0.0, float32))
    value = Load(y, (Var("i"),)) + Select(inside, Load(x, (at,)), const(0.0, float32))
    window = For("r", 5, LoopKind.SERIAL, Store(y, (Var("i"),), value))
    kernel = Kernel("window", (x,), (y,), (), For("i", 20, LoopKind.SERIAL, _both(start, window)))
    after = partition(kernel)
    _same(kernel, after)
    longest = max((s for s in walk_statements(after.body) if isinstance(s, For)), key=lambda s: s.extent)
    assert longest.extent == 16
    assert "select" not in kernel_text(Kernel("main", (x,), (y,), (), longest))


def test_a_guard_on_a_fused_loop_is_decided_by_its_parts() -> None:
    a, c = Buffer("A", (10, 14), float32), Buffer("C", (10, 14), float32)
    i, j = Var("f") // 4 * 4 + Var("u"), Var("f") % 4 * 4 + Var("v")
    store = Store(c, (i, j), Load(a, (i, j)) + 1.0)
    tile = For("u", 4, LoopKind.UNROLLED, For("v", 4, LoopKind.UNROLLED, If(i < 10, If(j < 14, store))))
    kernel = Kernel("fused", (a,), (c,), (), For("f", 12, LoopKind.PARALLEL, tile))
    after = partition(kernel)
    _same(kernel, after)
    assert any(isinstance(s, For) and s.var == "v" and isinstance(s.body, Store) for s in walk_statements(after.body))


def test_a_guard_on_two_loops_gets_two_versions() -> None:
    a, c = Buffer("A", (50,), float32), Buffer("C", (50,), float32)
    at = Var("p") * 12 + Var("q") * 4 + Var("t")
    body = If(at < 50, Store(c, (at,), Load(a, (at,))))
    nest = For("p", 5, LoopKind.SERIAL, For("q", 3, LoopKind.SERIAL, For("t", 4, LoopKind.UNROLLED, body)))
    kernel = Kernel("two", (a,), (c,), (), nest)
    after = partition(kernel)
    _same(kernel, after)
    stores = [s for s in walk_statements(after.body) if isinstance(s, Store)]
    guarded = [s for s in walk_statements(after.body) if isinstance(s, If) and isinstance(s.then, Store)]
    assert len(stores) == 2 and len(guarded) == 1


def test_code_does_not_grow_without_bound() -> None:
    a, c = Buffer("A", (1000,), float32), Buffer("C", (1000,), float32)
    at = Var("o") * 900 + Var("t")
    body = If(at < index(1000), Store(c, (at,), Load(a, (at,))))
    kernel = Kernel("big", (a,), (c,), (), For("o", 2, LoopKind.SERIAL, For("t", 900, LoopKind.UNROLLED, body)))
    assert unrolled_stores(partition(kernel).body) == unrolled_stores(kernel.body) == 900
    _same(kernel, partition(kernel))


def _both(*statements: Store | For) -> Seq:
    return Seq(tuple(statements))


def test_both_arms_of_a_select_lose_its_condition() -> None:
    """``Y[i] = X[i + 9] if i < 11 else X[i - 11]`` is tested in the one tile that has both."""
    x, y = Buffer("X", (20,), float32), Buffer("Y", (20,), float32)
    i = Var("t") * 2 + Var("u")
    value = Select(i < 11, Load(x, (i + 9,)), Load(x, (i - 11,)))
    tile = For("u", 2, LoopKind.UNROLLED, Store(y, (i,), value))
    kernel = Kernel("rolled", (x,), (y,), (), For("t", 10, LoopKind.SERIAL, tile))
    after = partition(kernel)
    _same(kernel, after)
    loops = [s for s in walk_statements(after.body) if isinstance(s, For) and s.kind is LoopKind.SERIAL]
    assert sorted(loop.extent for loop in loops) == [4, 5]
    assert all("select" not in kernel_text(Kernel("part", (x,), (y,), (), loop)) for loop in loops)


def test_both_arms_have_a_version_where_several_loops_decide() -> None:
    x, y = Buffer("X", (44,), float32), Buffer("Y", (44,), float32)
    i = Var("t") % 3 * 16 + Var("s") * 4 + Var("u")
    value = Select(i < 18, Load(x, (i + 26,)), Load(x, (i - 18,)))
    tile = For("u", 4, LoopKind.UNROLLED, If(i < 44, Store(y, (i,), value)))
    tasks = For("t", 3, LoopKind.PARALLEL, For("s", 4, LoopKind.SERIAL, tile))
    kernel = Kernel("rolled", (x,), (y,), (), tasks)
    after = partition(kernel)
    _same(kernel, after)
    tiles = [s for s in walk_statements(after.body) if isinstance(s, For) and s.kind is LoopKind.UNROLLED]
    plain = [kernel_text(Kernel("part", (x,), (y,), (), s)) for s in tiles]
    assert any("+ 26]" in text and "select" not in text for text in plain)
    assert any("- 18]" in text and "select" not in text for text in plain)


def test_vectors_far_from_a_bound_of_an_index_read_without_it() -> None:
    """In ``C[x] = A[min(x // 2 + 1, 15)]``, all vectors but the last are certain of the quotient."""
    a, c = Buffer("A", (16,), float32), Buffer("C", (32,), float32)
    at = Var("o") * 8 + Var("t")
    copy = Store(c, (at,), Load(a, (Binary(BinaryOp.MIN, at // 2 + 1, index(15)),)))
    kernel = Kernel("clamped", (a,), (c,), (), For("o", 4, LoopKind.SERIAL, For("t", 8, LoopKind.VECTORIZED, copy)))
    after = partition(kernel)
    _same(kernel, after)
    (main,) = [s for s in walk_statements(after.body) if isinstance(s, For) and s.var == "o"]
    assert main.extent == 3 and "min" not in kernel_text(Kernel("main", (a,), (c,), (), main))
    scalar = replace(kernel, body=For("o", 4, LoopKind.SERIAL, For("t", 8, LoopKind.SERIAL, copy)))
    assert partition(scalar) == scalar
