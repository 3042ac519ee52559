"""Estimates the time of a blocked product.

    seconds = launch + first panel + accumulators between blocks of k + packing
              + norm(multiply / busy share of the threads, panels and blocks from the cache, operands and C from memory)

The terms count operations and bytes and divide them by measured ceilings. How they are joined was measured, too.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...space.columns import Columns, Floats, Ints
from ..arithmetic import ceil_div, idle_share
from ..limits import LINE_BYTES
from ..peaks import CpuPeaks
from ..shared_knobs import NON_TEMPORAL
from .blocked_product import BlockedProduct, OperandUse
from .promising import CACHE_BYTES, FEW, L1_BYTES, block_bytes
from .sizes import CpuGemmSizes

PAIR_BYTES = 2 * LINE_BYTES


def gemm_seconds(product: BlockedProduct, c: Columns, peaks: CpuPeaks) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    s = product.sizes(c)
    multiply, panels = multiply_seconds(product, s, peaks), panel_seconds(product, c, s, peaks)
    caches, memory = _cache_seconds(product, c, s, peaks), _memory_seconds(product, c, s, peaks)
    alone = first_panel_seconds(product, s, peaks) + _accumulator_seconds(product, c, s, peaks)
    together = joined(multiply, panels, caches, memory)
    return peaks.launch_seconds + together + alone + _packing_seconds(product, c, s, peaks)


def joined(*parts: NDArray[np.floating[Any]]) -> Floats:
    """Return what parts of a blocked product take together, float64[n]: the root of the sum of their squares, as
    measured on an Intel Xeon with AVX-512. Multiply-adds hide loads and prefetches less well than a copy hides
    arithmetic (``overlapped``)."""
    return np.sqrt(sum(part**2 for part in parts))


def first_panel_seconds(product: BlockedProduct, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Floats:
    """Return what the panel of constant B takes that each thread begins with, float64[n]. It comes from memory while
    nothing is computed."""
    if not product.is_constant(product.gemm.b):
        return np.zeros(len(s.nr), dtype=np.float64)
    threads = np.minimum(s.tasks, product.target.threads)
    return threads * panel_bytes(product, s) / peaks.read_bytes_per_second


def multiply_seconds(product: BlockedProduct, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Floats:
    """Return the multiply-adds of the thread that has most tasks, of whole register tiles, beyond the edges of C and of
    ``k`` too. The last tasks along both axes are smaller where tiles divide unevenly. Where they are fewer than the
    threads, one of these has large tasks alone."""
    kernel, threads = product.micro_kernel, product.target.threads
    whole = (s.m_tiles * s.n_computed * product.batches) / (1 - idle_share(s.tasks, threads))
    small = s.tasks - s.m_tiles // s.mc_tiles * (s.n_computed // s.nc) * product.batches
    large_alone = (s.tasks <= threads) | (small < threads)
    columns = np.where(large_alone, threads * ceil_div(s.tasks, threads) * s.mc_tiles * s.nc, whole)
    operations = 2 * columns * s.mr * s.k_blocks * s.kc
    return operations * product.slowdown(s) / kernel.flops(peaks)


def panel_seconds(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Floats:
    """Return what vectors wait for panels of B that the first-level cache does not hold, and that each register tile
    but the first reads from the second one: float64[n]."""
    _, b = product.uses(c, s)
    far = (panel_bytes(product, s) > L1_BYTES) & (product.micro_kernel.register_rows == 1)
    return np.where(far, operand_bytes(product, b) * (b.passes - 1), 0.0) / peaks.l2_read_bytes_per_second


def panel_bytes(product: BlockedProduct, s: CpuGemmSizes[Ints]) -> Ints:
    """Return the bytes of B that the register tiles of a panel share in a block of ``k``, int64[n]."""
    return np.asarray(s.nr * s.kc * product.micro_kernel.packed_bytes // s.k_shared)


def _cache_seconds(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Floats:
    """Return the operand that register tiles read again and again comes from the second-level cache: A once for each
    panel, or B once for each row of register tiles. Blocks that do not fit that cache come from further away, at the
    rate of memory. Of rows that fall on the same sets, each element costs a line."""
    columns_inside = product.columns_inside(c)
    fits = block_bytes(product, c, s) <= CACHE_BYTES
    rate = np.where(fits, peaks.l2_bytes_per_second, min(peaks.read_bytes_per_second, peaks.l2_bytes_per_second))
    uses = product.uses(c, s)
    a, b = (operand_bytes(product, use) * use.passes * _line_waste(product, use) for use in uses)
    return np.where(columns_inside, b, a) / rate


def _line_waste(product: BlockedProduct, use: OperandUse) -> Floats:
    """Return how many bytes are moved for each byte that is used, float64[n]. Of A an element at a time is read, so
    that a line is needed again even where it is read once; of B, vectors."""
    again = product.is_scattered(use) & ((use.passes > FEW) | (use.operand is product.gemm.a))
    return np.where(again, LINE_BYTES / product.micro_kernel.packed_bytes, 1.0)


def _memory_seconds(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Floats:
    """Return all inputs once, A again for each further block of columns, B for each further thread that reads it, or
    for each further block of rows if caches do not hold it, and outputs. An output that goes through the caches is read
    before it is written, in pairs of lines: tasks that share the rows of C fetch more than they write."""
    p = product.gemm
    read = sum(b.bytes for b in p.inputs) / peaks.read_bytes_per_second
    stored = sum(r.tensor.bytes for r in p.results)
    past = c.flags("store", NON_TEMPORAL) if product.micro_kernel.memory_knobs else np.zeros(len(c), dtype=bool)
    row_bytes = s.nc * p.accumulator.dtype.bytes  # of a row of C that a task writes
    pairs = -(-row_bytes // PAIR_BYTES) * PAIR_BYTES / row_bytes
    shared = np.where(s.nc < s.n, pairs, 1.0)
    moved = np.where(past, 1, 1 + shared) * stored
    a, b = (operand_bytes(product, use) for use in product.uses(c, s))
    again = (ceil_div(s.n_computed, s.nc) - 1) * a
    again = again + (copies_of_b(product, s, b) - 1) * b / product.uses(c, s)[1].copies
    return read + again / peaks.read_bytes_per_second + moved / peaks.memory_bytes_per_second


def _accumulator_seconds(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Floats:
    """Return what accumulators take that are written by each block of ``k`` and read again by the next one, while
    nothing is multiplied, float64[n]: from the second-level cache, or from memory if that does not hold them."""
    p, size = product.gemm, product.gemm.accumulator.dtype.bytes
    moved = 2 * (s.k_blocks - 1) * p.m.extent * s.n * product.batches * size
    task_bytes = block_bytes(product, c, s) + s.mc_tiles * s.mr * s.nc * size
    return moved / np.where(task_bytes <= CACHE_BYTES, peaks.l2_bytes_per_second, peaks.memory_bytes_per_second)


def copies_of_b(product: BlockedProduct, s: CpuGemmSizes[Ints], b: Floats) -> Ints:
    """Return how often B, of ``b`` bytes, is read from memory, int64[n]: by each thread that has rows of its own, and
    for each block of rows where the cache of a thread does not hold it."""
    blocks = ceil_div(s.m_tiles, s.mc_tiles)
    return np.where(b > CACHE_BYTES, blocks, np.minimum(blocks, product.target.threads))


def _packing_seconds(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Floats:
    """Each task reads and writes what it packs; further copies of an element come from the second-level cache. What is
    packed before the tasks goes through memory, is read once more, and takes a launch of its own. What takes half of
    the second-level cache at most is there from the call before. Constant operands cost nothing."""
    seconds = np.zeros(len(c), dtype=np.float64)
    for use in product.uses(c, s):
        if product.is_constant(use.operand):
            continue
        packed = operand_bytes(product, use)
        original = packed / use.copies
        near = original <= CACHE_BYTES // 2
        once = original / np.where(near, peaks.l2_bytes_per_second, peaks.memory_bytes_per_second)
        more = packed * (1 - 1 / use.copies) / peaks.l2_bytes_per_second
        seconds += np.where(use.per_task, 2 * (once + more) * use.sharing, 0.0)
        seconds += np.where(use.whole, 3 * once + peaks.launch_seconds, 0.0)
    return seconds


def operand_bytes(product: BlockedProduct, use: OperandUse) -> Floats:
    """Return how many bytes an operand has when it is packed, float64[n]."""
    return np.asarray(use.elements * product.micro_kernel.packed_bytes, dtype=np.float64)
