"""The estimated time of a column-wise reduction.

The CTAs that run at once are a wave. A wave takes as long as the slower of two things: moving its bytes from memory,
and the chain of loads of one thread, which waits once for every ``unroll`` rows. The last wave has fewer CTAs. Then
the splits become one: in a cluster after two barriers, or in a second launch that reads partial results.
"""

import numpy as np
from numpy.typing import NDArray

from ...problems.columnwise import ColumnwiseProblem
from ...space.columns import Ints
from ..occupancy import GpuLimits
from ..peaks import GpuPeaks
from .sizes import ColumnwiseSizes

LOAD_LATENCY_SECONDS = 700e-9
"""Roughly how long a load from memory takes on Hopper."""
SECTOR_BYTES = 32
"""The least that memory gives."""
CTA_BARRIER_CYCLES = 300
"""Roughly how long the warps of a CTA take to combine their states."""
CLUSTER_BARRIER_CYCLES = 1000
"""Roughly how long a barrier of a cluster takes, with the reads of other CTAs' shared memory after it."""


def columnwise_seconds(
    problem: ColumnwiseProblem, s: ColumnwiseSizes[Ints], limits: GpuLimits, peaks: GpuPeaks
) -> NDArray[np.float64]:
    """The estimated time of each setting in seconds, float64[n]."""
    rows_per_cta = -(-problem.reduced_count // s.splits)
    run_bytes = np.minimum(s.columns_per_cta, problem.column_count) * problem.read_bytes
    cta_bytes = rows_per_cta * np.maximum(run_bytes, SECTOR_BYTES)
    waits = -(-rows_per_cta // s.rows_per_step)
    chain = waits * LOAD_LATENCY_SECONDS + CTA_BARRIER_CYCLES / peaks.clock_hz

    resident = limits.resident_blocks(s.threads, s.registers, s.shared_bytes)
    ctas_of_wave = np.maximum(resident * peaks.multiprocessors, 1)
    waves, left = np.divmod(s.ctas, ctas_of_wave)

    def wave_seconds(ctas: Ints) -> NDArray[np.float64]:
        slower: NDArray[np.float64] = np.maximum(ctas * cta_bytes / peaks.memory_bytes_per_second, chain)
        return slower

    total = waves * wave_seconds(ctas_of_wave) + np.where(left > 0, wave_seconds(left), 0.0)
    cluster_seconds = 2 * CLUSTER_BARRIER_CYCLES / peaks.clock_hz
    l2_bytes_per_second = peaks.l2_bytes_per_cycle * peaks.multiprocessors * peaks.clock_hz
    second_waits = -(-s.splits // s.second_threads_y)
    second_seconds = (
        peaks.launch_seconds + second_waits * LOAD_LATENCY_SECONDS + partial_bytes(problem, s) / l2_bytes_per_second
    )
    combine = np.where(s.splits == 1, 0.0, np.where(s.in_cluster == 1, cluster_seconds, second_seconds))
    seconds: NDArray[np.float64] = peaks.launch_seconds + total + combine
    return seconds


def partial_bytes(problem: ColumnwiseProblem, s: ColumnwiseSizes[Ints]) -> Ints:
    """How many bytes of partial results the first launch writes and a second one reads, int64[n]."""
    moved = 2 * s.splits * problem.outer_count * problem.column_count * problem.state_bytes
    bytes_moved: Ints = np.where((s.splits > 1) & (s.in_cluster == 0), moved, 0)
    return bytes_moved
