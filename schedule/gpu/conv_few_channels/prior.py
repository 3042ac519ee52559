"""Estimates the time of a convolution of few channels: memory, what each unit of a multiprocessor does, or what a block
does one after another."""

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....te.cost import flops, minimum_bytes
from ....te.workload import Workload
from ...problems.gemm import Gemm
from ...sketch import Peaks
from ...space.columns import Floats
from ..conv_mma.sizes import operand_bytes
from ..memory_prior import BLOCK_CYCLES, LOAD_LATENCY_SECONDS, MemoryTraffic, memory_bound_seconds
from ..peaks import gpu_peaks
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from .sizes import (
    LANE_NEIGHBOURS,
    LOADS_AT_ONCE,
    VECTOR_BYTES,
    WORD_BYTES,
    FewChannelsSizes,
    copied_elements,
    k_atoms,
    orders,
)
from .tap_words import tap_words

# Instructions are counted in the machine code of the stem of a YOLO.
COPY_INSTRUCTIONS = 32
"""Instructions to copy a vector of pixels, most of them for its address."""
ATOM_INSTRUCTIONS = 16
"""Instructions for an instruction along the pixels, beside its loads and products."""
OPERATION_INSTRUCTIONS = 2.5
"""Instructions for an operation of an epilogue, some of which take several."""
OUTPUT_INSTRUCTIONS = 1.0
"""Other instructions for an output: its part in rounding and storing."""
FILTER_INSTRUCTIONS = 4
"""Instructions to load an element of the filters."""
INSTRUCTION_CYCLES = 2.0
"""Cycles between two instructions of a warp that do not wait for one another."""
CHAIN_CYCLES = 33
"""Cycles until the result of a matrix instruction is there, or that of a load from shared memory."""
ATOM_CYCLES = 8
"""Cycles between two matrix instructions of a warp."""
UNHIDDEN = 0.35
"""The share of the products' time that moving bytes does not hide, or the other way round (from ten stems on an
H200, which took 5 to 70 us)."""
ROUND_CYCLES = 200
"""Cycles of a round beside its copies and products."""

SECTOR_BYTES = 32
"""Bytes of L2 that are written together."""


def few_channels_seconds(workload: Workload, gemm: Gemm, target: Target, s: FewChannelsSizes, peaks: Peaks) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    found, words, window = gpu_peaks(target, peaks), tap_words(gemm), gemm.window
    assert window is not None
    along_k, warps, tiles = k_atoms(gemm), s.threads // WARP_LANES, s.patches * s.groups
    sizes = [r.tensor.dtype.bytes for r in gemm.results]
    outputs = gemm.m.extent * gemm.n.extent
    applied = max(flops(workload) / outputs - 2 * gemm.k.extent, 0.0)
    # what a warp does in a round, and once
    copies = -(-s.rows * (s.pitch // copied_elements(gemm)) // s.threads)
    loads, products = 4 * along_k, along_k * s.atoms_n
    finished = 4 * s.atoms_n * (OUTPUT_INSTRUCTIONS + OPERATION_INSTRUCTIONS * applied)
    neighbours = LANE_NEIGHBOURS if gemm.along_pixels else 2 * s.joined
    stores = sum(4 * s.atoms_n / np.minimum(neighbours, VECTOR_BYTES // size) for size in sizes)
    filters = 2 * words.unit * along_k * s.atoms_n * orders(gemm)
    own = copies * COPY_INSTRUCTIONS + s.strips * (ATOM_INSTRUCTIONS + loads + products + finished + stores)
    instructions = warps * (tiles * own + s.blocks * filters * FILTER_INSTRUCTIONS)
    # how long a block takes for all of its rounds, one after another
    at_once = s.atoms_m * (ATOM_INSTRUCTIONS + loads + finished + stores) * INSTRUCTION_CYCLES
    at_once = at_once + CHAIN_CYCLES + along_k * np.maximum(CHAIN_CYCLES, ATOM_CYCLES * s.atoms_m * s.atoms_n)
    copied = copies * COPY_INSTRUCTIONS * INSTRUCTION_CYCLES + ROUND_CYCLES
    alone = s.rounds * (s.strips // s.atoms_m * at_once + copied) + filters * FILTER_INSTRUCTIONS * INSTRUCTION_CYCLES
    waited = np.where(s.stages == 1, s.rounds, 1) + 1
    if copied_elements(gemm) * operand_bytes(gemm) < WORD_BYTES:
        waited = waited + s.rounds * -(-copies // LOADS_AT_ONCE)
    atoms = tiles * s.strips * warps
    tensor = atoms * products * (2 * ATOM_M * ATOM_N * 32 // operand_bytes(gemm)) * (operand_bytes(gemm) / 2)
    # what four lanes store side by side may be a part of a sector
    written = sum(outputs * np.maximum(size, SECTOR_BYTES / (4 * neighbours)) for size in sizes)
    traffic = MemoryTraffic(
        blocks=s.blocks,
        resident=s.resident,
        memory_bytes=minimum_bytes(workload),
        l2_bytes=tiles * s.stage_bytes + written,
        accesses=warps * (tiles * (copies + s.strips * (loads + stores)) + s.blocks * filters),
        rounds=alone * found.seconds(1) / LOAD_LATENCY_SECONDS + waited,
        shared_bytes=tiles * s.stage_bytes + atoms * loads * WARP_LANES * 4,
        operations=np.maximum(
            tensor * (found.float32_flops_per_cycle / found.warp_tensor_flops_per_cycle),
            instructions * (2.0 * WARP_LANES),
        ),
    )
    uneven = s.rounds * (s.blocks // s.groups) / s.patches
    # the device begins blocks one after another, and none of them ends before the last one has begun
    begun = found.seconds(BLOCK_CYCLES) * s.blocks / 2
    multiplied = tensor / found.warp_tensor_flops_per_cycle / found.multiprocessors * found.seconds(1)
    moved = minimum_bytes(workload) / found.memory_bytes_per_second
    unhidden = UNHIDDEN * np.minimum(multiplied, moved) + LOAD_LATENCY_SECONDS
    seconds: Floats = memory_bound_seconds(found, traffic) * uneven + begun + unhidden
    return seconds
