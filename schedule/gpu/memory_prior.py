"""The estimated time of a kernel that memory bounds: the prior that the sketches of such kernels share.

The model takes a launch for waves of thread blocks, one wave after the other. In every round of a wave each thread
issues its loads and then waits for them. A round takes as long as the slowest of

    bytes between memory and L2             / memory bytes per second
    bytes between L2 and multiprocessors    / L2 bytes per second
    bytes to and from shared memory         / shared memory bytes per second
    arithmetic operations                   / float32 operations per second

and no less than the latency of a load. The latency stands for Little's law: a device moves no more in that time than
its threads have asked for, so small loads and few threads leave memory idle. The last wave has fewer blocks.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .peaks import GpuPeaks

LOAD_LATENCY_SECONDS = 700e-9
"""Roughly how long a load from memory takes on Hopper."""

Figure: TypeAlias = float | NDArray[np.int64] | NDArray[np.float64]
"""A number for all settings, or a column with one number for each."""


@dataclass(frozen=True, slots=True)
class MemoryTraffic:
    """What one launch does. Each field is one number for all settings or a column, one number for each setting.

    ``blocks``: thread blocks of the launch. ``resident``: how many of them a multiprocessor runs at once. ``rounds``:
    how often a thread waits for loads, one time after the other. The other fields are totals of the launch:
    ``memory_bytes`` pass between memory and L2, ``l2_bytes`` between L2 and the multiprocessors (at least the former),
    ``shared_bytes`` to and from shared memory (bytes that wait for a bank count again), and ``operations`` are float32
    operations.
    """

    blocks: Figure
    resident: Figure
    memory_bytes: Figure
    l2_bytes: Figure
    rounds: Figure = 1.0
    shared_bytes: Figure = 0.0
    operations: Figure = 0.0


def memory_bound_seconds(peaks: GpuPeaks, traffic: MemoryTraffic) -> NDArray[np.float64]:
    """The estimated time of one launch in seconds, float64[n]."""
    blocks = np.maximum(np.asarray(traffic.blocks, np.float64), 1.0)
    resident = np.maximum(np.asarray(traffic.resident, np.float64), 1.0)
    rounds = np.maximum(np.asarray(traffic.rounds, np.float64), 1.0)
    waves = blocks / (resident * peaks.multiprocessors)
    slowest = _throughput_seconds(peaks, traffic, np.minimum(blocks, peaks.multiprocessors)) / rounds
    whole_waves = np.floor(waves)
    last_wave = waves - whole_waves
    round_seconds = whole_waves * np.maximum(LOAD_LATENCY_SECONDS, slowest / waves)
    round_seconds += np.where(last_wave > 0, np.maximum(LOAD_LATENCY_SECONDS, slowest * last_wave / waves), 0.0)
    seconds: NDArray[np.float64] = peaks.launch_seconds + rounds * round_seconds
    return seconds


def _throughput_seconds(peaks: GpuPeaks, traffic: MemoryTraffic, busy: NDArray[np.float64]) -> NDArray[np.float64]:
    """The time of the whole launch if no load had a latency, while ``busy`` multiprocessors have blocks."""
    cycles_per_second = busy * peaks.clock_hz
    limits = (
        np.asarray(traffic.memory_bytes, np.float64) / peaks.memory_bytes_per_second,
        np.asarray(traffic.l2_bytes, np.float64) / (peaks.l2_bytes_per_cycle * cycles_per_second),
        np.asarray(traffic.shared_bytes, np.float64) / (peaks.shared_bytes_per_cycle * cycles_per_second),
        np.asarray(traffic.operations, np.float64) / (peaks.float32_flops_per_cycle * cycles_per_second),
    )
    slowest: NDArray[np.float64] = limits[0]
    for seconds in limits[1:]:
        slowest = np.maximum(slowest, seconds)
    return slowest
