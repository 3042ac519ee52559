"""Few long rows, each of them in parts that all CTAs of the device have at once (sketch ``cuda_rowwise_cooperative``).

    part of a row ─▶ registers and shared memory ─▶ its reduction ─▶ barrier of the grid ─▶ that of the row ─▶ outputs

One cooperative launch reads memory once, where ``cuda_rowwise_split`` has three launches and reads twice. There are as
many CTAs as run at once. A CTA has a part of ``rows_per_cta`` rows, so that it reduces some of them while others are on
their way (see ``cooperative_kernel``). Parts are joined in a fixed order, so that
results are the same in every run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.rowwise import RowwiseProblem, rowwise_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints
from ...space.constraint import Constraint
from ...space.enumerate import all_settings
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..occupancy import limits_of
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import gpu_columns
from ..reduction_prior import LOAD_LATENCY_SECONDS, overlapped_seconds
from .cooperative_kernel import CooperativeSizes, cooperative_kernel, exchanged
from .prior import BUSY_THREADS, IDLE_POWER, arithmetic_cycles, segment_share
from .sizes import SPARE_REGISTERS, RowPartition, RowStorage
from .space import LONG_ROW_BYTES, MOST_WASTE, QUANTITIES, copied_by_cp_async, shares_of_rows, vector_widths
from .split import MOST_ROWS

MOST_VECTORS = 32
"""How many vectors of all its rows a thread may have on chip."""
MOST_PROMISING_ROWS = 8
"""Parts of more rows are so short that combining what threads found takes longer than to load them."""
MOST_OWN_ROWS = 16
"""Of how many rows a CTA has a part at most. Each has statements of its own."""
CONVERTING = 4
"""How many more registers a thread takes where elements of 16 bits are converted (kernels with fewer spill)."""
GRID_BARRIER_SECONDS = 4e-6
"""What a cooperative launch takes besides: it has a multiprocessor when the CTAs of the launch before have left it, all
of its CTAs meet, and memory is idle then. This and the next two were fitted on softmaxes of an H200: 16x1048576,
7x1000003, 4x1048576 in float32, 64x262144 and 32x262144."""
PART_SECONDS = 0.17e-6
"""How long a multiprocessor takes to combine what the threads found of a part of a row."""
EXPOSED = 0.5
"""Which share of the arithmetic of the last part nothing hides."""
TESTED = 1.25
"""How many times as long arithmetic takes where each vector is tested for existing."""
PAIR, UNPAIRED = 2, 1.04
"""Of so many CTAs on a multiprocessor one computes while the other one waits. With another number of them all takes so
many times as long: a softmax of 16x1048576 takes 23.3 us with two CTAs of 512 threads, 24.9 us with four of 256, and
25.0 us with one of 1024."""

SHARED = 1.01
"""How many times as long it takes at least where parts are in shared memory: 12 % for a softmax of 7x1000003 with one
CTA of 1024 threads, nothing for one of 4x1048576 in float32, where registers had room, too."""


@dataclass(frozen=True)
class CooperativePlan(GpuPlan):
    workload: Workload
    target: Target
    problem: RowwiseProblem

    @property
    def knobs(self) -> tuple[Knob, ...]:
        rows = self.problem.row_count
        storages = (RowStorage.REGISTERS_AND_SHARED, RowStorage.REGISTERS, RowStorage.GLOBAL)
        own = sorted({*(n for n in (1, 2, 4, 8, 16) if n < rows), min(rows, MOST_OWN_ROWS)})
        return (
            Knob("vector_width", vector_widths(self.problem), "how many elements a thread reads at once"),
            Knob("threads_per_row", (128, 256, 512, 1024), "how many threads of a CTA work on one row"),
            Knob("rows_per_cta", tuple(own), "how many rows a CTA has a part of"),
            Knob("ctas_per_sm", (1, 2, 3, 4), "how many CTAs a multiprocessor has"),
            Knob("row_storage", tuple(s.text for s in storages), "where a row stays until it is written"),
        )

    def sizes(self, c: Columns) -> CooperativeSizes[Ints]:
        return cooperative_sizes(self.problem, self.target, c)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        row = ("vector_width", "threads_per_row", "rows_per_cta", "ctas_per_sm")
        return (
            Constraint(
                "with fewer rows_per_cta there are more groups of CTAs, and each of them has two CTAs or more",
                ("rows_per_cta", "ctas_per_sm"),
                self._is_distinct,
            ),
            self.rule(
                "several CTAs share a row, each with a vector and with a thread for each column that is in no vector",
                row,
                lambda s: (
                    (s.vectors > (s.cluster_size - 1) * s.vectors_per_cta)
                    & (s.cluster_size > 1)
                    & (s.edge_columns <= s.threads_per_row)
                ),
            ),
            Constraint(
                "a vector has 4, 8 or 16 bytes of every input, and begins at a multiple of them, where row_storage is "
                "registers_and_shared",
                ("vector_width", "row_storage"),
                lambda c: (
                    ~c.flags("row_storage", RowStorage.REGISTERS_AND_SHARED.text) | copied_by_cp_async(self.problem, c)
                ),
            ),
            Constraint(
                "registers and shared memory have room for ctas_per_sm CTAs on a multiprocessor, and shared memory for "
                "a vector of each thread with row_storage registers_and_shared; a thread has at most 32 vectors of all "
                "rows, or 16 of each row with global",
                (*row, "row_storage"),
                self._fits,
            ),
        )

    def _is_distinct(self, c: Columns) -> Bools:
        rows, own = self.problem.row_count, c.ints("rows_per_cta")
        groups = -(-rows // own)
        distinct: Bools = (-(-rows // groups) == own) & (2 * groups <= self.target.threads * c.ints("ctas_per_sm"))
        return distinct

    def _fits(self, c: Columns) -> Bools:
        s = self.sizes(c)
        resident = self.limits.resident(s)
        fits: Bools = resident >= c.ints("ctas_per_sm")
        held = np.where(s.reloads == 1, s.vectors_per_thread * 2, s.vectors_per_thread * s.own_rows)
        fits &= held <= MOST_VECTORS
        fits &= (s.storage != RowStorage.REGISTERS_AND_SHARED) | (s.buffered_vectors >= 1)
        return fits

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """768 to 1024 threads on a multiprocessor, most of whose vectors exist."""
        s = self.sizes(columns)
        taken = s.vectors_per_thread * s.threads_per_row * s.cluster_size
        sm_threads = s.threads * s.min_ctas_per_sm
        good: Bools = (taken <= MOST_WASTE * s.vectors) & (sm_threads >= 768) & (sm_threads <= 1024)
        return good & (s.own_rows <= MOST_PROMISING_ROWS)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Parts come one after the other, and are reduced meanwhile, but for the last one. Then all CTAs meet. Stores
        hide the arithmetic of outputs."""
        s, p, measured = self.sizes(columns), self.problem, gpu_peaks(self.target, peaks)
        per_sm = -(-s.blocks // measured.multiprocessors)
        busy = np.minimum(s.blocks, measured.multiprocessors)
        elements = p.row_count * p.column_count * segment_share(p)
        read, written = elements * p.read_bytes, elements * p.written_bytes
        loads = np.full(len(columns), read / measured.memory_bytes_per_second)
        again = np.where(s.reloads == 1, read / (measured.l2_bytes_per_cycle * busy * measured.clock_hz), 0.0)
        stores = written / measured.memory_bytes_per_second + again
        slowed = np.maximum(BUSY_THREADS / np.maximum(s.threads * per_sm, 1), 1.0) ** IDLE_POWER
        exact = (s.vectors == s.cluster_size * s.vectors_per_cta) & (s.vectors_per_cta % s.threads == 0)
        parts = s.own_rows * per_sm
        cycles = parts * arithmetic_cycles(p, s, measured) / s.cluster_size * np.where(exact, 1.0, TESTED)
        arithmetic = cycles * slowed / measured.clock_hz / 2  # as much before CTAs meet as afterwards
        seconds: Floats = overlapped_seconds(loads, arithmetic) + overlapped_seconds(stores, arithmetic)
        seconds += EXPOSED * arithmetic / parts + PART_SECONDS * parts
        seconds *= np.where(per_sm == PAIR, 1.0, UNPAIRED) * np.where(s.buffered_vectors > 0, SHARED, 1.0)
        seconds += measured.launch_seconds + LOAD_LATENCY_SECONDS + GRID_BARRIER_SECONDS
        return seconds

    def derive(self, columns: Columns) -> Derived:
        s, p = self.sizes(columns), self.problem
        held = np.where(s.reloads == 1, 2, s.own_rows) * s.vectors_per_thread
        return {
            **gpu_columns(self.target, s, wanted=held * s.vector * p.read_bytes),
            **shares_of_rows(p, s),
            "row_iterations": s.own_rows,
            "barriers": np.full(len(columns), 4.0),
            "passes": 1 + s.reloads,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return cooperative_kernel(self.workload, self.problem, self.sizes_of(setting))


def cooperative_sizes(problem: RowwiseProblem, target: Target, c: Columns) -> CooperativeSizes[Ints]:
    """Return the sizes of many settings."""
    limits, per_sm, own = limits_of(target), c.ints("ctas_per_sm"), c.ints("rows_per_cta")
    groups = -(-problem.row_count // own)
    one = np.ones_like(own)
    most = np.maximum(target.threads * per_sm // groups, 1)
    partition = RowPartition(problem.column_count, c.ints("vector_width"), c.ints("threads_per_row"), one, most)
    # No more CTAs than have as many vectors for each thread. Often all threads have the same number of them then.
    needed = -(-partition.vectors // (partition.vectors_per_thread * partition.threads_per_row))
    partition = replace(partition, cluster_size=needed)
    shared, reloads = (c.flags("row_storage", s.text) for s in (RowStorage.REGISTERS_AND_SHARED, RowStorage.GLOBAL))
    every = partition.vectors_per_thread
    warps = partition.threads_per_row // WARP_LANES
    scratch = own * warps * sum(d.bytes for group in exchanged(problem) or () for d in group.dtypes)
    vector_bytes = np.maximum(partition.threads * partition.vector * problem.read_bytes, 1)
    room = (limits.shared_bytes_for(per_sm) - scratch) // vector_bytes
    buffered = np.where(shared, np.clip(room, 0, every * own), 0)
    kept = every * own - buffered
    words = -(-problem.read_bytes * partition.vector // 4)
    converting = CONVERTING if any(tensor.dtype.bits == 16 for tensor in problem.row_inputs) else 0
    held = np.where(reloads, 2 * every, kept + (buffered > 0))
    broadcast = sum((-(-load.dtype.bytes * partition.vector // 4) for load in problem.output_operands), start=0 * own)
    return CooperativeSizes(
        columns=partition.columns,
        vector=partition.vector,
        threads_per_row=partition.threads_per_row,
        rows_per_cta=one,
        cluster_size=partition.cluster_size,
        storage=np.where(shared, int(RowStorage.REGISTERS_AND_SHARED), int(RowStorage.REGISTERS)),
        buffered_vectors=buffered,
        kept_vectors=kept,
        register_vectors=kept + (buffered > 0),
        preloaded_vectors=0 * own,
        registers=SPARE_REGISTERS + converting + words * held + partition.vector + broadcast,
        shared_bytes=scratch + buffered * vector_bytes,
        blocks=groups * partition.cluster_size,
        min_ctas_per_sm=per_sm,
        prefetching_ctas=0 * own,
        prefetch_distance=0 * own,
        joined_moments=0 * own,
        holds_values=0 * own,
        own_rows=own,
        row_groups=groups,
        reloads=reloads.astype(np.int64),
    )


def _plan(workload: Workload, target: Target) -> CooperativePlan | None:
    problem = rowwise_problem(workload)
    if problem is None or problem.row_count > MOST_ROWS or problem.row_bytes < LONG_ROW_BYTES or problem.dynamic:
        return None
    if not problem.elementwise_outputs or exchanged(problem) is None:
        return None
    plan = CooperativePlan(workload, target, problem)
    settings = all_settings(plan.knobs)
    legal = np.logical_and.reduce([c.holds(settings) for c in plan.constraints])
    return plan if legal.any() else None


CUDA_ROWWISE_COOPERATIVE = TileSketch("cuda_rowwise_cooperative", 1, QUANTITIES, _plan)
