"""The sizes that follow from a setting of ``cuda_skinny_mixed``."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints, derived_once
from ..block_reduce import QUAD
from ..occupancy import limits_of
from ..split_k import partial_bytes
from ..streamed_operand import StreamedOperand
from .mma_tiles import ATOM_M, ATOM_N

SPARE_REGISTERS = 40
"""How many registers a thread needs for addresses and constants, roughly (from compiled kernels)."""

W = TypeVar("W", int, Ints)


@dataclass(frozen=True, slots=True)
class SkinnyMixedSizes(Generic[W]):
    """Whole columns int64[n] for a space, or plain ints for one setting. The first five fields are the knobs.

    ``warps`` and ``threads`` are those of a block. ``block_n`` is how many outputs ``n`` a block computes, and
    ``atoms_m`` how many times 8 rows ``m``. ``blocks_n`` counts the blocks along ``n``, ``blocks`` those of the launch.
    ``steps`` is how often a warp loads ``vectors`` vectors of each of its rows. ``loaded_bytes`` is what a block loads
    of the weights in a step. ``shared_bytes`` is the shared memory of a block, ``registers`` an estimate of those of a
    thread, and ``resident`` how many blocks a multiprocessor holds at once. ``min_blocks`` is the launch bound that the
    compiler is told: without one it takes registers for more blocks than there are, and moves loads behind products.
    ``prefetching_ctas`` is how many blocks along ``n`` prefetch their weights into L2 before the launch before has
    ended.
    """

    atoms_n: W
    warps_n: W
    warps_k: W
    vectors: W
    split_k: W
    warps: W
    threads: W
    block_n: W
    atoms_m: W
    blocks_n: W
    blocks: W
    steps: W
    loaded_bytes: W
    shared_bytes: W
    registers: W
    resident: W
    min_blocks: W
    prefetching_ctas: W


def chunks_of(p: Gemm, weights: StreamedOperand) -> int:
    """Return how many times the vectors of four lanes cover a row."""
    return -(-p.k.extent // (QUAD * weights.vector))


@derived_once
def skinny_mixed_sizes(
    p: Gemm, weights: StreamedOperand, scaled: bool, target: Target, columns: Columns
) -> SkinnyMixedSizes[Ints]:
    """Return the sizes of all settings in ``columns``. ``scaled``: whether sums are multiplied with scales."""
    atoms_n, warps_n, warps_k = columns.ints("atoms_n"), columns.ints("warps_n"), columns.ints("warps_k")
    vectors, split_k = columns.ints("vectors"), columns.ints("split_k")
    atoms_m = np.full_like(atoms_n, -(-p.m.extent // ATOM_N))
    warps = warps_n * warps_k
    block_n = atoms_n * ATOM_M * warps_n
    blocks_n = -(-p.n.extent // block_n)
    rows = 2 * atoms_n
    held = vectors * rows * (weights.vector_bytes // 4 + len(weights.once)) + atoms_m * weights.vector // 2
    if scaled:  # the scales, and the sums of the places that have one
        held = held + vectors * rows + 4 * atoms_n * atoms_m
    registers = SPARE_REGISTERS + 4 * atoms_n * atoms_m + held + 8 * atoms_n
    threads, shared_bytes = WARP_LANES * warps, partial_bytes(p.m.extent, warps_k, block_n)
    resident = limits_of(target).resident_blocks(threads, registers, shared_bytes)
    early = limits_of(target).overlapping_ctas(resident, target.threads)
    return SkinnyMixedSizes(
        atoms_n=atoms_n,
        warps_n=warps_n,
        warps_k=warps_k,
        vectors=vectors,
        split_k=split_k,
        warps=warps,
        threads=threads,
        block_n=block_n,
        atoms_m=atoms_m,
        blocks_n=blocks_n,
        blocks=blocks_n * split_k,
        steps=-(-chunks_of(p, weights) // (split_k * warps_k * vectors)),
        loaded_bytes=threads * rows * vectors * weights.vector_bytes,
        shared_bytes=shared_bytes,
        registers=registers,
        resident=resident,
        prefetching_ctas=np.where(blocks_n * split_k <= early, blocks_n, 0),
        min_blocks=np.maximum(np.minimum(resident, -(-blocks_n * split_k // target.threads)), 1),
    )
