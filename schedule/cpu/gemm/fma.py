"""Writes blocked products, batches of them and convolutions on vector registers (sketch ``cpu_gemm``).

It takes float32 and float64 accumulators of any two operands, with any epilogue that is pointwise, and sums of bytes in
floats where no other sketch takes them. Convolutions are
direct where channels are last and where their windows move pixel by pixel, and im2col elsewhere. What is too small to
gain from blocks is left to the generic sketch, and what matrix tiles can multiply to ``cpu_gemm_amx``.
"""

from functools import partial

from ....core.dtypes import float32, float64
from ....core.target import Target
from ....ir.expr import Load
from ....te.workload import Workload
from ...problems.convolution import convolution_of
from ...problems.exact_floats import summed_in_floats
from ...problems.gemm import Operand, gemm_of
from ...tile_sketch import TileSketch
from ..limits import vector_registers
from .blocked_product import BlockedProduct
from .direct_convolution import DirectConvolution, lower_direct_convolution
from .dot_kernel import atom_for
from .dot_products import CPU_GEMM_AMX, CPU_GEMM_DOT
from .im2col import lower_im2col
from .kernel import batch_of, lower_fma
from .micro_kernel import MicroKernel
from .pixel_rows import lower_pixel_rows, pixel_rows_of
from .space import QUANTITIES, CpuGemmPlan, is_large, reads_nothing_else

MR = (4, 6, 7, 8, 9, 12, 14, 16)
"""Rows of a register tile. Where they are pixels side by side, images are often 7, 14, 28 or 56 of them wide."""
VECTORS = (1, 2, 3, 4)
LEAST_FILTERS = 16
"""Rows from which on packing an image pixel by pixel is paid for."""
LEAST_STRIDED_FILTERS = 40
"""The same for windows that move by several pixels. With 24 to 32 filters and small images, loops took an EPYC up to
30 % less time."""


def _is_plain(operand: Operand) -> bool:
    """Return whether an operand is a load of what is summed, with stride 1 along ``k`` or along its own axis."""
    return isinstance(operand.body, Load) and operand.load is not None and 1 in (operand.row, operand.k)


def _plan(workload: Workload, target: Target) -> CpuGemmPlan | None:
    exact = summed_in_floats(workload)
    if exact is not workload and (CPU_GEMM_DOT.matches(workload, target) or CPU_GEMM_AMX.matches(workload, target)):
        return None
    workload = exact
    p, columns, pixels = gemm_of(workload), None, None
    if p is not None and len(batch_of(p.b, p)) < len(p.batch):  # a product for each row of pixels, all with the same B
        p, pixels = pixel_rows_of(workload) or (p, None)
    if p is None:
        p, columns = convolution_of(workload) or (None, None)
    if p is None:
        p, pixels = pixel_rows_of(workload) or (None, None)
    least = LEAST_FILTERS if columns is None or columns.step == 1 else LEAST_STRIDED_FILTERS
    if p is None or (columns is not None and p.m.extent < least):
        return None
    if p.accumulator.dtype not in (float32, float64) or not reads_nothing_else(p):
        return None
    atom = None if columns is not None else atom_for(p)
    if atom is not None and atom.tile_feature in target.features:
        return None
    dtype = p.accumulator.dtype
    lanes = max(1, target.vector_bytes // dtype.bytes)
    lower = lower_fma if columns is None else partial(lower_im2col, columns=columns)
    direct = None
    if columns is not None and columns.window is not None and columns.window.padded_width >= lanes:
        direct = DirectConvolution(columns, columns.window)
        lower = partial(lower_direct_convolution, direct=direct)
    k_step = 1 if direct is None else direct.positions
    if pixels is not None:
        lower = partial(lower_pixel_rows, rows=pixels)
    kernel = MicroKernel(
        lanes=lanes,
        mr=MR,
        vectors=VECTORS,
        registers=vector_registers(target),
        k_step=k_step if pixels is None else pixels.depth,
        packed_bytes=dtype.bytes,
        a_in_place=_is_plain(p.a) if pixels is None else pixels.is_inside,
        b_in_place=columns is None and pixels is None and _is_plain(p.b) and p.b.row == 1,
        a_whole=pixels is None,
        b_whole=columns is None,
        flops=lambda peaks: peaks.vector_flops(dtype),
        lower=lower,
    )
    product = BlockedProduct(p, target, kernel, workload.constants, pixels, direct)
    return CpuGemmPlan(product) if is_large(p, kernel) else None


CPU_GEMM = TileSketch("cpu_gemm", 4, QUANTITIES, _plan, kind="llvm")
