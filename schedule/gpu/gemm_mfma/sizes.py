"""The sizes that follow from a setting of ``amdgpu_gemm``: the tile, registers, shared memory (LDS)."""

from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import numpy as np

from ....ir.gpu.mma import WAVEFRONT_LANES
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints

ATOM = 16
"""What a matrix instruction takes of ``m``, and of ``n``."""
ATOM_ROWS = 4
"""Rows of the result that a lane holds of a column."""
PADDING = 4
"""Elements between rows in shared memory, so that rows begin in other banks."""
SPARE_REGISTERS = 32
"""Registers for addresses and constants, roughly."""
KNOBS = ("atoms_m", "atoms_n", "waves_m", "waves_n", "block_k")

N = TypeVar("N", int, Ints)


@dataclass(frozen=True)
class GemmMfmaSizes(Generic[N]):
    """All sizes of one setting (``N`` is int), or of many settings at once (``N`` is a column, int64[n]).

    The first fields are the knobs (see ``GemmMfmaPlan.knobs``); the others follow from them.

    ``tile_m``, ``tile_n``: the tile of the result that one block works on; ``tiles``: how many there are.
    ``threads``: threads of a block.
    ``k_iters``: iterations of the main loop, each of ``block_k`` places of ``k``.
    ``stage_bytes``: shared memory for the operands of an iteration; ``shared_bytes``: what a block takes.
    ``registers``: registers of a thread, estimated.
    """

    atoms_m: N
    atoms_n: N
    waves_m: N
    waves_n: N
    block_k: N
    tile_m: N
    tile_n: N
    tiles: N
    threads: N
    k_iters: N
    stage_bytes: N
    shared_bytes: N
    registers: N


def gemm_mfma_sizes(gemm: Gemm, columns: Columns) -> GemmMfmaSizes[Ints]:
    """The sizes of all settings in ``columns``."""
    assert gemm.a.load is not None
    k = {name: columns.ints(name) for name in KNOBS}
    tile_m, tile_n = ATOM * k["atoms_m"] * k["waves_m"], ATOM * k["atoms_n"] * k["waves_n"]
    stage_bytes = gemm.a.load.dtype.bytes * (tile_m + tile_n) * (k["block_k"] + PADDING)
    fragments = 2 * (k["atoms_m"] + k["atoms_n"])
    return GemmMfmaSizes(
        **k,
        tile_m=tile_m,
        tile_n=tile_n,
        tiles=-(-gemm.m.extent // tile_m) * -(-gemm.n.extent // tile_n) * prod(a.extent for a in gemm.batch),
        threads=WAVEFRONT_LANES * k["waves_m"] * k["waves_n"],
        k_iters=-(-gemm.k.extent // k["block_k"]),
        stage_bytes=stage_bytes,
        shared_bytes=np.maximum(stage_bytes, 4 * tile_m * (tile_n + PADDING)),
        registers=ATOM_ROWS * k["atoms_m"] * k["atoms_n"] + fragments + SPARE_REGISTERS,
    )
