"""Matrix instructions of a warpgroup on operands in shared memory, the first also in registers (``wgmma``, sm_90a)."""

from dataclasses import dataclass

from ..buffer import Buffer, Swizzle
from ..expr import Expr
from ..stmt import Operation

WGMMA_M = 64
"""How many rows operand ``a`` of a WarpgroupMma has."""
SWIZZLE_128B_ELEMENTS = 64
"""How many 16-bit elements a line of 128 bytes of an operand in shared memory has."""
SWIZZLE_128B = Swizzle(3, 3, 3)
"""How those lines must be swizzled: chunks of 16 bytes, permuted within every 8 lines."""


@dataclass(frozen=True, slots=True)
class WarpgroupMma(Operation):
    """Starts ``d += a @ transposed(b)`` by a warpgroup; ``d = a @ transposed(b)`` where ``accumulates`` is false.

    ``accumulates`` is a scalar bool, the same in the whole warpgroup (``scale-d`` of PTX). ``a`` has 64 rows, ``b`` has
    ``n`` rows (8 to 256, a multiple of 8), each of ``k`` 16-bit elements (16 to 64, a multiple of 16). ``b``, and ``a``
    unless it is a register buffer, lie in shared memory in lines of ``SWIZZLE_128B_ELEMENTS``, swizzled as
    ``SWIZZLE_128B``.

    - An operand is usually K-major: the elements of a row are contiguous. A row lies within a line, where it begins at
      a multiple of 16 elements; the next row lies in the next line. The first line has a number that 8 divides.
    - With ``a_transposed`` or ``b_transposed`` the operand is M-major or N-major. It lies as ``k`` lines, one for each
      index of k, of 64 contiguous rows m or n; the next 64 rows lie one further along the third last dimension of the
      buffer. The first line has a number that 8 divides, and the first row begins it.

    - ``a`` in registers is ``k / 2`` contiguous elements of every lane from ``a_indices`` on: for every 16 places of k,
      a lane of the warpgroup's warp ``w`` holds the fragment ``a`` of m16n8k16, of the rows from ``16 * w`` on. So two
      neighbouring fragments ``d`` of another product, rounded to 16 bits in their order, are one fragment ``a``. All
      64 rows count, and nothing is transposed.

    ``valid_rows`` says how many of the 64 rows of ``a`` count. The others are read too, whatever may be there or happen
    to it, and their rows of ``d`` mean nothing.

    The accumulators ``d`` are ``n / 2`` contiguous elements of every lane from ``d_indices`` on, along the last
    dimension: for every 8 columns, a lane of the warpgroup's warp ``w`` holds the fragment ``d`` of m16n8k16, of the
    rows from ``16 * w`` on.

    Until the product has been awaited (WarpgroupMmaWait), nothing may touch ``d`` but another WarpgroupMma on the very
    same elements, and what the product reads must not change; nothing but another WarpgroupMma may touch ``a`` in
    registers. What threads wrote to ``a`` and ``b``, by CopyAsync too,
    must be ordered by an AsyncProxyFence of the writer and then a barrier. What BulkCopy and TmaLoad bring must be
    ordered by waiting for the mbarrier, in each warp.
    """

    d: Buffer
    d_indices: tuple[Expr, ...]
    a: Buffer
    a_indices: tuple[Expr, ...]
    b: Buffer
    b_indices: tuple[Expr, ...]
    n: int
    k: int
    accumulates: Expr | bool = True
    a_transposed: bool = False
    b_transposed: bool = False
    valid_rows: int = WGMMA_M


@dataclass(frozen=True, slots=True)
class WarpgroupMmaWait(Operation):
    """Waits until at most ``pending`` WarpgroupMma statements of this warpgroup are in flight: the youngest ones.

    Of the others ``d`` is there. What they read may then be overwritten by whoever is ordered after the first warp of
    the warpgroup.

    ``after`` is a float32 scalar that is computed ahead of the wait, with all that it is computed from. Without it, the
    assembler may leave work for behind the wait that could be done meanwhile.
    """

    pending: int
    after: Expr | None = None
