"""How wide the copies of an operand can be, and how its rows lie in shared memory."""

from math import gcd

from ....ir.expr import Var
from ...problems.gemm import Gemm, Operand, element_form

ATOM_M, ATOM_N, ATOM_K = 16, 16, 16
"""What two ``mma.sync.m16n8k16``, side by side, take of ``m``, ``n`` and ``k``."""
VECTOR = 8
"""Elements of the widest asynchronous copy: 16 bytes."""
SCALARS = 4
"""Elements that a thread takes at a time where rows begin at odd ones."""


def row_pitch(columns: int) -> int:
    """Elements from row to row in shared memory. Rows are padded unless a swizzle can spread them over the banks."""
    return columns if columns & (columns - 1) == 0 else columns + VECTOR


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
