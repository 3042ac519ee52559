"""Estimates the time of a blocked product.

    seconds = launch + norm(multiply / busy share of the threads, blocks from the cache, operands and C from memory)
              + packing

Nothing in it was fitted: the terms count operations and bytes and divide them by measured ceilings.
"""

import numpy as np
from numpy.typing import NDArray

from ...space.columns import Columns, Ints
from ..arithmetic import ceil_div, idle_share, overlapped
from ..limits import LINE_BYTES
from ..peaks import CpuPeaks
from ..shared_knobs import NON_TEMPORAL
from .blocked_product import BlockedProduct, OperandUse
from .promising import CACHE_BYTES, FEW, block_bytes
from .sizes import CpuGemmSizes

PAIR_BYTES = 2 * LINE_BYTES
Seconds = NDArray[np.float64]


def gemm_seconds(product: BlockedProduct, c: Columns, peaks: CpuPeaks) -> Seconds:
    """Return the estimated time of each setting in seconds, float64[n]."""
    s = product.sizes(c)
    multiply = multiply_seconds(product, s, peaks)
    caches = _cache_seconds(product, c, s, peaks)
    memory = _memory_seconds(product, c, s, peaks)
    return peaks.launch_seconds + overlapped(multiply, caches, memory) + _packing_seconds(product, c, s, peaks)


def multiply_seconds(product: BlockedProduct, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Seconds:
    """Return the multiply-adds of the thread that has most tasks, of whole register tiles, beyond the edges of C and of
    ``k`` too. Where a thread has one task, that is a whole one: the last ones are smaller where tiles divide
    unevenly."""
    kernel, threads = product.micro_kernel, product.target.threads
    whole = (s.m_tiles * s.n_panels * product.batches) / (1 - idle_share(s.tasks, threads))
    tiles = np.where(s.tasks <= threads, threads * s.mc_tiles * s.nc_panels, whole)
    operations = 2 * tiles * s.mr * s.nr * s.k_blocks * s.kc
    return operations * kernel.slowdown(s.mr, s.vectors) / kernel.flops(peaks)


def _cache_seconds(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Seconds:
    """Return the operand that register tiles read again and again comes from the second-level cache: A once for each
    panel, or B once for each row of register tiles. Blocks that do not fit that cache come from further away, at the
    rate of memory. Of rows that fall on the same sets, each element costs a line."""
    columns_inside = product.columns_inside(c)
    fits = block_bytes(s, columns_inside) <= CACHE_BYTES
    rate = np.where(fits, peaks.l2_bytes_per_second, min(peaks.read_bytes_per_second, peaks.l2_bytes_per_second))
    uses = product.uses(c, s)
    a, b = (operand_bytes(product, use) * use.passes * _line_waste(product, use) for use in uses)
    seconds: Seconds = np.where(columns_inside, b, a) / rate
    return seconds


def _line_waste(product: BlockedProduct, use: OperandUse) -> Seconds:
    """Bytes that are moved for each byte that is used, float64[n]."""
    again = use.in_place & (use.passes > FEW) & (use.rows > FEW) & product.is_scattered(use.operand)
    return np.where(again, LINE_BYTES / product.micro_kernel.packed_bytes, 1.0)


def _memory_seconds(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Seconds:
    """Return all inputs once, A again for each further block of columns, B for each further block of rows if caches do
    not hold it, and C for each block of ``k``: written, and read again by the next one. An output that goes through the
    caches is read before it is written, in pairs of lines: tasks that share the rows of C fetch more than they
    write."""
    p = product.gemm
    read = sum(b.bytes for b in p.inputs) / peaks.read_bytes_per_second
    accumulators = p.m.extent * p.n.extent * product.batches * p.accumulator.dtype.bytes
    stored = sum(r.tensor.bytes for r in p.results)
    past = c.flags("store", NON_TEMPORAL) if product.micro_kernel.memory_knobs else np.zeros(len(c), dtype=bool)
    row_bytes = s.nc_panels * s.nr * p.accumulator.dtype.bytes  # of a row of C that a task writes
    pairs = -(-row_bytes // PAIR_BYTES) * PAIR_BYTES / row_bytes
    shared = np.where(s.nc_panels * s.nr < p.n.extent, pairs, 1.0)
    moved = 2 * (s.k_blocks - 1) * accumulators + np.where(past, 1, 1 + shared) * stored
    a, b = (operand_bytes(product, use) for use in product.uses(c, s))
    again = (ceil_div(s.n_panels, s.nc_panels) - 1) * a
    if b > CACHE_BYTES:
        again = again + (ceil_div(s.m_tiles, s.mc_tiles) - 1) * b
    seconds: Seconds = read + again / peaks.read_bytes_per_second + moved / peaks.memory_bytes_per_second
    return seconds


def _packing_seconds(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], peaks: CpuPeaks) -> Seconds:
    """Each task reads and writes what it packs. What is packed before the tasks goes through memory, is read once more,
    and takes a launch of its own. Constant operands cost nothing."""
    seconds: Seconds = np.zeros(len(c), dtype=np.float64)
    for use in product.uses(c, s):
        if product.is_constant(use.operand):
            continue
        once = operand_bytes(product, use) / peaks.memory_bytes_per_second
        seconds += np.where(use.per_task, 2 * once * use.sharing, 0.0)
        seconds += np.where(use.whole, 3 * once + peaks.launch_seconds, 0.0)
    return seconds


def operand_bytes(product: BlockedProduct, use: OperandUse) -> float:
    """Return how many bytes an operand has when it is packed."""
    return float(use.elements * product.micro_kernel.packed_bytes)
