"""Which ``wgmma`` multiplies a product, and what its type asks of operands and accumulators.

    operands            precision           multiplied as             K-major    accumulators are promoted
    16-bit floats       any                 they are                  no         no
    8-bit integers      any                 they are, into int32      yes        no
    8-bit floats        ieee                they are                  yes        after every 128 of k
    8-bit floats        fast_accumulation   they are                  yes        no, unless scales are for 128 of k
    4-bit floats        fast_accumulation   they are, with scales     yes        no
    float32             tf32                TF32                      yes        no
    float32             tf32x3              two planes of TF32        yes        after all pairs of planes
    float32             bf16x6, bf16x9      three planes of bfloat16  yes        after all pairs of planes

Operands that must be K-major and are not, and those that are split into planes, are packed by a first launch
(``pack``). An A of TF32 may come from registers instead (``fragments``). ``tcgen05`` takes operands just as ``wgmma``
does, so that this module speaks for both. Images seen through a window are K-major as they are. *Promoted* accumulators
are added to others in float32, since those of matrix units keep fewer bits (``promotion``). Only ``tcgen05`` takes
floats of 4 bits.
"""

from ....core.dtypes import float32, tfloat32, uint8
from ....core.precision import IEEE, PRECISIONS, Precision
from ....ir.expr import Var
from ....ir.gpu.wgmma import WGMMA_ATOMS, WgmmaAtom
from ....ir.rewrite import free_variables
from ...problems.gemm import SCALED_K, Gemm, Operand
from ..tma_view import operand_view

PLANES = {"m": "plane_a", "n": "plane_b"}
"""The indices of the planes of A and B, by the operand's own axis."""
PACKED_FLOATS = WgmmaAtom(uint8, uint8, float32)
"""Stands for a block-scaled instruction whose operands have two elements in a byte. All but the instruction itself
takes the bytes for elements."""


def find_atom(gemm: Gemm) -> WgmmaAtom | None:
    """Return the instruction; None where there is none for these operands and this precision."""
    if gemm.a.load is None or gemm.b.load is None:
        return None
    if gemm.block_scales is not None and gemm.block_scales.atom.bits == 4:
        return PACKED_FLOATS
    part = splitting(gemm).part
    types = (gemm.a.load.dtype.name, gemm.b.load.dtype.name)
    if part and {*types} <= {"float32", part}:
        types = (part, part)
    return WGMMA_ATOMS.get(types)


def wgmma_atom(gemm: Gemm) -> WgmmaAtom:
    """Return the instruction of a product that has one."""
    atom = find_atom(gemm)
    assert atom is not None
    return atom


def splitting(gemm: Gemm) -> Precision:
    """Return how factors of float32 are split, before and after they are packed; ``ieee`` for others."""
    a = gemm.a.load
    assert a is not None
    is_single = a.dtype in (float32, tfloat32) or PLANES["m"] in free_variables(a)
    return PRECISIONS[gemm.precision if is_single else IEEE]


def pair_count(gemm: Gemm) -> int:
    """Return how many products of planes there are for each place of k."""
    return max(len(splitting(gemm).pairs), 1)


def promoted_k_atoms(gemm: Gemm) -> int:
    """After how many k atoms accumulators are promoted; 0 where they are not."""
    if pair_count(gemm) > 1:
        return pair_count(gemm)
    atom = wgmma_atom(gemm)
    narrow = atom.a.is_float8 or gemm.block_scales is not None
    promoted = narrow and (gemm.precision == IEEE or gemm.scales is not None)
    return SCALED_K // atom.line if promoted else 0


def is_packed(gemm: Gemm, operand: Operand) -> bool:
    """Return whether an operand is packed first."""
    assert operand.load is not None
    if gemm.a_in_registers and operand == gemm.a:
        return False
    if gemm.window is not None and operand == gemm.a:
        return splitting(gemm).planes > 1
    along_k = operand_view(operand.load).indices[-1] == Var("k")
    must_be = not wgmma_atom(gemm).transposes or (gemm.window is not None and gemm.window.packs_filters)
    return splitting(gemm).planes > 1 or (not along_k and must_be)
