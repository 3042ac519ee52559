"""What a setting of ``cuda_attention`` takes by the work of each unit, and the time that follows from it."""

from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace

import numpy as np

from ....ir.expr import WARP_LANES, Var
from ....ir.gpu.wgmma import WGMMA_M
from ...problems.attention import Attention
from ...space.columns import Floats, Ints
from ..peaks import GpuPeaks
from .score_loads import pairs_of, tile_loads
from .sizes import AttentionSizes

# Factors and cycles that were fitted to kernels timed on an H200. They are counted in cycles of a multiprocessor, so
# that they scale with the clock of the device at hand.
EXPONENTIALS_PER_CYCLE = 16.0
"""A multiprocessor computes so many exp2 in a cycle (CUDA C++ Programming Guide, "Arithmetic Instructions")."""
WEIGHT_INSTRUCTIONS = 5.0
"""A score takes about so many further instructions, each of a lane, to become a weight (from compiled kernels)."""
PAIR_CYCLES = 7.0
"""A warp's load of neighbours, which are in eight rows of a tensor, takes about so many cycles (from a bias of 96 heads
of 512 queries and keys)."""
MMA_SHARE = 0.94
"""Products of a step reach so much of the peak of the tensor cores."""
STEP_CYCLES = 190.0
"""The barriers, shuffles and waits of a step take so many cycles of one warpgroup."""
FIRST_TILE_CYCLES, TILE_CYCLES, AHEAD_TILE_CYCLES = 5000.0, 4500.0, 2500.0
"""To begin and to end a tile of queries takes so many cycles: in a CTA of its own, in one that has loaded the first
keys before, and in one that has loaded the queries before, too."""
COMBINE_CYCLES = 2500.0
"""To combine what several CTAs found takes a second launch and so many cycles."""
HIDDEN = (0.0, 0.70, 0.82, 0.92)
"""Which share of the lesser one of matrix and weight cycles is hidden by no, one, two or three of: overlap within a
warpgroup, several warpgroups, and turns. (Turns hide nothing where weights take longer.)"""
THREE_WARPGROUPS = 0.86
"""With three consumer warpgroups, the warps of a multiprocessor wait less for each other's weights."""
ONE_STAGE = 5.0
"""With a single stage, barriers and waits take so many times as long."""
FIRST_READ_BYTES_PER_CYCLE = 25.0
"""A multiprocessor loads so many bytes in a cycle of what is not in L2 yet."""
MOST_SCHEDULED = 4096
"""Up to so many tiles it is worked out which multiprocessor takes which."""
OVERHEAD_STEPS = 3
"""In working that out, a tile takes so many steps besides its own."""


@dataclass(frozen=True)
class StepCycles:
    """How many cycles each unit of a multiprocessor takes for one step of all warpgroups of a CTA, float64[n] each."""

    mma: Floats
    weights: Floats
    shared: Floats


def step_cycles(p: Attention, s: AttentionSizes[Ints], peaks: GpuPeaks) -> StepCycles:
    """Return what a step asks of the tensor cores, of the units for exp2 and arithmetic, and of shared memory."""
    k, d = p.k.extent, p.d.extent
    scores = s.tile_q * s.tile_kv
    instructions = WEIGHT_INSTRUCTIONS * scores / (peaks.float32_flops_per_cycle / 2)
    operands = s.tile_q * (k + s.tile_kv * (k + d) / WGMMA_M) * 2
    operands = operands + 2 * scores * p.weight_parts * (s.column_warpgroups - 1)
    pairs, tiles = len(pairs_of(p)), len(tile_loads(p))
    pair_loads = np.where(s.score_tiles == 1, pairs - tiles, pairs) * scores / (2 * WARP_LANES)
    tile_bytes = 2 * s.score_tiles * tiles * scores
    return StepCycles(
        mma=np.asarray(2.0 * scores * (k + d * p.weight_parts) / peaks.tensor_flops_per_cycle / MMA_SHARE, np.float64),
        weights=scores / EXPONENTIALS_PER_CYCLE + instructions + pair_loads * PAIR_CYCLES,
        shared=(operands + s.tile_kv * _loaded_columns(p, s) * 2 + 2 * tile_bytes) / peaks.shared_bytes_per_cycle,
    )


def _loaded_columns(p: Attention, s: AttentionSizes[Ints]) -> Ints:
    """Return how many elements are loaded for a key."""
    return p.k.extent + p.d.extent * (1 - s.shared_kv)


@lru_cache(maxsize=64)
def _steps(p: Attention, tile_q: int, tile_kv: int) -> tuple[int, ...]:
    """Return how many steps each tile of a head makes, those of the first queries first."""
    first = np.arange(0, p.m.extent, tile_q)
    last = np.minimum(first + tile_q, p.m.extent) - 1
    high, low = np.full(len(first), p.n.extent - 1), np.zeros(len(first), np.int64)
    for bound in p.bounds:
        if any(not isinstance(atom, Var) for limit in bound.limits for atom in limit.terms):
            continue  # a call decides how many keys are seen: perhaps all
        slopes = [(limit.coefficient("m"), limit.constant) for limit in bound.limits]
        ends = [slope * (last if (slope >= 0) == bound.upper else first) + begin for slope, begin in slopes]
        if bound.upper:
            high = np.minimum(high, np.max(ends, axis=0))
        else:
            low = np.maximum(low, np.min(ends, axis=0))
    steps = np.maximum(high, 0) // tile_kv - np.maximum(low, 0) // tile_kv + 1
    return tuple(int(n) for n in np.maximum(steps, 1))


@lru_cache(maxsize=4096)
def _busiest(
    p: Attention, tile_q: int, tile_kv: int, group_heads: int, persistent: bool, split_kv: int, multiprocessors: int
) -> tuple[float, float]:
    """Return how many steps, and how many tiles, the busiest multiprocessor works on."""
    own = np.asarray(_steps(p, tile_q, tile_kv), np.int64)[::-1]
    group = np.repeat(own, group_heads)
    steps = np.ceil(np.repeat(np.tile(group, p.heads // group_heads), split_kv) / split_kv)
    if len(steps) > MOST_SCHEDULED:
        return float(steps.sum() / multiprocessors + own.max() / 2), len(steps) / multiprocessors
    if not persistent:  # each begins a tile when it has ended another one
        ends = [(0.0, 0, 0)] * multiprocessors
        heapify(ends)
        for n in steps:
            end, total, tiles = ends[0]
            heapreplace(ends, (end + n + OVERHEAD_STEPS, total + int(n), tiles + 1))
        _, total, tiles = max(ends)
        return float(total), float(tiles)
    ctas = min(multiprocessors, len(steps))
    rounds = -(-len(steps) // ctas)
    dealt = np.pad(steps, (0, rounds * ctas - len(steps))).reshape(rounds, ctas)
    if p.bounds:  # every other round goes through the CTAs in reverse
        dealt[1::2] = dealt[1::2, ::-1]
    return float(dealt.sum(axis=0).max()), float(rounds)


def steps_of_busiest(p: Attention, s: AttentionSizes[Ints], multiprocessors: int) -> tuple[Floats, Floats]:
    """Return how many steps, and how many tiles, the busiest multiprocessor works on, for each setting."""
    rows = zip(s.tile_q, s.tile_kv, s.group_heads, s.persistent, s.split_kv, strict=True)
    found = [_busiest(p, int(q), int(kv), int(g), bool(c), int(split), multiprocessors) for q, kv, g, c, split in rows]
    both = np.asarray(found, np.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def prior_seconds(p: Attention, s: AttentionSizes[Ints], peaks: GpuPeaks) -> Floats:
    """Return the estimated time of each setting in seconds.

    step = the slower one of products and weights + what is not hidden of the other + barriers
    busy = steps and tiles of the busiest multiprocessor + combining
    time = launch + the greater of busy and of moving all tensors once
    """
    work = step_cycles(p, s, peaks)
    mma = np.maximum(work.mma, work.shared)
    weights = work.weights * np.where(s.consumer_warpgroups == 3, THREE_WARPGROUPS, 1.0)
    turns = (s.ping_pong == 1) & (s.overlap == 1) & (mma > weights)
    ways = (s.overlap == 1).astype(np.int64) + (s.consumer_warpgroups > s.column_warpgroups) + turns
    step = np.maximum(mma, weights) + (1 - np.asarray(HIDDEN)[ways]) * np.minimum(mma, weights)
    row_bytes = 2 * _loaded_columns(p, s)
    stored_bytes = p.key.buffer.bytes + p.v.buffer.bytes * (1 - s.shared_kv)
    read_again = s.tiles * p.n.extent * row_bytes >= 2 * stored_bytes
    score_bytes = 2 * s.score_tiles * len(tile_loads(p)) * s.tile_q * s.tile_kv
    loaded = (s.tile_kv * row_bytes + score_bytes) / np.where(
        read_again, peaks.l2_bytes_per_cycle, FIRST_READ_BYTES_PER_CYCLE
    )
    alone = (s.shared_kv == 1) & (s.stages < 2 + s.overlap)  # nothing is loaded ahead
    step = np.where(alone, step + loaded, np.maximum(step, loaded)) + STEP_CYCLES * np.where(
        s.stages == 1, ONE_STAGE, 1.0
    )
    ahead = np.where(s.q_stages > 1, AHEAD_TILE_CYCLES, TILE_CYCLES)
    tile = np.where(s.persistent == 1, ahead, FIRST_TILE_CYCLES)
    steps, tiles = steps_of_busiest(p, s, peaks.multiprocessors)
    busy = steps * step + tiles * tile
    moved = sum(b.bytes for b in (*p.inputs, *p.outputs)) / peaks.memory_bytes_per_cycle
    partial_bytes = 4 * s.split_kv * p.heads * p.m.extent * p.d.extent
    combined = 2 * partial_bytes / peaks.memory_bytes_per_cycle  # as fast from L2 (latent attention on an H200)
    split = np.where(s.split_kv > 1, COMBINE_CYCLES * (1 + s.split_kv / 16) + combined, 0.0)
    seconds: Floats = peaks.launch_seconds + (np.maximum(busy, moved) + split) / peaks.clock_hz
    return seconds
