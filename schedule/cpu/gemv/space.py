"""Products of very few rows with a matrix that lies along its columns, on a processor (sketch ``cpu_gemv``).

It takes float32 and float64 accumulators. A matrix that lies along the sum is left to the generic sketch, which reads
it as it lies. The kernel is in ``kernel``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from ....core.dtypes import float32, float64
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.gemm import Gemm, gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import SizedPlan, TileSketch
from ..arithmetic import ceil_div, idle_share, overlapped
from ..gemm.space import LEAST_ROWS, LEAST_WORK, reads_nothing_else
from ..limits import MOST_SCRATCH_BYTES
from ..peaks import CpuPeaks, cpu_peaks
from .kernel import CpuGemvSizes, lower_gemv

K_UNROLL = (1, 2, 4, 8, 16)
VECTORS = (1, 2, 4)
N_BLOCKS = tuple(1 << n for n in range(8))
SPLIT_K = (1, 2, 4, 8, 16, 32)
MOST_TASKS = 4
"""Tasks of a thread where ``k`` is split. More would only make more sums to add."""
CACHE_BYTES = 32 << 10
"""What the accumulators of a task may take: the first-level cache, less what streams through it."""
BUSY_K_UNROLL = 4
"""With fewer rows at a time, accumulators are read and written too often."""
MOST_K_UNROLL = 8
"""More rows at a time gain nothing: those that fall on the same set of the first-level cache, which has so many ways,
drive each other out."""
PREFETCH_BYTES = 128
"""What of each contiguous piece of a row arrives late, before the hardware prefetcher follows: about two lines."""

QUANTITIES = (
    Quantity("tasks", "tasks", "how many ranges of columns and parts of k threads take one after the other"),
    Quantity("idle_share", "fraction", "share of thread time that is left idle when the tasks do not divide evenly"),
    Quantity("row_bytes", "B", "how much of a row of the matrix a task reads one after the other"),
    Quantity("accumulator_bytes", "B", "how large the accumulators of a task are"),
    Quantity(
        "accumulator_traffic", "vectors", "how many accumulators are read and written for each vector of the matrix"
    ),
    Quantity("body_statements", "statements", "how many vector statements the innermost body has after unrolling"),
)


@dataclass(frozen=True)
class CpuGemvPlan(SizedPlan):
    """A product of few rows and its settings."""

    product: Gemm
    target: Target
    lanes: int

    @property
    def _batches(self) -> int:
        return prod(a.extent for a in self.product.batch)

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        p = self.product
        unroll = tuple(r for r in K_UNROLL if p.k.extent % r == 0 and r * p.m.extent <= max(K_UNROLL))
        split_k = tuple(parts for parts in SPLIT_K if p.k.extent % (parts * unroll[-1]) == 0)
        return (
            Knob("k_unroll", unroll, "how many rows of the matrix are multiplied together"),
            Knob("vectors", VECTORS, f"how many vectors of {self.lanes} elements the unrolled body has"),
            Knob("n_blocks", N_BLOCKS, "how many ranges the columns are cut into"),
            Knob("split_k", split_k, "how many parts the k axis is cut into, each summed by tasks of its own"),
        )

    def sizes(self, c: Columns) -> CpuGemvSizes[Ints]:
        """Return the sizes that settings imply. The columns of a task are whole unrolled bodies."""
        n, vectors, split_k = self.product.n.extent, c.ints("vectors"), c.ints("split_k")
        body = vectors * self.lanes
        nc = ceil_div(n, c.ints("n_blocks") * body) * body
        n_ranges = ceil_div(n, nc)
        return CpuGemvSizes(
            nc=nc,
            n_ranges=n_ranges,
            k_unroll=c.ints("k_unroll"),
            vectors=vectors,
            split_k=split_k,
            tasks=n_ranges * self._batches * split_k,
            lanes=self.lanes,
        )

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            Constraint(
                "none of the n_blocks ranges of columns is empty, at whole unrolled bodies of vectors",
                ("vectors", "n_blocks"),
                lambda c: self.sizes(c).n_ranges == c.ints("n_blocks"),
            ),
            Constraint(
                f"the accumulators of a task fit its thread's scratch memory of {MOST_SCRATCH_BYTES >> 20} MiB",
                ("vectors", "n_blocks"),
                lambda c: self._accumulator_bytes(self.sizes(c)) <= MOST_SCRATCH_BYTES,
            ),
        )

    def _accumulator_bytes(self, s: CpuGemvSizes[Ints]) -> Ints:
        return s.nc * self.product.m.extent * self.product.accumulator.dtype.bytes

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Enough tasks, whose accumulators stay in the first-level cache, and several rows at a time."""
        s, threads, unroll = self.sizes(columns), self.target.threads, self.knobs[0].values
        most = ceil_div(self.product.n.extent, s.vectors * self.lanes) * self._batches
        ok = self._accumulator_bytes(s) <= CACHE_BYTES
        ok &= s.tasks >= np.minimum(threads, most)
        ok &= (s.split_k == 1) | (s.tasks <= MOST_TASKS * threads)
        return ok & (s.k_unroll >= min(BUSY_K_UNROLL, int(unroll[-1])))

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Return the matrix from memory and the arithmetic, which overlap, and then the partial sums."""
        s, rates = self.sizes(columns), cpu_peaks(self.target, peaks)
        work = overlapped(self._memory_seconds(s, rates), self._instruction_seconds(s, rates))
        partial_sums = np.where(s.split_k > 1, s.tasks * self._accumulator_bytes(s), 0)
        reduce = 2 * partial_sums / rates.l2_bytes_per_second
        return rates.launch_seconds + work / (1 - idle_share(s.tasks, self.target.threads)) + reduce

    def _memory_seconds(self, s: CpuGemvSizes[Ints], rates: CpuPeaks) -> Floats:
        """Return all inputs once. The first bytes of each contiguous piece of a row of the matrix come late."""
        late = 1 + PREFETCH_BYTES / (s.nc * self.product.accumulator.dtype.bytes)
        return late * sum(b.bytes for b in self.product.inputs) / rates.read_bytes_per_second

    def _instruction_seconds(self, s: CpuGemvSizes[Ints], rates: CpuPeaks) -> Floats:
        """Multiply-adds, or loads of the matrix and moves of accumulators. Accumulators that leave the first-level
        cache move at the rate of the second level."""
        p = self.product
        vectors = p.k.extent * s.n_ranges * s.nc / self.lanes * self._batches
        moved = 2 * p.m.extent / np.minimum(s.k_unroll, MOST_K_UNROLL)
        seconds = vectors * np.maximum(p.m.extent, 1 + moved) / rates.vector_steps()
        spilled = vectors * moved * self.lanes * p.accumulator.dtype.bytes / rates.l2_bytes_per_second
        return seconds + np.where(self._accumulator_bytes(s) <= CACHE_BYTES, 0, spilled)

    def derive(self, columns: Columns) -> Derived:
        p, s = self.product, self.sizes(columns)
        return {
            "tasks": s.tasks,
            "idle_share": idle_share(s.tasks, self.target.threads),
            "row_bytes": s.nc * p.accumulator.dtype.bytes,
            "accumulator_bytes": self._accumulator_bytes(s),
            "accumulator_traffic": 2 * p.m.extent / s.k_unroll,
            "body_statements": s.k_unroll * p.m.extent * s.vectors,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_gemv(self.product, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> CpuGemvPlan | None:
    p = gemm_of(workload)
    if p is None or p.accumulator.dtype not in (float32, float64) or not reads_nothing_else(p):
        return None
    lanes = max(1, target.vector_bytes // p.accumulator.dtype.bytes)
    large = prod(a.extent for a in (p.m, p.n, p.k, *p.batch)) >= LEAST_WORK and p.n.extent >= 2 * lanes
    contiguous = p.b.load is not None and p.b.row == 1 and p.results[0].step("n") == 1
    return CpuGemvPlan(p, target, lanes) if large and contiguous and p.m.extent < LEAST_ROWS else None


CPU_GEMV = TileSketch("cpu_gemv", 3, QUANTITIES, _plan, kind="llvm")
