"""Estimates the time of a kernel that memory bounds. It is the prior that the sketches of such kernels share.

The model takes a launch for waves of thread blocks, one wave after the other. In each round of a wave the threads issue
loads, wait for them, and compute. All rounds together take at least as long as the slowest of

    bytes between memory and L2             / memory bytes per second
    bytes between L2 and multiprocessors    / L2 bytes per second
    bytes to and from shared memory         / shared memory bytes per second
    arithmetic operations                   / float32 operations per second
    loads and stores of warps               / those that the multiprocessors issue per second

and no round is shorter than the latency of a load, nor a launch than the device takes to start its blocks. The former
is Little's law: a device moves no more in this time than its threads have asked for, so small loads and few threads
leave memory idle. Three things come on top: the launch, a tail in which the blocks of the last wave end one by one, and
what does not overlap. While the threads of a block wait for their loads they do nothing else, so only other blocks on
the same multiprocessor overlap with them. The fewer blocks are resident, the more is exposed of the latencies and of
the time of the faster resources.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..space.columns import Floats, Ints
from .peaks import GpuPeaks

LOAD_LATENCY_SECONDS = 700e-9
"""Roughly how long a load from memory takes on Hopper."""
EXPOSED = 0.4
"""The share of the latencies and of the time of the faster resources that a single resident block does not overlap with
the slowest resource; n resident blocks do not overlap the n-th part of it."""
TAIL = 0.3
"""The share of a round that the tail costs."""
ACCESS_CYCLES = 1.5
"""Cycles of a multiprocessor for a load or store of a warp, with the instructions for its address."""
BLOCK_CYCLES = 2.2
"""Cycles of the device in which it starts one thread block. It starts no two at once: on an H200 launches of 6,272,
11,664, 12,544 and 65,536 small blocks took 1.25 to 1.28 ns a block, whatever else they did."""
TILE_SECONDS = 10e-9
"""What each tile of a multiprocessor costs. A launch with 65,536 blocks of 128 threads takes an H200 80 us for what
fewer and larger blocks do in 65 us."""
# The others were fitted on 24 transposes and 24 depthwise convolutions that an H200 timed. Estimates and times differ
# by 4 % and 8 % (standard deviations).

Figure: TypeAlias = float | Ints | Floats
"""A number for all settings, or a column with one number for each."""


@dataclass(frozen=True, slots=True)
class MemoryTraffic:
    """What one launch does. Each field is one number for all settings or a column, one number for each setting.

    ``blocks``: thread blocks of the launch. ``resident``: how many of them a multiprocessor runs at once. ``rounds``:
    how often a thread waits for loads, one time after the other. The other fields are totals of the launch:
    ``memory_bytes`` pass between memory and L2, ``l2_bytes`` between L2 and the multiprocessors, ``shared_bytes`` to
    and from shared memory. ``accesses`` are loads and stores of whole warps, ``operations`` are float32 operations.
    """

    blocks: Figure
    resident: Figure
    memory_bytes: Figure
    l2_bytes: Figure
    accesses: Figure
    rounds: Figure = 1.0
    shared_bytes: Figure = 0.0
    operations: Figure = 0.0


def memory_bound_seconds(peaks: GpuPeaks, traffic: MemoryTraffic) -> Floats:
    """Return the estimated time of one launch in seconds, float64[n]."""
    blocks = np.maximum(np.asarray(traffic.blocks, np.float64), 1.0)
    resident = np.maximum(np.asarray(traffic.resident, np.float64), 1.0)
    waves = np.maximum(blocks / (resident * peaks.multiprocessors), 1.0)
    rounds = waves * np.maximum(traffic.rounds, 1.0)
    resources = _resource_seconds(peaks, traffic, np.minimum(blocks, peaks.multiprocessors))
    slowest = resources.max(axis=0)
    body = np.maximum(slowest, rounds * LOAD_LATENCY_SECONDS)
    body = np.maximum(body, peaks.seconds(1.0) * BLOCK_CYCLES * blocks)
    exposed = EXPOSED * (resources.sum(axis=0) - slowest + rounds * LOAD_LATENCY_SECONDS) / resident
    tail = TAIL * body / rounds
    found: Floats = peaks.launch_seconds + body + exposed + tail
    return found


def _resource_seconds(peaks: GpuPeaks, traffic: MemoryTraffic, busy: Floats) -> Floats:
    """Return how long each resource needs for the whole launch while ``busy`` multiprocessors have blocks, float64[5,
    n]."""
    cycles_per_second = busy * peaks.clock_hz
    seconds = (
        np.asarray(traffic.memory_bytes, np.float64) / peaks.memory_bytes_per_second,
        np.asarray(traffic.l2_bytes, np.float64) / (peaks.l2_bytes_per_cycle * cycles_per_second),
        np.asarray(traffic.shared_bytes, np.float64) / (peaks.shared_bytes_per_cycle * cycles_per_second),
        np.asarray(traffic.operations, np.float64) / (peaks.float32_flops_per_cycle * cycles_per_second),
        np.asarray(traffic.accesses, np.float64) * ACCESS_CYCLES / cycles_per_second,
    )
    return np.stack(np.broadcast_arrays(*seconds))
