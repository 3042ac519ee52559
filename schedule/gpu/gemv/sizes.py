"""Derives the sizes of ``cuda_gemv``: what follows from a setting of its knobs."""

from dataclasses import dataclass
from math import gcd
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints
from ...tile.load_analysis import flat_offset
from ..occupancy import limits_of

VECTOR_BYTES = 16
"""How many bytes the widest load has."""
SPARE_REGISTERS = 24
"""How many registers a thread needs for addresses and constants, roughly (from compiled kernels)."""

W = TypeVar("W", int, Ints)


@dataclass(frozen=True, slots=True)
class GemvSizes(Generic[W]):
    """Whole columns int64[n] for a space, or plain ints for one setting. The first five fields are the knobs;
    ``lanes_n`` is 1 where B is K-major, and ``rows_per_warp`` where it is N-major.

    ``warps`` and ``threads`` are those of a block. ``warp_n`` is how many outputs ``n`` a warp computes, ``block_n``
    how many a block does, and ``blocks`` is how many blocks there are. A thread goes along ``k`` in ``steps`` steps,
    and loads ``vectors`` vectors of B along ``k`` in each, for every row. ``step_k`` is how many elements of ``k`` a
    block loads in a step of ``unroll`` vectors. ``b_registers`` and ``a_registers`` hold what a thread has loaded and
    not yet multiplied, ``accumulators`` counts its sums, and ``registers`` estimates all it has. ``shared_bytes`` is
    the shared memory of a block. ``resident`` is how many blocks a multiprocessor holds at once. ``prefetching_ctas``
    is how many blocks prefetch their operands into L2 before the launch before has ended. ``min_blocks`` is the
    launch bound that the compiler is told; 0 leaves it to the compiler.
    """

    rows_per_warp: W
    lanes_n: W
    warps_n: W
    warps_k: W
    unroll: W
    warps: W
    threads: W
    warp_n: W
    block_n: W
    blocks: W
    steps: W
    vectors: W
    step_k: W
    b_registers: W
    a_registers: W
    accumulators: W
    registers: W
    shared_bytes: W
    resident: W
    prefetching_ctas: W
    min_blocks: W

    @property
    def loads(self) -> W:
        """How many vectors of B a thread loads before it uses the first."""
        return self.rows_per_warp * self.vectors


def gemv_sizes(p: Gemm, target: Target, columns: Columns) -> GemvSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    limits, k_major, vector, narrow = limits_of(target), b_is_k_major(p), b_vector_elements(p), has_narrow_loads(p)
    knobs = columns.named("warps_n", "warps_k", "unroll")
    warps_n, warps_k, unroll = knobs.values()
    one = np.ones_like(unroll)
    warps = warps_n * warps_k
    if k_major:
        rows, lanes_n = columns.ints("rows_per_warp"), one
        warp_n, step_k = rows, warps_k * unroll * WARP_LANES * vector
        steps, vectors = balanced_steps(p, warps_k, unroll)
        accumulators = p.m.extent * rows
        a_registers = p.m.extent * b_vector_registers(p) * (vectors if narrow else one)
    else:
        rows, lanes_n = one, columns.ints("lanes_n")
        warp_n, step_k = lanes_n * vector, warps_k * unroll * (WARP_LANES // lanes_n)
        steps, vectors = -(-p.k.extent // step_k), unroll
        accumulators = p.m.extent * vector * one
        a_registers = p.m.extent * unroll
    block_n = warps_n * warp_n
    blocks = -(-p.n.extent // block_n)
    b_registers = b_vector_registers(p) * rows * vectors
    accumulator_bytes = p.accumulator.dtype.bytes
    registers = SPARE_REGISTERS + b_registers + a_registers + -(-accumulator_bytes // 4) * (accumulators + vector)
    partials = warps_k * p.m.extent * block_n * accumulator_bytes
    shared_bytes = np.where(k_major & (warps_k == 1), 0, partials)
    resident = limits.resident_blocks(WARP_LANES * warps, registers, shared_bytes)
    # with narrow loads the compiler, if it is told nothing, takes registers for more blocks than there are, and moves
    # loads behind products, so that the data arrives in two goes
    wanted = np.maximum(np.minimum(resident, -(-blocks // target.threads)), 1)
    return GemvSizes(
        rows_per_warp=rows,
        lanes_n=lanes_n,
        **knobs,
        warps=warps,
        threads=WARP_LANES * warps,
        warp_n=warp_n,
        block_n=block_n,
        blocks=blocks,
        steps=steps,
        vectors=vectors,
        step_k=step_k,
        b_registers=b_registers,
        a_registers=a_registers,
        accumulators=accumulators,
        registers=registers,
        shared_bytes=shared_bytes,
        resident=resident,
        prefetching_ctas=limits.overlapping_ctas(resident, target.threads),
        min_blocks=wanted if narrow else 0 * one,
    )


def b_is_k_major(p: Gemm) -> bool:
    """Return whether B is K-major: its elements are contiguous along ``k`` (or B is computed, and nothing is known of
    it)."""
    return p.b.k == 1 or p.b.row != 1


def b_vector_elements(p: Gemm) -> int:
    """Return the elements of B that a thread loads at once: 16 bytes, or as many as all rows along ``k`` begin at
    multiples of. (It loads single elements where those are odd: neighbouring lanes then still load neighbours.)"""
    load = p.b.load
    widest = max(1, VECTOR_BYTES // (load.buffer.dtype.bytes if load is not None else 4))
    start = None if load is None else flat_offset(load)
    if p.b.k != 1 or start is None:
        return widest
    return gcd(widest, p.b.row, start.constant)


def b_vector_bytes(p: Gemm) -> int:
    """Return the bytes of B that a thread loads at once; 16 where B is computed."""
    load = p.b.load
    return VECTOR_BYTES if load is None else b_vector_elements(p) * load.buffer.dtype.bytes


def b_vector_registers(p: Gemm) -> int:
    """Return the registers that a loaded vector of B takes. Single elements are held as they are multiplied."""
    load, elements = p.b.load, b_vector_elements(p)
    held = p.accumulator.dtype.bytes if elements == 1 else 4 if load is None else load.buffer.dtype.bytes
    return max(1, elements * held // 4)


def has_narrow_loads(p: Gemm) -> bool:
    """Return whether threads load less than 16 bytes of B at once, since rows along ``k`` begin anywhere."""
    return b_is_k_major(p) and b_vector_bytes(p) < VECTOR_BYTES


def vectors_of_lane(p: Gemm, warps_k: W) -> W:
    """Return how many vectors of a row along ``k`` each lane takes at most when ``warps_k`` warps divide the row."""
    return -(-p.k.extent // (WARP_LANES * b_vector_elements(p) * warps_k))


def balanced_steps(p: Gemm, warps_k: W, unroll: W) -> tuple[W, W]:
    """In how many steps a warp goes along ``k`` if a lane loads up to ``unroll`` vectors in each, and how many vectors
    it loads if all steps load equally many."""
    vectors = vectors_of_lane(p, warps_k)
    steps = -(-vectors // unroll)
    return steps, -(-vectors // steps)
