"""Statements that rewriting makes are traced to those that they were made from."""

import pytest

from tilewright.codegen.passes.pipeline import LOOP_PASSES
from tilewright.codegen.passes.unroll import unroll
from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load, Var, index
from tilewright.ir.provenance import rewrites, tracing
from tilewright.ir.rewrite import map_statements
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.stmt import For, If, Kernel, LoopKind, Seq, Stmt, Store, walk_statements
from tilewright.tests.ir.kernels import tiled_matmul

A, C = Buffer("A", (4,), float32), Buffer("C", (4,), float32)


def guarded_copy(kind: LoopKind = LoopKind.UNROLLED) -> Kernel:
    store = Store(C, (Var("i"),), Load(A, (Var("i"),)))
    return Kernel("kernel", (A,), (C,), (), For("i", 4, kind, If(Var("i") < index(3), store)))


def test_every_copy_of_an_unrolled_loop_comes_from_its_body() -> None:
    before = guarded_copy()
    with tracing() as origins:
        after = simplify_kernel(unroll(before))
    _, _, store = walk_statements(before.body)
    copies = list(walk_statements(after.body))[1:]
    assert len(copies) == 3 and all(origins.of(copy, before) is store for copy in copies)


def test_what_stays_comes_from_itself() -> None:
    before = guarded_copy(LoopKind.SERIAL)
    with tracing() as origins:
        after = map_statements(before.body, lambda s: s)
    assert after is before.body
    assert all(origins.of(s, before) is s for s in walk_statements(after))


def test_every_pass_keeps_the_origin_of_every_statement() -> None:
    kernel = tiled_matmul(9, 21, 5)
    with tracing() as origins:
        for name, run in LOOP_PASSES:
            before, kernel = kernel, run(kernel)
            stores = [s for s in walk_statements(kernel.body) if isinstance(s, Store)]
            assert stores, name
            for store in stores:  # a copy of a buffer has a name that begins like the name of the buffer
                origin = origins.of(store, before)
                assert isinstance(origin, Store) and store.buffer.name.startswith(origin.buffer.name), name
            for stmt in walk_statements(kernel.body):
                assert isinstance(stmt, Seq) or origins.of(stmt, before) is not None, name


def test_nothing_is_noted_outside_and_the_result_is_the_same() -> None:
    before = guarded_copy()
    with tracing() as origins:
        traced = unroll(before)
    plain = unroll(before)
    assert plain == traced
    assert all(origins.of(s, before) is None for s in walk_statements(plain.body))


def test_a_rewriting_that_gives_up_leaves_no_trace() -> None:
    @rewrites
    def refuses(stmt: Stmt) -> Stmt:
        raise ValueError

    @rewrites
    def tries(stmt: Stmt) -> Stmt:
        with pytest.raises(ValueError):
            refuses(Seq(()))
        return If(Var("i") < index(3), stmt)

    before = guarded_copy()
    with tracing() as origins:
        made = tries(before.body)
    assert origins.of(made, before) is before.body
