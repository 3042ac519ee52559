"""Describes the settings of scatters on a processor: into how many tasks elements and their columns are cut (sketch
``cpu_scatter``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.cost import minimum_bytes
from ....te.workload import Workload
from ...problems.scatter import ScatterProblem, scatter_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import SizedPlan, TileSketch
from ..arithmetic import ceil_div, idle_share, overlapped
from ..peaks import cpu_peaks
from .kernel import CpuScatterSizes, lower_scatter, totals_of

KEY_PARTS = tuple(1 << n for n in range(11))
COLUMN_PARTS = tuple(1 << n for n in range(9))
LEAST_KEYS = 16
"""Fewer elements are compared with all terms by the generic sketch, in vectors."""
MOST_TASKS = 4
"""Tasks of a thread: each reads the elements of all terms of its batch."""
VECTORS = 4
"""The longest vector of columns, in registers of the instruction set."""
TERM_CYCLES = 2.0
"""How long it takes to read the element of a term and to compare it; a guess, as is the next."""
UPDATE_CYCLES = 5.0
"""How long a total waits for the one before it, which may be the same."""

QUANTITIES = (
    Quantity("tasks", "tasks", "how many parts of the elements threads take one after the other"),
    Quantity("idle_share", "fraction", "share of thread time that is left idle when the tasks do not divide evenly"),
    Quantity("contiguous_bytes", "B", "how many bytes of a term a task adds in one piece"),
)


@dataclass(frozen=True)
class CpuScatterPlan(SizedPlan):
    """A scatter and its settings."""

    problem: ScatterProblem
    target: Target

    @cached_property
    def _dtype_bytes(self) -> int:
        return self.problem.accumulation.accumulator_dtype.bytes

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        p, lane = self.problem, self.problem.lane_axis
        longest = VECTORS * self.target.vector_bytes // self._dtype_bytes
        lanes = [1 << n for n in range(longest.bit_length())] if lane is not None else [1]
        extent = 1 if lane is None else lane.extent
        return (
            Knob("vector_width", tuple(n for n in lanes if extent % n == 0), "how many columns are one vector"),
            Knob("key_parts", tuple(n for n in KEY_PARTS if n <= p.keys), "how many ranges the elements are cut into"),
            Knob("column_parts", tuple(n for n in COLUMN_PARTS if p.columns % n == 0), "how many parts columns have"),
        )

    def sizes(self, c: Columns) -> CpuScatterSizes[Ints]:
        """Return the sizes that settings imply."""
        p, vector, parts, columns = self.problem, c.ints("vector_width"), c.ints("key_parts"), c.ints("column_parts")
        vectors = p.columns // (vector * columns)
        return CpuScatterSizes(vector, parts, columns, ceil_div(p.keys, parts), vectors, p.batches * parts * columns)

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        p = self.problem
        return (
            Constraint(
                "column_parts times vector_width divides the number of columns",
                ("vector_width", "column_parts"),
                lambda c: p.columns % (c.ints("vector_width") * c.ints("column_parts")) == 0,
            ),
            Constraint(
                "none of the key_parts ranges is empty",
                ("key_parts",),
                lambda c: (c.ints("key_parts") - 1) * ceil_div(p.keys, c.ints("key_parts")) < p.keys,
            ),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Every thread has a task where there are as many, and few."""
        s, threads = self.sizes(columns), self.target.threads
        busy = s.tasks >= min(threads, int(s.tasks.max()))
        return busy & (s.tasks <= max(MOST_TASKS * threads, int(s.tasks.min())))

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Return the reading of elements by all tasks and the additions, which overlap with what memory moves. Totals
        that are no output are written and read once more."""
        s, p, rates = self.sizes(columns), self.problem, cpu_peaks(self.target, peaks)
        registers: Floats = np.maximum(s.vector * self._dtype_bytes / self.target.vector_bytes, 1.0)
        each: Floats = np.maximum(UPDATE_CYCLES, 2 * s.vectors * registers)
        updates = p.batches * p.terms * s.column_parts * each
        cycles = s.tasks * p.terms * TERM_CYCLES + updates
        totals = p.batches * p.keys * p.columns * self._dtype_bytes
        moved = minimum_bytes(p.workload) + totals * (1 if totals_of(p) is not None else 2)
        work = overlapped(moved / rates.memory_bytes_per_second, cycles / (rates.clock_hz * rates.threads))
        return rates.launch_seconds + work / (1 - idle_share(s.tasks, rates.threads))

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        return {
            "tasks": s.tasks,
            "idle_share": idle_share(s.tasks, self.target.threads),
            "contiguous_bytes": s.vectors * s.vector * self._dtype_bytes,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_scatter(self.problem, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> CpuScatterPlan | None:
    problem = scatter_problem(workload)
    if problem is None or problem.keys < LEAST_KEYS or len(problem.accumulation.state_dtypes) > 1:
        return None
    return CpuScatterPlan(problem, target)


CPU_SCATTER = TileSketch("cpu_scatter", 1, QUANTITIES, _plan, kind="llvm")
