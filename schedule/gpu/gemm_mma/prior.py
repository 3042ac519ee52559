"""What a setting of ``cuda_gemm_mma`` takes by the work of each unit, and the time that follows from it."""

import numpy as np

from ....core.dtypes import float64, tfloat32
from ....ir.expr import WARP_LANES
from ...problems.gemm import Gemm
from ...space.columns import Floats, Ints
from ..gemm.prior import joined, repack_cycles
from ..gemm.repack import as_stored, uneven_operands
from ..multistage_plan import tiles_per_sm
from ..peaks import GpuPeaks, UnitCycles
from .operands import ATOM_M, atom_of, has_ldmatrix
from .sizes import GemmMmaSizes

# Cycles and rates of a multiprocessor that were fitted to 200 kernels on an H200, whose times they tell to 20 %.
L2_BYTES_PER_CYCLE = 48
"""cp.async brings so many bytes from L2 in a cycle."""
FLOAT64_FLOPS_PER_CYCLE = 256
"""What tensor cores do with float64 on Hopper (NVIDIA H100 Tensor Core GPU Architecture)."""
EXPOSED_LOADS = 0.125
"""For so large a part of the time that shared memory takes, products wait for fragments that are loaded one by one: a
product of float64, 2048 along each axis, takes an H200 319 us."""
ROUNDING_CYCLES = 5.0
"""A warp loads and rounds an element of each lane to TF32 in so many cycles of a multiprocessor (fitted to 50 kernels
with few rows). Rounding takes three instructions, since NaN must stay NaN."""
LATENCY_CYCLES = 2400
"""A stage arrives so many cycles after its copies began. Stages that are under way at once share them."""
START_CYCLES = 600
"""CTAs that start together take so many cycles until they multiply."""
END_CYCLES = 900
"""A launch takes so many cycles more, for its first and its last bytes."""
STAGED_PER_CYCLE, STORED_PER_CYCLE = 7.0, 3.25
"""So many elements of the result are stored in a cycle, by way of shared memory or straight from registers."""
EXCHANGE_CYCLES, EXCHANGE_BYTES_PER_CYCLE = 2000, 12
"""With split-K, two barriers of the cluster take so many cycles, and each CTA reads so many bytes of partial sums in a
cycle."""


def unit_cycles(gemm: Gemm, sizes: GemmMmaSizes[Ints], peaks: GpuPeaks) -> UnitCycles:
    """Return what a k iteration asks of the tensor cores, of shared memory (stores and ldmatrix), and of L2."""
    s, atom = sizes, atom_of(gemm)
    element, rate = atom.operand.bytes, peaks.warp_tensor_flops_per_cycle
    if atom.operand == float64:
        rate = FLOAT64_FLOPS_PER_CYCLE
    elif atom.operand == tfloat32:
        rate = rate / 2
    fragments = s.threads // WARP_LANES * ATOM_M * (s.atoms_m + s.atoms_n) * s.block_k * element
    shared = (fragments + element * (s.tile_m + s.tile_n) * s.block_k) / peaks.shared_bytes_per_cycle
    waits = 0.0 if has_ldmatrix(atom) else EXPOSED_LOADS * shared
    if atom.operand == tfloat32:
        waits = waits + ROUNDING_CYCLES * fragments / (element * WARP_LANES)
    return UnitCycles(
        mma=2 * s.tile_m * s.tile_n * s.block_k / rate + waits,
        shared=shared,
        l2=element * (s.tile_m + s.tile_n) * s.block_k / L2_BYTES_PER_CYCLE,
    )


def prior_seconds(gemm: Gemm, sizes: GemmMmaSizes[Ints], peaks: GpuPeaks) -> Floats:
    """Return the estimated time of each setting in seconds.

    k iteration = the slowest of tensor cores, shared memory and L2, and the copies; at least a share of the latency
    busy        = waves of CTAs x (start + k iterations + epilogue) + adding up partial sums
    time        = launch + repacking + joined(busy, reading inputs and writing outputs once)
    """
    s, work = sizes, unit_cycles(gemm, sizes, peaks)
    tiles = tiles_per_sm(s, peaks.multiprocessors)
    at_once = np.minimum(tiles, s.ctas_per_sm)
    under_way = np.where(s.loads > 0, 1, np.maximum(s.stages - 1, 1))
    iteration = at_once * (np.maximum(np.maximum(work.mma, work.l2), work.shared) + s.copy_cycles)
    iteration = np.maximum(iteration, LATENCY_CYCLES / under_way)
    rate = np.where(s.staged_epilogue == 1, STAGED_PER_CYCLE, STORED_PER_CYCLE)
    epilogue = at_once * s.tile_m * s.tile_n / rate / s.split_k
    partials = gemm.accumulator.dtype.bytes * s.tile_m * s.tile_n
    exchange = np.where(s.split_k > 1, EXCHANGE_CYCLES + partials / EXCHANGE_BYTES_PER_CYCLE, 0)
    repack = np.where(s.repacked == 1, repack_cycles(gemm, uneven_operands(as_stored(gemm)), peaks), 0)
    waves = tiles / at_once
    busy = exchange + waves * (START_CYCLES + s.k_iters * iteration + epilogue)
    memory = sum(t.bytes for t in (*gemm.inputs, *(r.tensor for r in gemm.results))) / peaks.memory_bytes_per_cycle
    cycles: Floats = END_CYCLES + repack + joined(busy, memory)
    return peaks.launch_seconds + cycles / peaks.clock_hz
