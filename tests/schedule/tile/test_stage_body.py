"""Bodies evaluated inside tile programs: at a point, on lanes, with loads taken before."""

import numpy as np
import pytest

from tests.random_expressions import random_workload
from tilewright.ir.expr import Broadcast, Load, Ramp, Var, index
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import For, Kernel, LoopKind, Stmt, Store
from tilewright.schedule.tile.stage_body import scalar_at, vector_at
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.inline import inline_stages
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Stage, Workload


def _kernel(workload: Workload, stage: Stage, lanes: int) -> Kernel:
    """All points of ``stage`` by vectors of ``lanes`` along its last axis."""
    last = stage.axes[-1]
    at = {a.name: Var(a.name) for a in stage.axes} | {last.name: Var("chunk") * lanes}
    place = tuple(at[a.name] for a in stage.axes[:-1])
    innermost = Ramp(at[last.name], 1, lanes) if lanes > 1 else at[last.name]
    spread = tuple(Broadcast(i, lanes) if lanes > 1 else i for i in place)
    body: Stmt = Store(stage.tensor, (*spread, innermost), vector_at(stage.body, at, last.name, lanes))
    body = For("chunk", last.extent // lanes, LoopKind.SERIAL, body)
    for axis in reversed(stage.axes[:-1]):
        body = For(axis.name, axis.extent, LoopKind.SERIAL, body)
    return Kernel("kernel", workload.inputs, (stage.tensor,), (), body)


@pytest.mark.parametrize("seed", range(0, 120, 3))
def test_lanes_compute_what_the_stage_says(seed: int) -> None:
    workload = inline_stages(random_workload(seed))
    inputs, limits = random_inputs(workload, seed), tolerance(workload)
    given = {b.name for b in workload.inputs}
    for stage in workload.stages:
        if stage.reducer is not None or not stage.axes or {x.buffer.name for x in loads_of(stage.body)} - given:
            continue
        alone = Workload(workload.inputs, (stage,), (stage.name,))
        extent = stage.axes[-1].extent
        lanes = next((n for n in (8, 5, 4, 3, 2) if extent % n == 0), 1)
        got, wanted = interpret(_kernel(alone, stage, lanes), inputs), reference(alone, inputs)
        absolute, relative = limits.get(stage.name, (1e-3, 1e-3))
        np.testing.assert_allclose(
            np.asarray(got[stage.name], np.float64), np.asarray(wanted[stage.name], np.float64), relative, absolute
        )


def _broadcast() -> tuple[Workload, Stage]:
    x, row = te.placeholder((6, 8), "float16", "X"), te.placeholder((8,), "float16", "R")
    column = te.placeholder((6,), "float16", "C")
    w = te.workload(te.compute((6, 8), lambda i, j: x[i, j] * row[j] + column[i], "Y"))
    return w, w.stages[0]


def test_loads_become_vectors_where_they_follow_the_lane() -> None:
    _, stage = _broadcast()
    i, j = (a.name for a in stage.axes)
    value = vector_at(stage.body, {i: Var("row"), j: Var("t") * 4}, j, 4)
    x, row, column = loads_of(value)
    assert value.lanes == 4
    assert x.indices == (Broadcast(Var("row"), 4), Ramp(Var("t") * 4, 1, 4))
    assert row.indices == (Ramp(Var("t") * 4, 1, 4),)
    assert column.indices == (Var("row"),)


def test_loads_may_be_replaced() -> None:
    _, stage = _broadcast()
    i, j = (a.name for a in stage.axes)

    def load(given: Load) -> Load:
        return Load(given.buffer, (index(0),)) if given.buffer.name == "C" else given

    value = scalar_at(stage.body, {i: Var("row"), j: index(5)}, load)
    assert [x.indices for x in loads_of(value)] == [(Var("row"), index(5)), (index(5),), (index(0),)]
