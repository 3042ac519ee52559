"""The sizes that follow from a setting of ``amdgpu_gemm``: the tile, registers, shared memory (LDS)."""

from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import numpy as np

from ....ir.gpu.mma import WAVEFRONT_LANES
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints
from ...space.knob import Knob

KNOBS: tuple[Knob, ...] = (
    Knob("atoms_m", (4, 2, 1), "how many times 16 rows of a tile a wave takes"),
    Knob("atoms_n", (4, 2, 1), "how many times 16 columns of a tile a wave takes"),
    Knob("waves_m", (2, 1, 4), "how many waves a block has along m"),
    Knob("waves_n", (2, 1, 4), "how many waves a block has along n"),
    Knob("block_k", (32, 64, 16), "how many places of k an iteration takes"),
)
"""A new knob is also a field of ``GemmMfmaSizes``."""
VERSION = 2
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""

ATOM = 16
"""A matrix instruction takes so many places of ``m``, and of ``n``."""
ATOM_ROWS = 4
"""A lane holds so many rows of one column of the result."""
PADDING = 4
"""The padding between rows in shared memory, in elements. With it, rows begin in different banks."""
SPARE_REGISTERS = 32
"""About how many registers addresses and constants take."""
N = TypeVar("N", int, Ints)


@dataclass(frozen=True)
class GemmMfmaSizes(Generic[N]):
    """All sizes of one setting (``N`` is int), or of many settings at once (``N`` is a column, int64[n]).

    The first fields are the knobs; the others follow from them.

    ``tile_m``, ``tile_n``, ``blocks``: how large the tile of a block is, and how many blocks there are.
    ``threads``: how many threads a block has.
    ``k_iters``: how many iterations the main loop has, each of ``block_k`` places of ``k``.
    ``stage_bytes``, ``shared_bytes``: how much shared memory the operands of an iteration take, and how much a block.
    ``registers``: about how many registers a thread takes.
    """

    atoms_m: N
    atoms_n: N
    waves_m: N
    waves_n: N
    block_k: N
    tile_m: N
    tile_n: N
    blocks: N
    threads: N
    k_iters: N
    stage_bytes: N
    shared_bytes: N
    registers: N


def gemm_mfma_sizes(gemm: Gemm, columns: Columns) -> GemmMfmaSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    assert gemm.a.load is not None
    k = {knob.name: columns.ints(knob.name) for knob in KNOBS}
    tile_m, tile_n = ATOM * k["atoms_m"] * k["waves_m"], ATOM * k["atoms_n"] * k["waves_n"]
    stage_bytes = gemm.a.load.dtype.bytes * (tile_m + tile_n) * (k["block_k"] + PADDING)
    fragments = 2 * (k["atoms_m"] + k["atoms_n"])
    return GemmMfmaSizes(
        **k,
        tile_m=tile_m,
        tile_n=tile_n,
        blocks=-(-gemm.m.extent // tile_m) * -(-gemm.n.extent // tile_n) * prod(a.extent for a in gemm.batch),
        threads=WAVEFRONT_LANES * k["waves_m"] * k["waves_n"],
        k_iters=-(-gemm.k.extent // k["block_k"]),
        stage_bytes=stage_bytes,
        shared_bytes=np.maximum(stage_bytes, 4 * tile_m * (tile_n + PADDING)),
        registers=ATOM_ROWS * k["atoms_m"] * k["atoms_n"] + fragments + SPARE_REGISTERS,
    )
