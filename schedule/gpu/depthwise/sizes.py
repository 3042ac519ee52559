"""All sizes that follow from the knobs of a depthwise convolution, for whole columns and for one setting."""

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.gpu.tma import SWIZZLE_ROW_BYTES
from ...problems.depthwise import OUTPUTS, POSITIONS, Depthwise
from ...space.columns import Columns, Size
from ..occupancy import limits_of

ATOM_BLOCKS = 16
"""Blocks of eight outputs that a matrix instruction computes."""
HALO_UNIT = 4
"""A lane takes every fourth of the positions that an instruction sees: it takes a number of them that four divides."""
STRIP_COLUMNS = 64
"""Outputs of a row of a strip, at most."""
SWIZZLE_ROWS = 8
"""Pixels of a period of the swizzle; a row of the input has whole periods in shared memory."""
SPARE_REGISTERS = 8
"""Registers for addresses and constants, roughly (from compiled kernels)."""


@dataclass(frozen=True, slots=True)
class DepthwiseSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``vector_width``, ``tile_h``, ``stages``, ``threads`` and ``persistent`` are the knobs. A block is ``block_h`` rows
    of ``block_w`` outputs, eight in all. A strip is ``tile_h`` rows of ``tile_w`` outputs of an image; a warp has
    ``strips`` of them at once. ``blocks_w``: blocks beside each other in a strip that exist. ``tile_c``: channels of a
    thread block. ``seen``: pixels of a row that an instruction sees. ``row_room``: pixels of a row of the input that a
    strip has room for. ``tiles_h``, ``tiles_w``, ``tiles_c``: strips below each other and beside each other in an
    image, and thread blocks that share the channels. ``slots``: rows of blocks that have accumulators, those that a row
    of the input contributes to. ``needed_rows``: rows of the input that a strip needs. ``stage_rows``: rows that a
    stage holds; ``steps``: how many times they arrive for a strip. ``rounds``: how many times a thread block has
    strips; ``workers``: thread blocks with strips of their own. ``blocks``: thread blocks. ``shared_bytes``: shared
    memory of a block. ``registers``: estimated registers of a thread. ``resident``: how many blocks a multiprocessor
    runs at once, by that estimate.
    """

    vector_width: Size
    tile_h: Size
    stages: Size
    threads: Size
    persistent: Size
    block_h: Size
    block_w: Size
    tile_w: Size
    strips: Size
    blocks_w: Size
    tile_c: Size
    seen: Size
    row_room: Size
    tiles_h: Size
    tiles_w: Size
    tiles_c: Size
    slots: Size
    needed_rows: Size
    stage_rows: Size
    steps: Size
    rounds: Size
    workers: Size
    blocks: Size
    shared_bytes: Size
    registers: Size
    resident: Size


def depthwise_sizes(problem: Depthwise, target: Target, columns: Columns) -> DepthwiseSizes:
    """Return the sizes of many settings."""
    knobs = columns.named("vector_width", "tile_h", "stages", "threads", "persistent")
    width, tile_h, stages, threads, persistent = knobs.values()
    ones, window, extent_w = np.ones_like(width), problem.window, problem.width.axis.extent
    # Two rows of four outputs, where an instruction has room for the eight pixels of a row that they may see.
    block_h = 2 if problem.width.positions(OUTPUTS // 2) <= POSITIONS // 2 else 1
    block_w, tile_w = OUTPUTS // block_h, min(STRIP_COLUMNS, max(OUTPUTS, 1 << (extent_w - 1).bit_length()))
    strips, blocks_w = ATOM_BLOCKS * block_w // tile_w, -(-min(tile_w, extent_w) // block_w)
    seen = -(-problem.width.positions(block_w) // HALO_UNIT) * HALO_UNIT
    row_room = -(-max((blocks_w - 1) * block_w + seen, tile_w) // SWIZZLE_ROWS) * SWIZZLE_ROWS
    slots = -(-(problem.rows - 1) // block_h) + 1
    needed_rows, stage_rows = block_h * (-(-tile_h // block_h) + slots - 1), block_h * slots
    tile_c = threads // WARP_LANES * width
    shared_bytes = stages * strips * stage_rows * row_room * tile_c * problem.pixels.dtype.bytes
    accumulators, filters, fragments = 4 * slots * width, 2 * slots * width, 4 * width
    registers = SPARE_REGISTERS + accumulators + filters + fragments
    tiles_h, tiles_w, tiles_c = (
        -(-extent // tile)
        for extent, tile in (
            (problem.height.axis.extent, tile_h), (extent_w, tile_w * ones), (window.channel.extent, tile_c)
        )
    )  # fmt: skip
    found = DepthwiseSizes(
        **knobs,
        block_h=block_h * ones,
        block_w=block_w * ones,
        tile_w=tile_w * ones,
        strips=strips * ones,
        blocks_w=blocks_w * ones,
        tile_c=tile_c,
        seen=seen * ones,
        row_room=row_room * ones,
        tiles_h=tiles_h,
        tiles_w=tiles_w,
        tiles_c=tiles_c,
        slots=slots * ones,
        needed_rows=needed_rows,
        stage_rows=stage_rows * ones,
        steps=-(-needed_rows // stage_rows),
        rounds=ones,
        workers=ones,
        blocks=ones,
        shared_bytes=shared_bytes,
        registers=registers,
        resident=limits_of(target).resident_blocks(threads, registers, shared_bytes),
    )
    groups = -(-strip_count(problem, found) // strips)
    at_once = np.clip(found.resident * target.threads // tiles_c, 1, groups)
    workers = np.where(persistent == 1, at_once, groups)
    return replace(found, rounds=-(-groups // workers), workers=workers, blocks=tiles_c * workers)


def strip_count(problem: Depthwise, sizes: DepthwiseSizes) -> Size:
    """Return how many strips all images have."""
    return prod(a.extent for a in problem.image_axes) * sizes.tiles_h * sizes.tiles_w


def is_swizzled(problem: Depthwise, sizes: DepthwiseSizes) -> Size:
    """Return whether pixels are swizzled in shared memory: they have the length that TMA swizzles."""
    return sizes.tile_c * problem.pixels.dtype.bytes == SWIZZLE_ROW_BYTES
