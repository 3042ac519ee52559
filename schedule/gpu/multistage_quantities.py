"""What is derived from the settings of a product whose CTAs copy both operands to stages by cp.async."""

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...core.target import Target
from ..problems.gemm import Gemm
from ..space.columns import Ints
from ..space.knob import Quantity
from .multistage_gemm import MultistageSizes
from .occupancy import limits_of
from .peaks import UnitCycles
from .quantities import GPU_QUANTITIES, gpu_columns

Floats = NDArray[np.float64]


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
) -> Mapping[str, Floats]:
    """Return the column of each of ``multistage_quantities``, float64[n], of settings with the sizes ``s``, a k
    iteration of which takes ``work``."""
    common = gpu_columns(
        limits_of(target),
        target.threads,
        blocks=s.tiles * s.split_k,
        threads=s.threads,
        registers=s.registers,
        shared=s.shared_bytes,
        wanted=s.stage_bytes * np.maximum(s.stages - 1, 1) // s.threads,
    )
    iterations = tiles_per_sm(s, target.threads) * s.k_iters
    return {
        **common,
        "stages": s.stages.astype(np.float64),
        "k_iters": s.k_iters.astype(np.float64),
        "wave_efficiency": _wave_efficiency(gemm, s, target.threads),
        arithmetic.name: iterations * work.mma,
        "shared_cycles": iterations * work.shared,
        "l2_cycles": iterations * work.l2,
    }


def tiles_per_sm(sizes: MultistageSizes[Ints], multiprocessors: int) -> Ints:
    """Return how many CTAs a multiprocessor runs in all."""
    return -(-sizes.tiles * sizes.split_k // multiprocessors)


def _wave_efficiency(gemm: Gemm, sizes: MultistageSizes[Ints], multiprocessors: int) -> Floats:
    """Return which share of the multiply-adds of all waves the result needs."""
    needed = gemm.m.extent * gemm.n.extent * prod(a.extent for a in gemm.batch)
    tiles = tiles_per_sm(sizes, multiprocessors)
    share: Floats = needed / (tiles * multiprocessors * sizes.tile_m * sizes.tile_n / sizes.split_k)
    return share
