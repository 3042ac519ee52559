"""Which legal settings of ``cuda_gemm`` are worth a measurement: rules of thumb, and bounds by the prior."""

from dataclasses import dataclass
from math import inf

import numpy as np

from ....core.target import Target
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ...problems.gemm import Gemm
from ...space.columns import Bools, Floats, Ints
from ...space.pruning import best_by_prior
from ..occupancy import limits_of
from .epilogue import spare_registers
from .k_atoms import b_along_k, halo_taps
from .mma_atom import promoted_k_atoms, wgmma_atom
from .prior import further_requests, lines_read
from .repack import uneven_operands
from .result_box import can_store_by_tma
from .sizes import (
    GROUP_M,
    MMA_N,
    GemmSizes,
    epilogue_stage_bytes,
    epilogue_subtiles,
    keeps_columns,
    stores_tiles,
)

NARROW_BYTES = 64
"""A result with rows of so many bytes at most is narrow: what takes time is to load A."""


@dataclass(frozen=True)
class GemmPruning:
    """The settings of pruning. None of them changes what is legal.

    ``most_settings``: how many settings are kept, those of the least prior.
    ``long_seconds``: from which time on a product is long. Long products settle at the clock that their power allows,
    which short measurements do not show, so that fewer of their settings are worth one. Those are kept whose prior is
    at most ``close`` times the least. The order of the tiles must be good, too: the tiles under way together read as
    few rows and columns as with any ``group_m``. Other orders cost 1 to 2 % of most products of 10^11 multiply-adds.
    ``close_if_unsure`` stands for ``close`` where several accumulators, or operands that are repacked first, make the
    prior less sure. So do ``close_if_unaligned`` where rows begin amid lines of L2, ``close_if_images`` for
    convolutions, ``close_if_other_types`` for operands that are no 16-bit floats, ``close_if_grouped`` for grouped
    products, whose tiles are not known, and ``close_if_reduced`` where rows are reduced.
    ``least_stages``: how many stages the pipeline has at least; two of several taps are enough.
    ``few_stages``: up to how many stages a further one is worth more than a second stage of the epilogue.
    ``small_tile``, ``least_k_iters``: a larger ``k_atoms`` saves barriers, which is worth it where the elements of a
    tile times ``k_atoms`` are at most twice ``small_tile`` and at least so many k iterations are left.
    ``largest_split_tile``: up to how many elements of a tile split-K pays.
    ``most_cluster_tiles``: how many tiles a cluster has at most.
    ``least_unit_k_iters``: how many k iterations a stream-K unit has at least, as in CUTLASS.
    ``least_moved_accumulators``: from how many accumulator registers on it pays that a producer warpgroup gives its
    registers away.
    """

    most_settings: int = 300
    long_seconds: float = 56.24e-6
    close: float = 1.05
    close_if_unsure: float = 1.06
    close_if_unaligned: float = 1.12
    close_if_images: float = 1.25
    close_if_other_types: float = 1.3
    close_if_grouped: float = 1.25
    close_if_reduced: float = 1.15
    least_stages: int = 3
    few_stages: int = 4
    small_tile: int = 64 * 128
    least_k_iters: int = 4
    largest_split_tile: int = 128 * 128
    most_cluster_tiles: int = 4
    least_unit_k_iters: int = 8
    least_moved_accumulators: int = 96

    def promising(self, gemm: Gemm, target: Target, sizes: GemmSizes[Ints], prior: Floats) -> Bools:
        """Return which settings are worth a measurement, bool[n], given all that are legal. ``prior``: their
        seconds."""
        usual = self._usual(gemm, sizes, target.threads) & self._stores_well(gemm, target, sizes)
        if not usual.any():
            return usual
        close = (
            self.close_if_unsure if len(gemm.accumulators) > 1 or uneven_operands(gemm, as_views=True) else self.close
        )
        if any(lines_read(gemm, operand) > 1 for operand in (gemm.a, *gemm.all_b)):
            close = self.close_if_unaligned
        close = close if gemm.window is None else self.close_if_images
        if wgmma_atom(gemm).a.bits != 16 or promoted_k_atoms(gemm):
            close = self.close_if_other_types
        close = close if gemm.groups is None else self.close_if_grouped
        close = close if gemm.stored else self.close_if_reduced
        within = close if prior[usual].min() > self.long_seconds else inf
        kept = best_by_prior(prior, usual, self.most_settings, within)
        return kept & ((prior <= self.long_seconds) | _is_well_ordered(gemm, sizes))

    def _usual(self, gemm: Gemm, s: GemmSizes[Ints], multiprocessors: int) -> Bools:
        """Return which settings keep all rules of thumb."""
        alone, elements = s.ctas_per_sm == 1, s.tile_m * s.mma_n
        least = self.least_stages if halo_taps(gemm) == 1 else 2
        usual = s.stages >= np.minimum(least, s.stage_fills)
        usual &= s.registers_beside(spare_registers(gemm)) <= s.registers
        usual &= s.tiles_per_cluster <= self.most_cluster_tiles
        # a cluster gains nothing from sharing the operands of a single iteration
        usual &= (s.tiles_per_cluster == 1) | (s.tile_iterations * s.k_iters > 1)
        takes_turns = (s.consumer_warpgroups == 2) | (not gemm.stored)  # three where the epilogue is long
        usual &= (s.ping_pong == 0) | (takes_turns & alone & (s.cluster_tiles > multiprocessors))
        moved = (s.consumer_warpgroups == 2) & (s.accumulator_registers >= self.least_moved_accumulators)
        usual &= (s.producer_warpgroup == 0) | (alone & moved) | (s.repacked == 0)
        usual &= (s.split_k == 1) | (alone & (elements <= self.largest_split_tile) & (s.k_iters >= 2))
        small = (elements * s.k_atoms <= 2 * self.small_tile) & (_is_narrow(gemm) | (s.k_iters >= self.least_k_iters))
        usual &= (s.k_atoms == halo_taps(gemm)) | small | (s.repacked == 0)
        # stream-K pays where CTAs would otherwise wait for the last ones
        uneven = (s.cluster_tiles % multiprocessors != 0) & (s.cluster_tiles > 1)
        usual &= (s.stream_k == 0) | (uneven & (s.unit_rounds > 0) & (s.unit_k_iters >= self.least_unit_k_iters))
        # fewer CTAs would crowd where earlier launches end first
        usual &= alone | (s.active_ctas_per_sm > 1)
        usual &= (s.group_m == GROUP_M[0]) | (s.tile_iterations > 1)
        if further_requests(gemm) > 0:  # where there is room for it, a resident B leaves as many stages
            usual &= (s.resident_b == 1) | ~keeps_columns(gemm, s) | (s.k_iters > s.stages)
        return usual & _covers_closely(gemm, s)

    def _stores_well(self, gemm: Gemm, target: Target, s: GemmSizes[Ints]) -> Bools:
        """Return whether results that TMA can store go through two stages of the epilogue. One is enough where that has
        one subtile, or where another one would cost one of few stages of the pipeline. Rows of a sector or two may as
        well be stored from registers."""
        if not can_store_by_tma(gemm):
            return np.ones(len(s.tile_m), dtype=bool)
        spare = limits_of(target).shared_bytes_for(s.ctas_per_sm) - s.shared_bytes
        short = (s.stages <= self.few_stages) & (spare < epilogue_stage_bytes(gemm, s.consumer_warpgroups, s.tile_n))
        wanted = np.minimum(epilogue_subtiles(gemm, s), 2)
        fits = (s.epilogue_stages == wanted) | ((s.epilogue_stages == 1) & short & (s.reuses_stages == 0))
        result: Bools = ~stores_tiles(s) | fits
        return result | (s.epilogue_stages == 0) if _is_narrow(gemm) else result


def _covers_closely(gemm: Gemm, s: GemmSizes[Ints]) -> Bools:
    """Return whether a cluster is hardly larger than the result, and shares B in whole periods of the swizzle."""
    least = MMA_N[1]
    cluster_m, cluster_n = s.tile_m * s.cluster_m, s.mma_n * s.cluster_n
    covers = (cluster_m < gemm.m.extent + WGMMA_M) | (s.tile_m == WGMMA_M)
    covers &= (cluster_n < s.accumulators * gemm.n.extent + least) | (s.mma_n == least)
    covers &= s.mma_n % (8 * s.cluster_m) == 0
    if len(gemm.accumulators) > 1 and not b_along_k(gemm):
        covers &= s.tile_n % (SWIZZLE_128B_ELEMENTS * s.cluster_m) == 0
    result: Bools = covers
    return result


def _is_narrow(gemm: Gemm) -> bool:
    """Return whether all results have rows of ``NARROW_BYTES`` at most."""
    return all(gemm.n.extent * result.tensor.dtype.bytes <= NARROW_BYTES for result in gemm.results)


def _is_well_ordered(gemm: Gemm, s: GemmSizes[Ints]) -> Bools:
    """Return whether the tiles under way together read as few rows and columns as any ``group_m`` lets them."""
    cluster_m, cluster_n = s.tile_m * s.cluster_m, s.tile_n * s.cluster_n
    clusters_m = -(-gemm.m.extent // cluster_m)
    if gemm.groups is not None:
        clusters_m = gemm.groups.likely_tiles(gemm.m.extent, cluster_m)

    def read(group_m: Ints | int) -> Ints:
        rows = np.minimum(group_m, clusters_m)
        total: Ints = rows * cluster_m + -(-s.clusters // rows) * cluster_n
        return total

    least = np.min([read(group_m) for group_m in GROUP_M], axis=0)
    result: Bools = (s.tile_iterations == 1) | (read(s.group_m) <= least)
    return result
