"""Which legal settings of ``cuda_gemm_mma`` are worth a measurement: rules of thumb, and a bound by the prior."""

from dataclasses import dataclass

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.gemm import Gemm
from ...space.columns import Bools, Floats, Ints
from ...space.pruning import best_by_prior
from ..gemm.repack import uneven_operands
from ..occupancy import limits_of
from .operands import copy_elements
from .sizes import CopyWidths, GemmMmaSizes, block_ks


@dataclass(frozen=True)
class GemmMmaPruning:
    """The settings of pruning. None of them changes what is legal.

    ``most_settings``: how many settings are kept, those of the least prior.
    ``least_stages``: how many stages the pipeline has at least.
    ``most_warps``: how many warps a CTA has at most.
    ``most_ctas_per_sm``: how many CTAs a multiprocessor runs at most; below that, as many as there is room and work
    for.
    ``most_copies``: how many copies a thread makes for a stage at most.
    """

    most_settings: int = 250
    least_stages: int = 3
    most_warps: int = 8
    most_ctas_per_sm: int = 4
    most_copies: int = 32

    def promising(self, gemm: Gemm, target: Target, widths: CopyWidths, s: GemmMmaSizes[Ints], prior: Floats) -> Bools:
        """Return which settings are worth a measurement, bool[n], given all that are legal. ``prior``: their
        seconds."""
        room = limits_of(target).resident(s)
        wanted = np.minimum(-(-s.blocks // target.threads), self.most_ctas_per_sm)
        usual = s.ctas_per_sm == np.minimum(room, wanted)
        usual &= s.stages >= np.minimum(self.least_stages, s.k_iters)
        usual &= (s.threads <= WARP_LANES * self.most_warps) & (s.copies <= self.most_copies)
        # a tile that is half empty gains nothing, nor does a longer iteration beyond the end of k
        least = block_ks(gemm)[0]
        usual &= (s.tile_m < 2 * gemm.m.extent) & (s.tile_n < 2 * gemm.n.extent)
        usual &= (s.block_k == least) | (s.k_iters * s.split_k * s.block_k < gemm.k.extent + least)
        if uneven_operands(gemm):
            usual &= (s.repacked == 0) | (min(widths.repacked) == copy_elements(gemm))
        # split-K pays where it keeps multiprocessors busy that would have no tile
        alone = (s.blocks <= target.threads * s.ctas_per_sm) & (s.k_iters >= 2)
        usual &= (s.split_k == 1) | alone
        return best_by_prior(prior, usual, self.most_settings)
