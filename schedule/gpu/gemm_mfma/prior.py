"""The time that a setting of ``amdgpu_gemm`` may take: a roofline of each iteration, and waves of blocks."""

import numpy as np

from ....ir.gpu.mma import WAVEFRONT_LANES
from ...problems.gemm import Gemm
from ...space.columns import Floats, Ints
from ..occupancy import GpuLimits
from ..peaks import GpuPeaks
from .sizes import ATOM, GemmMfmaSizes

BARRIER_CYCLES = 40
"""The two barriers of a k iteration take about so many cycles (an estimate)."""
LATENCY_CYCLES = 1500
"""A load of global memory takes about so many cycles, 700 ns (an estimate)."""


def prior_seconds(gemm: Gemm, s: GemmMfmaSizes[Ints], limits: GpuLimits, peaks: GpuPeaks) -> Floats:
    """Return the estimated time of each setting in seconds.

    k iteration = the slowest of matrix units, shared memory and L2 for all blocks of a compute unit, but not less
                  than the latency of memory, since a block loads first and multiplies then
    time        = launch + the longer of waves x (k iterations + stores), and moving all tensors once
    """
    assert gemm.a.load is not None
    element = gemm.a.load.dtype.bytes
    room = np.maximum(limits.resident(s), 1)
    blocks = -(-s.blocks // peaks.multiprocessors)
    at_once = np.minimum(room, blocks)
    # matrix units take 32-bit operands at a quarter of the rate
    mma = 2 * s.tile_m * s.tile_n * s.block_k / peaks.warp_tensor_flops_per_cycle * (4 if element == 4 else 1)
    fragments = s.threads // WAVEFRONT_LANES * ATOM * (s.atoms_m + s.atoms_n) * s.block_k * element
    shared = (fragments + s.stage_bytes) / peaks.shared_bytes_per_cycle
    l2 = (s.tile_m + s.tile_n) * s.block_k * element / peaks.l2_bytes_per_cycle
    iteration = at_once * np.maximum(np.maximum(mma, shared), l2) + BARRIER_CYCLES
    iteration = np.maximum(iteration, LATENCY_CYCLES)
    store = at_once * 8 * s.tile_m * s.tile_n / peaks.shared_bytes_per_cycle
    busy = -(-blocks // at_once) * (s.k_iters * iteration + store)
    moved = sum(b.bytes for b in (*gemm.inputs, *(r.tensor for r in gemm.results)))
    found: Floats = peaks.launch_seconds + np.maximum(busy / peaks.clock_hz, moved / peaks.memory_bytes_per_second)
    return found
