"""The estimated time of a loop nest, from its derived columns.

    seconds = launch + max(vector instructions / busy share of the threads, tiles from the caches, tensors from memory)
              + packing

It looks at the group with the most work. Nothing in it was fitted.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ....te.workload import Workload
from ...space.columns import Columns
from ..peaks import CpuPeaks
from ..shared_knobs import NON_TEMPORAL
from .footprint import body_loads
from .fusion import FusedGroup, paddings, points
from .promising import BUSY_ACCUMULATORS
from .tile_loops import INLINE
from .tiles import lane_bytes

Seconds = NDArray[np.float64]

L1_BYTES, L2_BYTES = 32 << 10, 1 << 20
"""Nominal sizes of the caches of a core."""
LOOP_STEPS = 2
"""What counting and jumping cost for each run of the innermost body, in vector instructions."""


def loops_seconds(
    workload: Workload,
    stored: FusedGroup,
    inlined: FusedGroup,
    c: Columns,
    q: Mapping[str, NDArray[np.float64]],
    peaks: CpuPeaks,
) -> Seconds:
    """The estimated time of each setting in seconds, float64[n]. ``stored`` and ``inlined``: the group with the most
    work where padding is stored and where it is inlined. ``q``: the derived columns of the settings."""
    inline = c.flags("padding", INLINE)
    work = np.where(inline, _arithmetic(inlined), _arithmetic(stored))
    instructions = _instruction_seconds(stored, work, c, q, peaks)
    caches = _cache_seconds(q, peaks)
    memory = _memory_seconds(workload, inline, c, peaks)
    found: Seconds = np.maximum(np.maximum(instructions, caches), memory)
    packing = 2 * q["packing_share"] * stored.work * lane_bytes(stored) / peaks.l2_bytes_per_second
    return peaks.launch_seconds + found + packing


def _arithmetic(group: FusedGroup) -> int:
    """Plain operations of a group without its loads, at least one for each point."""
    loads = sum(points(s) * len(body_loads(s)) for s in group.stages)
    return max(group.work - loads, sum(points(s) for s in group.stages))


def _instruction_seconds(
    group: FusedGroup, work: NDArray[np.int64], c: Columns, q: Mapping[str, NDArray[np.float64]], peaks: CpuPeaks
) -> Seconds:
    """Arithmetic or loads of vectors, whichever takes longer. A load that is not contiguous costs one for each lane.
    With few accumulators, each step of a reduction waits for the one before it."""
    lanes = c.ints("lanes")
    vectors = work / lanes / np.maximum(1 - q["edge_waste"], 1e-3)
    busy = BUSY_ACCUMULATORS if group.reductions else 1
    arithmetic = vectors * np.maximum(busy / np.maximum(q["accumulators"], 1), 1)
    loads = vectors * q["loads_per_operation"] * (1 + q["uneven_loads"] * (lanes - 1))
    combining = vectors * q["across_lanes"] * np.log2(np.maximum(lanes, 2))
    steps = np.maximum(arithmetic, loads) + combining + LOOP_STEPS * q["body_repeats"]
    return steps / peaks.vector_steps() / (1 - q["idle_share"])


def _cache_seconds(q: Mapping[str, NDArray[np.float64]], peaks: CpuPeaks) -> Seconds:
    """What tiles read, less what the first-level cache keeps from tile to tile. Where a task's data does not fit the
    second level, it comes from further away, at the rate of memory."""
    kept = np.where(q["reused_bytes"] <= L1_BYTES, q["reused_bytes"] * q["tiles"], 0)
    traffic = np.maximum(q["tile_traffic"] - kept, q["task_traffic"])
    far = min(peaks.read_bytes_per_second, peaks.l2_bytes_per_second)
    rate = np.where(q["task_bytes"] <= L2_BYTES, peaks.l2_bytes_per_second, far)
    seconds: Seconds = np.maximum(traffic / rate, q["task_traffic"] / peaks.l2_bytes_per_second)
    return seconds


def _memory_seconds(workload: Workload, inline: NDArray[np.bool_], c: Columns, peaks: CpuPeaks) -> Seconds:
    """All inputs and outputs once. An output that goes through the caches is read before it is written, and a stored
    padding is written and read again."""
    inputs = sum(b.bytes for b in workload.inputs)
    outputs = sum(b.bytes for b in workload.output_buffers)
    padded = sum(workload.stage(name).tensor.bytes for name in paddings(workload))
    past = c.flags("store", NON_TEMPORAL)
    moved = inputs + np.where(past, 1, 2) * outputs + np.where(inline, 0, 2 * padded)
    seconds: Seconds = moved / peaks.memory_bytes_per_second
    return seconds
