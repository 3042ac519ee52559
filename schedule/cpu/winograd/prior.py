"""Estimates the time of a convolution by Winograd's F(2 x 2, 3 x 3).

    seconds = launch + transforms + first panel of U
              + norm(multiply, panels of U, V and U from the caches, image, U and outputs from memory)

Transformed filters are 16/9 as large as filters. Where images are small and filters many, as in the last layers of a
network, reading them takes longer than what multiplications are saved. Most terms are those of ``cpu.gemm.prior``.
"""

import numpy as np

from ...space.columns import Columns, Floats, Ints
from ..gemm.blocked_product import BlockedProduct
from ..gemm.prior import copies_of_b, first_panel_seconds, joined, multiply_seconds, operand_bytes, panel_bytes
from ..gemm.promising import CACHE_BYTES, L1_BYTES
from ..gemm.sizes import CpuGemmSizes
from ..peaks import CpuPeaks
from .kernel import POINTS, TILE

IMAGE_INSTRUCTIONS = POINTS + 32 + POINTS
"""Loads, additions and stores of a vector of a tile of the image."""
OUTPUT_INSTRUCTIONS = POINTS + 24 + TILE * TILE
"""The same of a vector of a tile of the output."""


def winograd_seconds(product: BlockedProduct, c: Columns, peaks: CpuPeaks) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    s = product.sizes(c)
    tiles, filters = product.uses(c, s)
    v, u = operand_bytes(product, tiles), operand_bytes(product, filters)
    block = s.a_block_bytes + sum_bytes(product, s) + s.nr * s.kc * product.gemm.accumulator.dtype.bytes
    rate = np.where(block <= CACHE_BYTES, peaks.l2_bytes_per_second, peaks.memory_bytes_per_second)
    caches = v * tiles.passes / rate + u * filters.sharing / peaks.l2_bytes_per_second
    inputs = sum(b.bytes for b in product.gemm.inputs if b.name not in product.constants)
    written = sum(r.tensor.bytes for r in product.gemm.results)
    read = u * copies_of_b(product, s, u)
    memory = (read + inputs) / peaks.read_bytes_per_second + 2 * written / peaks.memory_bytes_per_second
    shared = np.where(product.is_constant(product.gemm.b), 0.0, 1.0)
    packing = shared * np.where(filters.whole, 3 * u / peaks.memory_bytes_per_second + peaks.launch_seconds, 0.0)
    far = panel_bytes(product, s) // POINTS > L1_BYTES
    panels = np.where(far, u * filters.passes, 0.0) / peaks.l2_read_bytes_per_second
    multiply = multiply_seconds(product, s, peaks)
    seconds = joined(multiply, panels, caches, memory) + packing + _transform_seconds(product, c, peaks)
    found: Floats = peaks.launch_seconds + seconds + first_panel_seconds(product, s, peaks) / POINTS
    return found


def _transform_seconds(product: BlockedProduct, c: Columns, peaks: CpuPeaks) -> Floats:
    """Each block of filters transforms the tiles for itself."""
    p, lanes = product.gemm, product.micro_kernel.lanes
    image = IMAGE_INSTRUCTIONS * -(-p.k.extent // lanes) * c.ints("n_blocks")
    output = OUTPUT_INSTRUCTIONS * -(-p.n.extent // lanes)
    return p.m.extent * (image + output) / peaks.vector_steps()


def sum_bytes(product: BlockedProduct, s: CpuGemmSizes[Ints]) -> Ints:
    """Bytes of the sums of a panel of a task, which wait to be transformed, int64[n]."""
    return np.asarray(s.mc_tiles * s.mr * s.nr * POINTS * product.gemm.accumulator.dtype.bytes)
