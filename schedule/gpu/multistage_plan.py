"""What plans of products share whose CTAs copy both operands to stages by cp.async: rules and derived columns."""

from collections.abc import Sequence
from math import prod

import numpy as np

from ...core.target import Target
from ..problems.gemm import Gemm
from ..space.columns import Derived, Floats, Ints
from ..space.constraint import Constraint
from ..space.knob import Quantity
from .gemm.repack import uneven_operands
from .multistage_gemm import MultistageSizes
from .peaks import UnitCycles
from .plan import GpuPlan
from .quantities import GPU_QUANTITIES, gpu_columns


class MultistageGemmPlan(GpuPlan):
    """One product on one target, with sizes that are ``MultistageSizes``."""

    gemm: Gemm

    def stage_rules(self, own: Sequence[Constraint], what_fits: str, knobs: Sequence[str]) -> tuple[Constraint, ...]:
        """Return the rules of a sketch, with its ``own`` ones: operands are repacked where that is needed, and a
        multiprocessor has room for the stages, which follow from ``knobs``. A message says ``what_fits`` into shared
        memory."""
        has_uneven = bool(uneven_operands(self.gemm))
        return (
            self.rule(
                "operands are repacked only where rows of one begin between multiples of 16 bytes",
                ["repacked"],
                lambda s: (s.repacked == 0) | has_uneven,
            ),
            *own,
            self.rule(
                f"two stages fit into shared memory, or one if there is one k iteration, and so {what_fits}",
                knobs,
                lambda s: (s.stages >= np.minimum(2, s.k_iters)) & (s.shared_bytes <= s.room),
            ),
            self.rule(
                "a multiprocessor has registers and shared memory for ctas_per_sm CTAs",
                knobs,
                lambda s: self.limits.resident(s) >= s.ctas_per_sm,
            ),
        )


def multistage_quantities(arithmetic: Quantity) -> tuple[Quantity, ...]:
    """Return the quantities of a sketch. ``arithmetic`` is that of the unit that multiplies, in cycles."""
    return (
        *GPU_QUANTITIES,
        Quantity("stages", "stages", "how many stages the pipeline has"),
        Quantity("k_iters", "iterations", "how many iterations the main loop of a CTA has"),
        Quantity("wave_efficiency", "1", "which share of the multiply-adds of all waves the result needs"),
        arithmetic,
        Quantity("shared_cycles", "cycles", "how long its shared memory takes for them"),
        Quantity("l2_cycles", "cycles", "how long its share of L2 takes for them"),
    )


def multistage_columns(
    gemm: Gemm, target: Target, s: MultistageSizes[Ints], work: UnitCycles, arithmetic: Quantity
) -> Derived:
    """Return the column of each of ``multistage_quantities`` of settings with the sizes ``s``, a k
    iteration of which takes ``work``."""
    wanted = s.stage_bytes * np.maximum(s.stages - 1, 1) // s.threads
    iterations = tiles_per_sm(s, target.threads) * s.k_iters
    return {
        **gpu_columns(target, s, wanted=wanted),
        "stages": s.stages,
        "k_iters": s.k_iters,
        "wave_efficiency": _wave_efficiency(gemm, s, target.threads),
        arithmetic.name: iterations * work.mma,
        "shared_cycles": iterations * work.shared,
        "l2_cycles": iterations * work.l2,
    }


def tiles_per_sm(sizes: MultistageSizes[Ints], multiprocessors: int) -> Ints:
    """Return how many CTAs a multiprocessor runs in all."""
    return -(-sizes.blocks // multiprocessors)


def _wave_efficiency(gemm: Gemm, sizes: MultistageSizes[Ints], multiprocessors: int) -> Floats:
    """Return which share of the multiply-adds of all waves the result needs."""
    needed = gemm.m.extent * gemm.n.extent * prod(a.extent for a in gemm.batch)
    tiles = tiles_per_sm(sizes, multiprocessors)
    return needed / (tiles * multiprocessors * sizes.tile_m * sizes.tile_n / sizes.split_k)
