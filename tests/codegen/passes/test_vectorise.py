"""Vectorised loops become lanes, their conditions become masks, and what has no vector form stays a loop."""

import numpy as np
import pytest

from tests.codegen.passes.nests import guarded_copy
from tilewright.codegen.passes.vectorise import vectorise
from tilewright.core.dtypes import float32, int32
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import Binary, BinaryOp, Expr, Load, Select, Var, const, index, maximum
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import substitute
from tilewright.ir.stmt import Allocate, For, If, Kernel, LoopKind, Seq, Stmt, Store, walk_statements
from tilewright.ir.text import kernel_text
from tilewright.ir.verify import verify

A = Buffer("A", (64,), float32)
C = Buffer("C", (64,), float32)
J = Var("j")


def _loop(body: Stmt, extent: int = 8) -> Stmt:
    return For("j", extent, LoopKind.VECTORIZED, body)


def _kernel(body: Stmt, output: Buffer = C, inputs: tuple[Buffer, ...] = (A,)) -> Kernel:
    return Kernel("k", inputs, (output,), (), body)


def _checked(kernel: Kernel) -> Kernel:
    """Vectorise a kernel, and check that it computes the same."""
    after = vectorise(kernel)
    verify(after)
    rng = np.random.default_rng(1)
    inputs = {b.name: rng.integers(-9, 9, b.shape).astype(b.dtype.numpy) for b in kernel.inputs}
    wanted, given = interpret(kernel, inputs), interpret(after, inputs)
    for name, result in wanted.items():
        np.testing.assert_array_equal(given[name], result)
    return after


def _kinds(kernel: Kernel) -> list[LoopKind]:
    return [s.kind for s in walk_statements(kernel.body) if isinstance(s, For)]


def _rest(start: int) -> Stmt:
    """Fill what a test leaves of C, so that every output element is written."""
    return For("z", 64 - start, LoopKind.SERIAL, Store(C, (Var("z") + start,), const(0.0, float32)))


@pytest.mark.parametrize("extent, factor", [(32, 8), (30, 8), (5, 16), (1, 4)])
def test_a_tail_is_masked(extent: int, factor: int) -> None:
    after = _checked(guarded_copy(extent, factor, LoopKind.SERIAL, LoopKind.VECTORIZED))
    assert _kinds(after) == [LoopKind.SERIAL]
    assert ("where" in kernel_text(after)) == (factor > 1)


@pytest.mark.parametrize(
    "at",
    [
        J,
        J * 3,
        index(7) - J,
        (J + 16) // 4,
        (J + 5) % 3,
        J // 8,
        (Var("o") * 8 + J) // 16 * 16,
        (Var("o") * 8 + J) % 16,
    ],
)
def test_any_index_has_lanes(at: Expr) -> None:
    load = Store(C, (Var("o") * 8 + J,), Load(A, (at,)))
    after = _checked(_kernel(For("o", 8, LoopKind.SERIAL, _loop(load))))
    assert _kinds(after) == [LoopKind.SERIAL]


@pytest.mark.parametrize("op", [BinaryOp.ADD, BinaryOp.MAX, BinaryOp.MIN])
def test_an_accumulation_combines_the_lanes(op: BinaryOp) -> None:
    total = Buffer("T", (1,), float32)
    update = Store(total, (index(0),), Binary(op, Load(total, (index(0),)), Load(A, (J,))))
    body = Seq((Store(total, (index(0),), const(1.0, float32)), _loop(If(J < 6, update))))
    after = _checked(_kernel(body, total))
    assert not _kinds(after) and "lanes_" in kernel_text(after)


def test_select_reads_only_where_it_may() -> None:
    """A shifted load is out of bounds where the condition fails, next to a load with one index for all lanes."""
    value = Select(J >= 3, Load(A, (J - 3,)) + Load(A, (index(5),)), const(2.0, float32))
    after = _checked(_kernel(Seq((_loop(Store(C, (J,), value)), _rest(8)))))
    assert LoopKind.VECTORIZED not in _kinds(after)


def test_a_load_with_one_index_is_not_done_for_no_lane() -> None:
    guarded = If(Var("o") * 8 + J < 20, Store(C, (Var("o") * 8 + J,), Load(A, (Var("o") * 30,))))
    nest = For("o", 4, LoopKind.SERIAL, _loop(guarded))
    after = _checked(_kernel(Seq((nest, _rest(20)))))
    assert _kinds(after)[0] is LoopKind.SERIAL


def test_a_buffer_inside_the_loop_has_a_copy_for_each_lane() -> None:
    local = Buffer("L", (2,), float32, MemoryScope.LOCAL)
    steps = Seq(
        (
            Store(local, (index(0),), Load(A, (J,))),
            Store(local, (index(1),), Load(local, (index(0),)) * 2.0),
            Store(C, (J,), Load(local, (index(1),))),
        )
    )
    after = _checked(_kernel(Seq((_loop(Allocate(local, steps)), _rest(8)))))
    assert Buffer("L", (2, 8), float32, MemoryScope.LOCAL) in [
        s.buffer for s in walk_statements(after.body) if isinstance(s, Allocate)
    ]


def test_what_has_no_vector_form_stays_a_loop() -> None:
    last_wins = Store(C, (index(0),), Load(A, (J,)))
    after = _checked(_kernel(Seq((_loop(last_wins), _rest(1)))))
    assert _kinds(after)[0] is LoopKind.SERIAL


def test_a_masked_lane_does_not_divide_by_zero() -> None:
    a, c = Buffer("A", (16,), int32), Buffer("C", (16,), int32)
    divisor = maximum(Load(a, (J,)), const(1, int32))
    body = If(J < 13, Store(c, (J,), Binary(BinaryOp.FLOORDIV, Load(a, (J,)), divisor)))
    rest = For("z", 3, LoopKind.SERIAL, Store(c, (Var("z") + 13,), const(0, int32)))
    _checked(Kernel("k", (a,), (c,), (), Seq((_loop(body, 16), rest))))


def test_accumulators_of_few_columns_need_no_masks() -> None:
    """Six columns are a vector of eight lanes. What the last two hold is never stored."""
    acc = Buffer("acc", (6,), float32, MemoryScope.REGISTER)

    def columns(name: str, target: Buffer, value: Expr) -> Stmt:
        store = If(J < 6, Store(target, (J,), value))
        return substitute(For(name, 8, LoopKind.VECTORIZED, store), {"j": Var(name)})

    start = columns("first", acc, const(0.0, float32))
    update = columns("further", acc, Load(acc, (J,)) + Load(A, (Var("k") * 6 + J,)))
    finish = columns("last", C, Load(acc, (J,)))
    body = Allocate(acc, Seq((start, For("k", 10, LoopKind.SERIAL, update), finish)))
    after = _checked(_kernel(Seq((body, _rest(6)))))
    assert "acc: float32[8]" in kernel_text(after)
    stores = [s for s in walk_statements(after.body) if isinstance(s, Store)]
    assert {s.buffer.name for s in stores if s.mask is not None} == {"C"}
