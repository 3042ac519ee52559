"""Describes the settings of kernels that work on rows: softmax, norms, sums and positions of rows, with what is fused
to them.

The threads of a row read it once into registers, reduce it as often as needed and write the outputs. The CTAs of a
cluster share a long row. A row that fits nowhere is read again for every pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES, Load
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.row_axes import has_row_axis
from ...problems.rowwise import RowwiseProblem, rowwise_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, columns_of_setting, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..reduction_prior import LARGEST_CLUSTER
from .kernel import rowwise_kernel
from .prior import rowwise_seconds
from .sizes import HALF_ROW, ONE_ROW, TWO_ROWS, UNROLL, RowStorage, RowwiseSizes, rowwise_sizes

MOST_VECTORS = 16
"""How many vectors of a row a thread may take. The passes are unrolled, and the compiler keeps what two of them have in
common in registers, of which there are too few for more vectors. It keeps more where no barrier of the CTA or cluster
stands between the passes, and less where a part of the row stays in shared memory."""
CLUSTER_ROW_BYTES = 32 << 10
"""Shorter rows gain nothing from a cluster, whose barriers cost more than those of a CTA."""
LONG_ROW_BYTES = 256 << 10
"""Rows from here on are beyond the registers of a CTA, so that reading them again may pay."""
MOST_HELD_BYTES = 400 << 10
"""A CTA holds about so many bytes of a row at most, in registers and shared memory."""
WIDE_CLUSTER_REGISTERS = 4
"""Where 16 CTAs share a row, threads need so many registers more than is estimated, to combine what they have (from
compiled kernels: a softmax with 64 registers spills)."""
MOST_WASTE = 4 / 3
"""How many vectors the threads may take at most for each vector that there is."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("row_bytes", "B", "how much is read of a row"),
    Quantity("vectors_per_thread", "vectors", "how many vectors of a row a thread takes"),
    Quantity("idle_share", "fraction", "which share of the vectors that threads could take does not exist"),
    Quantity("row_threads", "threads", "how many threads work on a row, in all CTAs of its cluster"),
    Quantity("row_iterations", "rows", "how many rows a CTA takes one after another"),
    Quantity("barriers", "barriers", "how many barriers of a CTA or a cluster a row takes"),
    Quantity("passes", "passes", "how often a row is read from memory"),
)


SHORT_ROW = 64
"""Of rows of so many elements, a CTA may take more than a warp has lanes, since it takes time to begin a CTA."""
FEW_ROWS_PER_SM = 2
"""Of a dynamic number of rows, up to so many for each multiprocessor are few."""
FEW_ROWS_VECTORS = 4
"""Where rows are few, a thread takes so many vectors of a row at most. An RMS norm of 16 rows of 4096 takes an H200 1.2
us with four vectors a thread and all weights loaded ahead, and 2.9 us with eight and weights loaded later."""


@dataclass(frozen=True)
class RowwisePlan(GpuPlan):
    workload: Workload
    target: Target
    problem: RowwiseProblem

    @property
    def knobs(self) -> tuple[Knob, ...]:
        longest = max(1, self.problem.column_count // min(vector_widths(self.problem)))
        threads = tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n < 2 * longest)
        limits = self.limits
        most_rows = limits.lanes if self.problem.column_count > SHORT_ROW else 256
        storages = tuple(RowStorage) if limits.async_copies else (RowStorage.REGISTERS, RowStorage.GLOBAL)
        clusters: tuple[int, ...] = (1,)
        if limits.clusters and self.problem.row_bytes >= CLUSTER_ROW_BYTES:
            clusters = (1, 2, 4, 8, 16) if self.problem.row_bytes >= LONG_ROW_BYTES else (1, 2, 4, 8)
        return (
            Knob("vector_width", vector_widths(self.problem), "how many elements a thread reads at once"),
            Knob("threads_per_row", threads, "how many threads of a CTA work on one row"),
            Knob(
                "rows_per_cta",
                tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= most_rows),
                "how many rows a CTA works on at a time",
            ),
            Knob("cluster_size", clusters, "how many CTAs share a row"),
            Knob("row_storage", tuple(s.text for s in storages), "where a row stays between the passes over it"),
            Knob(
                "ctas_per_sm",
                (1, 2, 3, 4, 8),
                "how many CTAs share the shared memory of a multiprocessor, where rows stay in it",
            ),
            Knob(
                "prefetch_depth",
                (ONE_ROW, HALF_ROW, TWO_ROWS),
                "how much of the next rows a circular buffer holds at most beside a row",
            ),
            Knob(
                "broadcast_preload",
                (0, 1, 3, 5) if self._operands else (0,),
                "which share of the broadcast operands is loaded before a row is reduced: none, all, or one in so many",
            ),
            Knob(
                "joined_moments",
                (0, 1) if self.problem.has_moments else (0,),
                "whether threads exchange a mean and the squares of deviations from it at once",
            ),
        )

    @derived_once
    def sizes(self, columns: Columns) -> RowwiseSizes[Ints]:
        return rowwise_sizes(self.problem, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (*self._thread_constraints(), *self._storage_constraints(), *self._room_constraints())

    def _thread_constraints(self) -> tuple[Constraint, ...]:
        """Return which threads can share rows."""
        return (
            self.rule(
                "threads_per_row times rows_per_cta is a whole number of warps and at most the threads of a CTA",
                ("threads_per_row", "rows_per_cta"),
                lambda s: (s.threads % self.limits.lanes == 0) & (s.threads <= self.limits.threads_per_block),
            ),
            self.rule(
                "threads_per_row is at least the number of columns that are in no whole vector",
                ("vector_width", "threads_per_row"),
                lambda s: s.edge_columns <= s.threads_per_row,
            ),
            Constraint(
                "with a cluster_size above 1, threads_per_row is at least a warp",
                ("threads_per_row", "cluster_size"),
                lambda c: (c.ints("cluster_size") == 1) | (c.ints("threads_per_row") >= WARP_LANES),
            ),
            Constraint(
                "a thread takes at most 16 vectors of a row, or 8 where the row has a single warp, or else 32 with "
                "row_storage registers_and_shared, or any number with global",
                ("vector_width", "threads_per_row", "cluster_size", "row_storage"),
                self._takes_few_vectors,
            ),
        )

    def _storage_constraints(self) -> tuple[Constraint, ...]:
        """Return what goes with each ``row_storage``; a knob without effect has its first value."""
        return (
            Constraint(
                "ctas_per_sm is 1 unless row_storage is registers_and_shared or circular_buffer",
                ("row_storage", "ctas_per_sm"),
                lambda c: _in_shared(c) | (c.ints("ctas_per_sm") == 1),
            ),
            Constraint(
                "prefetch_depth is one_row unless row_storage is circular_buffer",
                ("row_storage", "prefetch_depth"),
                lambda c: _stored(c, RowStorage.CIRCULAR_BUFFER) | c.flags("prefetch_depth", ONE_ROW),
            ),
            Constraint(
                "rows_per_cta is 1 where row_storage is circular_buffer",
                ("rows_per_cta", "row_storage"),
                lambda c: ~_stored(c, RowStorage.CIRCULAR_BUFFER) | (c.ints("rows_per_cta") == 1),
            ),
            Constraint(
                "a vector has 4, 8 or 16 bytes of every input, and begins at a multiple of them, where row_storage is "
                "registers_and_shared or circular_buffer",
                ("vector_width", "row_storage"),
                lambda c: ~_in_shared(c) | copied_by_cp_async(self.problem, c),
            ),
            Constraint(
                "broadcast_preload is 0 where row_storage is global, and with circular_buffer where the rows need "
                "different elements of the broadcast operands",
                ("vector_width", "cluster_size", "row_storage", "ctas_per_sm", "broadcast_preload"),
                self._preloads_stay_valid,
            ),
            Constraint(
                "broadcast_preload preloads other vectors than every smaller value of it",
                ("vector_width", "threads_per_row", "cluster_size", "broadcast_preload"),
                self._preload_is_distinct,
            ),
            self.rule(
                "with joined_moments all threads of a row have the same number of elements",
                ("vector_width", "threads_per_row", "cluster_size", "joined_moments"),
                lambda s: (
                    (s.joined_moments == 0)
                    | ((s.edge_columns == 0) & (s.vectors_per_thread * s.threads_per_row * s.cluster_size == s.vectors))
                ),
            ),
        )

    def _room_constraints(self) -> tuple[Constraint, ...]:
        """Return what registers and shared memory have room for."""
        row = ("vector_width", "threads_per_row", "rows_per_cta", "cluster_size")
        buffer = (*row, "row_storage", "ctas_per_sm", "prefetch_depth")
        return (
            Constraint(
                "shared memory has room for a vector of each thread with row_storage registers_and_shared, and for a "
                "whole row with circular_buffer",
                buffer,
                self._buffer_has_room,
            ),
            Constraint(
                "a prefetch_depth of half_row or two_rows gives another buffer than one_row",
                buffer,
                self._depth_is_distinct,
            ),
            Constraint(
                "registers and shared memory have room for ctas_per_sm CTAs on a multiprocessor",
                (*buffer, "broadcast_preload"),
                self._fits,
            ),
        )

    @property
    def _operands(self) -> tuple[Load, ...]:
        """What elementwise outputs read along a row, beside their own element of it."""
        p = self.problem
        return (*p.output_broadcasts, *(p.other_loads if p.elementwise_outputs else ()))

    def _preloads_stay_valid(self, c: Columns) -> Bools:
        """A circular buffer's operands are loaded once for all rows, whose first vectors must be at the same column.
        Where every pass reads the row again, a thread takes ``UNROLL`` vectors at a time, whose slots do not say which
        preloaded ones belong to them."""
        s, p = self.sizes(c), self.problem
        follow_rows = any(has_row_axis(i) for load in self._operands for i in load.indices)
        apart = s.blocks // s.cluster_size * s.columns  # elements from a row of a CTA to its next one
        in_memory_order = not p.joined_extent and not p.order
        same_column = (s.edge_columns == 0) | ((apart % s.vector == 0) & in_memory_order)
        valid: Bools = same_column & (not follow_rows)
        valid |= ~_stored(c, RowStorage.CIRCULAR_BUFFER)
        valid &= ~_stored(c, RowStorage.GLOBAL)
        valid |= c.ints("broadcast_preload") == 0
        return valid

    def _preload_is_distinct(self, c: Columns) -> Bools:
        vectors, share = self.sizes(c).vectors_per_thread, c.ints("broadcast_preload")
        preloaded = vectors // np.maximum(share, 1)
        distinct: Bools = preloaded > 0
        for smaller in (1, 3):
            distinct &= (share <= smaller) | (vectors // smaller != preloaded)
        distinct |= share == 0
        return distinct

    def _takes_few_vectors(self, c: Columns) -> Bools:
        s = self.sizes(c)
        single_warp = (s.threads_per_row <= WARP_LANES) & (s.cluster_size == 1)
        both = s.storage == RowStorage.REGISTERS_AND_SHARED
        most = np.where(single_warp, MOST_VECTORS // 2, np.where(both, 2 * MOST_VECTORS, MOST_VECTORS))
        few: Bools = s.vectors_per_thread <= most
        return few | _stored(c, RowStorage.GLOBAL)

    def _buffer_has_room(self, c: Columns) -> Bools:
        s = self.sizes(c)
        both, circular = s.storage == RowStorage.REGISTERS_AND_SHARED, s.storage == RowStorage.CIRCULAR_BUFFER
        has_room: Bools = s.buffered_vectors >= np.where(circular, s.vectors_per_thread, np.where(both, 1, 0))
        return has_room

    def _depth_is_distinct(self, c: Columns) -> Bools:
        s = self.sizes(c)
        row, buffered = s.vectors_per_thread, s.buffered_vectors
        distinct: Bools = ~c.flags("prefetch_depth", HALF_ROW) | (buffered == row + row // 2)
        distinct &= ~c.flags("prefetch_depth", TWO_ROWS) | (buffered > 2 * row)
        return distinct

    def _fits(self, c: Columns) -> Bools:
        s = self.sizes(c)
        resident = self.limits.resident(s)
        fits: Bools = resident >= c.ints("ctas_per_sm")
        return fits

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        s, p = self.sizes(columns), self.problem
        alone, clustered = s.rows_per_cta == 1, s.cluster_size > 1
        taken = s.vectors_per_thread * s.threads_per_row * s.cluster_size
        little_waste = np.maximum(MOST_WASTE * s.vectors, s.vectors + np.minimum(s.threads_per_row, WARP_LANES) - 1)
        good: Bools = taken <= little_waste
        good &= alone | (s.storage == RowStorage.REGISTERS_AND_SHARED) | (s.threads <= 256)
        good &= alone | (s.threads == self.limits.lanes) | (s.rows_per_cta <= p.row_count)
        every_cta_works = s.vectors > (s.cluster_size - 1) * s.vectors_per_cta
        good &= ~clustered | (alone & (s.threads_per_row >= 128) & every_cta_works & (s.vectors_per_thread >= 4))
        good &= (s.cluster_size < LARGEST_CLUSTER) | (
            self.limits.resident_blocks(s.threads, s.registers + WIDE_CLUSTER_REGISTERS, s.shared_bytes) > 0
        )
        good &= (s.joined_moments == 0) | (clustered & (s.storage == RowStorage.CIRCULAR_BUFFER))
        good &= (s.storage != RowStorage.REGISTERS) | (columns.ints("broadcast_preload") <= 1)
        good &= (s.storage != RowStorage.REGISTERS_AND_SHARED) | self._promising_in_both(columns, s)
        good &= (s.storage != RowStorage.CIRCULAR_BUFFER) | self._promising_in_buffer(columns, s)
        good &= (s.storage != RowStorage.GLOBAL) | self._promising_in_global(s)
        return good

    def _promising_in_both(self, c: Columns, s: RowwiseSizes[Ints]) -> Bools:
        """Several CTAs on a multiprocessor, or two groups of threads in one: one of them loads while another writes.
        Rows that smaller clusters cannot hold have the largest ones."""
        per_sm = c.ints("ctas_per_sm")
        several = (s.rows_per_cta == 1) & (per_sm >= 2) & (s.threads_per_row >= 128) & (s.threads * per_sm >= 512)
        pair = (s.rows_per_cta == 2) & (per_sm == 1) & (s.threads_per_row == 512)
        good: Bools = (several | pair) & (s.cluster_size == 1)
        longest = self.problem.row_bytes > LARGEST_CLUSTER // 2 * MOST_HELD_BYTES
        good |= longest & (s.cluster_size == LARGEST_CLUSTER) & (per_sm == 1) & (s.threads_per_row >= 512)
        good &= (c.ints("broadcast_preload") <= 1) & (self.problem.row_bytes >= CLUSTER_ROW_BYTES)
        return good & self._outputs_read_rows

    def _promising_in_buffer(self, c: Columns, s: RowwiseSizes[Ints]) -> Bools:
        """At least two rows for each CTA, and 512 to 1024 threads on a multiprocessor. Where a cluster has one exchange
        for each row, three CTAs of 128 threads do better: a layer norm of 1024x65536 takes an H200 72.6 us with them,
        and 78.5 us with two exchanges and what is best then.

        Two more rows have room only where a cluster shares each row. Beside the whole row of a CTA there is no room for
        all preloaded operands, so that a part of them is worth a try there.
        """
        per_sm, row, sm_threads = c.ints("ctas_per_sm"), s.vectors_per_thread, s.threads * c.ints("ctas_per_sm")
        good: Bools = (s.cluster_size <= 8) & (s.threads_per_row >= 128)
        one_exchange = s.joined_moments == 1
        good &= (per_sm == 3) == one_exchange
        good &= (sm_threads >= np.where(one_exchange, 384, 512)) & (sm_threads <= 1024)
        good &= self.problem.row_count * s.cluster_size >= 2 * s.blocks
        good &= ~c.flags("prefetch_depth", HALF_ROW) | (row >= 4)
        good &= ~c.flags("prefetch_depth", TWO_ROWS) | ((s.buffered_vectors == 3 * row) & (s.cluster_size > 1))
        partly = (s.cluster_size == 1) & c.flags("prefetch_depth", ONE_ROW) & (s.preloaded_vectors >= 2)
        good &= (c.ints("broadcast_preload") <= 1) | partly
        return good & self._outputs_read_rows

    def _promising_in_global(self, s: RowwiseSizes[Ints]) -> Bools:
        good: Bools = (s.threads_per_row >= 256) & (s.vectors_per_thread > UNROLL)
        good &= (s.cluster_size == 1) | (not self._outputs_read_rows)
        return good & (self.problem.row_bytes >= LONG_ROW_BYTES)

    @property
    def _outputs_read_rows(self) -> bool:
        """Whether a row is needed again once it is reduced."""
        return len(self.problem.elementwise_outputs) > 0

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return rowwise_seconds(self.problem, self.sizes(columns), self.limits, gpu_peaks(self.target, peaks))

    def derive(self, columns: Columns) -> Derived:
        s, p = self.sizes(columns), self.problem
        clustered, circular = s.cluster_size > 1, s.storage == RowStorage.CIRCULAR_BUFFER
        in_flight = np.where(circular, s.buffered_vectors, s.vectors_per_thread)
        in_flight = np.where(s.storage == RowStorage.GLOBAL, UNROLL, in_flight)
        exchanges = len(p.reductions) - s.joined_moments
        barriers = np.where((s.threads_per_row > WARP_LANES) | clustered, exchanges, 0) + clustered
        passes = len(p.passes) + bool(p.elementwise_outputs)
        return {
            **gpu_columns(self.target, s, wanted=in_flight * s.vector * p.read_bytes),
            **shares_of_rows(p, s),
            "row_iterations": np.where(circular, p.row_count * s.cluster_size / s.blocks, 1.0),
            "barriers": barriers,
            "passes": np.where(s.storage == RowStorage.GLOBAL, passes, 1),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        sizes, few = self.sizes_of(setting), self._few_rows
        found = None if few is None else few._for_few_rows(setting)
        launch = None if few is None or found is None else (few.problem, found)
        return rowwise_kernel(self.workload, self.problem, sizes, launch)

    @property
    def _few_rows(self) -> "RowwisePlan | None":
        """This plan for so few rows that all of them are under way at once, where their number is dynamic and kernels
        are measured on more."""
        p = self.problem
        if p.dynamic is None or self.target.kind != "cuda":
            return None
        first = FEW_ROWS_PER_SM * self.target.threads // p.row_unit
        if not 0 < first < self.workload.dynamic[0].representative:
            return None
        return replace(self, problem=replace(p, rows=(first, *p.rows[1:])))

    def _for_few_rows(self, setting: Mapping[str, KnobValue]) -> RowwiseSizes[int] | None:
        """Return the sizes for few rows, where a row takes as long as its loads and its arithmetic one after the other:
        more threads for each row, and all operands loaded at once. None where the ``setting`` has that already, or
        where that cannot be."""
        chosen = columns_of_setting(self.knobs, setting)
        knobs = {knob.name: knob.values for knob in self.knobs}
        for threads in knobs["threads_per_row"]:
            rows = max(1, WARP_LANES // int(threads))
            for preload in (1, 0):
                given = {"threads_per_row": threads, "rows_per_cta": rows, "broadcast_preload": preload}
                given |= {"vector_width": setting["vector_width"], "row_storage": RowStorage.REGISTERS.text}
                if any(value not in knobs[name] for name, value in given.items()):
                    continue
                columns = columns_of_setting(self.knobs, given)
                few = self.sizes_of(given)
                if few.vectors_per_thread > FEW_ROWS_VECTORS or not all(c.holds(columns)[0] for c in self.constraints):
                    continue
                wider = few.threads_per_row * few.cluster_size > int(self.sizes(chosen).threads_per_row[0])
                return few if wider and setting["cluster_size"] == 1 else None
        return None


def shares_of_rows(p: RowwiseProblem, s: RowwiseSizes[Ints]) -> dict[str, Floats]:
    """Return what settings say of how threads share a row: the quantities that are the same in all sketches of rows,
    float64[n] each."""
    taken = s.vectors_per_thread * s.threads_per_row * s.cluster_size
    return {
        "row_bytes": np.full(len(taken), float(p.row_bytes)),
        "vectors_per_thread": s.vectors_per_thread.astype(np.float64),
        "idle_share": 1 - s.vectors / np.maximum(taken, 1),
        "row_threads": (s.threads_per_row * s.cluster_size).astype(np.float64),
    }


def copied_by_cp_async(p: RowwiseProblem, c: Columns) -> Bools:
    """Return where the vectors of rows can be copied to shared memory asynchronously."""
    vector = c.ints("vector_width")
    copied: Bools = (p.pitch == 0) | ((p.pitch % vector == 0) & (p.column_count % vector == 0))
    for tensor in p.row_inputs:
        copied &= np.isin(tensor.dtype.bytes * vector, (4, 8, 16))
    return copied


def vector_widths(p: RowwiseProblem) -> tuple[int, ...]:
    """Return the numbers of elements that a vector may have.

    A vector has 16 bytes of the narrowest or of the widest element. Smaller vectors that divide the row are there
    too where these two do not. Rows of several axes are read only in vectors that divide the last axis, or the last
    axes where they run along several.
    """
    sizes = [b.dtype.bytes for b in p.row_inputs] + [c.tensor.dtype.bytes for c in p.elementwise_outputs]
    last = prod(p.columns[-p.vector_axes :])
    wished = sorted({max(1, 16 // min(sizes)), max(1, 16 // max(sizes))})
    exact = [v for v in (1, 2, 4, 8, 16) if last % v == 0 and v <= max(wished)]
    if len(p.columns) > 1 or last < 32 * max(wished):
        return tuple(exact[-2:] if len(exact) > 1 and exact[-1] >= max(wished) else exact[-1:])
    return tuple(dict.fromkeys([*wished, *(v for v in exact[-1:] if v >= 2)]))


def _stored(c: Columns, storage: RowStorage) -> Bools:
    return c.flags("row_storage", storage.text)


def _in_shared(c: Columns) -> Bools:
    """Return where rows stay in shared memory, wholly or in part."""
    return _stored(c, RowStorage.REGISTERS_AND_SHARED) | _stored(c, RowStorage.CIRCULAR_BUFFER)


def _plan(workload: Workload, target: Target) -> RowwisePlan | None:
    problem = rowwise_problem(workload, reads_elsewhere=True)
    return None if problem is None else RowwisePlan(workload, target, problem)


CUDA_ROWWISE = TileSketch("cuda_rowwise", 4, QUANTITIES, _plan, dynamic=True)
AMDGPU_ROWWISE = TileSketch("amdgpu_rowwise", 3, QUANTITIES, _plan, kind="amdgpu")
