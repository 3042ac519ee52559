"""Matrix instructions of a warpgroup on operands in shared memory, the first also in registers (``wgmma``, sm_90a)."""

from dataclasses import dataclass

from ...core.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, int8, int32, tfloat32, uint8
from ..buffer import Buffer, Swizzle
from ..expr import Expr
from ..stmt import Operation
from .mma import WARP_MMA_ATOMS, MmaAtom

WGMMA_M = 64
"""How many rows operand ``a`` of a WarpgroupMma has."""
SWIZZLE_128B_ELEMENTS = 64
"""How many 16-bit elements a line of 128 bytes of an operand in shared memory has."""
SWIZZLE_128B = Swizzle(3, 3, 3)
"""How those lines must be swizzled: chunks of 16 bytes, permuted within every 8 lines. (It counts elements of 16 bits;
``tma_swizzle`` is the same for other elements.)"""
SWIZZLE_LINES = 8
"""The period of the swizzle. What TMA loads begins at a multiple of so many lines, and so do most operands."""
LINE_BYTES, STEP_BYTES = 128, 32
"""How many bytes a line of an operand has, and how many of them one instruction takes."""


@dataclass(frozen=True, slots=True)
class DescriptorMmaAtom:
    """A matrix instruction on operands of two dtypes that matrix descriptors find in shared memory: ``wgmma``, or
    ``tcgen05.mma``. An instruction takes ``k`` places of k. A line of an operand there has ``line`` elements."""

    a: DType
    b: DType
    accumulator: DType

    @property
    def k(self) -> int:
        return STEP_BYTES // self.a.bytes

    @property
    def line(self) -> int:
        return LINE_BYTES // self.a.bytes

    @property
    def transposes(self) -> bool:
        """Whether an operand may be M-major or N-major. ``tcgen05.mma`` would allow it for 8 bits, too."""
        return self.a.bits == 16


@dataclass(frozen=True, slots=True)
class WgmmaAtom(DescriptorMmaAtom):
    """``wgmma`` (PTX ISA, "wgmma.mma_async")."""

    @property
    def fragment(self) -> MmaAtom | None:
        """The instruction of a warp whose fragments ``a`` a warp holds, where A is in registers; None where it cannot
        be."""
        return next((m for m in WARP_MMA_ATOMS.values() if (m.operand, m.k) == (self.a, self.k)), None)

    def takes_columns(self, n: int) -> bool:
        """Return whether there is an instruction for ``n`` columns: 8 to 256 in steps of 8; of integers, beyond 32, in
        steps of 16."""
        return 8 <= n <= 256 and n % (16 if self.a.is_integer and n > 32 else 8) == 0


FLOATS8, INTEGERS8 = (float8_e4m3fn, float8_e5m2), (int8, uint8)
"""The dtypes of 8 bits that are multiplied."""
WGMMA_ATOMS: dict[tuple[str, str], WgmmaAtom] = {
    (atom.a.name, atom.b.name): atom
    for atom in (
        *(WgmmaAtom(d, d, float32) for d in (float16, bfloat16, tfloat32)),
        *(WgmmaAtom(a, b, float32) for a in FLOATS8 for b in FLOATS8),
        *(WgmmaAtom(a, b, int32) for a in INTEGERS8 for b in INTEGERS8),
    )
}
"""(dtype of a, dtype of b) -> instruction."""


@dataclass(frozen=True, slots=True)
class WarpgroupMma(Operation):
    """Starts ``d += a @ transposed(b)`` by a warpgroup; ``d = a @ transposed(b)`` where ``accumulates`` is false.

    ``accumulates`` is a scalar bool, the same in the whole warpgroup (``scale-d`` of PTX). The dtypes of ``a`` and
    ``b`` have an atom in ``WGMMA_ATOMS``, and ``d`` has its accumulator's dtype. ``a`` has 64 rows, ``b`` has ``n``
    rows (8 to 256, as the atom takes them), each of ``k`` elements (a multiple of the atom's, a line at most). ``b``,
    and ``a`` unless it is a register buffer, lie in shared memory in lines of ``LINE_BYTES``, swizzled as
    ``tma_swizzle`` says.

    - An operand is usually K-major: the elements of a row are contiguous. A row lies within a line, where it begins at
      a multiple of ``STEP_BYTES``; the next row lies in the next line. The first line of ``b`` has a number that 8
      divides, that of ``a`` any number, since it is addresses that are swizzled (an H200 reads it so).
    - With ``a_transposed`` or ``b_transposed`` the operand, of 16-bit floats, is M-major or N-major. It lies as ``k``
      lines, one for each index of k, of 64 contiguous rows m or n; the next 64 rows lie one further along the third
      last dimension of the buffer. The first line has a number that 8 divides. The first row begins it, or lies at a
      multiple of ``STEP_BYTES`` within it if all rows do. With ``b_leading_lines``, which 8 divides, the next 64 rows
      of ``b`` begin so many lines further instead (the leading dimension of a descriptor), so that they may share some.

    - ``a`` in registers, 16-bit floats or TF32, is ``k / 2`` contiguous elements of every lane from ``a_indices`` on:
      for every step of k, a lane of the warpgroup's warp ``w`` holds the fragment ``a`` of the atom's ``fragment``, of
      the rows from ``16 * w`` on. So two neighbouring fragments ``d`` of another product, rounded to 16 bits in their
      order, are one fragment ``a``. All 64 rows count, and nothing is transposed.

    ``valid_rows`` says how many of the 64 rows of ``a`` count, and ``valid_columns`` how many of the ``n`` rows of
    ``b``; None: all. They are the same in the whole warpgroup. The others are read too, whatever may be there or happen
    to it, and their rows and columns of ``d`` mean nothing.

    The accumulators ``d`` are ``n / 2`` contiguous elements of every lane from ``d_indices`` on, along the last
    dimension: for every 8 columns, a lane of the warpgroup's warp ``w`` holds the fragment ``d`` of m16n8k16, of the
    rows from ``16 * w`` on.

    With ``recomputes_addresses`` no registers keep where operands lie in shared memory from one execution to the next.

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
    valid_rows: int | Expr = WGMMA_M
    valid_columns: int | Expr | None = None
    b_leading_lines: int | None = None
    recomputes_addresses: bool = False


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
