"""Describes the settings of column-wise kernels that keep their elements: softmax and norms along an axis that is not
the last one.

A CTA reads all rows of a few columns once into registers or shared memory, reduces them as often as needed and writes
the outputs. The CTAs of a cluster, or all of the device, share the rows of long columns. Rows that fit nowhere are
read again by every pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.dtypes import DType
from ....core.schedule import KnobValue
from ....core.streams import stream
from ....core.target import Target
from ....ir.expr import WARP_LANES, Binary, Unary, walk
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.columnwise import ColumnwiseProblem, dependent_columnwise_problem, has_reduced_axis
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.enumerate import legal_settings
from ...space.knob import Knob, Quantity
from ...tile.reciprocals import with_reciprocals
from ...tile_sketch import TileSketch
from ..memory_prior import LOAD_LATENCY_SECONDS, MemoryTraffic, memory_bound_seconds
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..reduction_prior import (
    CLUSTER_BARRIER_CYCLES,
    CLUSTERED_SHARE,
    CTA_BARRIER_CYCLES,
    LARGEST_CLUSTER,
    LINE_BYTES,
    SECTOR_BYTES,
    WARP_REDUCTION_CYCLES,
    bytes_for_run,
)
from ..rowwise.prior import BUSY_THREADS, IDLE_POWER, PLAIN, SPECIAL_OPERATIONS
from ..rowwise.sizes import RowStorage
from .persistent_kernel import persistent_kernel
from .persistent_sizes import (
    GRID,
    MOST_ELEMENTS,
    STORAGES,
    PersistentSizes,
    persistent_sizes,
    vector_widths,
    vectors_of_groups,
)
from .prior import CACHED_BYTES
from .sizes import CLUSTER, row_period

MOST_THREADS = 1024
"""How many threads stand next to each other along the columns at most."""
MOST_WASTE = 4 / 3
"""How many rows or threads there may be at most for each one that has elements."""
CLUSTER_BYTES = 16 << 10
"""A cluster shares the rows of a tile only where each of its CTAs has so many bytes."""
FULL = 3 / 4
"""A cooperative launch has CTAs for so large a part of the multiprocessors at least."""
LAUNCH_SECONDS, GRID_BARRIER_SECONDS = 2e-6, 2e-6
"""What a cooperative launch takes besides, and each of its barriers. Both are guesses; together they are what one of
rows was measured to take (``rowwise.cooperative``)."""
MOST_AGAIN = 1 / 2
"""Which share of the rows is read again at most where the others stay on chip."""
MOST_SLOWER = 1.6
"""Settings that are estimated to be so many times slower than the best one are not promising."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("contiguous_bytes", "B", "how much a CTA reads of each row"),
    Quantity("rows_per_thread", "rows", "how many rows a thread takes"),
    Quantity("passes", "passes", "how often elements are read"),
    Quantity("barriers", "barriers", "how many barriers of a CTA or a cluster there are"),
)


@dataclass(frozen=True)
class PersistentColumnsPlan(GpuPlan):
    workload: Workload
    target: Target
    problem: ColumnwiseProblem

    @property
    def knobs(self) -> tuple[Knob, ...]:
        asynchronous = self.limits.async_copies
        count, multiprocessors = self.problem.reduced_count, self.target.threads
        splits = {1, 2, 4, 8, 16, *(multiprocessors * n // 8 for n in (1, 2, 4, 8, 16))}
        return (
            Knob("vector_width", _widths(self.problem), "how many columns a thread reads at once"),
            Knob("threads_x", self._threads_x(), "how many threads of a CTA are next to each other in a row"),
            Knob("threads", (32, 64, 128, 256, 512, 1024), "how many threads a CTA has"),
            Knob(
                "splits",
                tuple(sorted(n for n in splits if 0 < n <= count)),
                "how many CTAs share the rows of a column",
            ),
            Knob(
                "combine",
                (CLUSTER, GRID),
                "where the partial results of the splits become one",
            ),
            Knob(
                "row_storage",
                tuple(s.text for s in STORAGES if asynchronous or s != RowStorage.REGISTERS_AND_SHARED),
                "where rows stay between the passes over them",
            ),
            Knob("unroll", (8, 4, 16), "how many rows a thread reads at once where registers do not keep them"),
            Knob(
                "ctas_per_sm",
                (1, 2, 3, 4, 8),
                "how many CTAs share the shared memory of a multiprocessor, where rows stay in it",
            ),
        )

    def _threads_x(self) -> tuple[int, ...]:
        """Return the least whole groups times powers of two, and whole rows, for each vector."""
        found = set[int]()
        for vector in _widths(self.problem):
            unit, row = vectors_of_groups(self.problem, vector), self.problem.column_count // vector
            found |= {unit << n for n in range(11) if unit << n < row} | {row}
        return tuple(sorted(n for n in found if n <= MOST_THREADS))

    @derived_once
    def sizes(self, columns: Columns) -> PersistentSizes[Ints]:
        return persistent_sizes(self.problem, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        tile = ("vector_width", "threads_x", "threads", "splits")
        every = (*tile, "combine", "row_storage", "unroll", "ctas_per_sm")
        return (
            Constraint(
                "threads_x vectors are whole groups of columns that are reduced together, and no more than a row has",
                ("vector_width", "threads_x"),
                self._has_groups,
            ),
            self.rule(
                "more than half of the threads have elements, or there is a single warp",
                tile,
                lambda s: (
                    ((2 * s.threads_x * s.threads_y > s.threads) | (s.threads == WARP_LANES))
                    & (s.threads_x <= s.threads)
                ),
            ),
            self.rule(
                "with vectors wider than what divides the columns, threads_x is at least 2, and the threads that share "
                "a column are a multiple of the rows after which the alignment is the same",
                tile,
                lambda s: (
                    (s.shifted == 0) | ((s.threads_x >= 2) & (s.threads_y % row_period(self.problem, s.vector) == 0))
                ),
            ),
            Constraint("every split has rows", ("splits",), self._has_rows),
            Constraint(
                "splits is at most 16 and a power of two with combine in a cluster, and above 1 in the grid",
                ("splits", "combine"),
                self._is_cluster,
            ),
            self.rule(
                "with combine in the grid, all CTAs run at once",
                every,
                lambda s: (s.in_grid == 0) | (s.blocks <= s.resident * self.target.threads),
            ),
            Constraint(
                "unroll is 8 where row_storage is registers",
                ("row_storage", "unroll"),
                lambda c: c.flags("row_storage", RowStorage.GLOBAL.text) | (c.ints("unroll") == 8),
            ),
            Constraint(
                "ctas_per_sm is 1 unless row_storage is registers_and_shared",
                ("row_storage", "ctas_per_sm"),
                lambda c: _in_shared(c) | (c.ints("ctas_per_sm") == 1),
            ),
            Constraint(
                "a vector has 4, 8 or 16 bytes of every input where row_storage is registers_and_shared",
                ("vector_width", "row_storage"),
                lambda c: ~_in_shared(c) | self._copied_by_cp_async(c),
            ),
            Constraint(
                f"a thread has at most {MOST_ELEMENTS} elements of an input where row_storage is registers, and shared "
                "memory has room for a row of each thread in ctas_per_sm CTAs where it is registers_and_shared",
                every,
                self._is_kept,
            ),
            *self.launch_rules(self.limits.shared_bytes_per_block, every),
        )

    def _has_groups(self, c: Columns) -> Bools:
        p, vector, threads_x = self.problem, c.ints("vector_width"), c.ints("threads_x")
        unit = p.member_count // np.gcd(p.member_count, vector)
        whole: Bools = (threads_x % unit == 0) & (threads_x * vector <= p.column_count)
        return whole

    def _copied_by_cp_async(self, c: Columns) -> Bools:
        copied = np.ones(len(c), dtype=bool)
        for tensor in self.problem.inputs:
            copied &= np.isin(tensor.dtype.bytes * c.ints("vector_width"), (4, 8, 16))
        return copied

    def _is_kept(self, c: Columns) -> Bools:
        s = self.sizes(c)
        kept: Bools = (s.kept_rows * s.vector <= MOST_ELEMENTS) & (s.resident >= c.ints("ctas_per_sm"))
        return kept & (~_in_shared(c) | (s.buffered_rows >= 1))

    def _has_rows(self, c: Columns) -> Bools:
        count, splits = self.problem.reduced_count, c.ints("splits")
        has: Bools = (splits - 1) * -(-count // splits) < count
        return has

    def _is_cluster(self, c: Columns) -> Bools:
        clusters = (1, 2, 4, 8, LARGEST_CLUSTER) if self.limits.clusters else (1,)
        return np.where(c.flags("combine", GRID), c.ints("splits") > 1, np.isin(c.ints("splits"), clusters))

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        s, p = self.sizes(columns), self.problem
        element = p.inputs[0].dtype.bytes
        good: Bools = s.threads <= MOST_WASTE * s.threads_x * s.threads_y
        good &= s.rows_per_thread * s.threads_y <= MOST_WASTE * s.rows_per_cta
        good &= s.columns_per_cta * element >= min(SECTOR_BYTES, p.column_count * element)
        good &= (s.splits == 1) | (s.rows_per_cta * s.columns_per_cta * p.read_bytes >= CLUSTER_BYTES)
        good &= (s.cluster_size == s.splits) | (s.blocks >= FULL * self.target.threads)
        good &= (s.threads >= 128) & (s.threads <= 512)
        good &= (s.storage != RowStorage.REGISTERS_AND_SHARED) | self._promising_in_shared(columns, s)
        good &= (s.storage != RowStorage.GLOBAL) | (s.rows_per_thread > s.unroll)
        seconds = self.prior_seconds(columns, peaks)
        return good & (seconds <= MOST_SLOWER * seconds[good].min()) if good.any() else good

    def _promising_in_shared(self, c: Columns, s: PersistentSizes[Ints]) -> Bools:
        """As many CTAs as asked for. All rows are kept, or most of them where all CTAs run at once, so that caches have
        room for the others."""
        good: Bools = s.resident == c.ints("ctas_per_sm")
        good &= (s.again_rows == 0) | ((s.in_grid == 1) & (s.again_rows <= MOST_AGAIN * s.rows_per_thread))
        return good

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        s, p, measured = self.sizes(columns), self.problem, gpu_peaks(self.target, peaks)
        passes = len(p.reductions) + bool(p.elementwise_outputs)
        elements = p.outer_count * p.reduced_count * p.column_count
        # Where a CTA has whole rows, those of its threads follow each other.
        run = np.where(s.columns_per_cta < p.column_count, s.columns_per_cta, s.threads_y * p.column_count)
        read = sum(elements / run * _bytes_for_run(p, run, b.dtype) for b in p.inputs)
        written = sum(elements / run * _bytes_for_run(p, run, c.tensor.dtype) for c in p.elementwise_outputs)
        # Rows that are read again come from caches as long as a multiprocessor has few of them.
        share = s.again_rows / s.rows_per_thread
        here = np.minimum(s.resident, -(-s.blocks // measured.multiprocessors))
        of_sm = share * s.rows_per_cta * np.minimum(s.columns_per_cta, p.column_count) * p.read_bytes * here
        again = (passes - 1) * share * read
        missed = again * np.minimum(of_sm / CACHED_BYTES, 1.0) ** 3
        of_cluster = np.where(s.cluster_size > 1, CLUSTER_BARRIER_CYCLES, 0)
        in_grid = s.splits > s.cluster_size
        exchange = WARP_REDUCTION_CYCLES + 2 * CTA_BARRIER_CYCLES + of_cluster
        waits = len(p.reductions) * measured.seconds(1.0) * exchange / LOAD_LATENCY_SECONDS
        loads = (share < 1) + passes * -(-s.again_rows // s.unroll)
        reads = 1 + (passes - 1) * share
        taken = elements / s.vector * s.threads_x / (s.threads_x - s.shifted)
        vectors = taken * (len(p.inputs) * reads + len(p.elementwise_outputs))
        for load in p.other_loads:
            alike = p.is_contiguous(load) & (p.columns[-1] % s.vector == 0)
            vectors = vectors + elements / np.where(alike, s.vector, 1)
        exchanged = 8 * len(p.reductions) * s.blocks * s.threads_y * s.threads_x * s.cells
        buffered = (1 + passes) * elements * p.read_bytes * (s.buffered_rows / s.rows_per_thread)
        idle = np.maximum(BUSY_THREADS / np.maximum(s.threads * s.resident, 1), 1.0) ** IDLE_POWER
        clusters = np.select([s.cluster_size == LARGEST_CLUSTER, s.cluster_size > 2], [CLUSTERED_SHARE, 15 / 16], 1.0)
        barriers = np.where(in_grid, LAUNCH_SECONDS + len(p.reductions) * GRID_BARRIER_SECONDS, 0.0)
        return barriers + memory_bound_seconds(
            measured,
            MemoryTraffic(
                blocks=s.blocks,
                resident=s.resident * clusters,
                memory_bytes=read + written + missed,
                l2_bytes=read + written + again,
                accesses=vectors / WARP_LANES,
                rounds=loads + waits,
                shared_bytes=exchanged + buffered,
                operations=2.0 * elements * _operations(p) * idle,
            ),
        )

    def derive(self, columns: Columns) -> Derived:
        s, p = self.sizes(columns), self.problem
        passes = len(p.reductions) + bool(p.elementwise_outputs)
        barriers = len(p.reductions) * np.where(s.splits > 1, 3, 2) + (s.cluster_size > 1)
        return {
            **gpu_columns(
                self.target, s, wanted=np.maximum(s.rows_per_thread - s.again_rows, s.unroll) * s.vector * p.read_bytes
            ),
            "contiguous_bytes": s.columns_per_cta * p.read_bytes,
            "rows_per_thread": s.rows_per_thread,
            "passes": 1 + (passes - 1) * s.again_rows / s.rows_per_thread,
            "barriers": barriers,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return persistent_kernel(self.workload, self.problem, self.sizes_of(setting))


def _bytes_for_run(problem: ColumnwiseProblem, run: Ints, dtype: DType) -> Floats:
    """Return what memory moves for a run of elements. Those that begin anywhere have a sector more on the average, half
    of which other CTAs find in L2."""
    crossed = SECTOR_BYTES / 2 if problem.column_count * dtype.bytes % LINE_BYTES else 0.0
    return bytes_for_run(run * dtype.bytes) + crossed


def _in_shared(c: Columns) -> Bools:
    return c.flags("row_storage", RowStorage.REGISTERS_AND_SHARED.text)


def _widths(problem: ColumnwiseProblem) -> tuple[int, ...]:
    """Return the vectors with which a CTA has threads for whole groups."""
    return tuple(v for v in vector_widths(problem) if vectors_of_groups(problem, v) <= MOST_THREADS)


def _operations(problem: ColumnwiseProblem) -> int:
    """Return how many operations each element takes, special functions counted by the units that they occupy."""
    bodies = [r.body for r in problem.reductions] + [c.body for c in problem.elementwise_outputs]
    found = [
        e
        for body in bodies
        for e in walk(with_reciprocals(body, has_reduced_axis))
        if isinstance(e, Binary | Unary) and has_reduced_axis(e)
    ]
    special = sum(isinstance(e, Unary) and e.op not in PLAIN for e in found)
    return len(found) + len(problem.reductions) + (SPECIAL_OPERATIONS - 1) * special


def _plan(workload: Workload, target: Target) -> PersistentColumnsPlan | None:
    problem = dependent_columnwise_problem(workload)
    if problem is None or not (problem.elementwise_outputs or problem.is_chained) or not _widths(problem):
        return None
    if any(r.reducer.is_position for r in problem.reductions):
        return None
    plan = PersistentColumnsPlan(workload, target, problem)
    if problem.members and not len(legal_settings(plan.knobs, plan.constraints, 1, stream(0, "members")).codes):
        return None  # a tile has whole groups of columns, and these are too many
    return plan


CUDA_COLUMNWISE_PERSISTENT = TileSketch("cuda_columnwise_persistent", 1, QUANTITIES, _plan)
