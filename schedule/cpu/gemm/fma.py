"""Matrix products, batches of them and convolutions on the vector registers of a processor: see ``schedule.tile.gemm``
and ``gemm_image``.

float32 and float64 sums of any two operands, any pointwise functions of the sum. What is too small to gain from blocks
is left to the generic sketch, what tile registers can multiply to them.
"""

from functools import partial
from math import prod

from ....core.dtypes import float32, float64
from ....core.target import Target
from ....ir.expr import Load
from ....te.workload import Workload
from ...problems.convolution import image_product_of
from ...problems.gemm import Operand, gemm_of
from ...tile_sketch import TileSketch
from ..loops.tiles import vector_registers
from .dot_kernel import atom_for
from .im2col import lower_images
from .kernel import lower_gemm
from .space import QUANTITIES, GemmPlan, Unit, is_large, reads_nothing_else
from .windows import lower_windows, with_margins

ROWS = (4, 6, 8, 9, 12, 14, 16)
VECTORS = (1, 2, 3, 4)
LEAST_FILTERS = 16
"""Rows for which an image is worth copying pixel by pixel."""


def _is_plain(operand: Operand) -> bool:
    """Whether an operand is a load of what is summed, with one step along ``k`` or its own axis."""
    return isinstance(operand.body, Load) and operand.load is not None and 1 in (operand.row, operand.k)


def _plan(workload: Workload, target: Target) -> GemmPlan | None:
    p, image = gemm_of(workload), None
    if p is None:
        p, image = image_product_of(workload) or (None, None)
    if p is None or (image is not None and p.m.extent < LEAST_FILTERS):
        return None
    if p.accumulator.dtype not in (float32, float64) or not reads_nothing_else(p):
        return None
    atom = None if image is not None else atom_for(p)
    if atom is not None and atom.tile_feature in target.features:
        return None
    registers, lanes = vector_registers(target), max(1, target.vector_bytes // p.accumulator.dtype.bytes)
    windows = None if image is None or image.windows is None or image.windows.pixels < lanes else image.windows
    lower = lower_gemm if image is None else partial(lower_images, image=image)
    if image is not None and windows is not None:
        p, lower = with_margins(p, image, windows), partial(lower_windows, image=image, windows=windows)
    unit = Unit(
        lanes=lanes,
        rows=ROWS,
        vectors=VECTORS,
        registers=registers,
        block=1,
        busy=registers // 2,
        step=1 if windows is None else prod(windows.extents),
        group=1,
        shared=1 if windows is None else prod(windows.extents),
        operand_bytes=p.accumulator.dtype.bytes,
        left_in_place=_is_plain(p.a),
        right_in_place=image is None and _is_plain(p.b) and p.b.row == 1,
        right_whole=image is None,
        fast=False,
        lower=lower,
    )
    return GemmPlan(p, target, unit, workload.constants) if is_large(p, unit) else None


CPU_GEMM = TileSketch("cpu_gemm", 4, QUANTITIES, _plan, kind="llvm")
