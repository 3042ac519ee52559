"""Describes the settings of scans on a processor: how many lines a task walks along at a time (sketch ``cpu_scan``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.cost import flops
from ...problems.scan import ScanProblem, scan_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import SizedPlan, TileSketch, planned
from ..arithmetic import idle_share
from ..limits import LINE_BYTES, vector_registers
from ..peaks import cpu_peaks
from .kernel import CpuScanSizes, accumulation_of, lower_scan

UNROLL = (1, 2, 4, 8, 16, 32)
ADD_CYCLES = 4.0
"""How long an addition of floats waits for the one before it."""
ISSUED = 2.0
"""Vector instructions that a core begins in one cycle."""
EXPOSED = 0.2
"""The share of the shorter of arithmetic and transfer that does not overlap with the longer one; a guess."""

QUANTITIES = (
    Quantity("tasks", "tasks", "how many groups of lines threads take one after the other"),
    Quantity("idle_share", "fraction", "share of thread time that is left idle when the tasks do not divide evenly"),
    Quantity("running_values", "vectors", "how many running values a task has, in vectors"),
    Quantity("contiguous_bytes", "B", "how much of memory a task reads or writes in one piece"),
)


@dataclass(frozen=True)
class CpuScanPlan(SizedPlan):
    """A scan and its settings."""

    problem: ScanProblem
    target: Target

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        p = self.problem
        vectors = (1,) if p.along_rows else p.vectors(2 * self.target.vector_bytes)
        return (
            Knob("vector_width", vectors, "how many neighbouring lines are one vector"),
            Knob("unroll", UNROLL, "how many vectors of lines a task walks along at a time"),
        )

    def sizes(self, c: Columns) -> CpuScanSizes[Ints]:
        """Return the sizes that settings imply."""
        vector, unroll = c.ints("vector_width"), c.ints("unroll")
        return CpuScanSizes(vector, unroll, self.problem.lines // (vector * unroll))

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            Constraint(
                "unroll times vector_width divides the number of lines",
                ("vector_width", "unroll"),
                lambda c: self.problem.lines % (c.ints("vector_width") * c.ints("unroll")) == 0,
            ),
        )

    def _vectors(self, s: CpuScanSizes[Ints]) -> Floats:
        """Running values of a task in registers of the instruction set."""
        bytes = accumulation_of(self.problem).accumulator_dtype.bytes
        each: Floats = np.maximum(s.vector * bytes / max(self.target.vector_bytes, bytes), 1.0)
        return s.unroll * each

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Running values stay in registers, and every thread has a task where there are as many."""
        s = self.sizes(columns)
        good = self._vectors(s) <= vector_registers(self.target)
        return good & (s.tasks >= min(self.target.threads, self.problem.lines // int(np.max(s.vector))))

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Return the bytes and the arithmetic, which overlap for the most part. A step takes at least as long as one
        addition. What does not fill a cache line is moved all the same."""
        s, p, rates = self.sizes(columns), self.problem, cpu_peaks(self.target, peaks)
        elements = p.lines * p.length
        operations = max(flops(p.workload) / elements, 1.0) + len(p.loads) + len(p.outputs)
        step = np.maximum(ADD_CYCLES, self._vectors(s) * operations / ISSUED)
        work = s.tasks * p.length * step / (rates.clock_hz * rates.threads)
        run = np.full_like(s.tasks, LINE_BYTES) if p.along_rows else self._contiguous_bytes(s)
        wasted = np.maximum(LINE_BYTES / run, 1.0)
        moved = elements * sum(p.element_bytes) * wasted / rates.memory_bytes_per_second
        busy = 1 - idle_share(s.tasks, rates.threads)
        together = np.maximum(work, moved) + EXPOSED * np.minimum(work, moved)
        return rates.launch_seconds + together / busy

    def _contiguous_bytes(self, s: CpuScanSizes[Ints]) -> Ints:
        run = s.vector if self.problem.along_rows else np.minimum(s.vector * s.unroll, self.problem.lane_axis.extent)
        return run * max(self.problem.element_bytes)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        return {
            "tasks": s.tasks,
            "idle_share": idle_share(s.tasks, self.target.threads),
            "running_values": self._vectors(s),
            "contiguous_bytes": self._contiguous_bytes(s),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_scan(self.problem, self.sizes_of(setting))


CPU_SCAN = TileSketch("cpu_scan", 2, QUANTITIES, planned(scan_problem, CpuScanPlan), kind="llvm")
