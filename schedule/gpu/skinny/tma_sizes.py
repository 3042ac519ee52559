"""Derives the tile sizes of ``cuda_skinny_tma``: what follows from a setting of its knobs."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.wgmma import LINE_BYTES, WGMMA_M
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints, derived_once
from ..gemm.mma_atom import splitting, wgmma_atom
from ..occupancy import limits_of
from ..split_k import partial_bytes

SPARE_REGISTERS = 32
"""How many registers a thread needs for addresses and constants, roughly (from compiled kernels)."""
SWIZZLED_ROWS = 8
"""After how many rows the pattern of the 128-byte swizzle repeats."""
BARRIER_BYTES = 16
"""How many bytes of shared memory the two mbarriers of a stage take."""

W = TypeVar("W", int, Ints)


@dataclass(frozen=True, slots=True)
class SkinnyTmaSizes(Generic[W]):
    """Whole columns int64[n] for a space, or plain ints for one setting. The first seven fields are the knobs, but that
    ``stages`` is no larger than ``k_tiles``. An atom of ``k`` is what 128 bytes of a multiplied operand hold.

    ``warps`` and ``threads`` are those of a block. ``block_n`` is how many outputs ``n`` a block computes. ``a_rows``
    is how many rows of A a stage holds. ``a_spare_rows`` is how many rows behind the last stage wgmma reads, whose
    products count for nothing. ``wgmma_n`` is the N of the instruction. ``blocks_n`` counts the blocks along ``n``,
    ``blocks`` those of the launch. ``k_tiles`` is how many tiles of ``k`` a block goes through. ``b_lines`` is how many
    lines of 128 bytes a row of B takes in an atom. ``atom_bytes`` are the
    bytes of A and B along an atom of ``k``, and ``stage_b_bytes`` those of B in a stage. ``shared_bytes`` is the
    shared memory of a block, and ``shared_limit`` what it may take when ``ctas_per_sm`` blocks share a multiprocessor.
    ``registers`` is the estimate for a thread. ``prefetching_ctas`` is how many blocks along ``n`` prefetch their
    operands into L2 before the launch before has ended.
    """

    swap_ab: W
    mma_n: W
    consumer_warpgroups: W
    k_atoms: W
    stages: W
    split_k: W
    ctas_per_sm: W
    warps: W
    threads: W
    block_n: W
    a_rows: W
    a_spare_rows: W
    wgmma_n: W
    blocks_n: W
    blocks: W
    k_tiles: W
    b_lines: W
    atom_bytes: W
    stage_b_bytes: W
    shared_bytes: W
    shared_limit: W
    registers: W
    prefetching_ctas: W


@derived_once
def skinny_tma_sizes(p: Gemm, target: Target, columns: Columns) -> SkinnyTmaSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    limits = limits_of(target)
    knobs = columns.named("swap_ab", "mma_n", "consumer_warpgroups", "k_atoms", "split_k", "ctas_per_sm")
    swap_ab, mma_n, warpgroups, k_atoms, split_k, ctas_per_sm = knobs.values()
    a_rows = np.full_like(mma_n, -(-p.m.extent // SWIZZLED_ROWS) * SWIZZLED_ROWS)
    block_n = mma_n * warpgroups
    blocks_n = -(-p.n.extent // block_n)
    atom, planes = wgmma_atom(p), splitting(p).planes
    k_tiles = -(-p.k.extent // (split_k * k_atoms * atom.line))
    stages = np.minimum(columns.ints("stages"), k_tiles)
    b_lines = np.full_like(mma_n, _b_line_count(p))
    atom_bytes = LINE_BYTES * (block_n * b_lines + a_rows * max(planes, 1))
    a_spare_rows = np.where(swap_ab == 1, 0, WGMMA_M - a_rows)
    wgmma_n = np.where(swap_ab == 1, a_rows, mma_n)
    staged = stages * (k_atoms * atom_bytes + BARRIER_BYTES) + LINE_BYTES * a_spare_rows
    registers = SPARE_REGISTERS + wgmma_n // 2
    if planes:  # block sums, and the fragments of all planes of B
        registers += wgmma_n // 2 + planes * LINE_BYTES // 8
    warps = warpgroups * (WARPGROUP_THREADS // WARP_LANES) + 1
    return SkinnyTmaSizes(
        **knobs,
        stages=stages,
        warps=warps,
        threads=WARP_LANES * warps,
        block_n=block_n,
        a_rows=a_rows,
        a_spare_rows=a_spare_rows,
        wgmma_n=wgmma_n,
        blocks_n=blocks_n,
        blocks=blocks_n * split_k,
        k_tiles=k_tiles,
        b_lines=b_lines,
        atom_bytes=atom_bytes,
        stage_b_bytes=LINE_BYTES * k_atoms * block_n * b_lines,
        shared_bytes=np.maximum(staged, partial_bytes(p.m.extent, 1, block_n)),
        shared_limit=limits.shared_bytes_for(ctas_per_sm),
        registers=registers,
        prefetching_ctas=target.threads * ctas_per_sm // split_k,
    )


def _b_line_count(p: Gemm) -> int:
    """Return how many lines of 128 bytes an atom of ``k`` of a row of B takes, as it lies in memory."""
    assert p.b.load is not None
    return wgmma_atom(p).line * p.b.load.buffer.dtype.bytes // LINE_BYTES
