"""Describes the space of scatters to few elements, of which each thread has copies: knobs, constraints, derived sizes
and the prior (sketch ``cuda_scatter_private``)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.rewrite import loads_of
from ....ir.stmt import Kernel
from ....te.cost import flops, minimum_bytes
from ....te.workload import Workload
from ...problems.scatter import ScatterProblem, scatter_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..memory_prior import MemoryTraffic, memory_bound_seconds
from ..occupancy import limits_of
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .private_kernel import JOINED_AT_ONCE, JOINING_WARPS, PrivateScatterSizes, private_scatter_kernel
from .space import L2_SECONDS

REGISTERS = 24
"""Registers for addresses and constants, roughly."""
UPDATE_CYCLES, JOIN_CYCLES = 40, 8
"""Cycles in which a thread changes a copy: it waits for shared memory. Those in which it adds one to a sum."""
PROMISING = 1.3
"""How many times as slow as the best estimate promising settings are at most."""


@dataclass(frozen=True)
class PrivateScatterPlan(GpuPlan):
    """The settings of a scatter to few elements on a target."""

    problem: ScatterProblem
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        last = self.problem.scatter.stage.reduce_axes[-1].extent
        return (
            Knob("threads", (128, 32, 64, 256, 512, 1024), "how many threads a block has"),
            Knob(
                "vector_width",
                (*(n for n in (4, 2, 8) if last % n == 0), 1),
                "how many neighbouring terms a thread loads at once",
            ),
            Knob("unroll", (4, 1, 2, 8), "how many vectors of terms a thread loads before it adds the first"),
            Knob(
                "ctas_per_sm",
                (1, 2, 4, 8),
                "how many blocks a multiprocessor has at most, among which terms are shared",
            ),
        )

    @derived_once
    def sizes(self, columns: Columns) -> PrivateScatterSizes:
        p = self.problem
        threads, width, unroll, per_sm = (columns.ints(k.name) for k in self.knobs)
        vectors = p.terms // width
        parts = self._parts(per_sm, vectors, threads)
        of_part = -(-vectors // parts)
        shared = p.keys * threads * p.accumulation.accumulator_dtype.bytes
        registers = REGISTERS + 2 * unroll * width
        return PrivateScatterSizes(
            threads=threads,
            vector_width=width,
            unroll=unroll,
            ctas_per_sm=per_sm,
            parts=parts,
            blocks=p.batches * parts,
            trips=-(-of_part // (threads * unroll)),
            shared_bytes=shared,
            registers=registers,
            resident=self.limits.resident_blocks(threads, registers, shared),
        )

    def _parts(self, per_sm: Ints, vectors: Ints, threads: Ints) -> Ints:
        """Return how many blocks share the vectors of terms of a batch: as many as fill the device with all batches, if
        these have a vector for each thread."""
        wanted = -(-per_sm * self.target.threads // self.problem.batches)
        parts: Ints = np.minimum(wanted, -(-vectors // threads))
        return parts

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        def has_more_parts(c: Columns) -> Bools:
            per_sm, threads = c.ints("ctas_per_sm"), c.ints("threads")
            vectors = self.problem.terms // c.ints("vector_width")
            parts, fewer = (self._parts(n, vectors, threads) for n in (per_sm, per_sm // 2))
            found: Bools = (per_sm == 1) | (parts > fewer)
            return found

        return (
            self.rule(
                "a multiprocessor has room for ctas_per_sm blocks with a copy for each thread",
                None,
                lambda s: s.resident >= s.ctas_per_sm,
            ),
            Constraint(
                "more ctas_per_sm cut the terms into more parts",
                ("threads", "vector_width", "ctas_per_sm"),
                has_more_parts,
            ),
            *self.launch_rules(self.limits.shared_bytes_per_block),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        seconds = self.prior_seconds(columns, peaks)
        found: Bools = seconds <= PROMISING * seconds.min(initial=np.inf)
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        p, s, device = self.problem, self.sizes(columns), gpu_peaks(self.target, peaks)
        waves = np.ceil(s.blocks / (s.resident * self.target.threads))
        updates = s.trips * s.unroll * s.vector_width * UPDATE_CYCLES
        sums = -(-p.keys // s.threads) * s.threads * JOIN_CYCLES + p.keys
        read = sum(e.dtype.bytes for e in {*loads_of(p.scatter.term), *loads_of(p.scatter.key)})
        traffic = MemoryTraffic(
            blocks=s.blocks,
            resident=s.resident,
            memory_bytes=minimum_bytes(p.workload),
            l2_bytes=p.batches * p.terms * read + s.blocks * p.keys * 4,
            accesses=p.batches * p.terms / WARP_LANES * (2 + 2 / s.vector_width),
            rounds=s.trips,
            operations=flops(p.workload),
        )
        joined = L2_SECONDS * (2 + -(-s.parts // (JOINING_WARPS * JOINED_AT_ONCE)))
        seconds = memory_bound_seconds(device, traffic) + waves * (updates + sums) / device.clock_hz
        return np.asarray(seconds + device.launch_seconds + joined, np.float64)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        return gpu_columns(self.target, s, wanted=s.unroll * s.vector_width * 4)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return private_scatter_kernel(self.problem, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> PrivateScatterPlan | None:
    problem = scatter_problem(workload)
    if problem is None or problem.columns > 1:
        return None
    most = limits_of(target).shared_bytes_per_block // (WARP_LANES * problem.accumulation.accumulator_dtype.bytes)
    return PrivateScatterPlan(problem, target) if problem.keys <= most else None


CUDA_SCATTER_PRIVATE = TileSketch("cuda_scatter_private", 1, GPU_QUANTITIES, _plan)
