"""Reductions over ranges that are read from memory, on a processor (sketch ``cpu_ranges``):

parallel for each task, for each of its ``rows`` results:
  state = the identity
  for the elements of its range:  state = state combined with the value     (``tile.ranges``)
  the result is stored
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from ...core.schedule import KnobValue
from ...core.target import Target
from ...ir.buffer import MemoryScope
from ...ir.expr import Expr, Load, index
from ...ir.rewrite import substitute
from ...ir.stmt import Kernel, LoopKind
from ...te.cost import minimum_bytes
from ...te.inline import inline_stages
from ...te.workload import Workload
from ..loop_nest.nest import kernel_of
from ..sketch import Peaks
from ..space.columns import Bools, Columns, Derived, Floats, Ints
from ..space.constraint import Constraint
from ..space.knob import Knob, Quantity
from ..tile.accumulation import Accumulation, store_state
from ..tile.delinearize import delinearize
from ..tile.names import FreshNameWriter
from ..tile.ranges import ReducedRange, range_of, write_range
from ..tile_sketch import Plan, TileSketch
from .arithmetic import idle_share
from .peaks import cpu_peaks

ROWS = (64, 1, 2, 4, 8, 16, 32, 128, 256, 512, 1024, 2048)
TERM_CYCLES = 6.0
"""A term takes about so many cycles: it is loaded, and its addition waits for the one before it. A guess."""

QUANTITIES = (
    Quantity("tasks", "tasks", "how many groups of results threads take one after the other"),
    Quantity("idle_share", "fraction", "share of thread time that is left idle when the tasks do not divide evenly"),
)


@dataclass(frozen=True)
class CpuRangesPlan(Plan):
    """A reduction over ranges and its settings."""

    workload: Workload
    target: Target
    problem: ReducedRange

    @property
    def _results(self) -> int:
        return prod(a.extent for a in self.problem.stage.axes)

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return (Knob("rows", ROWS, "how many results a task computes"),)

    def _tasks(self, columns: Columns) -> Ints:
        return -(-self._results // columns.ints("rows"))

    @property
    def constraints(self) -> Sequence[Constraint]:
        return ()

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        return np.ones(len(columns), dtype=bool)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        rates = cpu_peaks(self.target, peaks)
        busy = 1 - idle_share(self._tasks(columns), rates.threads)
        work = self._results * self.problem.likely_terms * TERM_CYCLES / (rates.clock_hz * rates.threads)
        moved = minimum_bytes(self.workload) / rates.memory_bytes_per_second
        return rates.launch_seconds + max(work, moved) / busy

    def derive(self, columns: Columns) -> Derived:
        tasks = self._tasks(columns)
        return {"tasks": tasks, "idle_share": idle_share(tasks, self.target.threads)}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        found, rows = self.problem, int(setting["rows"])
        stage, extents = found.stage, [a.extent for a in found.stage.axes]
        assert stage.reducer is not None
        taken = {b.name for b in (*self.workload.inputs, *self.workload.output_buffers)}
        w = FreshNameWriter(taken | {a.name for a in (*stage.axes, *stage.reduce_axes)})
        how = Accumulation(stage.reducer, found.body.dtype, stage.tensor.dtype)
        with w.loop("task", -(-self._results // rows), LoopKind.PARALLEL) as task, w.loop("row", rows) as row:
            point = task * rows + row
            with w.when(point < self._results if self._results % rows else None):
                at = delinearize(point, extents)
                values = {a.name: e for a, e in zip(stage.axes, at, strict=True)}
                state = [w.allocate(f"state_{n}", (), d, MemoryScope.REGISTER) for n, d in enumerate(how.state_dtypes)]
                for buffer, identity in zip(state, how.identity, strict=True):
                    w.store(buffer, (), identity)

                def accumulate(reduced: Mapping[str, Expr]) -> None:
                    value = substitute(found.body, {**values, **reduced})
                    new = how.accumulate([Load(b, ()) for b in state], value, index(0))
                    store_state(w, state, (), new)

                write_range(w, found, values, index(0), 1, "", accumulate)
                w.store(stage.tensor, at, how.result([Load(b, ()) for b in state]))
        return kernel_of(self.workload, w.finish())


def _plan(workload: Workload, target: Target) -> CpuRangesPlan | None:
    stages = inline_stages(workload).stages
    found = range_of(stages[0]) if len(stages) == 1 and stages[0].axes else None
    return None if found is None else CpuRangesPlan(workload, target, found)


CPU_RANGES = TileSketch("cpu_ranges", 1, QUANTITIES, _plan, kind="llvm")
