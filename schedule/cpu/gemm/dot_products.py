"""Writes blocked products of 16-bit floats and of bytes (sketches ``cpu_gemm_dot`` and ``cpu_gemm_amx``).

Processors have dot products of neighbours (AVX-512 BF16 and VNNI) or of matrix tiles (AMX) for them; see
``dot_kernel``. Where AMX has the types, it is used alone. The left operand lies along the sum, the right one along
either of its axes. Convolutions of bytes whose images have channels last, in fours, are dot products of neighbouring
channels (``pixel_rows``), on processors with AMX too.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ....core.dtypes import int8, int32, uint8
from ....core.target import Target
from ....ir.cpu import DOT_ATOMS, TILE_ROWS, TILES, DotAtom
from ....ir.rewrite import loads_of
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.gemm import Gemm, gemm_of
from ...tile_sketch import TileSketch
from ..limits import vector_registers
from .blocked_product import BlockedProduct
from .dot_kernel import SHIFT, atom_for, lower_amx, lower_dot, lower_dot_pixel_rows, lower_signed_dot
from .kernel import CpuGemmSetting
from .micro_kernel import MicroKernel
from .pixel_rows import pixel_rows_of
from .space import QUANTITIES, CpuGemmPlan, is_large, reads_nothing_else

MR = (4, 6, 8, 9, 12, 14, 16)
VECTORS = (1, 2, 3, 4)
TILE_SIDES = (1, 2, 3)


def _product(workload: Workload) -> tuple[Gemm, DotAtom] | None:
    p = gemm_of(workload)
    atom = None if p is None else atom_for(p)
    return None if p is None or atom is None or not reads_nothing_else(p) else (p, atom)


def _dot_plan(workload: Workload, target: Target) -> CpuGemmPlan | None:
    found = _product(workload)
    if found is None:
        return _convolution_plan(workload, target)
    p, atom = found
    if atom.tile_feature in target.features:
        return None
    signed = not atom.feature
    if not {"avx512f", DOT_ATOMS["u8s8"].feature if signed else atom.feature} <= set(target.features):
        return None
    kernel = _on_vectors(
        target,
        atom,
        a_in_place=not signed and p.k.extent % atom.group == 0,
        lower=lower_signed_dot if signed else partial(lower_dot, atom=atom),
    )
    return CpuGemmPlan(BlockedProduct(p, target, kernel, workload.constants)) if is_large(p, kernel) else None


def _convolution_plan(workload: Workload, target: Target) -> CpuGemmPlan | None:
    atom = DOT_ATOMS["u8s8"]
    found = pixel_rows_of(workload, (atom.left, atom.right))
    if found is None or not {"avx512f", atom.feature} <= set(target.features) or not reads_nothing_else(found[0]):
        return None
    p, rows = found
    dtypes = rows.image.dtype, {load.dtype for load in loads_of(p.b.body)}
    if dtypes[0] not in (int8, uint8) or dtypes[1] != {int8} or p.accumulator.dtype != int32:
        return None
    if rows.channels % atom.group:
        return None
    signed = rows.image.dtype == int8
    rows = replace(rows, shift=SHIFT if signed else 0)
    lower = partial(lower_dot_pixel_rows, rows=rows)
    kernel = _on_vectors(target, atom, a_in_place=rows.is_inside and not signed, lower=lower)
    kernel = replace(kernel, k_step=rows.depth, a_whole=False)
    return CpuGemmPlan(BlockedProduct(p, target, kernel, workload.constants, rows)) if is_large(p, kernel) else None


def _on_vectors(
    target: Target, atom: DotAtom, *, a_in_place: bool, lower: Callable[[Gemm, str, CpuGemmSetting], Kernel]
) -> MicroKernel:
    """Return the register tiles of dot products in the lanes of vectors. An instruction takes as long as a
    multiply-add, and does ``group`` of them in a lane."""
    return MicroKernel(
        lanes=target.vector_bytes // atom.accumulator.bytes,
        mr=MR,
        vectors=VECTORS,
        registers=vector_registers(target),
        k_group=atom.group,
        k_step=atom.group,
        packed_bytes=atom.left.bytes,
        a_in_place=a_in_place,
        flops=lambda peaks: peaks.float32_flops * atom.group,
        lower=lower,
    )


def _amx_plan(workload: Workload, target: Target) -> CpuGemmPlan | None:
    found = _product(workload)
    if found is None or found[1].tile_feature not in target.features:
        return None
    p, atom = found
    kernel = MicroKernel(
        lanes=TILE_ROWS,
        mr=tuple(TILE_ROWS * n for n in TILE_SIDES),
        vectors=TILE_SIDES,
        registers=TILES,
        register_rows=TILE_ROWS,
        k_group=atom.group,
        k_step=atom.depth,
        packed_bytes=atom.left.bytes,
        a_in_place=p.k.extent % atom.depth == 0 and p.m.extent % (2 * TILE_ROWS) == 0,
        sums_in_output=False,
        memory_knobs=True,
        flops=lambda peaks: peaks.tile_flops[str(atom.left if atom.left.is_float else int8)],
        lower=partial(lower_amx, atom=atom),
    )
    return CpuGemmPlan(BlockedProduct(p, target, kernel, workload.constants)) if is_large(p, kernel) else None


CPU_GEMM_DOT = TileSketch("cpu_gemm_dot", 4, QUANTITIES, _dot_plan, kind="llvm")
CPU_GEMM_AMX = TileSketch("cpu_gemm_amx", 6, QUANTITIES, _amx_plan, kind="llvm")
