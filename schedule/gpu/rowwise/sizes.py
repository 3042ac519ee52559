"""How a row is shared out among threads, and what a thread block takes of a multiprocessor.

The columns of a row are taken in vectors of ``vector`` elements:

    row     |--------------------- columns ----------------------|
            |e|   CTA 0 of the cluster  |   CTA 1 of the cluster |e|
            vectors_per_cta vectors: thread t has the vectors t, t + threads_per_row, t + 2 * threads_per_row ...

A row whose length is no multiple of a vector is cut where a vector is aligned in memory. Every row then has the same
number of whole vectors, from its first aligned element on. The few columns in front of them and behind them are the
edge columns (``e``); the first threads of the row take one each.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.rowwise import RowwiseProblem
from ...space.columns import Columns, Ints
from ..occupancy import GpuLimits, limits_of
from .held_values import MOST_HELD_VALUES, held_values

N = TypeVar("N", int, Ints)
"""A number of one setting, or a column of the numbers of many settings."""

UNROLL = 4
"""How many vectors a thread loads at a time where every pass reads the row again."""
SPARE_REGISTERS = 22
"""Roughly how many registers a thread needs for addresses and partial results (from compiled kernels)."""
OVERESTIMATED_REGISTERS = 12
"""By how many registers of a thread the estimate may be too high."""
SPARE_SHARED_BYTES = 256
"""How many bytes of a CTA's shared memory the rows in it leave free."""
ONE_ROW, HALF_ROW, TWO_ROWS = "one_row", "half_row", "two_rows"


class RowStorage(IntEnum):
    """Where a row stays between the passes over it."""

    REGISTERS = 0
    """All vectors of a thread stay in its registers."""
    REGISTERS_AND_SHARED = 1
    """The first vectors of a thread stay in its registers, the others in shared memory."""
    CIRCULAR_BUFFER = 2
    """The vectors of a thread stay in a circular buffer in shared memory, into which those of the next row are copied
    meanwhile. A CTA takes one row after another."""
    GLOBAL = 3
    """Every pass reads the row from global memory again."""

    @property
    def text(self) -> str:
        """The value of the knob ``row_storage``."""
        return self.name.lower()


IN_SHARED_MEMORY = (RowStorage.REGISTERS_AND_SHARED, RowStorage.CIRCULAR_BUFFER)
"""The storages that keep a row in shared memory, wholly or in part."""


@dataclass(frozen=True, slots=True, eq=False)
class RowPartition(Generic[N]):
    """How a row is shared out among threads, in one setting (N is int) or in many (N is a column of them).

    ``columns``: elements of a row. ``vector``: elements of one memory access. ``threads_per_row``: threads of a CTA
    that work on one row. ``rows_per_cta``: rows that a CTA works on at a time. ``cluster_size``: CTAs that share a row.
    """

    columns: int
    vector: N
    threads_per_row: N
    rows_per_cta: N
    cluster_size: N

    @property
    def threads(self) -> N:
        """Threads of a CTA."""
        return self.threads_per_row * self.rows_per_cta

    @property
    def vectors(self) -> N:
        """Whole vectors of a row: as many in every row, wherever it begins in memory."""
        ragged = -(-(self.columns % self.vector) // self.vector)  # 1 where vectors do not divide a row, else 0
        return (self.columns - ragged * (self.vector - 1)) // self.vector

    @property
    def edge_columns(self) -> N:
        """Columns of a row that are in none of its vectors."""
        return self.columns - self.vectors * self.vector

    @property
    def vectors_per_cta(self) -> N:
        """Vectors of a row that one CTA of the cluster takes, at most."""
        return -(-self.vectors // self.cluster_size)

    @property
    def vectors_per_thread(self) -> N:
        """Vectors of a row that one thread takes, at most."""
        return -(-self.vectors_per_cta // self.threads_per_row)

    @property
    def elements_per_thread(self) -> N:
        """Elements of a row that one thread has in its vectors, at most."""
        return self.vectors_per_thread * self.vector


@dataclass(frozen=True, slots=True, eq=False)
class RowwiseSizes(RowPartition[N]):
    """All sizes of one setting (N is int), or of many (N is a column of them).

    ``storage``: where a row stays between the passes, a ``RowStorage``.
    ``buffered_vectors``: vectors of a thread for which there is room in shared memory.
    ``kept_vectors``: vectors of a row that a thread keeps in registers between the passes.
    ``register_vectors``: vectors of a row for which a thread has registers.
    ``preloaded_vectors``: for how many of its vectors a thread loads the broadcast operands of the outputs before it
    reduces the row. With a circular buffer it does so once, before all rows.
    ``registers``: registers of a thread, estimated.
    ``shared_bytes``: shared memory of a CTA.
    ``blocks``: CTAs of the launch.
    ``min_ctas_per_sm``: CTAs for which a multiprocessor must have room, which limits their registers; 0: any number.
    ``prefetching_ctas``: how many CTAs, the first ones, prefetch their rows to L2 before they wait for the launches
    before; 0: none.
    ``prefetch_distance``: a CTA prefetches to L2 the rows of the CTA that comes so many CTAs later; 0: it does not.
    ``joined_moments``: whether a mean and the squares of deviations from it are combined at once, 0 or 1.
    ``holds_values``: whether threads hold ``held_values`` from one pass to the next, 0 or 1.
    """

    storage: N
    buffered_vectors: N
    kept_vectors: N
    register_vectors: N
    preloaded_vectors: N
    registers: N
    shared_bytes: N
    blocks: N
    min_ctas_per_sm: N
    prefetching_ctas: N
    prefetch_distance: N
    joined_moments: N
    holds_values: N


def rowwise_sizes(problem: RowwiseProblem, target: Target, c: Columns) -> RowwiseSizes[Ints]:
    """Return the sizes of many settings."""
    limits, ctas_per_sm = limits_of(target), c.ints("ctas_per_sm")
    partition = RowPartition(
        problem.column_count,
        c.ints("vector_width"),
        c.ints("threads_per_row"),
        c.ints("rows_per_cta"),
        c.ints("cluster_size"),
    )
    storage = np.sum([storage * c.flags("row_storage", storage.text) for storage in RowStorage], axis=0)
    reduction_bytes = _reduction_bytes(problem, partition, storage, c.ints("joined_moments"))
    buffered = _buffered_vectors(problem, limits, partition, storage, reduction_bytes, c)
    kept, in_registers = register_vectors(partition, storage, buffered)
    share = c.ints("broadcast_preload")
    preloaded = np.where(share > 0, partition.vectors_per_thread // np.maximum(share, 1), 0)
    holds = (storage == RowStorage.REGISTERS) & (partition.elements_per_thread <= MOST_HELD_VALUES)
    registers = _registers(problem, partition, in_registers, preloaded)
    registers = registers + np.where(holds, held_values(problem).most_words * partition.elements_per_thread, 0)
    shared_bytes = reduction_bytes + buffered * partition.threads * partition.vector * problem.read_bytes
    resident = limits.resident_blocks(partition.threads, registers, shared_bytes)
    # Left alone, the compiler takes more registers for the CTAs of a cluster than there is need for.
    least = np.where((storage == RowStorage.REGISTERS) & (partition.cluster_size > 1), resident, 0)
    first, distance = _l2_prefetch(problem, target, partition, storage, registers, shared_bytes)
    return RowwiseSizes(
        columns=partition.columns,
        vector=partition.vector,
        threads_per_row=partition.threads_per_row,
        rows_per_cta=partition.rows_per_cta,
        cluster_size=partition.cluster_size,
        storage=storage,
        buffered_vectors=buffered,
        kept_vectors=kept,
        register_vectors=in_registers,
        preloaded_vectors=preloaded,
        registers=registers,
        shared_bytes=shared_bytes,
        blocks=_ctas(problem, target, partition, storage, ctas_per_sm),
        min_ctas_per_sm=np.where(np.isin(storage, IN_SHARED_MEMORY), ctas_per_sm, least),
        prefetching_ctas=first,
        prefetch_distance=distance,
        joined_moments=c.ints("joined_moments"),
        holds_values=holds.astype(np.int64),
    )


def register_vectors(partition: RowPartition[Ints], storage: Ints, buffered: Ints) -> tuple[Ints, Ints]:
    """Return how many vectors of a row a thread keeps in registers between the passes, and for how many it has
    registers.

    Where a circular buffer has no room for two rows, some vectors of a row move to registers at once: as many as the
    next row lacks room for. A vector that is read back from shared memory needs registers too, of which a thread has
    one set.
    """
    every = partition.vectors_per_thread
    kept = np.select(
        [storage == RowStorage.REGISTERS_AND_SHARED, storage == RowStorage.CIRCULAR_BUFFER],
        [every - buffered, np.maximum(2 * every - buffered, 0)],
        every,
    )
    return kept, np.where(storage == RowStorage.GLOBAL, UNROLL, np.minimum(kept + 1, every))


def _reduction_bytes(problem: RowwiseProblem, partition: RowPartition[Ints], storage: Ints, joined: Ints) -> Ints:
    """Shared memory for the states of warps. With a circular buffer, rows alternate between two slots."""
    warps = np.maximum(1, partition.threads_per_row // WARP_LANES)
    slots = np.where(storage == RowStorage.CIRCULAR_BUFFER, 2, 1)
    state_bytes = joined * 0 + problem.state_bytes
    if problem.has_moments:
        state_bytes += joined * problem.reductions[0].accumulation.accumulator_dtype.bytes
    needed: Ints = np.where(warps * partition.cluster_size > 1, slots * partition.rows_per_cta * warps * state_bytes, 0)
    return needed


def _buffered_vectors(
    problem: RowwiseProblem,
    limits: GpuLimits,
    partition: RowPartition[Ints],
    storage: Ints,
    reduction_bytes: Ints,
    c: Columns,
) -> Ints:
    """As many vectors of a thread as shared memory has room for, and no more than are of use."""
    free = limits.shared_bytes_for(c.ints("ctas_per_sm")) - reduction_bytes - SPARE_SHARED_BYTES
    fitting = free // np.maximum(partition.threads * partition.vector * problem.read_bytes, 1)
    row = partition.vectors_per_thread
    half, two = c.flags("prefetch_depth", HALF_ROW), c.flags("prefetch_depth", TWO_ROWS)
    of_use = np.where(half, row + row // 2, np.where(two, 3, 2) * row)
    of_use = np.where(storage == RowStorage.CIRCULAR_BUFFER, of_use, row)
    buffered: Ints = np.where(np.isin(storage, IN_SHARED_MEMORY), np.minimum(of_use, fitting), 0)
    return buffered


def _registers(problem: RowwiseProblem, partition: RowPartition[Ints], in_registers: Ints, preloaded: Ints) -> Ints:
    """Registers of a thread: its vectors of the row, a vector of results, and vectors of broadcast operands. Where a
    vector stands in memory, and what belongs to its segment, stays in a register, too, from one pass to the next."""
    words = -(-problem.read_bytes * partition.vector // 4)
    broadcast_words = sum((-(-load.dtype.bytes * partition.vector // 4) for load in problem.output_operands), start=0)
    broadcast_vectors = np.where(preloaded == partition.vectors_per_thread, preloaded, preloaded + 1)
    if problem.elementwise_outputs:
        words += (problem.segment < problem.column_count) + problem.reads_segments
    needed: Ints = SPARE_REGISTERS + words * in_registers + partition.vector + broadcast_words * broadcast_vectors
    return needed


def clusters_at_once(ctas: Ints, cluster_size: Ints) -> Ints:
    """Return how many clusters run at once where a device has room for so many CTAs. Larger clusters leave some
    multiprocessors idle, since they do not cross parts of the chip."""
    clusters = ctas // cluster_size
    found: Ints = np.where(cluster_size > 2, clusters * 15 // 16, clusters)
    return found


def _ctas(
    problem: RowwiseProblem, target: Target, partition: RowPartition[Ints], storage: Ints, ctas_per_sm: Ints
) -> Ints:
    """CTAs of the launch: one for each group of rows, or with a circular buffer as many as run at once."""
    clusters = clusters_at_once(target.threads * ctas_per_sm, partition.cluster_size)
    persistent = np.clip(clusters, 1, problem.row_count)
    groups = -(-problem.row_count // partition.rows_per_cta)
    ctas: Ints = np.where(storage == RowStorage.CIRCULAR_BUFFER, persistent, groups) * partition.cluster_size
    return ctas


def _l2_prefetch(
    problem: RowwiseProblem, target: Target, partition: RowPartition[Ints], storage: Ints, registers: Ints, shared: Ints
) -> tuple[Ints, Ints]:
    """Return how many CTAs, the first ones, prefetch their rows to L2, and the distance at which later rows are
    prefetched.

    Where the launch before still writes, more prefetches are up to 9 % slower on an H200. Compiled kernels take fewer
    registers than is estimated, so that the distance goes by the most CTAs that may run at once.
    """
    limits, writes = limits_of(target), len(problem.elementwise_outputs) > 0
    fits = limits.resident_blocks(partition.threads, registers, shared)
    may_fit = limits.resident_blocks(partition.threads, np.maximum(registers - OVERESTIMATED_REGISTERS, 1), shared)
    prefetches = (storage == RowStorage.REGISTERS) & (partition.cluster_size == 1)
    prefetches &= problem.segment == problem.column_count
    prefetches &= (problem.row_unit % partition.rows_per_cta == 0) | (problem.dynamic is not None)
    first = limits.overlapping_ctas(fits, target.threads) // (2 if writes else 1)
    distance = limits.overlapping_ctas(may_fit, target.threads) if writes else np.zeros_like(first)
    return np.where(prefetches, first, 0), np.where(prefetches, distance, 0)
