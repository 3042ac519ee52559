"""How operands of warp-level matrix instructions can be copied: the vectors, and the rows in shared memory."""

from math import gcd

from ....ir.expr import Var
from ...problems.gemm import Gemm, Operand, flat_steps

ATOM_M, ATOM_N, ATOM_K = 16, 16, 16
"""What two ``mma.sync.m16n8k16``, side by side, take of ``m``, ``n`` and ``k``."""
VECTOR = 8
"""Elements of the widest asynchronous copy: 16 bytes."""
SCALARS = 4
"""Elements that a thread takes at a time where rows begin at odd ones."""


def tile_pitch(columns: int) -> int:
    """Elements from row to row of a tile: padded unless a swizzle can spread it over the banks."""
    return columns if columns & (columns - 1) == 0 else columns + VECTOR


def piece_of(p: Gemm, operand: Operand, axis: str) -> tuple[int, bool]:
    """How many elements of an operand can be copied at once, 8, 4, 2 or 1: every row begins at a multiple of them and
    has a multiple of them; and whether rows lie along ``k``, not along ``axis``."""
    assert operand.load is not None
    form = flat_steps(operand.load)
    along_k = form.terms.get(Var("k")) == 1
    inner = Var("k") if along_k else Var(axis)
    extent = p.k.extent if along_k else {"m": p.m, "n": p.n}[axis].extent
    if form.terms.get(inner) != 1:
        return 1, along_k
    buffer = operand.load.buffer
    if buffer not in p.inputs and operand.load.indices[-1] == inner and buffer.shape[-1] - extent < VECTOR:
        extent = buffer.shape[-1]  # an operand that was copied: zeros fill its rows
    return gcd(VECTOR, extent, form.constant, *(c for term, c in form.terms.items() if term != inner)), along_k
