"""Rewriting: what is replaced, what keeps its identity, and what counts as free."""

from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import Expr, Load, Var, index
from tilewright.ir.rewrite import (
    free_variables,
    fresh_name,
    loads_of,
    loop_names,
    map_expr,
    map_loads,
    map_statements,
    rename,
    replace_buffers,
    stores_of,
    substitute,
)
from tilewright.ir.stmt import Allocate, For, If, LoopKind, Seq, Stmt, Store, seq
from tilewright.ir.text import expr_text, statement_text

A, B, C = (Buffer(name, (64,), float32) for name in "ABC")
P, Q = Var("i"), Var("j")


def nest() -> Stmt:
    body = If(P * 8 + Q < index(60), Store(C, (P * 8 + Q,), Load(A, (P * 8 + Q,)) + Load(B, (Q,))))
    return For("i", 8, LoopKind.SERIAL, For("j", 8, LoopKind.SERIAL, body))


def test_map_expr_goes_bottom_up_and_visits_shared_nodes_once() -> None:
    shared = P + 1
    seen: list[str] = []

    def note(e: Expr) -> Expr:
        seen.append(expr_text(e))
        return e

    expr = shared * shared
    assert map_expr(expr, note) is expr
    assert seen == ["i", "1", "i + 1", "(i + 1) * (i + 1)"]


def test_substitute_reaches_everything_but_rebound_names() -> None:
    inner = For("j", 8, LoopKind.SERIAL, Store(C, (Q,), Load(A, (P + Q,))))
    result = substitute(seq(inner, Store(C, (P,), Load(A, (Q,)))), {"i": index(3), "j": P})
    assert statement_text(result) == "for j in 8:\n  C[j] = A[3 + j]\nC[3] = A[i]\n"


def test_what_does_not_change_stays_the_same_object() -> None:
    stmt = nest()
    assert substitute(stmt, {"k": index(1)}) is stmt
    assert rename(stmt, {}) is stmt
    assert map_statements(stmt, lambda s: s) is stmt
    assert map_loads(stmt, lambda load: load) is stmt


def test_rename_renames_binders_and_uses() -> None:
    text = statement_text(rename(nest(), {"i": "i_tail", "j": "j_tail"}))
    assert text == (
        "for i_tail in 8:\n  for j_tail in 8:\n    if i_tail*8 + j_tail < 60:\n"
        "      C[i_tail*8 + j_tail] = A[i_tail*8 + j_tail] + B[j_tail]\n"
    )


def test_replace_buffers_turns_loads_stores_and_allocations() -> None:
    local, other = Buffer("L", (8,), float32, MemoryScope.LOCAL), Buffer("M", (8,), float32, MemoryScope.LOCAL)
    stmt = Allocate(local, seq(Store(local, (P,), Load(A, (P,))), Store(C, (P,), Load(local, (P,)))))
    assert statement_text(replace_buffers(stmt, {"L": other})) == "local M: float32[8]:\n  M[i] = A[i]\n  C[i] = M[i]\n"


def test_map_loads_sees_rewritten_indices() -> None:
    expr = Load(A, (Load(B, (P,)) + 0.0,))
    assert expr_text(map_loads(expr, lambda e: Load(C, e.indices))) == "C[C[i] + 0.0]"


def test_map_statements_drops_what_becomes_empty() -> None:
    stmt = seq(Store(A, (P,), Load(B, (P,))), Store(C, (P,), Load(B, (P,))))
    kept = map_statements(stmt, lambda s: Seq(()) if isinstance(s, Store) and s.buffer == A else s)
    assert statement_text(kept) == "C[i] = B[i]\n"


def test_queries() -> None:
    stmt = nest()
    assert loop_names(stmt) == ("i", "j")
    assert free_variables(stmt) == frozenset()
    assert free_variables(P * 8 + Q) == {"i", "j"}
    assert isinstance(stmt, For)
    assert free_variables(stmt.body) == {"i"}
    assert [load.buffer.name for load in loads_of(stmt)] == ["A", "B"]
    assert [store.buffer.name for store in stores_of(stmt)] == ["C"]
    assert fresh_name("i", {"j"}) == "i"
    assert fresh_name("i", {"i", "i_2"}) == "i_3"
