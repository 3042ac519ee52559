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
from ..peaks import gpu_peaks
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from .sizes import COPIES_AT_ONCE, ConvMmaSizes, filter_count, filter_vectors, operand_bytes, padded, warp_atom

# These are rough. The best estimate for three filters on 512x512x128 is 24 us, as long as an H200 took for it.
L2_BYTES_PER_CYCLE = 24
"""Bytes from L2 to a multiprocessor in a cycle, while all read boxes of pixels."""
INSTRUCTION_CYCLES = 8
"""Cycles between two instructions of a warp."""
BUSY_WARPS = 12
"""So many warps keep the units of a multiprocessor busy."""
BUSY_WARPS_WITH_REGISTERS = 8
"""The same where sums stay in registers: warps have several products that do not wait for one another."""
ROUND_CYCLES, STORE_CYCLES = 300, 12
"""Cycles of a round beside its copies and products, and those to store what an instruction leaves in registers."""
ROW_PIXELS = 8
"""Pixels whose channels are read from shared memory at once, 16 bytes of each."""
COPY_ACCESSES = 3
"""What a copy of filters takes, in the time of loads and stores."""


def conv_mma_seconds(workload: Workload, gemm: Gemm, target: Target, sizes: ConvMmaSizes, peaks: Peaks) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    s, found, window = sizes, gpu_peaks(target, peaks), gemm.window
    assert window is not None and gemm.a.load is not None
    size, warps, atom = operand_bytes(gemm), s.threads // WARP_LANES, warp_atom(gemm)
    assert atom is not None
    staged, atoms_n, k_atoms = s.staged_epilogue == 1, -(-s.count // ATOM_N), s.shifts * s.chunks * s.chunk_atoms
    outputs = s.tile_d * s.tile_h * s.tile_w
    products = s.atoms * atoms_n * k_atoms
    of_pixels = s.atoms * ATOM_M * np.where(staged, 1.0, _bank_conflicts(s.tile_w, window.strides[-1]))
    fragments = k_atoms * (of_pixels + warps * padded(s.count, 2 * ATOM_N)) * atom.k * size
    partials = np.where(staged, s.count * (s.atoms * ATOM_M + outputs) * float32.bytes, 0)
    copies = window.tap_count * filter_count(gemm) * window.channels / filter_vectors(gemm)[1]
    accesses = (
        np.where(staged, products, 0)
        + fragments / (WARP_LANES * (16 if size == 2 else size))
        + partials / (WARP_LANES * float32.bytes)
        + np.where(staged, outputs / WARP_LANES, 4 * s.atoms * atoms_n / s.joined)
    )
    # TF32 takes twice as long as 16 bits, and its fragments are loaded element by element.
    operations = products * (2 * ATOM_M * ATOM_N * atom.k) * (size / 2)
    from_l2 = s.patches * s.box_pixels * window.channels * size + s.blocks * s.filter_bytes
    # What a warp does for a patch, one after another.
    issued = k_atoms * (-(-atoms_n // 2) + s.atoms_m * (1 + atoms_n)) + 4 * s.atoms_m * atoms_n
    issued = issued + -(-outputs // s.threads) * (2 * s.count + 4 * filter_count(gemm))
    # Products with registers do not wait for one another, but nothing is multiplied while a single stage is filled.
    filled = np.where(s.stages == 1, s.box_pixels * window.channels * size / L2_BYTES_PER_CYCLE, 0.0)
    with_registers = ROUND_CYCLES + STORE_CYCLES * s.atoms_m * atoms_n + filled
    cycles = s.rounds * np.where(staged, issued * INSTRUCTION_CYCLES, with_registers)
    waited = cycles * found.seconds(1) / LOAD_LATENCY_SECONDS
    # With few warps, units wait for the next instruction.
    busy = np.where(staged, BUSY_WARPS, BUSY_WARPS_WITH_REGISTERS)
    slower = np.maximum(busy / np.maximum(warps * s.resident, 1), 1.0)
    traffic = MemoryTraffic(
        blocks=s.blocks,
        resident=s.resident,
        memory_bytes=minimum_bytes(workload),
        l2_bytes=from_l2 * (found.l2_bytes_per_cycle / L2_BYTES_PER_CYCLE),
        accesses=slower * (s.patches * accesses + s.blocks * copies / WARP_LANES * COPY_ACCESSES),
        rounds=np.maximum(s.rounds * s.chunks / s.stages, copies / (s.threads * COPIES_AT_ONCE)) + waited,
        shared_bytes=s.patches * (s.chunks * s.stage_bytes + fragments + partials),
        operations=slower
        * s.patches
        * operations
        * (found.float32_flops_per_cycle / found.warp_tensor_flops_per_cycle),
    )
    uneven = np.where(staged, 1.0, s.rounds * s.blocks / s.patches * (s.atoms_m * warps / s.atoms))
    seconds: Floats = memory_bound_seconds(found, traffic) * uneven
    return seconds


def _bank_conflicts(tile_w: Size, stride: int) -> Floats:
    """Return how often the pixels of eight outputs are read, if those of neighbouring pixels lie in different banks:
    pixels of one row are ``stride`` apart, and those of the next row may meet them."""
    across_rows = np.where(tile_w % ROW_PIXELS == 0, 0.0, np.minimum(ROW_PIXELS / tile_w, 1.0))
    found: Floats = gcd(stride, ROW_PIXELS) * (1.0 + across_rows)
    return found
