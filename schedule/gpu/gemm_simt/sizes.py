"""The sizes that follow from a setting of ``cuda_gemm_simt``: the tile, the pipeline, registers, shared memory."""

from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES, Load
from ....ir.rewrite import loads_of
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints, derived_once
from ...space.knob import Knob
from ..gemm_mma.sizes import CopyWidths, copy_widths
from ..multistage_gemm import MultistageSizes, N
from ..occupancy import limits_of

VERSION = 3
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""
LANES_M, LANES_N = 4, 8
"""How the lanes of a warp share out its tile."""
VECTOR_BYTES = 16
"""Bytes of the widest copies and accesses."""
MOST_STAGES = 4
"""More stages than these do not hide more latency, and which stage comes next is one instruction."""
FREE_COPIES = 8
"""The addresses of so many copies of a stage take no more registers; those of two others take one."""
SPARE_REGISTERS, VALUE_REGISTERS = 24, 8
"""About how many registers addresses and constants take (from compiled kernels); how many more an epilogue takes that
is more than the sum, and with a pairwise reduction each further tensor."""


def vector_of(gemm: Gemm) -> int:
    """Return how many elements copies and accesses have at most. So many are the padding, too, between rows of a turned
    operand and of partial sums, so that vectors still begin at multiples of themselves."""
    return VECTOR_BYTES // max(operand_bytes(gemm), gemm.accumulator.dtype.bytes)


def operand_bytes(gemm: Gemm) -> int:
    """Return the bytes of an element of A, which one of B has too."""
    assert gemm.a.load is not None
    return gemm.a.load.dtype.bytes


def gemm_simt_knobs(target: Target) -> tuple[Knob, ...]:
    """Return the knobs on one target. A new knob is also a field of ``GemmSimtSizes``."""
    splits = (1, 2, 4, 8) if limits_of(target).clusters else (1,)
    return (
        Knob("thread_m", (8, 4, 16), "how many rows of a tile a thread takes"),
        Knob("thread_n", (8, 4, 16), "how many columns of a tile a thread takes"),
        Knob("warps_m", (4, 2, 1), "how many warps a CTA has along m"),
        Knob("warps_n", (2, 1, 4), "how many warps a CTA has along n"),
        Knob("block_k", (16, 8, 32), "how many places of k a stage holds"),
        Knob("split_k", splits, "how many CTAs of a cluster share k of one tile"),
        Knob("ctas_per_sm", (2, 1, 3, 4), "how many CTAs a multiprocessor should run at once"),
        Knob("repacked", (0, 1), "whether a first launch copies operands to rows that begin at 16 bytes"),
    )


@dataclass(frozen=True)
class GemmSimtSizes(MultistageSizes[N]):
    """``thread_m``, ``thread_n``: knobs, besides those of ``MultistageSizes``.
    ``spare``: how many elements lie unused between two stages of A. So much is taken that no more than ``ctas_per_sm``
        CTAs fit into a multiprocessor. Otherwise CTAs of a launch that starts while the one before still runs gather on
        those multiprocessors that have room first, and others idle.
    """

    thread_m: N
    thread_n: N
    spare: N


@derived_once
def gemm_simt_sizes(gemm: Gemm, target: Target, widths: CopyWidths, columns: Columns) -> GemmSimtSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    k = {knob.name: columns.ints(knob.name) for knob in gemm_simt_knobs(target)}
    tile_m, tile_n = LANES_M * k["thread_m"] * k["warps_m"], LANES_N * k["thread_n"] * k["warps_n"]
    threads = WARP_LANES * k["warps_m"] * k["warps_n"]
    tiles = -(-gemm.m.extent // tile_m) * -(-gemm.n.extent // tile_n) * prod(a.extent for a in gemm.batch)
    k_iters = -(-gemm.k.extent // (k["split_k"] * k["block_k"]))
    width_a, width_b = widths.of(k["repacked"])
    turned, vector = sum(widths.along_k), vector_of(gemm)
    element, accumulator = operand_bytes(gemm), gemm.accumulator.dtype.bytes
    stage_bytes = element * k["block_k"] * (tile_m + tile_n + vector * turned)
    copies = -(-tile_m * k["block_k"] // (width_a * threads)) - (-tile_n * k["block_k"] // (width_b * threads))
    unpadded = element * vector * turned  # behind the last row of the last stage
    limits = limits_of(target)
    room = limits.shared_bytes_for(k["ctas_per_sm"])
    stages = np.minimum(np.minimum(room // stage_bytes, k_iters), MOST_STAGES)
    gaps = np.maximum(stages - 1, 1)
    lacking = limits.shared_bytes_for(k["ctas_per_sm"] + 1) + 1 - (stages * stage_bytes - unpadded)
    spare = np.where(stages > 1, vector * np.maximum(-(-lacking // (element * vector * gaps)), 0), 0)
    partial_bytes = accumulator * (tile_m * (tile_n + vector) - vector)
    partial_bytes = np.where(k["split_k"] > 1, partial_bytes, 0)  # in the place of the stages
    fragments = element // 2 * (k["thread_m"] + k["thread_n"]) + np.maximum(copies - FREE_COPIES, 0) // 2
    plain = gemm.term is None and all(isinstance(r.value, Load) for r in gemm.results)
    others = SPARE_REGISTERS + (0 if plain else VALUE_REGISTERS)
    if gemm.term is not None:
        operands = {load.buffer for body in (gemm.a.body, gemm.b.body) for load in loads_of(body)}
        others += VALUE_REGISTERS * len(set(gemm.inputs) - operands)
    return GemmSimtSizes(
        **k,
        tile_m=tile_m,
        tile_n=tile_n,
        tiles=tiles,
        threads=threads,
        k_iters=k_iters,
        stages=stages,
        stage_bytes=stage_bytes,
        copies=copies,
        registers=accumulator // 4 * k["thread_m"] * k["thread_n"] + fragments + others,
        room=room,
        spare=spare,
        shared_bytes=np.maximum(
            np.maximum(stages, 1) * stage_bytes - unpadded + element * spare * (gaps * (stages > 1)), partial_bytes
        ),
    )


def simt_copy_widths(gemm: Gemm) -> CopyWidths:
    """Return how many elements one copy takes: one where rows lie along ``k``, since it turns them."""
    most = vector_of(gemm)
    found = copy_widths(gemm, most)
    a, b = (1 if turned else most for turned in found.along_k)
    plain, repacked = ((min(w[0], a), min(w[1], b)) for w in (found.plain, found.repacked))
    return CopyWidths(plain, repacked, found.along_k)
