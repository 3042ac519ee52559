"""Writes scans on a processor. A task keeps the running values of some lines in registers and walks along them:

    parallel for each task, ``unroll`` vectors of lines:
      running = the identity
      for each element of the lines, from the first to the last:
        for each of the vectors:  running = running combined with the values;  outputs = f(running)

Vectors are lines that lie next to each other, columns. Rows are taken one by one, several at a time, because each
addition waits for the one before it in its row.
"""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ....core.dtypes import float32, float64
from ....ir.buffer import MemoryScope
from ....ir.expr import Expr, Load, index
from ....ir.rewrite import map_loads
from ....ir.stmt import Kernel, LoopKind
from ....te.workload import Axis, Reducer
from ...loop_nest.nest import kernel_of
from ...problems.scan import ScanProblem
from ...space.columns import Ints
from ...tile.accumulation import Accumulation
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at

N = TypeVar("N", int, Ints)


@dataclass(frozen=True, eq=False)
class CpuScanSizes(Generic[N]):
    """The sizes of one setting (ints) or of many (columns): ``unroll`` vectors of ``vector`` lines are a task, of which
    there are ``tasks``."""

    vector: N
    unroll: N
    tasks: N


def accumulation_of(p: ScanProblem) -> Accumulation:
    """Return how the scan accumulates: sums and products of float32 in float64, as libraries for processors do. Each
    running value is a result, so that its roundings cannot be put off to the end of a block."""
    how = p.accumulation
    grows = how.reducer in (Reducer.SUM, Reducer.PROD) and how.accumulator_dtype == float32
    return replace(how, value_dtype=float64) if grows else how


def lower_scan(p: ScanProblem, s: CpuScanSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    buffers = (*p.workload.inputs, *(stage.tensor for stage in p.outputs))
    w, how = FreshNameWriter({b.name for b in buffers} | {a.name for a in p.axes}), accumulation_of(p)
    lane = p.lane_axis
    others = [a for a in p.axes if a != p.axis]
    in_vectors = [Axis(a.name, a.extent // s.vector) if a == lane else a for a in others]
    with w.loop("task", s.tasks, LoopKind.PARALLEL) as task:
        running = w.allocate("running", (s.unroll, s.vector), how.accumulator_dtype, MemoryScope.REGISTER)
        with w.unrolled("u", s.unroll) as u, w.vectorized("v", s.vector) as v:
            w.store(running, (u, v), how.identity[0])
        with w.loop("step", p.length) as step, w.unrolled("u", s.unroll) as u:
            at = dict(axis_indices(task * s.unroll + u, in_vectors))
            if lane.name in at:
                at[lane.name] = at[lane.name] * s.vector
            at[p.axis.name] = index(p.length - 1) - step if p.reverse else step
            with w.vectorized("v", s.vector) as v:
                here = {**at, lane.name: at[lane.name] + v} if s.vector > 1 else at
                now = Load(running, (u, v))
                grown = how.accumulate([now], scalar_at(p.body, here), index(0))[0]
                if not p.exclusive:
                    w.store(running, (u, v), grown)
                for stage in p.outputs:

                    def result(load: Load, now: Expr = now) -> Expr:
                        return how.result([now]) if load.buffer == p.result else load

                    place = tuple(here[a.name] for a in stage.axes)
                    w.store(stage.tensor, place, scalar_at(map_loads(stage.body, result), here))
                if p.exclusive:
                    w.store(running, (u, v), grown)
    return kernel_of(p.workload, w.finish())
