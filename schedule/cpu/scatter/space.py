"""Describes the settings of scatters on a processor: into how many tasks elements and their columns are cut (sketch
``cpu_scatter``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....core.dtypes import int32
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
from .term_parts import CHUNK, lower_term_parts

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
WRONG_GUESS_CYCLES = 15.0
"""How long it takes besides where a processor expected the element to be another task's, or the other way round."""
SHARED_TERM_CYCLES = 6.0
"""How long it takes a task to compute the element and the value of a term, in vectors, and to add that."""
JOIN_CYCLES = 3.0
"""How long it takes to set a total of a task, and to add it to the others."""
LEAST_RANGE = 4096
"""Fewer elements are not worth a task that joins totals."""
MOST_COLUMNS = 16
"""Numbers of a term, at most, of those that tasks share."""
MOST_TOTALS_BYTES = 64 << 20
"""Totals of all tasks."""
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
            Knob(
                "term_parts", (0, *self._term_parts), "how many parts of the terms tasks share; 0: they share elements"
            ),
        )

    @cached_property
    def _term_parts(self) -> tuple[int, ...]:
        p = self.problem
        if p.columns > MOST_COLUMNS:
            return ()
        own = p.batches * p.keys * p.columns * self._dtype_bytes
        return tuple(n for n in KEY_PARTS if n == 1 or (n * CHUNK <= p.terms and n * own <= MOST_TOTALS_BYTES))

    def sizes(self, c: Columns) -> CpuScatterSizes[Ints]:
        """Return the sizes that settings imply."""
        p, vector, parts, columns = self.problem, c.ints("vector_width"), c.ints("key_parts"), c.ints("column_parts")
        vectors, terms = p.columns // (vector * columns), c.ints("term_parts")
        tasks = p.batches * np.maximum(parts * columns, terms)
        return CpuScatterSizes(vector, parts, columns, terms, ceil_div(p.keys, parts), vectors, tasks)

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
            Constraint(
                "tasks share elements or terms",
                ("vector_width", "key_parts", "column_parts", "term_parts"),
                lambda c: (
                    (c.ints("term_parts") == 0)
                    | ((c.ints("key_parts") == 1) & (c.ints("column_parts") == 1) & (c.ints("vector_width") == 1))
                ),
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
        share = 1 / s.key_parts
        if p.columns <= MOST_COLUMNS:  # else what is added to rows takes much longer
            cycles = cycles + s.tasks * p.terms * WRONG_GUESS_CYCLES * np.minimum(share, 1 - share)
        of_terms = p.batches * (p.terms * SHARED_TERM_CYCLES + s.term_parts * p.keys * p.columns * JOIN_CYCLES)
        cycles = np.where(s.term_parts > 0, of_terms, cycles)
        totals = p.batches * p.keys * p.columns * self._dtype_bytes
        copies = np.where(s.term_parts > 0, 2 * s.term_parts, 1 if totals_of(p) is not None else 2)
        moved = minimum_bytes(p.workload) + totals * copies
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
        sizes = self.sizes_of(setting)
        if sizes.term_parts:
            return lower_term_parts(self.problem, sizes.term_parts, self._lanes, self._ranges)
        return lower_scatter(self.problem, sizes)

    @property
    def _lanes(self) -> int:
        """How many terms are one vector of keys."""
        return self.target.vector_bytes // int32.bytes

    @property
    def _ranges(self) -> int:
        """Of how many ranges of elements a task each writes the outputs of a batch."""
        return max(1, min(-(-self.target.threads // self.problem.batches), self.problem.keys // LEAST_RANGE))


def _plan(workload: Workload, target: Target) -> CpuScatterPlan | None:
    problem = scatter_problem(workload)
    if problem is None or problem.keys < LEAST_KEYS or len(problem.accumulation.state_dtypes) > 1:
        return None
    return CpuScatterPlan(problem, target)


CPU_SCATTER = TileSketch("cpu_scatter", 1, QUANTITIES, _plan, kind="llvm")
