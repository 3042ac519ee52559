"""What a setting of ``cuda_gemm_simt`` takes by the work of each unit, the time that follows from it, and which
settings are worth a measurement."""

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.gemm import Gemm
from ...space.columns import Bools, Floats, Ints
from ...space.pruning import best_by_prior
from ..gemm.prior import repack_cycles
from ..gemm.repack import uneven_operands
from ..gemm_mma.prior import END_CYCLES, L2_BYTES_PER_CYCLE
from ..gemm_mma.sizes import CopyWidths
from ..occupancy import PARTS, limits_of
from ..peaks import GpuPeaks, UnitCycles
from .sizes import GemmSimtSizes, operand_bytes, vector_of
from .term import term_cost

# Cycles and rates of a multiprocessor, which were fitted to 260 kernels on an H200. Those that do not depend on the
# arithmetic come from ``gemm_mma.prior`` and ``gemm.prior``.
START_CYCLES = 2400
"""CTAs that start together take so many cycles until they multiply, and after it."""
LATENCY_CYCLES = 1200
"""A stage arrives so many cycles after its copies began. Stages that are under way at once share them."""
STORED_PER_CYCLE = 24.0
"""So many elements of the result are stored in a cycle."""
LARGE_RESULT_BYTES = 32 << 20
"""A larger result does not stay in L2, so that its tiles wait for memory."""
HIDDEN_STORES = 0.75
"""Where a multiprocessor runs several CTAs, so much of that wait passes while others multiply. A result of 32768x512
with 32 terms went from 34.9 to 42.0 us on an H200 as its default became one CTA of 128x256, not two of 64x256."""
WAVEFRONTS = 2
"""So many cycles shared memory takes for a load of a warp, 16 bytes a lane, most of which are the same."""
COPY_INSTRUCTIONS, ITERATION_INSTRUCTIONS = 3, 30
"""So many instructions a copy takes, and an iteration besides them."""
COPY_CYCLES, WIDE_COPY_CYCLES = 2.5, 2.8
"""So many cycles loads of fragments wait for a copy of single elements, and for a wider one, of a warp."""
UNEVEN_COPY_CYCLES = 7.0
"""As ``COPY_CYCLES``, where rows begin between multiples of 16 bytes."""
MOST_INSTRUCTIONS, LARGE_LOOP = 2300, 1.04
"""The caches of instructions hold an iteration of so many; longer ones take so many times as long."""
BARRIER_CYCLES = 10
"""So many cycles the warps of a CTA wait at the barrier of an iteration, while those of others go on."""
EXCHANGE_CYCLES, EXCHANGE_BYTES_PER_CYCLE = 500, 9
"""With split-K, two barriers of the cluster take so many cycles, and each CTA reads so many bytes of partial sums in a
cycle."""
CLUSTERED = 0.9
"""This share of the multiprocessors run CTAs in clusters of more than two: a cluster lies in one part of the device
(GPC), and those differ in size."""
IDLE = 0.4
"""With one warp, a part of a multiprocessor idles for this share of the time that it works; with ``n`` warps for
``1 / n**4`` of it."""

MOST_SETTINGS = 250
MOST_UNROLLED = 2048
"""Worthwhile iterations have at most so many multiply-adds, or other instructions of terms."""
MOST_THREADS = 256
MOST_TERM_REGISTERS = 200
"""With more registers by their estimate, compilers keep terms of pairwise reductions in memory now and then."""


def unit_cycles(gemm: Gemm, widths: CopyWidths, sizes: GemmSimtSizes[Ints], peaks: GpuPeaks) -> UnitCycles:
    """Return what a k iteration asks of the units of arithmetic and of what issues instructions, of shared memory, and
    of L2."""
    s, term = sizes, term_cost(gemm, peaks)
    warps = s.threads // WARP_LANES
    loads = s.block_k * (s.thread_m + s.thread_n) / vector_of(gemm)
    terms = s.thread_m * s.thread_n * s.block_k
    others = loads + COPY_INSTRUCTIONS * s.copies + ITERATION_INSTRUCTIONS
    is_large = terms * term.instructions + others > MOST_INSTRUCTIONS
    issued = (terms * WARP_LANES * term.cycles + others / PARTS) * np.where(is_large, LARGE_LOOP, 1)
    stage = (s.tile_m + s.tile_n) * s.block_k
    uneven = (s.repacked == 0) & (widths.plain != widths.repacked)
    single = np.where(uneven, UNEVEN_COPY_CYCLES, COPY_CYCLES)
    waits = sum(
        tile * s.block_k / (width * WARP_LANES) * np.where(width == 1, single, WIDE_COPY_CYCLES)
        for tile, width in zip((s.tile_m, s.tile_n), widths.of(s.repacked), strict=True)
    )
    return UnitCycles(
        mma=warps * issued + waits,
        shared=warps * loads * WAVEFRONTS + waits,
        l2=operand_bytes(gemm) * stage / L2_BYTES_PER_CYCLE,
    )


def ctas_of_sm(sizes: GemmSimtSizes[Ints], multiprocessors: int) -> Ints:
    """Return how many CTAs a multiprocessor runs in all, of those that run most."""
    usable = np.where(sizes.split_k > 2, int(CLUSTERED * multiprocessors), multiprocessors)
    return -(-sizes.blocks // usable)


def prior_seconds(gemm: Gemm, widths: CopyWidths, sizes: GemmSimtSizes[Ints], peaks: GpuPeaks) -> Floats:
    """Return the estimated time of each setting in seconds.

    k iteration = the slowest of arithmetic, shared memory and L2, and a barrier; at least a share of the latency
    round       = start + k iterations + epilogue, of CTAs that run at once
    time        = launch + repacking + rounds of ``ctas_per_sm`` CTAs, and one of those that are left
                  + adding up partial sums
    """
    s, work = sizes, unit_cycles(gemm, widths, sizes, peaks)
    stored = sum(r.tensor.dtype.bytes for r in gemm.results) * s.tile_m * s.tile_n / s.split_k
    large = sum(r.tensor.bytes for r in gemm.results) > LARGE_RESULT_BYTES
    waited = stored * peaks.multiprocessors / peaks.memory_bytes_per_cycle if large else np.zeros(len(stored))

    def round_of(ctas: Ints) -> Floats:
        """Return the cycles of a round of so many CTAs; no cycles for no CTAs."""
        at_once = np.maximum(ctas, 1)
        idle = 1 + IDLE / (at_once * s.threads / (WARP_LANES * PARTS)) ** 4
        iteration = at_once * np.maximum(np.maximum(work.mma * idle, work.l2), work.shared) + BARRIER_CYCLES / at_once
        iteration = np.maximum(iteration, LATENCY_CYCLES / np.maximum(s.stages - 1, 1))
        epilogue = at_once * s.tile_m * s.tile_n / STORED_PER_CYCLE / s.split_k
        epilogue += at_once * waited * np.where(at_once > 1, 1 - HIDDEN_STORES, 1.0)
        return np.where(ctas > 0, START_CYCLES + s.k_iters * iteration + epilogue, 0.0)

    tiles = ctas_of_sm(s, peaks.multiprocessors)
    rounds = tiles // s.ctas_per_sm * round_of(s.ctas_per_sm) + round_of(tiles % s.ctas_per_sm)
    partials = gemm.accumulator.dtype.bytes * s.tile_m * s.tile_n
    exchange = np.where(s.split_k > 1, EXCHANGE_CYCLES + partials / EXCHANGE_BYTES_PER_CYCLE, 0)
    repack = np.where(s.repacked == 1, repack_cycles(gemm, uneven_operands(gemm), peaks), 0)
    return peaks.launch_seconds + (END_CYCLES + repack + exchange + rounds) / peaks.clock_hz


def promising(gemm: Gemm, target: Target, s: GemmSimtSizes[Ints], prior: Floats, peaks: GpuPeaks) -> Bools:
    """Return which settings are worth a measurement, bool[n], given all that are legal. ``prior``: their seconds. A
    multiprocessor should run as many CTAs at once as there is room and work for."""
    room = limits_of(target).resident(s)
    usual = s.ctas_per_sm == np.minimum(np.minimum(room, 4), ctas_of_sm(s, target.threads))
    usual |= s.ctas_per_sm == 1
    usual &= s.thread_m * s.thread_n * s.block_k * term_cost(gemm, peaks).instructions <= MOST_UNROLLED
    usual &= (s.threads <= MOST_THREADS) & (s.stages >= np.minimum(3, s.k_iters))
    usual &= (s.registers <= MOST_TERM_REGISTERS) | (gemm.term is None)
    # a tile that is half empty gains nothing, nor does a longer iteration beyond the end of k
    usual &= (s.tile_m < 2 * gemm.m.extent) | (s.tile_m <= 32)
    usual &= (s.tile_n < 2 * gemm.n.extent) | (s.tile_n <= 32)
    usual &= (s.block_k <= 16) | (s.k_iters * s.split_k * s.block_k < gemm.k.extent + 16)
    # split-K pays where it keeps multiprocessors busy that would have no tile
    usual &= (s.split_k == 1) | ((s.blocks <= target.threads * s.ctas_per_sm) & (s.k_iters >= 2))
    return best_by_prior(prior, usual, MOST_SETTINGS)
