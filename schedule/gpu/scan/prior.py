"""Estimates the time of a scan.

The CTAs that run at once are a wave. A wave takes about as long as the slowest of three things: moving the bytes of its
lines, their arithmetic, and the chain of one CTA. The chain has for each chunk a load, and the scan of its lanes with a
barrier. Where the next chunk is loaded meanwhile, the longer of the two counts. CTAs on one multiprocessor overlap with
each other: the fewer there are, the more of the chain comes on top.

Where CTAs share lines, a launch that reduces their parts comes first, or all CTAs are one wave, whose chain has a
barrier of the grid for each chunk. Nothing moves meanwhile unless the next chunk is loaded ahead. With decoupled
look-back the chain has instead what a thread takes to load the sums of some other CTAs, one after the other.
"""

import numpy as np

from ....ir.expr import WARP_LANES, Binary, Unary, walk
from ...problems.scan import ScanProblem
from ...space.columns import Floats, Ints
from ..memory_prior import EXPOSED
from ..occupancy import GpuLimits
from ..peaks import GpuPeaks
from ..reduction_prior import (
    CTA_BARRIER_CYCLES,
    KEPT_IN_L2_BYTES,
    LOAD_LATENCY_SECONDS,
    WARP_REDUCTION_CYCLES,
    overlapped_seconds,
    seconds_in_waves,
)
from .sizes import ScanSizes

SECTOR_BYTES = 32
"""How many contiguous bytes a load or a store moves at least."""
ACCESS_BYTES = 64
"""How many contiguous bytes memory gives at least."""
LANE_STEP_OPERATIONS = 8
"""How many float32 operations take as long as one step of a scan across lanes: a shuffle, a select and an addition."""
SEGMENT_CYCLES = 6
"""How long a thread takes to add up the total of one more segment."""
ITEM_CYCLES = 12
"""How long the scans of items wait for each other."""
GRID_BARRIER_SECONDS, GRID_BARRIER_CTA_SECONDS = 2e-6, 1e-9
"""How long the barrier of the grid takes, with what CTAs combine behind it, and how much longer for each CTA. These and
the next one are guesses: 8 lines of 4 million floats are estimated at 73 us, and take an H200 95."""
LOOK_BACK_SECONDS, AWAITED_SECONDS = 0.6e-6, 0.4e-6
"""How long it takes until a sum with a flag is seen, with what CTAs combine then, and how long a thread takes to load
one. Both are guesses by the latency of L2: the same lines are estimated at 67 us with decoupled look-back, and take
81."""
COOPERATIVE_SECONDS = 2e-6
"""What a cooperative launch takes besides, since it begins when the launch before has ended."""
PAIR = 2
"""Of more CTAs on a multiprocessor no more overlap, where all of them meet (``rowwise.cooperative``)."""


def scan_seconds(p: ScanProblem, s: ScanSizes[Ints], limits: GpuLimits, peaks: GpuPeaks) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    elements = p.lines * p.length * held_share(p, s)
    wasted = np.maximum(ACCESS_BYTES / contiguous_bytes(p, s), 1.0)
    read_of_cta = p.lines * p.length * p.body_bytes * wasted / s.blocks
    bytes_of_cta = p.lines * p.length * sum(p.element_bytes) * wasted / s.blocks
    operations = elements * _operations(p) + elements / s.vector * _lane_operations(p, s)
    if p.along_rows:
        operations = operations + elements / (s.vector * s.items) * (2 * s.segments)
    else:
        operations = operations + elements / s.items * (2 * s.segments)
    cycles_of_cta = operations / s.blocks / (peaks.float32_flops_per_cycle / 2)
    reducing_cycles = elements * _operations(p) / s.blocks / (peaks.float32_flops_per_cycle / 2)
    scanning = (WARP_REDUCTION_CYCLES + ITEM_CYCLES * s.items + SEGMENT_CYCLES * s.segments) / peaks.clock_hz
    scanning = scanning + np.where(s.segments > 1, CTA_BARRIER_CYCLES / peaks.clock_hz, 0.0)
    combining = np.where(s.ctas_per_line > 1, LOAD_LATENCY_SECONDS + scanning, 0.0)
    at_barrier = (s.cooperative == 1) & (s.look_back == 0)
    awaited = -(-np.where(s.single_pass == 1, s.window, s.ctas_per_line - 1) // s.line_threads)
    scanning = scanning + np.where(at_barrier, GRID_BARRIER_SECONDS + GRID_BARRIER_CTA_SECONDS * s.blocks, 0.0)
    hop = LOOK_BACK_SECONDS + AWAITED_SECONDS * awaited
    scanning = scanning + np.where(s.look_back == 1, hop, 0.0)
    in_turns = at_barrier & (s.stages == 1)
    resident = np.maximum(limits.resident(s), 1)

    def chain(of_chunk: Floats) -> Floats:
        one_by_one = s.chunks * (LOAD_LATENCY_SECONDS + of_chunk)
        ahead = LOAD_LATENCY_SECONDS + s.chunks * np.maximum(LOAD_LATENCY_SECONDS, of_chunk)
        return np.where(s.stages > 1, ahead, one_by_one)

    def in_waves(bytes: Floats, cycles: Floats, chain: Floats) -> Floats:
        def wave_seconds(running: Ints) -> Floats:
            busy = np.clip(running, 1, peaks.multiprocessors)
            moving = running * bytes / peaks.memory_bytes_per_second
            together = overlapped_seconds(moving, running * cycles / busy / peaks.clock_hz, chain)
            together = np.where(in_turns, moving + chain, together)
            overlapping = np.where(s.cooperative == 1, np.minimum(running, PAIR * busy), running)
            return together + EXPOSED * chain * busy / np.maximum(overlapping, 1)

        return seconds_in_waves(s.blocks, resident * peaks.multiprocessors, wave_seconds)

    seconds = peaks.launch_seconds + in_waves(bytes_of_cta, cycles_of_cta, chain(scanning) + combining)
    reducing = peaks.launch_seconds + in_waves(read_of_cta, reducing_cycles, chain(0 * scanning) + combining)
    reducing -= np.minimum(read_of_cta * s.blocks, KEPT_IN_L2_BYTES) * _saved_by_l2(peaks)
    seconds += np.where((s.ctas_per_line > 1) & (s.cooperative == 0) & (s.look_back == 0), reducing, 0.0)
    # Windows of chunks wait for each other.
    windows = s.ctas_per_line / s.window * hop
    seconds = np.where(s.single_pass == 1, np.maximum(seconds, windows) + peaks.launch_seconds, seconds)
    return seconds + np.where(s.cooperative == 1, COOPERATIVE_SECONDS, 0.0)


def _saved_by_l2(peaks: GpuPeaks) -> float:
    """Return how much less time a byte takes from L2 than from memory, in seconds."""
    l2_bytes_per_second = peaks.l2_bytes_per_cycle * peaks.multiprocessors * peaks.clock_hz
    return max(1 / peaks.memory_bytes_per_second - 1 / l2_bytes_per_second, 0.0)


def contiguous_bytes(p: ScanProblem, s: ScanSizes[Ints]) -> Ints:
    """Return how much of memory a warp reads or writes in one piece."""
    lanes = np.minimum(s.line_threads if p.along_rows else s.line_vectors, WARP_LANES)
    return np.minimum(lanes * s.vector, p.lane_axis.extent) * max(p.element_bytes)


def held_share(p: ScanProblem, s: ScanSizes[Ints]) -> Floats:
    """Elements of all chunks for each one that exists."""
    lines = s.blocks // s.ctas_per_line * s.line_vectors * (1 if p.along_rows else s.vector)
    return s.chunk * s.chunks * s.ctas_per_line / p.length * lines / p.lines


def _operations(p: ScanProblem) -> int:
    """Operations for each element: those of the expressions, two additions, and the addresses of loads and stores."""
    bodies = (p.body, *(o.body for o in p.outputs))
    return 2 + len(p.loads) + len(p.outputs) + sum(isinstance(e, Binary | Unary) for b in bodies for e in walk(b))


def _lane_operations(p: ScanProblem, s: ScanSizes[Ints]) -> Floats:
    """Operations of the scan across lanes, for each vector of a row; along columns there is one for all items."""
    lanes = s.line_threads // s.segments
    steps = (np.log2(lanes) + 2 * (lanes > 1)) * LANE_STEP_OPERATIONS
    found: Floats = steps if p.along_rows else steps * s.vector / s.items
    return found
