"""Matrix products of 16-bit floats and bytes on processors with dot products of neighbours (AVX-512 BF16 and VNNI) or
of tiles (AMX), which then do it alone: see ``schedule.tile.gemm_dots``. The left operand lies along the sum, the right
one along either side.
"""

from functools import partial

from ....core.target import Target
from ....ir.cpu import DOT_ATOMS, TILE_ROWS, TILES, DotAtom
from ....te.workload import Workload
from ...problems.gemm import Gemm, gemm_of
from ...tile_sketch import TileSketch
from ..loops.tiles import vector_registers
from .dot_kernel import atom_for, lower_dots, lower_shifted_dots, lower_tiles
from .space import QUANTITIES, GemmPlan, Unit, is_large, reads_nothing_else

ROWS = (4, 6, 8, 9, 12, 14, 16)
VECTORS = (1, 2, 3, 4)
TILE_SIDES = (1, 2, 3)
BUSY_TILES = 4


def _product(workload: Workload) -> tuple[Gemm, DotAtom] | None:
    p = gemm_of(workload)
    atom = None if p is None else atom_for(p)
    return None if p is None or atom is None or not reads_nothing_else(p) else (p, atom)


def _dots(workload: Workload, target: Target) -> GemmPlan | None:
    found = _product(workload)
    if found is None:
        return None
    p, atom = found
    if atom.tile_feature in target.features:
        return None
    shifted = not atom.feature
    if not {"avx512f", DOT_ATOMS["u8s8"].feature if shifted else atom.feature} <= set(target.features):
        return None
    registers = vector_registers(target)
    unit = Unit(
        lanes=target.vector_bytes // atom.accumulator.bytes,
        rows=ROWS,
        vectors=VECTORS,
        registers=registers,
        block=1,
        busy=registers // 2,
        step=atom.group,
        group=atom.group,
        operand_bytes=atom.left.bytes,
        left_in_place=not shifted and p.k.extent % atom.group == 0,
        right_in_place=False,
        right_whole=True,
        fast=False,
        lower=lower_shifted_dots if shifted else partial(lower_dots, atom=atom),
    )
    return GemmPlan(p, target, unit, workload.constants) if is_large(p, unit) else None


def _tiles(workload: Workload, target: Target) -> GemmPlan | None:
    found = _product(workload)
    if found is None or found[1].tile_feature not in target.features:
        return None
    p, atom = found
    unit = Unit(
        lanes=TILE_ROWS,
        rows=tuple(TILE_ROWS * n for n in TILE_SIDES),
        vectors=TILE_SIDES,
        registers=TILES,
        block=TILE_ROWS,
        busy=BUSY_TILES,
        step=atom.depth,
        group=atom.group,
        operand_bytes=atom.left.bytes,
        left_in_place=p.k.extent % atom.depth == 0 and p.m.extent % (2 * TILE_ROWS) == 0,
        right_in_place=False,
        right_whole=True,
        fast=True,
        lower=partial(lower_tiles, atom=atom),
    )
    return GemmPlan(p, target, unit, workload.constants) if is_large(p, unit) else None


CPU_GEMM_DOT = TileSketch("cpu_gemm_dot", 4, QUANTITIES, _dots, kind="llvm")
CPU_GEMM_AMX = TileSketch("cpu_gemm_amx", 6, QUANTITIES, _tiles, kind="llvm")
