"""Estimates the time of a kernel that works on rows.

The CTAs that run at once are a wave. A wave takes about as long as the slowest of three things: moving the bytes of its
rows between memory and the multiprocessors, their arithmetic, and the chain of loads and barriers of one row.

A row has to be loaded before any of it is written, so that these three overlap only with those of other CTAs. Where a
multiprocessor has few CTAs, a part of all three is exposed.
"""

import numpy as np
from numpy.typing import NDArray

from ....ir.expr import WARP_LANES, Binary, Unary, UnaryOp, walk
from ...problems.rowwise import RowwiseProblem, has_column_axis
from ...space.columns import Ints
from ..memory_prior import BLOCK_CYCLES, EXPOSED
from ..occupancy import GpuLimits
from ..peaks import GpuPeaks
from ..reduction_prior import (
    CLUSTER_BARRIER_CYCLES,
    CLUSTERED_SHARE,
    CTA_BARRIER_CYCLES,
    LARGEST_CLUSTER,
    LOAD_LATENCY_SECONDS,
    WARP_REDUCTION_CYCLES,
    overlapped_seconds,
    seconds_in_waves,
)
from .sizes import RowStorage, RowwiseSizes, clusters_at_once

LOADS_AHEAD = 2
"""How many vectors of each input a thread has under way while rows stay in memory."""
ENOUGH_CTAS = 3
"""So many CTAs on a multiprocessor hide one another's loads, arithmetic and writes. A softmax of 1024 rows of 65536, in
registers and shared memory, takes an H200 83 us with one CTA on a multiprocessor, 70 us with two and 68 us with three.
"""
PLAIN = frozenset({UnaryOp.NEG, UnaryOp.ABS, UnaryOp.NOT, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.RINT})
SPECIAL_OPERATIONS = 8
"""Any other function of one operand takes special function units, of which there is one for so many float32 units."""
SHARED_ROW = 1.002
"""Where nothing else tells two settings apart, the one whose CTAs hold whole rows is the faster one: rows of 32768
floats over their mean take an H100 722 us with one CTA for each, and 740 with four."""


def rowwise_seconds(
    problem: RowwiseProblem, s: RowwiseSizes[Ints], limits: GpuLimits, peaks: GpuPeaks
) -> NDArray[np.float64]:
    """Return the estimated time of each setting in seconds, float64[n]."""
    circular = s.storage == RowStorage.CIRCULAR_BUFFER
    reads = np.where(s.storage == RowStorage.GLOBAL, len(problem.reductions) + bool(problem.elementwise_outputs), 1)
    row_bytes = problem.column_count * (reads * problem.read_bytes + problem.written_bytes)
    arithmetic_of_row = _arithmetic_cycles(problem, s, peaks) / peaks.clock_hz

    # A circular buffer asks for the next rows while it works on one, so that latency and barriers go on at once.
    barriers = _barrier_cycles(problem, s) / peaks.clock_hz
    buffered_rows = np.maximum(s.buffered_vectors, 1) / s.vectors_per_thread
    chain = np.where(
        circular,
        np.maximum(LOAD_LATENCY_SECONDS / buffered_rows, barriers),
        LOAD_LATENCY_SECONDS * reads + barriers,
    )

    resident = limits.resident_blocks(s.threads, s.registers, s.shared_bytes)
    vector_bytes = s.vector * max(problem.read_bytes, 1)
    # A group norm of 128 rows of 131072 went from 54 to 65 us on an H200 as its default became clusters of 16.
    wide = resident * int(CLUSTERED_SHARE * peaks.multiprocessors) // LARGEST_CLUSTER
    clusters = clusters_at_once(resident * peaks.multiprocessors, s.cluster_size)
    clusters = np.where(s.cluster_size == LARGEST_CLUSTER, wide, clusters)
    clusters = np.where(circular, np.minimum(clusters, s.ctas // s.cluster_size), clusters)

    row_groups = -(-problem.row_count // s.rows_per_cta)
    exposed = _exposed_share(problem, s, row_groups, clusters, peaks)

    def wave_seconds(running: Ints) -> NDArray[np.float64]:
        rows = running * s.rows_per_cta
        busy = np.clip(running * s.cluster_size, 1, peaks.multiprocessors)
        transfer = rows * row_bytes / peaks.memory_bytes_per_second
        # Where a row stays in memory, no CTA has more under way than its threads have asked for.
        alone = row_bytes / s.cluster_size * LOAD_LATENCY_SECONDS / (LOADS_AHEAD * s.threads_per_row * vector_bytes)
        transfer = np.where(s.storage == RowStorage.GLOBAL, np.maximum(transfer, alone), transfer)
        arithmetic = rows * arithmetic_of_row / busy
        together = overlapped_seconds(transfer, arithmetic, chain)
        seconds: NDArray[np.float64] = together + exposed * (transfer + arithmetic + chain - together)
        return seconds

    # Nothing overlaps with the first loads of a buffer, and with the arithmetic of the last rows.
    fill = np.where(circular, LOAD_LATENCY_SECONDS, 0.0) + _thread_cycles(problem, s) / peaks.clock_hz
    started = BLOCK_CYCLES * np.where(circular, np.minimum(s.ctas, resident * peaks.multiprocessors), s.ctas)
    body = np.maximum(fill + seconds_in_waves(row_groups, clusters, wave_seconds), started / peaks.clock_hz)
    held = (s.cluster_size == 1) & (s.storage != RowStorage.GLOBAL)
    return peaks.launch_seconds + body * np.where(held, 1.0, SHARED_ROW)


def _exposed_share(
    problem: RowwiseProblem, s: RowwiseSizes[Ints], row_groups: Ints, clusters: Ints, peaks: GpuPeaks
) -> NDArray[np.float64]:
    """Return which share of the loads, the arithmetic and the writes of a wave does not overlap with one another.

    A CTA that prefetches later rows counts twice, since these are under way as well. A cluster of 16 waits until a
    part of the chip is free, and so until all of the cluster before have ended.
    """
    if not problem.elementwise_outputs:
        return np.zeros(len(s.storage))
    ctas = np.maximum(np.minimum(clusters, row_groups) * s.cluster_size / peaks.multiprocessors, 1.0)
    ctas = np.where((s.prefetch_distance > 0) & (row_groups > clusters), 2 * ctas, ctas)
    share = EXPOSED * np.clip((ENOUGH_CTAS - ctas) / (ENOUGH_CTAS - 1), 0.0, 1.0) ** 3
    share = np.where(s.cluster_size == LARGEST_CLUSTER, 1.0, share)
    return np.where(s.storage == RowStorage.GLOBAL, 0.0, share)


def _arithmetic_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints], peaks: GpuPeaks) -> NDArray[np.float64]:
    """Return how long one multiprocessor computes for one row, one cycle of a float32 unit for each operation. Threads
    without a vector work as well."""
    elements = s.vectors_per_thread * s.threads_per_row * s.cluster_size * s.vector
    operations = _operations(problem, SPECIAL_OPERATIONS)
    cycles: NDArray[np.float64] = elements * operations / (peaks.float32_flops_per_cycle / 2)
    return cycles


def _thread_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints]) -> Ints:
    """Return how long a thread computes for its part of a row, an operation in each cycle. A row in shared memory is
    written and read there."""
    shared = np.where(s.storage == RowStorage.REGISTERS_AND_SHARED, 2, 0)
    cycles: Ints = s.vectors_per_thread * s.vector * (_operations(problem, 1) + shared)
    return cycles


def _operations(problem: RowwiseProblem, special: int) -> int:
    """Return how many operations each element takes. One of a special function unit counts as ``special`` of them."""
    bodies = [r.body for r in problem.reductions] + [c.body for c in problem.elementwise_outputs]
    found = [e for body in bodies for e in walk(body) if isinstance(e, Binary | Unary) and has_column_axis(e)]
    return sum(special if isinstance(e, Unary) and e.op not in PLAIN else 1 for e in found)


def _barrier_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints]) -> Ints:
    """Return how long the threads of a row take to combine their states in all reductions. The CTAs of a cluster wait
    once more before they write, unless they have a circular buffer."""
    clustered = s.cluster_size > 1
    exchange = np.where(s.threads_per_row > WARP_LANES, CTA_BARRIER_CYCLES, 0)
    exchange = np.where(clustered, CLUSTER_BARRIER_CYCLES, exchange)
    before_writes = np.where(clustered & (s.storage != RowStorage.CIRCULAR_BUFFER), CLUSTER_BARRIER_CYCLES, 0)
    cycles: Ints = (len(problem.reductions) - s.joined_moments) * (WARP_REDUCTION_CYCLES + exchange) + before_writes
    return cycles
