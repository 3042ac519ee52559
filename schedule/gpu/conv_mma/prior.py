"""Estimates the time of a convolution with few filters: memory, or what each unit of a multiprocessor does."""

from math import gcd

import numpy as np

from ....core.dtypes import float32
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....te.cost import minimum_bytes
from ....te.workload import Workload
from ...problems.gemm import Gemm
from ...sketch import Peaks
from ...space.columns import Floats, Size
from ..memory_prior import LOAD_LATENCY_SECONDS, MemoryTraffic, memory_bound_seconds
from ..occupancy import PARTS
from ..peaks import GpuPeaks, gpu_peaks
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from .sizes import COPIES_AT_ONCE, ConvMmaSizes, filter_count, filter_vectors, operand_bytes, padded, warp_atom

# These are rough. The best estimate for three filters on 512x512x128 is 24 us, as long as an H200 took for it.
L2_BYTES_PER_CYCLE = 24
"""Bytes from L2 to a multiprocessor in a cycle, while all read boxes of pixels."""
INSTRUCTION_CYCLES = 8
"""Cycles between two instructions of a warp."""
BUSY_WARPS = 12
"""So many warps keep the units of a multiprocessor busy."""
COPY_ACCESSES = 3
"""What a copy of filters takes, in the time of loads and stores."""

# Those of sums that stay in registers follow from machine code, and were not fitted.
BUSY_PRODUCTS = 96
"""So many products that do not wait for one another keep the units of a multiprocessor busy."""
ROUND_CYCLES = 300
"""Cycles of a round beside its products and stores."""
STORE_CYCLES = 12
"""Cycles to store what an instruction leaves in registers."""
COPY_CYCLES = 0.3
"""Cycles of a multiprocessor to spread a vector of filters over columns."""
ROW_PIXELS = 8
"""Pixels whose channels are read from shared memory at once, 16 bytes of each."""


def conv_mma_seconds(workload: Workload, gemm: Gemm, target: Target, sizes: ConvMmaSizes, peaks: Peaks) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    found, staged = gpu_peaks(target, peaks), sizes.staged_epilogue == 1
    seconds: Floats = np.where(
        staged, _staged_seconds(workload, gemm, sizes, found), _register_seconds(workload, gemm, sizes, found)
    )
    return seconds


def _staged_seconds(workload: Workload, gemm: Gemm, s: ConvMmaSizes, found: GpuPeaks) -> Floats:
    """As ``conv_mma_seconds``, where sums go through shared memory."""
    warps, outputs, atoms_n = s.threads // WARP_LANES, s.tile_d * s.tile_h * s.tile_w, -(-s.count // ATOM_N)
    k_atoms = s.shifts * s.chunks * s.chunk_atoms
    products, fragments = s.atoms * atoms_n * k_atoms, _fragment_bytes(gemm, s, 1.0)
    partials = s.count * (s.atoms * ATOM_M + outputs) * float32.bytes
    copies = _copies(gemm)
    accesses = (
        products + fragments / _access_bytes(gemm) + partials / (WARP_LANES * float32.bytes) + outputs / WARP_LANES
    )
    # What a warp does for a patch, one after another.
    issued = k_atoms * (-(-atoms_n // 2) + s.atoms_m * (1 + atoms_n)) + 4 * s.atoms_m * atoms_n
    issued = issued + -(-outputs // s.threads) * (2 * s.count + 4 * filter_count(gemm))
    waited = s.rounds * issued * found.seconds(INSTRUCTION_CYCLES) / LOAD_LATENCY_SECONDS
    # With few warps, units wait for the next instruction.
    slower = np.maximum(BUSY_WARPS / np.maximum(warps * s.resident, 1), 1.0)
    traffic = MemoryTraffic(
        blocks=s.blocks,
        resident=s.resident,
        memory_bytes=minimum_bytes(workload),
        l2_bytes=_l2_bytes(gemm, s) * (found.l2_bytes_per_cycle / L2_BYTES_PER_CYCLE),
        accesses=slower * (s.patches * accesses + s.blocks * copies / WARP_LANES * COPY_ACCESSES),
        rounds=np.maximum(s.rounds * s.chunks / s.stages, copies / (s.threads * COPIES_AT_ONCE)) + waited,
        shared_bytes=s.patches * (s.chunks * s.stage_bytes + fragments + partials),
        operations=slower * s.patches * _operations(gemm, products, found),
    )
    return memory_bound_seconds(found, traffic)


def _register_seconds(workload: Workload, gemm: Gemm, s: ConvMmaSizes, found: GpuPeaks) -> Floats:
    """As ``conv_mma_seconds``, where sums stay in registers. The products of a warp do not wait for one another."""
    window, warps, atoms_n = gemm.window, s.threads // WARP_LANES, -(-s.count // ATOM_N)
    assert window is not None
    products = s.atoms * atoms_n * s.shifts * s.chunks * s.chunk_atoms
    fragments, copies = _fragment_bytes(gemm, s, _bank_conflicts(s.tile_w, window.strides[-1])), _copies(gemm)
    accesses = fragments / _access_bytes(gemm) + 4 * s.atoms * atoms_n / s.joined
    filled = s.box_pixels * window.channels * operand_bytes(gemm) / L2_BYTES_PER_CYCLE
    # Nothing is multiplied while a single stage is filled.
    of_round = ROUND_CYCLES + STORE_CYCLES * s.atoms_m * atoms_n + np.where(s.stages == 1, filled, 0.0)
    waited = s.rounds * of_round * found.seconds(1) / LOAD_LATENCY_SECONDS
    busy = np.maximum(BUSY_PRODUCTS / (s.atoms_m * atoms_n), PARTS)
    slower = np.maximum(busy / np.maximum(warps * s.resident, 1), 1.0)
    traffic = MemoryTraffic(
        blocks=s.blocks,
        resident=s.resident * np.maximum(warps / PARTS, 1),  # warps of a block hide what others wait for, too
        memory_bytes=minimum_bytes(workload),
        l2_bytes=_l2_bytes(gemm, s) * (found.l2_bytes_per_cycle / L2_BYTES_PER_CYCLE),
        accesses=slower * (s.patches * accesses + s.blocks * copies / WARP_LANES * COPY_ACCESSES),
        rounds=np.maximum(s.rounds * s.chunks / s.stages, copies / (s.threads * COPIES_AT_ONCE)) + waited,
        shared_bytes=s.patches * (s.chunks * s.stage_bytes + fragments),
        operations=slower * s.patches * _operations(gemm, products, found),
    )
    # A block spreads the filters before its first product, behind which others of a multiprocessor hide.
    each = np.maximum(s.blocks / found.multiprocessors, 1.0)
    uneven = s.rounds * s.blocks / s.patches * (s.atoms_m * warps / s.atoms) * (np.ceil(each) / each)
    begins = LOAD_LATENCY_SECONDS + found.seconds(1) * (COPY_CYCLES * copies + filled)
    seconds: Floats = memory_bound_seconds(found, traffic) * uneven + (1 + (each - 1) / s.resident) * begins
    return seconds


def _fragment_bytes(gemm: Gemm, s: ConvMmaSizes, conflicts: float | Floats) -> Floats:
    """Return the bytes of fragments that are read from shared memory for a patch. Those of pixels are read several
    times for ``conflicts`` of banks."""
    atom = warp_atom(gemm)
    assert atom is not None
    columns = s.threads // WARP_LANES * padded(s.count, 2 * ATOM_N)
    k = s.shifts * s.chunks * s.chunk_atoms * atom.k
    found: Floats = k * (s.atoms * ATOM_M * conflicts + columns) * operand_bytes(gemm)
    return found


def _access_bytes(gemm: Gemm) -> int:
    """Return how many bytes of fragments a warp loads at once; those of TF32 are loaded element by element."""
    return WARP_LANES * (16 if operand_bytes(gemm) == 2 else operand_bytes(gemm))


def _operations(gemm: Gemm, products: Size, found: GpuPeaks) -> Floats:
    """Return so many matrix instructions as float32 operations. TF32 takes twice as long as 16 bits."""
    atom = warp_atom(gemm)
    assert atom is not None
    each = (2 * ATOM_M * ATOM_N * atom.k) * (operand_bytes(gemm) / 2)
    ratio: Floats = products * each * (found.float32_flops_per_cycle / found.warp_tensor_flops_per_cycle)
    return ratio


def _l2_bytes(gemm: Gemm, s: ConvMmaSizes) -> Size:
    """Return the bytes of pixels and filters that come from L2."""
    assert gemm.window is not None
    return s.patches * s.box_pixels * gemm.window.channels * operand_bytes(gemm) + s.blocks * s.filter_bytes


def _copies(gemm: Gemm) -> float:
    """Return how many vectors of filters a block copies."""
    assert gemm.window is not None
    return gemm.window.tap_count * filter_count(gemm) * gemm.window.channels / filter_vectors(gemm)[1]


def _bank_conflicts(tile_w: Size, stride: int) -> Floats:
    """Return how often the pixels of eight outputs are read, if those of neighbouring pixels lie in different banks:
    pixels of one row are ``stride`` apart, and those of the next row may meet them."""
    across_rows = np.where(tile_w % ROW_PIXELS == 0, 0.0, np.minimum(ROW_PIXELS / tile_w, 1.0))
    found: Floats = gcd(stride, ROW_PIXELS) * (1.0 + across_rows)
    return found
