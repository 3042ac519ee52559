"""All sizes that follow from the knobs of a convolution of few channels, for whole columns and for one setting."""

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints, Size
from ..conv_mma.sizes import operand_bytes, padded
from ..occupancy import limits_of
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from .tap_words import tap_words

VECTOR_BYTES = 16
"""Bytes of the widest copy, and of the widest store."""
WORD_BYTES = 4
"""Bytes of the narrowest asynchronous copy, and of a word."""
LANE_NEIGHBOURS = 4
"""Neighbouring pixels of a strip that a lane stores where these are neighbours in the results."""
ATOM_WORDS = 8
"""Words of k of a matrix instruction."""
LOADS_AT_ONCE = 16
"""A thread loads so many elements of pixels before it stores the first one, where they are copied one by one."""
SPARE_REGISTERS = 36
"""Registers for addresses, constants and words, roughly, beside those for where words are (from compiled kernels)."""


@dataclass(frozen=True, slots=True)
class FewChannelsSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_h``, ``tile_w``, ``warps_m``, ``warps_n``, ``atoms_m``, ``atoms_n`` and ``stages`` are the knobs. A patch
    is ``tile_h`` rows of ``tile_w`` outputs of an image. ``across``: how many strips of 16 pixels a row of a patch
    has. ``strips``: how many of a patch a warp has. ``joined``: how many instructions along the filters have
    neighbouring ones in each lane, two of each. ``threads``: threads of a block. ``filters``: how many filters a
    block has. ``groups``: how many blocks share the filters. ``patches``: how many patches there are. ``box_rows``:
    how many rows of pixels the windows of a patch see along the height. ``rows``: those of all slices. ``pitch``:
    elements of such a row in shared memory. ``rounds``: how many patches a block computes, one after another.
    ``blocks``: thread blocks. ``stage_bytes``: what the pixels of a patch take of shared memory. ``shared_bytes``:
    shared memory of a block. ``registers``: estimated registers of a thread. ``prefetching``: how many blocks
    prefetch filters into L2. ``resident``: how many blocks a multiprocessor runs at once, by that estimate.
    """

    tile_h: Size
    tile_w: Size
    warps_m: Size
    warps_n: Size
    atoms_m: Size
    atoms_n: Size
    stages: Size
    across: Size
    strips: Size
    joined: Size
    threads: Size
    filters: Size
    groups: Size
    patches: Size
    box_rows: Size
    rows: Size
    pitch: Size
    rounds: Size
    blocks: Size
    stage_bytes: Size
    shared_bytes: Size
    registers: Size
    prefetching: Size
    resident: Size


def few_channels_sizes(gemm: Gemm, target: Target, columns: Columns) -> FewChannelsSizes:
    """Return the sizes of many settings."""
    window, words = gemm.window, tap_words(gemm)
    assert window is not None
    knobs = columns.named("tile_h", "tile_w", "warps_m", "warps_n", "atoms_m", "atoms_n", "stages")
    tile_h, tile_w, warps_m, warps_n, atoms_m, atoms_n, stages = knobs.values()
    ones, size = np.ones_like(tile_h), operand_bytes(gemm)
    height, width = (1, *window.positions)[-2:]
    taps_h, stride_h, dilation_h = ((1, *x)[-2] for x in (window.taps, window.strides, window.dilations))
    outer = prod(window.positions[:-2])
    patches = window.images * outer * -(-height // tile_h) * -(-width // tile_w)
    across, threads, filters = tile_w // ATOM_M, WARP_LANES * warps_m * warps_n, ATOM_N * atoms_n * warps_n
    groups = -(-gemm.n.extent // filters)
    box_rows = (tile_h - 1) * stride_h + (taps_h - 1) * dilation_h + 1
    rows = box_rows * prod(window.taps[:-2])
    unit, elements = copied_elements(gemm), (tile_w - 1) * words.step + words.run + 2 * words.unit
    pitch = padded(elements + lead(gemm), max(unit, words.unit, VECTOR_BYTES // size))
    stage_bytes = rows * pitch * size
    registers = SPARE_REGISTERS + 2 * k_atoms(gemm) * (atoms_n * orders(gemm) + 1) + 4 * atoms_m * atoms_n
    shared_bytes = stages * stage_bytes
    found = FewChannelsSizes(
        **knobs,
        across=across,
        strips=tile_h * across // warps_m,
        joined=_joined(gemm, atoms_n),
        threads=threads,
        filters=filters,
        groups=groups,
        patches=patches,
        box_rows=box_rows,
        rows=rows,
        pitch=pitch,
        rounds=ones,
        blocks=patches * groups,
        stage_bytes=stage_bytes,
        shared_bytes=shared_bytes,
        registers=registers,
        prefetching=ones,
        resident=limits_of(target).resident_blocks(threads, registers, shared_bytes),
    )
    at_once = np.clip(found.resident * target.threads // groups, 1, patches)
    rounds = -(-patches // at_once)
    return replace(
        found,
        rounds=rounds,
        blocks=-(-patches // rounds) * groups,
        prefetching=limits_of(target).overlapping_ctas(found.resident, target.threads),
    )


def interleaved(gemm: Gemm) -> int:
    """Return how many strips share a run of pixels: those of one parity each, where pixels are rows of instructions."""
    return 1 if gemm.along_pixels else tap_words(gemm).parities


def orders(gemm: Gemm) -> int:
    """Return in how many orders a lane has its filters."""
    return tap_words(gemm).parities if gemm.along_pixels else 1


def _joined(gemm: Gemm, atoms_n: Ints) -> Ints:
    """Return how many instructions along the filters have neighbouring ones in each lane: two of each, which are a
    vector of 16 bytes of the narrowest result at best."""
    narrowest = min(r.tensor.dtype.bytes for r in gemm.results)
    joined: Ints = np.gcd(atoms_n, max(VECTOR_BYTES // (2 * narrowest), 1))
    return np.where(gemm.n.extent % (2 * joined) == 0, joined, 1)


def k_atoms(gemm: Gemm) -> int:
    """Return how many matrix instructions a window takes along k."""
    return -(-tap_words(gemm).count // ATOM_WORDS)


def copied_elements(gemm: Gemm) -> int:
    """Return how many elements of a row of pixels are copied at once: a copy is aligned, and lies all inside or all
    outside of an image. 1 where rows are not even made of words."""
    assert gemm.a.load is not None and gemm.window is not None
    size, row = operand_bytes(gemm), gemm.a.load.buffer.shape[-2] * gemm.window.channels
    return next((n // size for n in (16, 8, WORD_BYTES) if row * size % n == 0), 1)


def lead(gemm: Gemm) -> int:
    """Return how many elements a row in shared memory has ahead of the first one that a window sees."""
    window, unit = gemm.window, max(copied_elements(gemm), tap_words(gemm).unit)
    assert window is not None
    return window.lower[-1] * window.channels % unit
