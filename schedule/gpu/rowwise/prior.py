"""The estimated time of a kernel that works on rows.

The CTAs that run at once are a wave. All rows of a wave together take as long as the slowest of three things: moving
their bytes between memory and the multiprocessors, their arithmetic, and the chain of loads and barriers of one row.
The last wave has fewer CTAs.
"""

import numpy as np
from numpy.typing import NDArray

from ....ir.expr import WARP_LANES, Expr, walk
from ...problems.rowwise import RowwiseProblem
from ...space.columns import Ints
from ..occupancy import GpuLimits
from ..peaks import GpuPeaks
from .sizes import RowStorage, RowwiseSizes

LOAD_LATENCY_SECONDS = 700e-9
"""Roughly how long a load from memory takes on Hopper."""
WARP_REDUCTION_CYCLES = 150
"""Roughly how long five shuffles and what combines their values take, one after the other."""
CTA_BARRIER_CYCLES = 150
"""Roughly how long the warps of a CTA take to exchange their states through shared memory and a barrier."""
CLUSTER_BARRIER_CYCLES = 1000
"""Roughly how long the CTAs of a cluster take for the same."""


def rowwise_seconds(
    problem: RowwiseProblem, s: RowwiseSizes[Ints], limits: GpuLimits, peaks: GpuPeaks
) -> NDArray[np.float64]:
    """The estimated time of each setting in seconds, float64[n]."""
    circular = s.storage == RowStorage.CIRCULAR_BUFFER
    reads = np.where(s.storage == RowStorage.GLOBAL, len(problem.reductions) + bool(problem.elementwise_outputs), 1)
    row_bytes = problem.column_count * (reads * problem.read_bytes + problem.written_bytes)
    row_seconds_of_sm = _arithmetic_cycles(problem, s, peaks) / peaks.clock_hz

    # A circular buffer asks for the next rows early enough that their latency passes while a row is worked on.
    rows_in_flight = np.where(circular, s.buffered_vectors / s.vectors_per_thread, 1 / reads)
    latency = LOAD_LATENCY_SECONDS / rows_in_flight
    barriers = _barrier_cycles(problem, s) / peaks.clock_hz
    chain = np.where(circular, np.maximum(latency, barriers), latency + barriers)

    clusters_of_wave = np.maximum(
        limits.resident_blocks(s.threads, s.registers, s.shared_bytes) * peaks.multiprocessors // s.cluster_size, 1
    )
    row_groups = -(-problem.row_count // s.rows_per_cta)
    clusters_of_wave = np.where(circular, np.minimum(clusters_of_wave, s.ctas // s.cluster_size), clusters_of_wave)
    waves, left = np.divmod(row_groups, clusters_of_wave)

    def wave_seconds(clusters: Ints) -> NDArray[np.float64]:
        rows = clusters * s.rows_per_cta
        busy = np.minimum(clusters * s.cluster_size, peaks.multiprocessors)
        transfer = rows * row_bytes / peaks.memory_bytes_per_second
        arithmetic = rows * row_seconds_of_sm / np.maximum(busy, 1)
        slowest: NDArray[np.float64] = np.maximum(np.maximum(transfer, arithmetic), chain)
        return slowest

    total = waves * wave_seconds(clusters_of_wave) + np.where(left > 0, wave_seconds(left), 0.0)
    seconds: NDArray[np.float64] = peaks.launch_seconds + total + np.where(circular, LOAD_LATENCY_SECONDS, 0.0)
    return seconds


def _arithmetic_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints], peaks: GpuPeaks) -> NDArray[np.float64]:
    """How long one multiprocessor computes for one row, with what idle threads cost and every operation in a cycle of
    a float32 unit."""
    elements = s.vectors_per_thread * s.threads_per_row * s.cluster_size * s.vector
    bodies = [r.body for r in problem.reductions] + [c.body for c in problem.elementwise_outputs]
    operations = sum(_operations(body) for body in bodies)
    cycles: NDArray[np.float64] = elements * operations / (peaks.float32_flops_per_cycle / 2)
    return cycles


def _operations(body: Expr) -> int:
    return sum(1 for e in walk(body) if e.children)


def _barrier_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints]) -> NDArray[np.float64]:
    """How long the threads of a row take to combine their states, in all reductions."""
    clustered = s.cluster_size > 1
    exchange = np.where(s.threads_per_row > WARP_LANES, CTA_BARRIER_CYCLES, 0)
    exchange = np.where(clustered, CLUSTER_BARRIER_CYCLES, exchange)
    before_writes = np.where(clustered & (s.storage != RowStorage.CIRCULAR_BUFFER), CLUSTER_BARRIER_CYCLES, 0)
    cycles: NDArray[np.float64] = len(problem.reductions) * (WARP_REDUCTION_CYCLES + exchange) + before_writes
    return cycles
