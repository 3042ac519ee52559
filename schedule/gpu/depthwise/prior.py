"""Estimates the time of a depthwise convolution on matrix units: memory, or what each unit of a multiprocessor does."""

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....te.cost import minimum_bytes
from ...problems.depthwise import CHUNK_CHANNELS, Depthwise
from ...sketch import Peaks
from ...space.columns import Floats
from ..occupancy import PARTS
from ..peaks import gpu_peaks
from ..reduction_prior import SECTOR_BYTES
from .sizes import HALO_UNIT, SWIZZLE_ROWS, DepthwiseSizes

# Fitted to the settings of 5 x 5 and 3 x 3 windows that an H200 timed.
PART_BYTES = 40
"""A part of a sector at the end of a pixel's channels takes L2 as much longer as so many bytes."""
CHANNEL_INSTRUCTIONS, ROW_INSTRUCTIONS = 9, 14
"""Instructions of a warp for a channel and for a row of the input, besides products (from compiled kernels)."""
START_CYCLES = 2500
"""A block takes so many cycles until its first rows and its filters are there."""
LATENCY_CYCLES = 1800
"""With two stages, warps wait so many cycles for the rows of each step."""
BARRIER_CYCLES = 300
"""Warps wait for each other for so many cycles in a step."""


def depthwise_seconds(problem: Depthwise, target: Target, sizes: DepthwiseSizes, peaks: Peaks) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n].

    step = the slowest of matrix units, issued instructions and shared memory, for the blocks of a multiprocessor; at
           least what the warps of one block take
    time = launch + waves x start + the slower one of memory and of waves x rounds x steps x step + waits
    """
    s, found, size = sizes, gpu_peaks(target, peaks), problem.pixels.dtype.bytes
    warps, atom, products = s.threads // WARP_LANES, problem.atom, s.slots * s.vector_width / s.block_h
    issued = products + CHANNEL_INSTRUCTIONS * s.vector_width + ROW_INSTRUCTIONS
    work = (
        warps * products * (2 * atom.m * atom.n * atom.k) / found.warp_tensor_flops_per_cycle,
        warps * issued / PARTS,
        _shared_bytes(problem, s) / found.shared_bytes_per_cycle,
    )
    block = s.stage_rows * np.max(np.stack(work), axis=0)
    blocks = np.ceil(s.blocks / found.multiprocessors)
    at_once = np.minimum(blocks, np.maximum(s.resident, 1))
    step = np.maximum(at_once * block, s.stage_rows * -(-warps // PARTS) * issued + BARRIER_CYCLES)
    lines = SECTOR_BYTES // size  # channels of a sector
    parted = (s.tile_c % lines != 0) | (problem.window.channel.extent % lines != 0)
    overhead = 1 + parted * PART_BYTES / (np.minimum(s.tile_c, problem.window.channel.extent) * size)
    memory = overhead * minimum_bytes(problem.window.workload) / found.memory_bytes_per_second
    waves, cycle = blocks / at_once, found.seconds(1.0)
    slower = np.maximum(memory, waves * s.rounds * s.steps * step * cycle)
    waits = waves * (START_CYCLES + (s.stages == 2) * s.rounds * s.steps * LATENCY_CYCLES)
    result: Floats = found.launch_seconds + waits * cycle + slower
    return result


def _shared_bytes(problem: Depthwise, s: DepthwiseSizes) -> Floats:
    """Return what passes through shared memory for a row of the input, by warps and by TMA, in the time of full
    accesses. Neighbouring pixels lie in different banks, eight of them. Lanes read eight at once, or those of half as
    many places where blocks have one row."""
    size = problem.pixels.dtype.bytes
    pixels = SWIZZLE_ROWS * s.block_h / 2
    access = np.maximum(CHUNK_CHANNELS * SWIZZLE_ROWS / (pixels * s.vector_width), 1) * s.vector_width * size
    accesses = 2 * s.seen // HALO_UNIT + 4 / s.block_h
    moved = 2 * s.strips * s.row_room * s.tile_c * size
    found: Floats = s.threads * accesses * access + moved
    return found
