"""Unrolled copies have names of their own."""

import numpy as np

from tests.codegen.passes.nests import guarded_copy
from tilewright.codegen.passes.unroll import MOST_STATEMENTS, stores, unroll
from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import Load, Var, index
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Allocate, For, Kernel, LoopKind, Seq, Store, walk_statements
from tilewright.ir.verify import verify


def test_bodies_are_written_out() -> None:
    kernel = guarded_copy(12, 4, LoopKind.SERIAL, LoopKind.UNROLLED)
    after = unroll(kernel)
    verify(after)
    assert stores(after.body) == 4
    data = {"A": np.arange(12, dtype=np.float32)}
    np.testing.assert_array_equal(interpret(after, data)["C"], 2 * data["A"])


def test_loops_and_buffers_inside_get_names_of_their_own() -> None:
    a, c = Buffer("A", (3, 5), float32), Buffer("C", (3, 5), float32)
    local = Buffer("L", (1,), float32, MemoryScope.LOCAL)
    inner = Seq(
        (
            Store(local, (index(0),), Load(a, (Var("i"), Var("j")))),
            Store(c, (Var("i"), Var("j")), Load(local, (index(0),)) + 1.0),
        )
    )
    nest = For("i", 3, LoopKind.UNROLLED, For("j", 5, LoopKind.SERIAL, Allocate(local, inner)))
    after = unroll(Kernel("k", (a,), (c,), (), nest))
    verify(after)
    assert len({s.var for s in walk_statements(after.body) if isinstance(s, For)}) == 3
    data = {"A": np.arange(15, dtype=np.float32).reshape(3, 5)}
    np.testing.assert_array_equal(interpret(after, data)["C"], data["A"] + 1)


def test_too_many_copies_stay_a_loop() -> None:
    after = unroll(guarded_copy(MOST_STATEMENTS + 1, MOST_STATEMENTS + 1, LoopKind.SERIAL, LoopKind.UNROLLED))
    assert stores(after.body) == 1
    verify(after)
