"""All sizes that follow from the knobs of a convolution with few filters, for whole columns and for one setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from ....core.dtypes import float32, int64
from ....core.target import Target
from ....ir.expr import WARP_LANES, Var
from ....ir.gpu.mma import WARP_MMA_ATOMS, MmaAtom
from ....ir.gpu.tma import SWIZZLE_ROW_BYTES
from ....ir.rewrite import free_variables
from ....ir.verifier.tma import CHUNK_BYTES
from ...problems.gemm import Gemm, element_form
from ...problems.image_window import ImageWindow
from ...space.columns import Columns, Ints, Size
from ..gemm.mma_atom import find_atom, pair_count
from ..occupancy import limits_of
from ..skinny.mma_tiles import ATOM_M, ATOM_N

SWIZZLE_ROWS = 8
"""Pixels of a period of the swizzle; a stage has whole periods."""
PIXEL_PADDING = 4
"""Partial results between those of one column and the next: what a matrix instruction leaves in a warp lies in
different banks."""
COPIES_AT_ONCE = 16
"""A thread loads so many vectors of filters before it stores the first one."""
TILE_COUNTS = range(1, 9)
"""Into how many patches a dimension of an image may be divided evenly."""
SPARE_REGISTERS = 40
"""Registers for addresses and constants, roughly (from compiled kernels)."""


@dataclass(frozen=True, slots=True)
class ConvMmaSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_d``, ``tile_h``, ``tile_w``, ``column_taps``, ``threads``, ``stages``, ``persistent`` and
    ``staged_epilogue`` are the knobs. A patch is ``tile_d`` planes of ``tile_h`` rows of ``tile_w`` outputs of an
    image. ``patches``: how many there are. ``shifts``: how many taps there are that are no columns. ``count``: columns
    of the product, one for each of ``column_taps`` and filter of a phase. ``most_along_box``: the most pixels that a
    patch sees along a dimension. ``box_pixels``: how many pixels these are in all.
    ``rows``: rows of the product, the pixels at which a window may stand, apart from the columns; with sums that stay
    in registers, the outputs of a patch. ``atoms``: matrix instructions that have them as rows. ``atoms_m``: how many
    of these a warp has. ``joined``: how many instructions along the columns leave neighbouring filters in each lane,
    two of each. ``pitch``: sums of a column. ``pixel_pitch``: elements from a pixel in shared memory to the next.
    ``chunks``: into how many parts the channels are divided, each of ``chunk_atoms`` instructions along k. ``rounds``:
    how many patches a block computes, one after another. ``blocks``: thread blocks. ``stage_bytes``,
    ``partial_bytes``, ``filter_bytes``: what a stage, the sums and the filters take of shared memory.
    ``shared_bytes``: shared memory of a block. ``registers``: estimated registers of a thread. ``resident``: how many
    blocks a multiprocessor runs at once, by that estimate.
    """

    tile_d: Size
    tile_h: Size
    tile_w: Size
    column_taps: Size
    threads: Size
    stages: Size
    persistent: Size
    staged_epilogue: Size
    patches: Size
    shifts: Size
    count: Size
    most_along_box: Size
    box_pixels: Size
    rows: Size
    atoms: Size
    atoms_m: Size
    joined: Size
    pitch: Size
    pixel_pitch: Size
    chunks: Size
    chunk_atoms: Size
    rounds: Size
    blocks: Size
    stage_bytes: Size
    partial_bytes: Size
    filter_bytes: Size
    shared_bytes: Size
    registers: Size
    resident: Size


def conv_mma_sizes(gemm: Gemm, target: Target, columns: Columns) -> ConvMmaSizes:
    """Return the sizes of many settings."""
    window = gemm.window
    assert window is not None
    knobs = columns.named(
        *("tile_d", "tile_h", "tile_w", "column_taps", "threads", "stages", "persistent", "staged_epilogue")
    )
    *tiles, column_taps, threads, stages, persistent, staged_epilogue = knobs.values()
    ones, warps, staged = np.ones_like(threads), threads // WARP_LANES, staged_epilogue == 1
    patch = tiles[-len(window.positions) :]
    patches = window.images * prod(-(-n // side) for n, side in zip(window.positions, patch, strict=True))
    box, shifts, count = box_extents(window, patch), window.tap_count // column_taps, column_taps * filter_count(gemm)
    box_pixels = prod(box)
    rows = box_pixels - np.select(
        [column_taps == taps for taps in column_dimensions(window)],
        [last_shift(window, box, first) for first in column_dimensions(window).values()],
    )
    rows = np.where(staged, rows, prod(patch))
    atoms, atoms_n = -(-rows // ATOM_M), -(-count // ATOM_N)
    atoms_m, pitch = -(-atoms // warps), atoms * ATOM_M + PIXEL_PADDING
    atom, size, most = warp_atom(gemm), operand_bytes(gemm), chunk_channels(gemm)
    assert atom is not None
    chunks, chunk_atoms = -(-window.channels // most), -(-min(window.channels, most) // atom.k)
    # an odd number of vectors of 16 bytes, so that eight neighbouring pixels lie in different banks
    pixel_pitch = np.where(staged, most, padded(min(window.channels, most), atom.k) + CHUNK_BYTES // size)
    stage_bytes = padded(box_pixels, SWIZZLE_ROWS) * pixel_pitch * size
    partial_bytes = np.where(staged, count * pitch * float32.bytes, 0)
    filter_bytes = count * filter_pitch(gemm, shifts * (chunks * chunk_atoms * atom.k)) * size
    apart, joined = stages * stage_bytes + partial_bytes, np.maximum(stages * stage_bytes, partial_bytes)
    beside = filter_bytes + int64.bytes * stages  # mbarriers
    shared_bytes = padded(beside, SWIZZLE_ROWS * SWIZZLE_ROW_BYTES) + np.where(persistent == 1, apart, joined)
    fragments = 4 * -(-atoms_n // 2) + 4
    # without an epilogue in shared memory, those of the next products are loaded ahead
    ahead = 4 * -(-atoms_n // 2) + 4 * atoms_m + 2 * atoms_m
    registers = SPARE_REGISTERS + 4 * atoms_m * atoms_n + np.where(staged, fragments, fragments + ahead)
    found = ConvMmaSizes(
        **knobs,
        patches=patches,
        shifts=shifts,
        count=count,
        most_along_box=np.maximum.reduce([side * ones for side in box]),
        box_pixels=box_pixels,
        rows=rows,
        atoms=atoms,
        atoms_m=atoms_m,
        joined=np.where(staged, 1, joined_atoms(gemm, atoms_n)),
        pitch=pitch,
        pixel_pitch=pixel_pitch,
        chunks=chunks * ones,
        chunk_atoms=chunk_atoms * ones,
        rounds=ones,
        blocks=patches,
        stage_bytes=stage_bytes,
        partial_bytes=partial_bytes,
        filter_bytes=filter_bytes,
        shared_bytes=shared_bytes,
        registers=registers,
        resident=limits_of(target).resident_blocks(threads, registers, shared_bytes),
    )
    at_once = np.clip(found.resident * target.threads, 1, patches)
    rounds = np.where(persistent == 1, -(-patches // at_once), 1)
    return replace(found, rounds=rounds, blocks=-(-patches // rounds))


def warp_atom(gemm: Gemm) -> MmaAtom | None:
    """Return the matrix instruction of a warp for these operands and this precision; None where there is none, or where
    float32 is split into several planes."""
    found = find_atom(gemm)
    if found is None or pair_count(gemm) > 1:
        return None
    return next((a for a in WARP_MMA_ATOMS.values() if a.operand == found.a), None)


def chunk_channels(gemm: Gemm) -> int:
    """Return how many channels a stage has: a pixel is a row that TMA swizzles."""
    return SWIZZLE_ROW_BYTES // operand_bytes(gemm)


def operand_bytes(gemm: Gemm) -> int:
    """Return how many bytes a channel of a pixel has."""
    assert gemm.a.load is not None
    return gemm.a.load.dtype.bytes


def joined_atoms(gemm: Gemm, atoms_n: Ints) -> Ints:
    """Return how many of so many instructions along the filters may leave neighbouring ones in each lane: two of each,
    which are a vector of 16 bytes of the narrowest result at best."""
    narrowest = min(r.tensor.dtype.bytes for r in gemm.results)
    joined: Ints = np.gcd(atoms_n, max(CHUNK_BYTES // (2 * narrowest), 1))
    return np.where(gemm.n.extent % ATOM_N == 0, joined, 1)


def stores_registers(gemm: Gemm) -> bool:
    """Return whether the sums of an output may be stored from the registers that they are left in: outputs have their
    filters side by side, all of which exist."""
    parts = any("n" in free_variables(i) for r in gemm.results for i in r.inside)
    return not gemm.batch and not gemm.along_pixels and not parts


def filter_count(gemm: Gemm) -> int:
    """Return how many filters there are, those of all phases."""
    return prod(axis.extent for axis in gemm.batch) * gemm.n.extent


def column_dimensions(window: ImageWindow) -> Mapping[int, int]:
    """Return from which spatial dimension on all taps may be columns, by how many taps these are."""
    return {prod(window.taps[first:]): first for first in range(len(window.taps), -1, -1)}


def box_extents(window: ImageWindow, patch: Sequence[Size]) -> list[Size]:
    """Return how many pixels a patch sees along each spatial dimension, in all phases. ``patch``: its outputs along
    each."""
    sides, further = zip(patch, window.strides, window.taps, window.dilations, strict=True), 1 + window.most_shifted
    return [(side - 1) * stride + (taps - 1) * dilation + further for side, stride, taps, dilation in sides]


def last_shift(window: ImageWindow, box: Sequence[Size], first: int) -> Size:
    """Return how many pixels of the box the last tap along the dimensions before ``first`` is from the first one."""
    sides = zip(range(first), window.taps, window.dilations, strict=False)
    return sum((taps - 1) * dilation * prod(box[n + 1 :]) for n, taps, dilation in sides)


def filter_pitch(gemm: Gemm, channels: Size) -> Size:
    """Return how many elements the filters of one column and the next are apart, for a multiple of 32 bytes of
    channels: an odd number of vectors of 16 bytes, so that eight columns lie in different banks."""
    return channels + CHUNK_BYTES // operand_bytes(gemm)


def filter_vectors(gemm: Gemm) -> tuple[str, int]:
    """Return the axis along which vectors of filters lie side by side in memory, ``k`` or ``n``, and how many elements
    they have."""
    assert gemm.b.load is not None
    form = element_form(gemm.b.load)
    most = CHUNK_BYTES // operand_bytes(gemm)
    for axis, width in (("k", most), ("n", gcd(gemm.n.extent, most))):
        others = form.without((Var(axis),))
        if form.coefficient(axis) == 1 and not any(x % width for x in (others.constant, *others.terms.values())):
            return axis, width
    return "n", 1


def tile_extents(extent: int, most: int, unit: int = 1) -> tuple[int, ...]:
    """Return how many outputs, at most ``most``, a patch may have along a dimension of ``extent``: multiples of
    ``unit``, powers of two of these, and even parts of the dimension."""
    whole = -(-extent // unit)
    powers = [1 << n for n in range(most.bit_length())]
    counts = dict.fromkeys(sorted((*powers, *(-(-whole // parts) for parts in TILE_COUNTS))))
    return tuple(n * unit for n in counts if n <= whole and n * unit <= most)


def padded(extent: Size, unit: int) -> Size:
    """Return ``extent`` rounded up to a multiple of ``unit``."""
    return -(-extent // unit) * unit
