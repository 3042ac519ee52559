"""What a setting of ``cuda_attention`` takes by the work of each unit, and the time that follows from it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...problems.attention import Attention
from ...space.columns import Ints
from ..peaks import GpuPeaks
from .sizes import AttentionSizes

Floats = NDArray[np.float64]

EXPONENTIALS_PER_CYCLE = 16.0
"""A multiprocessor computes so many exp2 in a cycle (CUDA C++ Programming Guide, "Arithmetic Instructions")."""
WEIGHT_INSTRUCTIONS = 5.0
"""A score takes about so many further instructions, each of a lane, to become a weight (from compiled kernels)."""
STEP_CYCLES = 120.0
"""The barriers, shuffles and waits of a step take so many cycles of one warpgroup."""
TILE_CYCLES = 3500.0
"""To begin and to end a tile of queries takes so many cycles: the first loads, and the last stores."""
PERSISTENT_TILE_CYCLES = 2200.0
"""The same in a CTA that has loaded keys of the next tile before."""
TWO_WAYS_HIDDEN, ONE_WAY_HIDDEN = 0.9, 0.75
"""Which share of the lesser one of matrix and weight cycles is hidden: by overlap within a warpgroup and several
warpgroups, or by one of the two."""


@dataclass(frozen=True)
class StepCycles:
    """How many cycles each unit of a multiprocessor takes for one step of all warpgroups of a CTA, float64[n] each."""

    mma: Floats
    weights: Floats
    shared: Floats


def step_cycles(p: Attention, s: AttentionSizes[Ints], peaks: GpuPeaks) -> StepCycles:
    """What a step asks of the tensor cores, of the units for exp2 and arithmetic, and of shared memory."""
    k, d = p.k.extent, p.d.extent
    scores = s.tile_q * s.tile_kv
    instructions = WEIGHT_INSTRUCTIONS * scores / (peaks.float32_flops_per_cycle / 2)
    operands = s.consumer_warpgroups * (64 * k + s.tile_kv * (k + d)) * 2
    return StepCycles(
        mma=np.asarray(2.0 * scores * (k + d) / peaks.tensor_flops_per_cycle, np.float64),
        weights=scores / EXPONENTIALS_PER_CYCLE + instructions,
        shared=(operands + s.tile_kv * (k + d) * 2) / peaks.shared_bytes_per_cycle,
    )


def steps_per_tile(p: Attention, s: AttentionSizes[Ints]) -> Floats:
    """How many steps a tile makes on average."""
    rows = np.arange(32) / 31 * (p.m.extent - 1)  # of a few tiles, evenly spread
    last, first = np.full(32, p.n.extent - 1.0), np.zeros(32)
    for bound in p.bounds:
        slope, limit = bound.limit.coefficient("m"), float(bound.limit.constant)
        seen = slope * rows + limit
        last, first = (np.minimum(last, seen), first) if bound.upper else (last, np.maximum(first, seen))
    keys = float(np.maximum(last - first + 1, 1).mean())
    whole = np.full(len(s.tile_kv), keys) if not p.bounds else keys + s.tile_q / 2 + s.tile_kv / 2
    steps: Floats = np.minimum(np.maximum(whole / s.tile_kv, 1.0), s.kv_blocks)
    return np.ceil(steps) if not p.bounds else steps


def prior_seconds(p: Attention, s: AttentionSizes[Ints], peaks: GpuPeaks) -> Floats:
    """The estimated time of each setting in seconds.

    step = the slower one of products and weights + what is not hidden of the other + barriers
    time = launch + the greater of (waves x (steps + begin and end of a tile)) and of moving all tensors once
    """
    work = step_cycles(p, s, peaks)
    mma = np.maximum(work.mma, work.shared)
    ways = (s.overlap == 1).astype(np.int64) + (s.consumer_warpgroups > 1)
    hidden = np.where(ways == 2, TWO_WAYS_HIDDEN, np.where(ways == 1, ONE_WAY_HIDDEN, 0.0))
    step = np.maximum(mma, work.weights) + (1 - hidden) * np.minimum(mma, work.weights)
    step += STEP_CYCLES * np.where(s.stages == 1, 4.0, 1.0)
    tile = np.where(s.persistent == 1, PERSISTENT_TILE_CYCLES, TILE_CYCLES)
    busy = steps_per_tile(p, s) * step + tile
    per_sm = s.tiles / peaks.multiprocessors
    waves = np.where(p.bounds != (), np.maximum(per_sm, 1.0) + 0.5 / s.group_heads, np.ceil(per_sm))
    moved = sum(b.bytes for b in (*p.inputs, p.result.tensor)) / peaks.memory_bytes_per_cycle
    seconds: Floats = peaks.launch_seconds + np.maximum(waves * busy, moved) / peaks.clock_hz
    return seconds
