"""Which settings of ``cuda_gemm_simt`` are legal: those that can be built, and are correct."""

from collections.abc import Callable

import numpy as np

from ....core.target import Target
from ...problems.gemm import Gemm
from ...space.columns import Bools, Ints
from ...space.constraint import Constraint
from ..gemm.repack import uneven_operands
from ..gemm_mma.sizes import CopyWidths
from ..occupancy import limits_of
from .sizes import GemmSimtSizes, gemm_simt_sizes

MOST_COPIES = 48
"""A thread makes so many copies for a stage at most. Each takes an address."""
COPIES = "thread_m thread_n warps_m warps_n block_k repacked"
PIPELINE = f"{COPIES} split_k ctas_per_sm"
"""The copies of a thread, and the shared memory of a CTA follow from these knobs."""


def gemm_simt_constraints(gemm: Gemm, target: Target, widths: CopyWidths) -> tuple[Constraint, ...]:
    """Return the constraints of ``cuda_gemm_simt``."""
    limits, has_uneven = limits_of(target), bool(uneven_operands(gemm))

    def rule(meaning: str, knobs: str, holds: Callable[[GemmSimtSizes[Ints]], Bools]) -> Constraint:
        """Return a constraint on sizes that follow from ``knobs`` (their names) alone."""
        return Constraint(meaning, tuple(knobs.split()), lambda c: holds(gemm_simt_sizes(gemm, target, widths, c)))

    return (
        rule(
            "operands are repacked only where rows of one begin between multiples of 16 bytes",
            "repacked",
            lambda s: (s.repacked == 0) | has_uneven,
        ),
        rule(f"a thread makes at most {MOST_COPIES} copies of a stage", COPIES, lambda s: s.copies <= MOST_COPIES),
        rule(
            "two stages fit into shared memory, or one if there is one k iteration, and so do partial sums of split_k",
            PIPELINE,
            lambda s: (s.stages >= np.minimum(2, s.k_iters)) & (s.shared_bytes <= s.room),
        ),
        rule(
            "a multiprocessor has registers and shared memory for ctas_per_sm CTAs",
            PIPELINE,
            lambda s: limits.resident(s) >= s.ctas_per_sm,
        ),
    )
