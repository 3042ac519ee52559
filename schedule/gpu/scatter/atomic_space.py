"""Describes the space of scatters whose terms are reduced in memory as they come: knobs, constraints, derived sizes and
the prior (sketch ``cuda_scatter_atomic``)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.cost import flops, minimum_bytes
from ....te.workload import Workload
from ...problems.scatter import ScatterProblem, joint_scatter_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..memory_prior import MemoryTraffic, memory_bound_seconds
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .atomic_kernel import AtomicScatterSizes, atomic_scatter_kernel, loads_of_terms, totals_are_output
from .in_place import InPlaceReduction, in_place_reduction
from .space import L2_SECONDS
from .term_loads import vector_extent

MOST_COLUMNS = 16
"""Elements with the same terms, at most: of more, terms are whole rows that are better sorted first."""
KEY_PARTS, LEAST_KEYS = (1, 2, 4, 8), 4096
"""Into how many parts elements may be cut, of so many each at least."""
REGISTERS = 20
"""Registers for addresses and constants, roughly."""
MOST_TOTALS_BYTES, MOST_CACHED_BYTES = 1 << 30, 16 << 20
"""Totals of all elements, at most, and those that stay in L2."""
REDUCE_SECONDS = 12e-12
"""How long all slices of L2 take for a reduction in a sector of global memory."""
SLICES, LINE_BYTES, SECTOR_BYTES = 96, 128, 32
"""Slices of L2, what lies together in one of them, and what a reduction of neighbours takes at once."""
SHARED_REDUCE_CYCLES = 0.2
"""Cycles of a multiprocessor for a reduction in shared memory, for each 32 bits."""
BUSY_THREADS = 512
"""With fewer threads, a multiprocessor waits for them."""
ALONE_THREADS = 128
"""So many hide each other's latencies as one block does whose threads go from barrier to barrier."""
PROMISING, FAR = 1.3, 3.0
"""How many times as slow as the best estimate of their kind promising settings are at most, and how many times as slow
as the best estimate of all that may be."""


@dataclass(frozen=True)
class AtomicScatterPlan(GpuPlan):
    """The settings of a scatter whose terms are reduced in memory, on a target."""

    problem: ScatterProblem
    how: tuple[InPlaceReduction, ...]
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        most = self.limits.shared_bytes_per_block
        parts = tuple(n for n in KEY_PARTS if n * LEAST_KEYS <= self.problem.keys or n == 1)
        least = self.copy_bytes(np.asarray(parts[-1:])).min()
        copies = tuple(n for n in (1, 2, 4, 8) if n * least <= most)
        return (
            Knob("threads", (256, 128, 512, 1024), "how many threads a block has"),
            Knob(
                "vector_width",
                (*(n for n in (4, 2, 8) if vector_extent(self.problem) % n == 0), 1),
                "how many neighbouring numbers a thread loads at once",
            ),
            Knob("unroll", (4, 1, 2, 8), "how many vectors a thread loads before it reduces the first"),
            Knob(
                "ctas_per_sm",
                (1, 2, 4, 8),
                "how many blocks a multiprocessor has at most, among which terms are shared",
            ),
            Knob("copies", (0, *copies), "how many copies of the totals a block has in shared memory; 0: none"),
            Knob("key_parts", parts, "how many ranges the elements are cut into, each of which a block has copies of"),
        )

    def copy_bytes(self, key_parts: Ints) -> Ints:
        """Return the bytes of a copy of the totals of a batch, or of a part of its elements."""
        keys: Ints = -(-self.problem.keys // key_parts)
        return keys * (self.problem.columns * sum(len(h.copied) * h.copy_dtype.bytes for h in self.how))

    @property
    def totals_bytes(self) -> int:
        """Bytes of all totals."""
        each = sum(h.count * h.dtype.bytes for h in self.how)
        return prod(a.extent for a in self.problem.scatter.stage.axes) * each

    @property
    def _numbers(self) -> int:
        """How many numbers the terms of a batch are."""
        return self.problem.terms * self.problem.columns

    @derived_once
    def sizes(self, columns: Columns) -> AtomicScatterSizes:
        threads, width, unroll, per_sm, copies, key_parts = (columns.ints(k.name) for k in self.knobs)
        vectors = self._numbers // width
        parts = self._parts(per_sm, key_parts, vectors, threads)
        of_part = -(-vectors // parts)
        shared, registers = copies * self.copy_bytes(key_parts), REGISTERS + (1 + len(self.how)) * unroll * width
        return AtomicScatterSizes(
            threads=threads,
            vector_width=width,
            unroll=unroll,
            ctas_per_sm=per_sm,
            copies=copies,
            key_parts=key_parts,
            keys=-(-self.problem.keys // key_parts),
            parts=parts,
            blocks=self.problem.batches * parts * key_parts,
            trips=-(-of_part // (threads * unroll)),
            registers=registers,
            shared_bytes=shared,
            resident=self.limits.resident_blocks(threads, registers, shared),
        )

    def _parts(self, per_sm: Ints, key_parts: Ints, vectors: Ints, threads: Ints) -> Ints:
        """Return into how many parts the numbers of a batch are cut: as many as fill the device with all batches and
        parts of elements, if each has a vector for each thread."""
        wanted = -(-per_sm * self.target.threads // (self.problem.batches * key_parts))
        parts: Ints = np.minimum(wanted, -(-vectors // threads))
        return parts

    def _own_keys(self, c: Columns) -> Ints:
        keys: Ints = -(-self.problem.keys // c.ints("key_parts"))
        return keys

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        def has_more_parts(c: Columns) -> Bools:
            per_sm, key_parts, threads = c.ints("ctas_per_sm"), c.ints("key_parts"), c.ints("threads")
            vectors = self._numbers // c.ints("vector_width")
            parts, fewer = (self._parts(n, key_parts, vectors, threads) for n in (per_sm, per_sm // 2))
            found: Bools = (per_sm == 1) | (parts > fewer)
            return found

        return (
            self.rule(
                "a multiprocessor has room for ctas_per_sm blocks with their copies",
                None,
                lambda s: s.resident >= s.ctas_per_sm,
            ),
            Constraint(
                "more ctas_per_sm cut the terms into more parts",
                ("threads", "vector_width", "ctas_per_sm", "key_parts"),
                has_more_parts,
            ),
            Constraint(
                "each copy is that of a warp",
                ("threads", "copies"),
                lambda c: c.ints("copies") * WARP_LANES <= c.ints("threads"),
            ),
            Constraint(
                "blocks have a part of the elements, none of which is empty, where they have copies",
                ("copies", "key_parts"),
                lambda c: (
                    (c.ints("key_parts") == 1)
                    | ((c.ints("copies") > 0) & ((c.ints("key_parts") - 1) * self._own_keys(c) < self.problem.keys))
                ),
            ),
            *self.launch_rules(self.limits.shared_bytes_per_block),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """The best settings with copies and without them, where neither are far slower."""
        seconds, has_copies = self.prior_seconds(columns, peaks), columns.ints("copies") > 0
        best = np.where(has_copies, *(seconds.min(where=kind, initial=np.inf) for kind in (has_copies, ~has_copies)))
        found: Bools = (seconds <= PROMISING * best) & (best <= FAR * seconds.min(initial=np.inf))
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        p, s, device = self.problem, self.sizes(columns), gpu_peaks(self.target, peaks)
        numbers, places = p.batches * self._numbers, p.keys * p.columns
        read = sum(load.dtype.bytes for load in loads_of_terms(p))
        per_sm = np.minimum(s.resident, -(-s.blocks // device.multiprocessors))
        waiting = np.maximum(1.0, BUSY_THREADS / (s.threads * np.maximum(per_sm, 1)))
        cycles = sum(max(SHARED_REDUCE_CYCLES * h.copy_dtype.bytes / 4, 1 / places) for h in self.how) * waiting
        traffic = MemoryTraffic(
            blocks=s.blocks,
            resident=s.threads * np.maximum(per_sm, 1) / ALONE_THREADS,  # warps do not wait for each other
            memory_bytes=minimum_bytes(p.workload),
            l2_bytes=numbers * read * s.key_parts,
            accesses=numbers / WARP_LANES * (2 + 2 / s.vector_width) * s.key_parts,
            rounds=s.trips,
            shared_bytes=np.where(s.copies > 0, numbers * cycles * device.shared_bytes_per_cycle, 0.0),
            operations=flops(p.workload),
        )
        reduced = sum(self._reduce_seconds(s, h.dtype.bytes) for h in self.how)
        rate = device.l2_bytes_per_cycle * device.multiprocessors * device.clock_hz
        if self.totals_bytes > MOST_CACHED_BYTES:
            rate = device.memory_bytes_per_second
        launches = 1 if totals_are_output(p, self.how) else 2
        others = launches * (device.launch_seconds + L2_SECONDS + self.totals_bytes / rate)
        return np.asarray(memory_bound_seconds(device, traffic) + reduced + others, np.float64)

    def _reduce_seconds(self, s: AtomicScatterSizes, size: int) -> Floats:
        """Return how long reductions of totals of ``size`` bytes in global memory take."""
        p, numbers = self.problem, self.problem.batches * self._numbers
        lines = max(1.0, p.batches * p.keys * p.columns * size / LINE_BYTES)
        alone = numbers / p.columns * -(-p.columns * size // SECTOR_BYTES)
        own = s.keys * p.columns * size / SECTOR_BYTES + 1
        joined = s.blocks * own * (1 - np.exp(-numbers / s.blocks / own))  # those that any term has changed
        return REDUCE_SECONDS * max(1.0, SLICES / lines) * np.where(s.copies == 0, alone, joined)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        return gpu_columns(self.target, s, wanted=s.unroll * s.vector_width * 4)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return atomic_scatter_kernel(self.problem, self.how, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> AtomicScatterPlan | None:
    problem = joint_scatter_problem(workload)
    if problem is None or problem.columns > MOST_COLUMNS:
        return None
    how = tuple(h for h in map(in_place_reduction, problem.each) if h is not None)
    if len(how) < len(problem.each):
        return None
    plan = AtomicScatterPlan(problem, how, target)
    if plan.copy_bytes(np.ones(1, np.int64))[0] > plan.limits.shared_bytes_per_block:
        plan = replace(plan, how=tuple(h.with_least_copies for h in how))
    return plan if plan.totals_bytes <= MOST_TOTALS_BYTES else None


CUDA_SCATTER_ATOMIC = TileSketch("cuda_scatter_atomic", 1, GPU_QUANTITIES, _plan)
