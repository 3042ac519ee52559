"""The sizes that follow from a setting of ``cuda_gemm_mma``: the tile, the pipeline, registers, shared memory."""

from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES, Cast, Load
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints
from ...tile.names import FreshNameWriter
from ..gemm.repack import repack
from ..occupancy import limits_of
from .operands import ATOM_M, ATOM_N, SCALARS, VECTOR, copy_width

MOST_STAGES = 6
"""Stages of the pipeline beyond which more do not hide more."""
PARTIAL_PADDING = 8
"""Elements between the rows of partial sums, so that four rows of pairs, as mma leaves them, lie in other banks."""
SPARE_REGISTERS, VALUE_REGISTERS, LOADED_REGISTERS = 36, 12, 8
"""Registers for addresses and constants, roughly (from compiled kernels); further ones where the epilogue computes more
than a cast, and where operands go through registers."""
COPY_CYCLES = {8: 0, 4: 11, 2: 8, 1: 16}
"""Elements of a copy -> cycles that a warp takes for one of each lane besides the bytes, fitted as the prior is. Copies
of single elements are counted by four."""
KNOBS = (
    "atoms_m",
    "atoms_n",
    "warps_m",
    "warps_n",
    "block_k",
    "split_k",
    "ctas_per_sm",
    "staged_epilogue",
    "repacked",
)

N = TypeVar("N", int, Ints)


@dataclass(frozen=True)
class GemmMmaSizes(Generic[N]):
    """All sizes of one setting (``N`` is int), or of many settings at once (``N`` is a column, int64[n]).

    The first fields are the knobs (see ``GemmMmaPlan.knobs``); the others follow from them.

    ``tile_m``, ``tile_n``: the tile of the result that one CTA works on; ``tiles``: how many there are.
    ``threads``: threads of a CTA.
    ``k_iters``: iterations of the main loop, each of ``block_k`` places of ``k``.
    ``stages``: stages of the pipeline; ``stage_bytes``: what one takes.
    ``copies``: copies that a thread makes for a stage; ``loads``: those of them that go through registers.
    ``copy_cycles``: cycles that a CTA's copies for a stage take besides their bytes.
    ``registers``: registers of a thread, estimated.
    ``room``: shared memory that a CTA may take; ``shared_bytes``: what it takes.
    """

    atoms_m: N
    atoms_n: N
    warps_m: N
    warps_n: N
    block_k: N
    split_k: N
    ctas_per_sm: N
    staged_epilogue: N
    repacked: N
    tile_m: N
    tile_n: N
    tiles: N
    threads: N
    k_iters: N
    stages: N
    stage_bytes: N
    copies: N
    loads: N
    copy_cycles: N
    registers: N
    room: N
    shared_bytes: N


@dataclass(frozen=True)
class CopyWidths:
    """Elements of A and of B that one copy can take: ``plain``, as they are, and ``repacked``. ``along_k``: whether
    their rows lie along ``k``."""

    plain: tuple[int, int]
    repacked: tuple[int, int]
    along_k: tuple[bool, bool]


def copy_widths(gemm: Gemm) -> CopyWidths:
    even = repack(FreshNameWriter(gemm.names), gemm)[0]
    (a, a_along_k), (b, b_along_k) = copy_width(gemm, gemm.a, "m"), copy_width(gemm, gemm.b, "n")
    return CopyWidths(
        (a, b), (copy_width(even, even.a, "m")[0], copy_width(even, even.b, "n")[0]), (a_along_k, b_along_k)
    )


def gemm_mma_sizes(gemm: Gemm, target: Target, widths: CopyWidths, columns: Columns) -> GemmMmaSizes[Ints]:
    """The sizes of all settings in ``columns``."""
    k = {name: columns.ints(name) for name in KNOBS}
    tile_m, tile_n = ATOM_M * k["atoms_m"] * k["warps_m"], ATOM_N * k["atoms_n"] * k["warps_n"]
    threads = WARP_LANES * k["warps_m"] * k["warps_n"]
    tiles = -(-gemm.m.extent // tile_m) * -(-gemm.n.extent // tile_n) * prod(a.extent for a in gemm.batch)
    k_iters = -(-gemm.k.extent // (k["split_k"] * k["block_k"]))
    stage_bytes, loads, copies, copy_cycles = (np.zeros_like(tile_m) for _ in range(4))
    for side, extent in enumerate((tile_m, tile_n)):
        rows, columns_of_row = (extent, k["block_k"]) if widths.along_k[side] else (k["block_k"], extent)
        padding = np.where(columns_of_row & (columns_of_row - 1) == 0, 0, VECTOR)
        stage_bytes = stage_bytes + 2 * rows * (columns_of_row + padding)
        width = np.where(k["repacked"] == 1, widths.repacked[side], widths.plain[side])
        unit = np.where(width == 1, SCALARS, width)
        own = -(-extent * k["block_k"] // (unit * threads))
        copies, loads = copies + own, loads + np.where(width == 1, own, 0)
        cycles = np.select([width == n for n in COPY_CYCLES], list(COPY_CYCLES.values()))
        copy_cycles = copy_cycles + extent * k["block_k"] // unit * cycles // WARP_LANES
    limits = limits_of(target)
    room = limits.shared_bytes_per_multiprocessor // k["ctas_per_sm"] - 1024
    room = np.minimum(room, limits.shared_bytes_per_block)
    stages = np.minimum(np.minimum(room // stage_bytes, k_iters), MOST_STAGES)
    partial_bytes = 4 * (tile_m * (tile_n + PARTIAL_PADDING) - PARTIAL_PADDING)
    partial_bytes = np.where(k["staged_epilogue"] == 1, partial_bytes, 0)  # in the place of the stages
    fragments = 8 * k["atoms_m"] * k["atoms_n"] + 8 * (k["atoms_m"] + k["atoms_n"])
    through_registers = loads + copies + np.where(loads > 0, LOADED_REGISTERS, 0)
    return GemmMmaSizes(
        **k,
        tile_m=tile_m,
        tile_n=tile_n,
        tiles=tiles,
        threads=threads,
        k_iters=k_iters,
        stages=stages,
        stage_bytes=stage_bytes,
        copies=copies,
        loads=loads,
        copy_cycles=copy_cycles,
        registers=fragments + through_registers + _spare_registers(gemm),
        room=room,
        shared_bytes=np.maximum(np.maximum(stages, 1) * stage_bytes, partial_bytes),
    )


def _spare_registers(gemm: Gemm) -> int:
    """Registers besides accumulators, fragments and what is copied."""
    values = [r.value.value if isinstance(r.value, Cast) else r.value for r in gemm.results]
    return SPARE_REGISTERS + (0 if all(isinstance(v, Load) for v in values) else VALUE_REGISTERS)
