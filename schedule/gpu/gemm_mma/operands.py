"""Which ``mma.sync`` multiplies operands, how wide the copies of an operand can be, and how its rows lie in shared
memory."""

from math import gcd

import numpy as np

from ....core.dtypes import float32, tfloat32
from ....core.precision import TF32
from ....ir.expr import Var
from ....ir.gpu.mma import WARP_MMA_ATOMS, MmaAtom
from ...problems.gemm import Gemm, Operand, element_form
from ...space.columns import Ints
from ..occupancy import Whole

ATOM_M, ATOM_N = 16, 16
"""What two ``mma.sync``, side by side, take of ``m`` and ``n``."""
VECTOR = 8
"""16-bit elements of the widest asynchronous copy: 16 bytes."""
SCALARS = 4
"""Elements that a thread takes at a time where rows begin at odd ones."""
LEAST_COPY_BYTES = 4
"""An asynchronous copy has so many bytes at least."""


SCALAR_PADDING = 4
"""Elements of padding between rows whose elements are loaded one by one: four neighbours of each of four rows of
float64, and of eight of float32, lie in different banks."""


def find_mma_atom(gemm: Gemm) -> MmaAtom | None:
    """Return the instruction of which two, side by side, multiply the operands: 16-bit floats (m16n8k16), float64 or
    float32 that may be rounded to TF32 (m16n8k8). None where there is none."""
    a, b = gemm.a.load, gemm.b.load
    if a is None or b is None or a.buffer.dtype != b.buffer.dtype:
        return None
    rounded = a.buffer.dtype == float32 and gemm.precision == TF32
    types = (tfloat32 if rounded else a.buffer.dtype, gemm.accumulator.dtype)
    return next((m for m in WARP_MMA_ATOMS.values() if (m.operand, m.accumulator) == types), None)


def atom_of(gemm: Gemm) -> MmaAtom:
    """Return the instruction of a product that has one."""
    atom = find_mma_atom(gemm)
    assert atom is not None
    return atom


def has_ldmatrix(atom: MmaAtom) -> bool:
    """Return whether ldmatrix loads fragments, whose elements have 16 bits. Others are loaded one by one."""
    return atom.operand.bits == 16


def copy_elements(gemm: Gemm) -> int:
    """Return the elements of the widest asynchronous copy."""
    assert gemm.a.load is not None
    return VECTOR * 2 // gemm.a.load.dtype.bytes


def row_padding(atom: MmaAtom, columns: Whole) -> Ints:
    """Return how many elements of padding a row in shared memory has. It has none where a swizzle can spread rows over
    the banks."""
    if not has_ldmatrix(atom):
        return np.full_like(columns, SCALAR_PADDING)
    return np.where(np.asarray(columns) & (np.asarray(columns) - 1) == 0, 0, VECTOR)


def copy_width(gemm: Gemm, operand: Operand, axis: str, most: int = VECTOR) -> tuple[int, bool]:
    """Return how many elements of an operand one copy can take: ``most``, or a half of it, and so on. Every row begins
    at a multiple of them and has a multiple of them. And whether its rows lie along ``k``; otherwise they lie along
    ``axis``."""
    assert operand.load is not None
    form = element_form(operand.load)
    along_k = form.terms.get(Var("k")) == 1
    inner = Var("k") if along_k else Var(axis)
    extent = gemm.k.extent if along_k else {"m": gemm.m, "n": gemm.n}[axis].extent
    if form.terms.get(inner) != 1:
        return 1, along_k
    buffer = operand.load.buffer
    if buffer not in gemm.inputs and operand.load.indices[-1] == inner and buffer.shape[-1] - extent < most:
        extent = buffer.shape[-1]  # it has been repacked: zeros fill its rows
    return gcd(most, extent, form.constant, *(c for term, c in form.terms.items() if term != inner)), along_k
