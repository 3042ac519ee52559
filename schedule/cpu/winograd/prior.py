"""Estimates the time of a convolution by Winograd's F(2 x 2, 3 x 3).

    seconds = launch + norm(multiply, V and U from the caches, image, U and outputs from memory) + transforms

Transformed filters are 16/9 as large as filters. Where images are small and filters many, as in the last layers of a
network, reading them takes longer than what multiplications are saved. As in ``cpu.gemm.prior`` nothing was fitted.
"""

import numpy as np

from ...space.columns import Columns, Ints
from ..arithmetic import overlapped
from ..gemm.blocked_product import BlockedProduct
from ..gemm.prior import Seconds, multiply_seconds, operand_bytes
from ..gemm.promising import CACHE_BYTES
from ..gemm.sizes import CpuGemmSizes
from ..peaks import CpuPeaks
from .kernel import POINTS, TILE

IMAGE_INSTRUCTIONS = POINTS + 32 + POINTS
"""Loads, additions and stores of a vector of a tile of the image."""
OUTPUT_INSTRUCTIONS = POINTS + 24 + TILE * TILE
"""The same of a vector of a tile of the output."""


def winograd_seconds(product: BlockedProduct, c: Columns, peaks: CpuPeaks) -> Seconds:
    """Return the estimated time of each setting in seconds, float64[n]."""
    s = product.sizes(c)
    tiles, filters = product.uses(c, s)
    v, u = operand_bytes(product, tiles), operand_bytes(product, filters)
    block = s.a_block_bytes + sum_bytes(product, s) + s.nr * s.kc * product.gemm.accumulator.dtype.bytes
    rate = np.where(block <= CACHE_BYTES, peaks.l2_bytes_per_second, peaks.memory_bytes_per_second)
    caches = v * tiles.passes / rate + u * filters.sharing / peaks.l2_bytes_per_second
    inputs = sum(b.bytes for b in product.gemm.inputs if b.name not in product.constants)
    written = sum(r.tensor.bytes for r in product.gemm.results)
    memory = (u + inputs) / peaks.read_bytes_per_second + 2 * written / peaks.memory_bytes_per_second
    shared = np.where(product.is_constant(product.gemm.b), 0.0, 1.0)
    packing = shared * np.where(filters.whole, 3 * u / peaks.memory_bytes_per_second + peaks.launch_seconds, 0.0)
    multiply = multiply_seconds(product, s, peaks)
    seconds: Seconds = overlapped(multiply, caches, memory) + packing + _transform_seconds(product, c, peaks)
    return peaks.launch_seconds + seconds


def _transform_seconds(product: BlockedProduct, c: Columns, peaks: CpuPeaks) -> Seconds:
    """Each block of filters transforms the tiles for itself."""
    p, lanes = product.gemm, product.micro_kernel.lanes
    image = IMAGE_INSTRUCTIONS * -(-p.k.extent // lanes) * c.ints("n_blocks")
    output = OUTPUT_INSTRUCTIONS * -(-p.n.extent // lanes)
    seconds: Seconds = p.m.extent * (image + output) / peaks.vector_steps()
    return seconds


def sum_bytes(product: BlockedProduct, s: CpuGemmSizes[Ints]) -> Ints:
    """Bytes of the sums of a panel of a task, which wait to be transformed, int64[n]."""
    return np.asarray(s.mc_tiles * s.mr * s.nr * POINTS * product.gemm.accumulator.dtype.bytes)
