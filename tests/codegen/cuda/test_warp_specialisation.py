"""Warp specialisation: every warp does what it did before, in the same order, and no loop serves two roles."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product as cases

import pytest

from tilewright.codegen.cuda.emit.warp_specialisation import specialise_warps
from tilewright.ir.expr import Const, Expr, index
from tilewright.ir.gpu.barrier import Barrier, SyncScope
from tilewright.ir.gpu.tma import TmaLoad
from tilewright.ir.gpu.wgmma import WarpgroupMma
from tilewright.ir.rewrite import free_variables, map_expressions, substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.stmt import Allocate, For, If, Launch, Operation, Seq, Stmt, Store, walk_statements
from tilewright.ir.text import expr_text, statement_text
from tilewright.tests.ir.hopper_launches import matrices
from tilewright.tests.ir.wgmma_gemm import FORMS, GemmForm, wgmma_gemm

LANE = "l"
"""The kernels here call the variable of the lane so."""


def trace(stmt: Stmt, values: Mapping[str, Expr]) -> Iterator[str]:
    """Yield what a warp does, statement by statement. ``values`` holds its index and the variables of the loops
    around."""

    def known(expr: Expr) -> Expr:
        return simplify(substitute(expr, values), {})

    match stmt:
        case Seq(statements=statements):
            for below in statements:
                yield from trace(below, values)
        case For(var=var, extent=extent, body=body):
            for i in range(extent):
                yield from trace(body, {**values, var: index(i)})
        case Allocate(body=body):
            yield from trace(body, values)
        case If(condition=condition, then=then):
            decided = known(condition)
            if not isinstance(decided, Const):
                yield f"if {expr_text(decided)}"
                yield from trace(then, values)
                yield "end"
            elif decided.value:
                yield from trace(then, values)
        case Store() | Operation():
            yield statement_text(map_expressions(stmt, known))


def launch_of(form: GemmForm) -> Launch:
    (launch,) = wgmma_gemm(form).launches
    return launch


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_warp_does_what_it_did(form: GemmForm) -> None:
    launch = launch_of(form)
    branches = specialise_warps(launch, {})
    assert branches != launch.body
    for warp, lane in cases(range(12), (0, 1)):
        values = {"u": index(warp), LANE: index(lane), **{b.var: index(0) for b in launch.axes if b.extent == 1}}
        assert list(trace(branches, values)) == list(trace(launch.body, values)), (warp, lane)


def test_conditions_of_whole_loops_are_hoisted() -> None:
    """Lanes that start no TMA load skip the whole loop of loads."""
    loading = [
        s
        for s in walk_statements(specialise_warps(launch_of(GemmForm()), {}))
        if isinstance(s, For) and any(isinstance(b, TmaLoad) for b in walk_statements(s))
    ]
    assert loading
    for loop in loading:
        for below in walk_statements(loop):
            assert not (isinstance(below, If) and LANE in free_variables(below.condition)), statement_text(loop)


def test_no_loop_has_both_tma_loads_and_wgmma() -> None:
    for loop in (s for s in walk_statements(specialise_warps(launch_of(GemmForm()), {})) if isinstance(s, For)):
        inside = {type(s) for s in walk_statements(loop)}
        assert not {WarpgroupMma, TmaLoad} <= inside


def test_statements_with_a_barrier_of_the_block_are_not_split() -> None:
    launch = launch_of(GemmForm())
    synchronised = replace(launch, body=_with_barriers(launch.body))
    branches = specialise_warps(synchronised, {})
    assert sum(isinstance(s, Barrier) and s.scope is SyncScope.BLOCK for s in walk_statements(branches)) == 2
    assert any(
        isinstance(s, For) and {WarpgroupMma, TmaLoad} <= {type(b) for b in walk_statements(s)}
        for s in walk_statements(branches)
    )
    assert specialise_warps(matrices().launches[0], {}) == matrices().launches[0].body


def _with_barriers(stmt: Stmt) -> Stmt:
    """Return ``stmt`` with a barrier of the block at the end of each step."""
    match stmt:
        case For(var="step", body=body):
            return replace(stmt, body=Seq((body, Barrier())))
        case For(body=body) | Allocate(body=body):
            return replace(stmt, body=_with_barriers(body))
        case Seq(statements=statements):
            return Seq(tuple(map(_with_barriers, statements)))
    return stmt
