"""Which settings of ``cuda_gemm_mma`` are legal: those that can be built, are correct, and repeat no other one."""

from collections.abc import Callable

import numpy as np

from ....core.target import Target
from ...problems.gemm import Gemm
from ...space.columns import Bools, Ints
from ...space.constraint import Constraint
from ..gemm.repack import uneven_operands
from ..occupancy import limits_of
from .sizes import CopyWidths, GemmMmaSizes, gemm_mma_sizes

MOST_COPIES, MOST_LOADS = 48, 20
"""A thread makes so many copies for a stage at most, and so many that go through registers. With more, compiled kernels
spilled."""
COPIES = "atoms_m atoms_n warps_m warps_n block_k repacked"
PIPELINE = f"{COPIES} split_k ctas_per_sm staged_epilogue"
"""The copies of a thread, and the shared memory of a CTA follow from these knobs."""


def gemm_mma_constraints(gemm: Gemm, target: Target, widths: CopyWidths) -> tuple[Constraint, ...]:
    """Return the constraints of ``cuda_gemm_mma``."""
    limits, has_uneven = limits_of(target), bool(uneven_operands(gemm))

    def rule(meaning: str, knobs: str, holds: Callable[[GemmMmaSizes[Ints]], Bools]) -> Constraint:
        """Return a constraint on sizes that follow from ``knobs`` (their names) alone."""
        return Constraint(meaning, tuple(knobs.split()), lambda c: holds(gemm_mma_sizes(gemm, target, widths, c)))

    return (
        rule(
            "operands are repacked only where rows of one begin between multiples of 16 bytes",
            "repacked",
            lambda s: (s.repacked == 0) | has_uneven,
        ),
        rule(
            "with split_k CTAs add up tiles in shared memory: staged_epilogue is 1",
            "split_k staged_epilogue",
            lambda s: (s.split_k == 1) | (s.staged_epilogue == 1),
        ),
        rule(
            f"a thread makes at most {MOST_COPIES} copies of a stage, {MOST_LOADS} where rows begin at odd elements",
            COPIES,
            lambda s: (s.copies <= MOST_COPIES) & (s.loads <= MOST_LOADS),
        ),
        rule(
            "two stages fit into shared memory, or one if there is one k iteration, and so does a staged_epilogue",
            PIPELINE,
            lambda s: (s.stages >= np.minimum(2, s.k_iters)) & (s.shared_bytes <= s.room),
        ),
        rule(
            "a multiprocessor has registers and shared memory for ctas_per_sm CTAs",
            PIPELINE,
            lambda s: limits.resident(s) >= s.ctas_per_sm,
        ),
    )
