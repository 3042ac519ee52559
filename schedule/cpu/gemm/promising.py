"""Which settings of a blocked product are worth a measurement: rules of thumb, apart from what is legal.

Register tiles keep the units busy and waste little at the edges of C. There are enough tasks of even sizes, their
blocks stay in the second-level cache, and operands are packed where that is paid for.
"""

import numpy as np

from ...space.columns import Bools, Columns, Floats, Ints
from ..arithmetic import ceil_div, idle_share
from ..shared_knobs import NON_TEMPORAL
from .blocked_product import BlockedProduct, OperandUse
from .packing import TASK
from .sizes import CpuGemmSizes

TILE_SLACK = 0.05
"""How much more time than with the best register tile all of them may take."""
TASKS_PER_THREAD = 4
"""A thread has at most this many tasks, if their blocks fit the cache then."""
MOST_IDLE = 0.15
LEAST_TASK_ROWS = 32
"""With fewer rows in a task, the right operand is read too often. Then columns are cut, where they can be."""
CACHE_BYTES = 2 << 20
"""What the blocks of a task may take together: about the second-level cache."""
L1_BYTES = 16 << 10
"""What a panel may take of a first-level cache: half of a small one, since rows of A and C pass through it, too."""
FEW = 8
"""How often an operand may be read in place where its rows fall on the same sets of a cache."""
WORTH_PACKING_FIRST = 0.05
"""Vectors that tasks pack for each multiply-add of vectors, from which on they may share one copy that is made before
they begin. That copy goes through memory twice."""
MOST_PACKING = 0.07
"""The same, beyond which tasks must not pack, where they can avoid it."""
LEAST_NON_TEMPORAL_BYTES = 1 << 20
"""The bytes of outputs from which on it may pay to store them past the caches."""


def promising(product: BlockedProduct, c: Columns) -> Bools:
    """Return which settings keep all rules, bool[n]."""
    s = product.sizes(c)
    good = _tasks_are_even(product, c, s)
    good = _tiles_are_fast(product, c, s, good) & _packing_pays(product, c, s)
    small = sum(r.tensor.bytes for r in product.gemm.results) < LEAST_NON_TEMPORAL_BYTES
    return good & ~c.flags("store", NON_TEMPORAL) if product.micro_kernel.memory_knobs and small else good


def _tiles_are_fast(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints], even: Bools) -> Bools:
    """Return which of the ``even`` settings have register tiles that together take little more time than the best ones
    do in tasks of enough rows. Where rows of A fall on the same sets of a cache, the best ones are small enough, or A
    is packed."""
    tall = even & _tall(c, s)
    typical = tall if tall.any() else even
    cost, (a, _) = s.m_tiles * s.mr * s.n_computed * product.slowdown(s), product.uses(c, s)
    scattered = product.is_scattered(a)
    alike = (a.in_place, ~a.in_place) if scattered.any() else (np.ones(len(c), dtype=bool),)
    found = np.zeros(len(c), dtype=bool)
    for rows in alike:
        best = cost[rows & typical & ~scattered].min(initial=np.inf)
        found |= rows & even & (cost <= best * (1 + TILE_SLACK))
    return found


def _tasks_are_even(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints]) -> Bools:
    """Return whether there are enough tasks, of even sizes, whose blocks fit the cache."""
    m_blocks, n_blocks, threads = c.ints("m_blocks"), c.ints("n_blocks"), product.target.threads
    most = s.m_tiles * s.n_panels * product.batches
    ok = s.tasks >= np.minimum(threads, most)
    ok &= (idle_share(s.tasks, threads) <= MOST_IDLE) | (most < threads / MOST_IDLE)
    ok &= _tall(c, s) | (s.n_panels * product.batches < threads)
    columns_inside = product.columns_inside(c)
    ok &= ~columns_inside | ~c.flags("pack_a", TASK)
    blocks = block_bytes(product, c, s)
    fewer = np.where((m_blocks > 1) | (n_blocks > 1), s.tasks // 2, 0)
    ok &= (fewer < TASKS_PER_THREAD * threads) | (4 * blocks > CACHE_BYTES)
    found: Bools = ok & (blocks <= CACHE_BYTES)
    return found


def _tall(c: Columns, s: CpuGemmSizes[Ints]) -> Bools:
    """Return whether tasks have enough rows, bool[n]."""
    return np.asarray((c.ints("m_blocks") == 1) | (s.mc_tiles * s.mr >= LEAST_TASK_ROWS))


def block_bytes(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints]) -> Ints:
    """Return how many bytes a cache must have for what a task reads again and again in one block of ``k``: all of B and
    one row of register tiles of A, where the tiles of a row of C follow one another. Else it is all of A, which may
    find place in some sets alone, and either all of B, or, where that is packed, a panel of it and the next one. Then
    half of the cache is for what passes by."""
    rows, panels = ceil_div(s.a_block_bytes, s.mc_tiles), 2 * ceil_div(s.b_block_bytes, s.nc_panels)
    a_use, b_use = product.uses(c, s)
    a = s.a_block_bytes * product.conflict_factor(a_use, s.kc)
    whole, passing = a + s.b_block_bytes, np.maximum(a + panels, 2 * (s.a_block_bytes + panels))
    kept = np.where(b_use.in_place, whole, np.minimum(whole, passing))
    return np.where(product.columns_inside(c), rows + s.b_block_bytes, kept)


def _packing_pays(product: BlockedProduct, c: Columns, s: CpuGemmSizes[Ints]) -> Bools:
    """Return whether packed operands are used often enough, and none is read in place from few sets of a cache again
    and again, or from too many pages."""
    ok = np.ones(len(c), dtype=bool)
    for use in product.uses(c, s):
        if product.is_constant(use.operand):
            continue
        packing = packed_share(product, use)
        ok &= ~use.whole | ((use.sharing > 1) & (packing > WORTH_PACKING_FIRST))
        ok &= ~use.per_task | (packing <= MOST_PACKING) | (use.sharing == 1)
        ok &= ~product.is_scattered(use) | (use.passes <= FEW)
        ok &= ~product.misses_pages(use)
    return ok


def packed_share(product: BlockedProduct, use: OperandUse) -> Floats:
    """Return how many vectors a task packs for each multiply-add of vectors, if it packs the operand, float64[n]."""
    kernel = product.micro_kernel
    return np.asarray(kernel.lanes * kernel.register_rows / use.reuse, dtype=np.float64)
