"""Derives the tile sizes of ``cuda_skinny_mma``: what follows from a setting of its knobs."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.gemm import Gemm, Operand
from ...space.columns import Columns, Ints, derived_once
from ..occupancy import limits_of
from ..split_k import partial_bytes
from .mma_tiles import ATOM_M, ATOM_N, shifted_tile_bytes, tile_bytes
from .shifted_tiles import is_for_ldmatrix

SPARE_REGISTERS = 44
"""How many registers a thread needs for addresses and constants, roughly (from compiled kernels)."""
ROUNDED_REGISTERS = 40
"""How many more it needs for each 32 elements along ``k`` of a tile of float32, roughly (from compiled kernels)."""
LEAST_STAGES, MOST_STAGES = 2, 12

W = TypeVar("W", int, Ints)


@dataclass(frozen=True, slots=True)
class SkinnyMmaSizes(Generic[W]):
    """Whole columns int64[n] for a space, or plain ints for one setting. The first six fields are the knobs.

    ``warps`` and ``threads`` are those of a block. ``block_n`` is how many outputs ``n`` a block computes, and
    ``atoms_m`` how many times 8 rows ``m``. ``blocks_n`` counts the blocks along ``n``, ``blocks`` those of the launch.
    ``k_tiles`` is how many tiles of ``k`` every warp goes through. ``stages`` is how many of them its circular buffer
    holds: as many as fit. ``stage_b_bytes`` are the bytes of B in one stage of all warps. ``shared_bytes`` is the
    shared memory of a block, and ``shared_limit`` what it may take when ``ctas_per_sm`` blocks share a multiprocessor.
    ``registers`` is the estimate for a thread. ``prefetching_ctas`` is how many blocks along ``n`` prefetch their
    operands into L2 before the launch before has ended.
    """

    atoms_n: W
    warps_n: W
    warps_k: W
    tile_k: W
    split_k: W
    ctas_per_sm: W
    warps: W
    threads: W
    block_n: W
    atoms_m: W
    blocks_n: W
    blocks: W
    k_tiles: W
    stages: W
    stage_b_bytes: W
    shared_bytes: W
    shared_limit: W
    registers: W
    prefetching_ctas: W


@derived_once
def skinny_mma_sizes(p: Gemm, target: Target, columns: Columns) -> SkinnyMmaSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    limits = limits_of(target)
    knobs = columns.named("atoms_n", "warps_n", "warps_k", "tile_k", "split_k", "ctas_per_sm")
    atoms_n, warps_n, warps_k, tile_k, split_k, ctas_per_sm = knobs.values()
    atoms_m = np.full_like(atoms_n, -(-p.m.extent // ATOM_N))
    warps, warp_n = warps_n * warps_k, atoms_n * ATOM_M
    block_n = warp_n * warps_n
    blocks_n = -(-p.n.extent // block_n)
    k_tiles = -(-p.k.extent // (split_k * warps_k * tile_k))
    stage_b = warps * _tile_bytes(p, p.b, warp_n, tile_k)
    stage_a = np.where(warps_n > 1, warps_k, warps) * _tile_bytes(p, p.a, ATOM_N * atoms_m, tile_k)
    shared_limit = limits.shared_bytes_for(ctas_per_sm)
    fitting = np.minimum(shared_limit // (stage_a + stage_b), k_tiles + 1)
    stages = np.clip(fitting, LEAST_STAGES, MOST_STAGES)
    early = limits.overlapping_ctas(ctas_per_sm, target.threads)
    return SkinnyMmaSizes(
        **knobs,
        warps=warps,
        threads=WARP_LANES * warps,
        block_n=block_n,
        atoms_m=atoms_m,
        blocks_n=blocks_n,
        blocks=blocks_n * split_k,
        k_tiles=k_tiles,
        stages=stages,
        stage_b_bytes=stage_b,
        shared_bytes=np.maximum(stages * (stage_a + stage_b), partial_bytes(p.m.extent, warps_k, block_n)),
        shared_limit=shared_limit,
        registers=_spare_registers(p, tile_k) + 4 * atoms_n * atoms_m + 8 * atoms_n + 4 * atoms_m,
        prefetching_ctas=np.where(blocks_n * split_k <= early, blocks_n, 0),
    )


def _spare_registers(p: Gemm, tile_k: Ints) -> Ints:
    """Return how many registers a thread needs besides accumulators and fragments, int64[n]. The compiler loads
    elements of float32 early, all of a tile."""
    assert p.b.load is not None
    early = tile_k * ROUNDED_REGISTERS // 32 if p.b.load.buffer.dtype.bytes > 2 else 0
    return np.asarray(SPARE_REGISTERS + early)


def _tile_bytes(p: Gemm, operand: Operand, own: Ints, tile_k: Ints) -> Ints:
    """Return the shared memory of a tile of an operand, with ``own`` places along its own axis, int64[n]."""
    assert operand.load is not None
    rows, columns = (own, tile_k) if operand.k == 1 else (tile_k, own)
    if is_for_ldmatrix(p, operand):
        return tile_bytes(rows, columns)
    return shifted_tile_bytes(rows, columns, operand.load.buffer.dtype.bytes)
