"""Estimates the time of a multilayer perceptron in one launch: what a block does one after the other, or what limits
all of them.

    seconds = launch + soft maximum of
        memory   bytes of all tensors / memory rate
        L2       bytes that all blocks read / L2 rate
        matrix   cycles of the matrix units of the busiest multiprocessor
        chain    waves * (latency + tiles of k * step + epilogues + reductions of the statistics)

The constants are estimates. They rank the times of 24 kernels for three layers of 32x128 on an H200 nearly as measured
(the rank correlation is 0.9).
"""

import numpy as np

from ...problems.mlp import Mlp
from ...space.columns import Floats, Ints
from ..peaks import GpuPeaks
from ..skinny.mma_tiles import ATOM_K, ATOM_M, ATOM_N
from ..skinny.prior import LATENCY_SECONDS, MMA_SHARE, soft_maximum
from .sizes import MlpSizes

STEP_CYCLES = 200
"""How many cycles of a tile of ``k`` nothing overlaps: the wait for its copies, the barrier, and the first ldmatrix."""
VALUE_CYCLES = 25
"""How many cycles a warp takes for one accumulator of each lane, in an epilogue or in the body of a statistic."""
REDUCE_CYCLES, REDUCE_WARP_CYCLES = 150, 40
"""How many cycles the reduction of a statistic of 16 rows takes: shuffles and a barrier, and what every warp adds."""
CLUSTER_CYCLES = 1000
"""How many cycles a barrier of a cluster takes with the loads from its blocks."""


def mlp_seconds(p: Mlp, peaks: GpuPeaks, size: MlpSizes[Ints]) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    clock, layers, statistics = peaks.clock_hz, len(p.layers), sum(len(layer.statistics) for layer in p.layers)
    at_once = size.ctas_per_sm * peaks.multiprocessors
    waves = -(-size.blocks // at_once)
    here = np.minimum(-(-size.blocks // peaks.multiprocessors), size.ctas_per_sm)
    atoms = size.k_tiles * size.tile_k // ATOM_K * size.atoms_m * size.warp_atoms * size.warps_n
    mma = atoms * (2 * ATOM_M * ATOM_N * ATOM_K) / (MMA_SHARE * peaks.tensor_flops_per_cycle)
    # four warps at a time have a quarter of a multiprocessor each
    crowd = np.maximum(1, here * size.warps_n / 4)
    values = (layers + statistics) * size.accumulators * VALUE_CYCLES * crowd
    reductions = statistics * (REDUCE_CYCLES + REDUCE_WARP_CYCLES * size.warps_n * size.atoms_m)
    clusters = np.where(size.cluster_n > 1, (statistics + 1) * CLUSTER_CYCLES, 0)
    chain = size.k_tiles * STEP_CYCLES + here * mma + values + reductions + clusters
    tensors = (*p.inputs, *(r.tensor for r in p.results))
    a_bytes = size.cluster_n * p.m.extent * p.layers[0].k.extent * 2
    overlapped = soft_maximum(
        np.full(len(waves), sum(t.bytes for t in tensors) / peaks.memory_bytes_per_second),
        (size.b_bytes + a_bytes) / (peaks.l2_bytes_per_cycle * peaks.multiprocessors * clock),
        waves * here * mma / clock,
        waves * (LATENCY_SECONDS + chain / clock),
    )
    return peaks.launch_seconds + overlapped
