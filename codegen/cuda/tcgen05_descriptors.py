"""The two descriptors of ``tcgen05.mma``: of a matrix in shared memory, and of the instruction.

Both are numbers whose bits the PTX ISA lays out (tables "Shared memory descriptor layout" and "Instruction descriptor
format" of the chapter on tcgen05, of which the latter has one for plain and one for block-scaled kinds). CUTLASS names
the same bits (include/cute/arch/mma_sm100_desc.hpp).
"""

from ...core.dtypes import DType
from ...ir.gpu.tcgen05 import SCALE_ROWS, BlockScaledAtom, Tcgen05Atom

_VERSION = 1
"""Bits 46 and 47 of a matrix descriptor hold this constant. Those of wgmma have zeros there."""
_SWIZZLE_128B = 2
"""Bits 61 to 63 of a matrix descriptor: the swizzle of 128 bytes."""
_FORMATS: dict[str, int] = {
    "float16": 0,
    "bfloat16": 1,
    "tfloat32": 2,
    "float8_e4m3fn": 0,
    "float8_e5m2": 1,
    "uint8": 0,
    "int8": 1,
}
"""What names the dtype of an operand, among those of one kind of instruction."""
_E2M1 = 1
"""The type of floats of 4 bits, among those of block-scaled instructions for them alone."""
_ACCUMULATORS: dict[str, int] = {"float32": 1, "int32": 2}


def matrix_descriptor(leading_bytes: int, stride_bytes: int) -> int:
    """Return the descriptor of a matrix with the swizzle of 128 bytes, but for its address.

        bits 0-13   address / 16           bits 46-47  1
        bits 16-29  leading bytes / 16     bits 49-51  base offset, 0: the swizzle begins anew every 1024 bytes
        bits 32-45  stride bytes / 16      bits 61-63  swizzle

    ``stride_bytes`` lie between groups of 8 lines. ``leading_bytes`` lie between groups of 64 rows where the matrix is
    MN-major; they mean nothing where it is K-major.
    """
    return leading_bytes >> 4 << 16 | stride_bytes >> 4 << 32 | _VERSION << 46 | _SWIZZLE_128B << 61


def instruction_descriptor(atom: Tcgen05Atom, m: int, n: int, a_transposed: bool, b_transposed: bool) -> int:
    """Return the descriptor of a dense instruction.

    bits 4-5    dtype of the accumulator      bits 15, 16  whether A and B are MN-major
    bits 7-9    dtype of A                    bits 17-22   columns / 8
    bits 10-12  dtype of B                    bits 24-28   rows / 16
    """
    types = _ACCUMULATORS[atom.accumulator.name] << 4 | _FORMATS[atom.a.name] << 7 | _FORMATS[atom.b.name] << 10
    return types | a_transposed << 15 | b_transposed << 16 | n >> 3 << 17 | m >> 4 << 24


def scales_descriptor() -> int:
    """Return the descriptor of chunks of scales for ``tcgen05.cp``, but for its address: 32 rows of 16 bytes without a
    swizzle, each 8 of them 128 bytes behind the ones before."""
    return 128 >> 4 << 32 | _VERSION << 46


def block_scaled_descriptor(atom: BlockScaledAtom, n: int, a: DType, b: DType) -> int:
    """Return the descriptor of a dense block-scaled instruction of 128 rows, but for which scales of a column it takes.

    bits 4-5    first scale of B in a column   bit 23      1 for scales that are powers of two
    bits 7-9    type of A                      bits 27-28  rows / 128
    bits 10-12  type of B                      bits 29-30  first scale of A in a column
    bits 17-22  columns / 8
    """
    types = (_FORMATS[a.name], _FORMATS[b.name]) if atom.bits == 8 else (_E2M1, _E2M1)
    return types[0] << 7 | types[1] << 10 | n >> 3 << 17 | atom.powers_of_two << 23 | SCALE_ROWS >> 7 << 27
