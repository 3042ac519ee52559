"""Derives the tile sizes of ``cuda_mlp``: what follows from a setting of its knobs."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.mlp import Mlp, column_vectors_of
from ...space.columns import Columns, Ints
from ..occupancy import limits_of
from ..skinny.mma_tiles import ATOM_M, ATOM_N, tile_bytes

SPARE_REGISTERS = 44
"""How many registers a thread needs for addresses and constants, roughly (from compiled kernels)."""
SPARE_BYTES = 256
"""How many bytes of shared memory are left free for the alignment of buffers."""

W = TypeVar("W", int, Ints)


@dataclass(frozen=True, slots=True)
class MlpSizes(Generic[W]):
    """Whole columns int64[n] for a space, or plain ints for one setting. The first five fields are the knobs.

    ``threads`` are those of a block, and ``block_m`` is how many rows it has. ``block_n`` is how many columns of the
    widest layer a block has, and ``warp_atoms`` how many times 8 of them a warp has. ``blocks_m`` counts the blocks
    along ``m``, ``blocks`` those of the launch. ``k_tiles`` is how many tiles of ``k`` all layers have together.
    ``stages`` is how many of them the circular buffer holds: as many as fit, less than 1 where none does.
    ``stage_bytes`` are the bytes of a stage, and ``shared_bytes`` is the shared memory of a block. ``accumulators`` is
    how many a thread has, and ``registers`` estimates its registers. ``b_bytes`` are the bytes of B of all layers that
    all blocks read together.
    """

    atoms_m: W
    warps_n: W
    tile_k: W
    cluster_n: W
    ctas_per_sm: W
    threads: W
    block_m: W
    block_n: W
    warp_atoms: W
    blocks_m: W
    blocks: W
    k_tiles: W
    stages: W
    stage_bytes: W
    shared_bytes: W
    accumulators: W
    registers: W
    b_bytes: W


def mlp_sizes(p: Mlp, target: Target, columns: Columns) -> MlpSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    limits = limits_of(target)
    knobs = columns.named("atoms_m", "warps_n", "tile_k", "cluster_n", "ctas_per_sm")
    atoms_m, warps_n, tile_k, cluster_n, ctas_per_sm = knobs.values()
    block_m, block_n = atoms_m * ATOM_M, max(layer.n.extent for layer in p.layers) // cluster_n
    warp_atoms = -(-(block_n // ATOM_N) // warps_n)
    k_tiles = np.sum([-(-layer.k.extent // tile_k) for layer in p.layers], axis=0)
    stage_bytes = tile_bytes(block_n, tile_k) if b_is_k_major(p) else tile_bytes(tile_k, block_n)
    if streams_a(p):
        stage_bytes = stage_bytes + tile_bytes(block_m, tile_k)
        a_bytes = np.zeros_like(block_m)
    else:
        longest = max(layer.k.extent for layer in p.layers)
        a_bytes = tile_bytes(block_m, -(-longest // tile_k) * tile_k)
    vectors = sum(layer.n.extent * v.buffer.dtype.bytes for layer in p.layers for v in column_vectors_of(p, layer))
    statistics = 8 * block_m * (warps_n + 1)
    resident_bytes = a_bytes + vectors // cluster_n + statistics
    stages = np.minimum((limits.shared_bytes_for(ctas_per_sm) - resident_bytes - SPARE_BYTES) // stage_bytes, k_tiles)
    blocks_m = -(-p.m.extent // block_m)
    return MlpSizes(
        **knobs,
        threads=WARP_LANES * warps_n,
        block_m=block_m,
        block_n=block_n,
        warp_atoms=warp_atoms,
        blocks_m=blocks_m,
        blocks=blocks_m * cluster_n,
        k_tiles=k_tiles,
        stages=stages,
        stage_bytes=stage_bytes,
        shared_bytes=np.maximum(stages, 1) * stage_bytes + resident_bytes,
        accumulators=4 * atoms_m * warp_atoms,
        registers=SPARE_REGISTERS + 6 * atoms_m * warp_atoms + 8 * atoms_m,
        b_bytes=blocks_m * 2 * sum(layer.n.extent * layer.k.extent for layer in p.layers),
    )


def b_is_k_major(p: Mlp) -> bool:
    """Return whether B of all layers is K-major (contiguous along ``k``), not N-major."""
    return p.layers[0].b.k == 1


def streams_a(p: Mlp) -> bool:
    """Return whether A goes through the stages like B, which it does for a single layer. A of several layers is in
    shared memory as a whole, where the next layer's A takes its place."""
    return len(p.layers) == 1
