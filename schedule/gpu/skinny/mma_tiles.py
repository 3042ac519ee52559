"""Tiles of operands in shared memory, as cp.async fills them for mma.sync: those of 16-bit operands as ldmatrix reads
them for m16n8k16.

Eight rows of a tile at one column must lie in different banks, since ldmatrix reads them at once. A row whose length is
a power of two is swizzled; every other row is padded by 16 bytes.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ....core.dtypes import DType
from ....ir.buffer import Layout, Swizzle
from ....ir.gpu.mma import WARP_MMA_ATOMS, MmaAtom
from ...space.columns import Ints
from ..unaligned_loads import VECTOR_BYTES

Whole = TypeVar("Whole", int, Ints)
"""This is a whole number, or a column of them."""

ATOM_M, ATOM_N, ATOM_K = 16, 8, 16
"""The M, N and K of the matrix instruction for 16-bit operands."""
COPY_ELEMENTS = 8
"""How many elements one asynchronous copy of 16 bytes brings."""


def mma_atom_of(operand: DType) -> MmaAtom | None:
    """Return the m16n8k16 instruction that multiplies operands of this type; None where there is none."""
    shape = (ATOM_M, ATOM_N, ATOM_K)
    return next((a for a in WARP_MMA_ATOMS.values() if a.operand == operand and (a.m, a.n, a.k) == shape), None)


def tile_pitch(columns: int) -> int:
    """Elements from one row of a tile with ``columns`` columns to the next."""
    return columns if _is_swizzled(columns) else columns + COPY_ELEMENTS


def tile_layout(shape: Sequence[int]) -> Layout:
    """Return where the elements of a buffer of tiles lie. The last two dimensions of ``shape`` are the rows and columns
    of a tile; the tiles stand one behind another."""
    columns = shape[-1]
    strides = [1, tile_pitch(columns)]
    for extent in reversed(shape[1:-1]):
        strides.append(strides[-1] * extent)
    swizzle = Swizzle(3, 3, columns.bit_length() - 4) if _is_swizzled(columns) else None
    return Layout(tuple(reversed(strides)), swizzle)


def tile_bytes(rows: Whole, columns: Whole) -> Ints:
    """Shared memory of a tile of 16-bit elements."""
    width = np.asarray(columns, np.int64)
    swizzled = (width >= 64) & (width & (width - 1) == 0)
    return 2 * np.asarray(rows, np.int64) * (width + np.where(swizzled, 0, COPY_ELEMENTS))


def shifted_tile_bytes(rows: Whole, columns: Whole, element_bytes: int) -> Ints:
    """Shared memory of a tile whose rows are copied with the aligned vectors that they lie in: one more vector each."""
    return np.asarray(rows, np.int64) * (element_bytes * np.asarray(columns, np.int64) + VECTOR_BYTES)


def _is_swizzled(columns: int) -> bool:
    return columns >= 64 and columns & (columns - 1) == 0
