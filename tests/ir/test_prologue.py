"""The prologue of a kernel: it runs before the rest, and needs constant inputs alone."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_expressions import random_workload
from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Expr, Load, Var
from tilewright.ir.interpret import interpret
from tilewright.ir.prologue import split_prologue
from tilewright.ir.stmt import For, Kernel, LoopKind, Seq, Stmt, Store, seq, walk_statements
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.te.data import random_inputs

X, W, T, Y = (Buffer(name, (4,), float32) for name in "XWTY")


def statements(stmt: Stmt) -> tuple[Stmt, ...]:
    return stmt.statements if isinstance(stmt, Seq) else (stmt,)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_the_parts_after_one_another_are_the_whole(seed: int) -> None:
    w = random_workload(seed)
    constants = frozenset(b.name for n, b in enumerate(w.inputs) if (seed >> n) % 4)
    kernel = replace(loop_nest(w), constants=constants)
    first, rest = split_prologue(kernel)
    inputs = random_inputs(w, seed)
    if first is None:
        assert rest is kernel.body
        return
    whole, parts = statements(kernel.body), (*statements(first), *statements(rest))
    assert sorted(map(id, parts)) == sorted(map(id, whole))
    stored = {s.buffer.name for s in walk_statements(first) if isinstance(s, Store)}
    kept = tuple(b for b in kernel.workspace if b.name in stored)
    others = tuple(b for b in kernel.workspace if b.name not in stored)
    given = tuple(b for b in kernel.inputs if b.name in constants)
    # The interpreter refuses a read of what is not there, and a store to an input.
    made = interpret(Kernel("first", given, kept, (), first), {b.name: inputs[b.name] for b in given})
    found = interpret(Kernel("rest", (*kernel.inputs, *kept), kernel.outputs, others, rest), {**inputs, **made})
    for name, value in interpret(kernel, inputs).items():
        np.testing.assert_array_equal(found[name], value)


def loop(var: str, target: Buffer, value: Expr) -> Stmt:
    return For(var, 4, LoopKind.SERIAL, Store(target, (Var(var),), value))


def kernel(*body: Stmt) -> Kernel:
    return Kernel("k", (X, W), (Y,), (T,), seq(*body), constants=frozenset({"W"}))


def at(buffer: Buffer, var: str) -> Expr:
    return Load(buffer, (Var(var),))


COPY, USE = loop("i", T, at(W, "i")), loop("j", Y, at(T, "j") * at(X, "j"))


def test_a_copy_of_a_constant_is_made_first_wherever_it_stands() -> None:
    other = loop("l", Y, at(X, "l"))
    assert split_prologue(kernel(COPY, USE)) == (COPY, USE)
    assert split_prologue(kernel(other, COPY, USE)) == (COPY, seq(other, USE))
    assert split_prologue(replace(kernel(COPY, USE), constants=frozenset())) == (None, seq(COPY, USE))


def test_what_the_rest_writes_again_is_not_kept() -> None:
    again = loop("l", T, at(X, "l"))
    assert split_prologue(kernel(COPY, USE, again))[0] is None


def test_outputs_belong_to_every_call() -> None:
    assert split_prologue(kernel(COPY, loop("j", Y, at(T, "j"))))[0] == COPY
    assert split_prologue(kernel(loop("j", Y, at(W, "j"))))[0] is None
