"""Estimates the time of a column-wise reduction.

The CTAs that run at once are a wave. A wave takes about as long as the slower of two things: moving its bytes from
memory, and the chain of loads of one thread, which waits once for every ``unroll`` rows. Then the splits become one: in
a cluster after two barriers, or in a second launch that reads partial results.

Of shifted vectors two more things are known: how long the multiprocessor with most CTAs takes to read its bytes, and
that later waves expose how CTAs begin and end, unless others of the multiprocessor read meanwhile. Sums of 64x1021x1023
16-bit floats and 8192x8191 floats on an H200 show both. The settings of vectors that are not shifted are estimated
without them, as they were fitted.
"""

import numpy as np

from ...problems.columnwise import ColumnwiseProblem
from ...space.columns import Floats, Ints
from ..occupancy import GpuLimits
from ..peaks import GpuPeaks
from ..reduction_prior import (
    CLUSTER_BARRIER_CYCLES,
    CTA_BARRIER_CYCLES,
    LINE_BYTES,
    LOAD_LATENCY_SECONDS,
    SECTOR_BYTES,
    WARP_REDUCTION_CYCLES,
    bytes_for_run,
    overlapped_seconds,
    seconds_in_waves,
)
from .sizes import ColumnwiseSizes

CACHED_BYTES = 228 << 10
"""Rows that are read again come from caches, as long as a multiprocessor has less than so many bytes of them. The part
that comes from memory is about the third power of their share: 48, 64, 128 and 192 KB cost an H100 6, 7, 19 and 64 % of
what a second read from memory does (x / sqrt(mean(x * x, 1)) of 32x64x256x256)."""

SHARED_STATE_CYCLES = 8
"""Roughly how long a thread takes to load a state from shared memory and to combine it with others. Shifted vectors
leave those of all threads there."""


def columnwise_seconds(
    problem: ColumnwiseProblem, s: ColumnwiseSizes[Ints], limits: GpuLimits, peaks: GpuPeaks
) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    rows_per_cta = -(-problem.reduced_count // s.splits)
    bytes_of_row = np.minimum(s.columns_per_cta, problem.column_count) * problem.read_bytes
    written = np.minimum(s.columns_per_cta, problem.column_count) * problem.written_bytes
    # Runs that begin anywhere in a line have a sector more on the average, half of which other CTAs find in L2.
    crossed = SECTOR_BYTES / 2 if problem.column_count * problem.read_bytes % LINE_BYTES else 0.0
    read = rows_per_cta * (bytes_for_run(bytes_of_row) + crossed)
    bytes_of_cta = read + rows_per_cta * written
    waits = -(-rows_per_cta // s.rows_per_step) * (2 if problem.later_outputs else 1)
    lanes = np.where(s.shifted == 1, s.threads_y * SHARED_STATE_CYCLES, WARP_REDUCTION_CYCLES)
    ends = (lanes + CTA_BARRIER_CYCLES) / peaks.clock_hz
    chain = waits * LOAD_LATENCY_SECONDS + ends
    resident = limits.resident(s)
    if problem.later_outputs:
        of_sm = read * np.minimum(resident, -(-s.blocks // peaks.multiprocessors))
        bytes_of_cta = bytes_of_cta + read * np.minimum(of_sm / CACHED_BYTES, 1.0) ** 3

    def wave_seconds(running: Ints) -> Floats:
        busiest = -(-running // peaks.multiprocessors) * bytes_of_cta / (peaks.l2_bytes_per_cycle * peaks.clock_hz)
        moving = running * bytes_of_cta / peaks.memory_bytes_per_second
        return overlapped_seconds(moving, np.where(s.shifted == 1, busiest, 0.0), chain)

    at_once = np.maximum(resident * peaks.multiprocessors, 1)
    seconds = peaks.launch_seconds + seconds_in_waves(s.blocks, at_once, wave_seconds)
    exposed = (-(-s.blocks // at_once) - 1) * (LOAD_LATENCY_SECONDS + ends) / np.maximum(resident, 1)
    seconds = seconds + np.where(s.shifted == 1, exposed, 0.0)
    return seconds + np.where(s.splits > 1, _combine_seconds(problem, s, limits, peaks), 0.0)


def _combine_seconds(
    problem: ColumnwiseProblem, s: ColumnwiseSizes[Ints], limits: GpuLimits, peaks: GpuPeaks
) -> Floats:
    """Return how long the partial results of the splits take to become one. From Hopper on the second launch starts
    while the first one still runs; its threads load all their partial results at once."""
    l2_bytes_per_second = peaks.l2_bytes_per_cycle * peaks.multiprocessors * peaks.clock_hz
    start = 0.0 if limits.clusters else peaks.launch_seconds
    in_second_launch = start + LOAD_LATENCY_SECONDS + partial_bytes(problem, s) / l2_bytes_per_second
    return np.where(s.in_cluster == 1, 2 * CLUSTER_BARRIER_CYCLES / peaks.clock_hz, in_second_launch)


def partial_bytes(problem: ColumnwiseProblem, s: ColumnwiseSizes[Ints]) -> Ints:
    """Return how many bytes of partial results the first launch writes and a second one reads, int64[n]."""
    moved = 2 * s.splits * problem.outer_count * problem.column_count * problem.state_bytes
    bytes_moved: Ints = np.where((s.splits > 1) & (s.in_cluster == 0), moved, 0)
    return bytes_moved
