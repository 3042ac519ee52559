"""The sizes that follow from a setting of ``cuda_attention``: tiles, grid, pipelines, registers, shared memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.simt.setmaxnreg import REGISTERS
from ...problems.attention import Attention
from ...space.columns import Columns, Ints, derived_once
from ...space.knob import Knob
from .operand_tiles import column_atoms, v_is_of_keys
from .score_loads import tile_loads

KNOBS: tuple[Knob, ...] = (
    Knob(
        "consumer_warpgroups",
        (2, 3, 1),
        "how many warpgroups of a CTA multiply, each for 64 queries; two share these and the columns of V above 256",
    ),
    Knob("tile_kv", (128, 64, 80, 96, 112, 144, 160, 176, 192), "how many keys are loaded and multiplied at once"),
    Knob("stages", (2, 1, 3, 4), "how many blocks of K, and of V, fit into shared memory"),
    Knob("overlap", (1, 0), "whether the scores of a block are computed while the block before is multiplied with V"),
    Knob("ping_pong", (0, 1), "whether warpgroups take turns: one multiplies while another computes weights"),
    Knob("persistent", (0, 1), "whether a CTA works through several tiles of queries"),
    Knob("q_stages", (1, 2), "how many tiles of queries fit into shared memory: one is loaded ahead"),
    Knob(
        "split_kv",
        (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 33),
        "how many CTAs share the keys of a tile; a second launch combines them",
    ),
    Knob("group_heads", (1, 2, 4, 8, 16, 32), "how many heads are worked on together, the longest tiles first"),
    Knob("score_tiles", (0, 1), "whether TMA brings what scores read of other tensors as tiles, with the keys"),
    Knob("shared_kv", (0, 1), "whether V, the first columns of K, is read from the blocks of K, and not loaded again"),
)
"""A new knob is also a field of ``AttentionSizes``."""
VERSION = 1
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""

WARPGROUP_REGISTERS = {1: (0, 0), 2: (24, 240), 3: (32, 160)}
"""Consumer warpgroups -> the registers that a thread of the producer warpgroup keeps, and those that ``setmaxnreg``
gives each thread of the others; 0 where it need not."""
WINDOW_REGISTERS = WARPGROUP_REGISTERS | {2: (40, 232)}
"""The same where keys have a lower bound: the producer computes three ranges of blocks, and spills with 24."""
MOST_COLUMNS = 256
"""How many columns of V a warpgroup has at most: as many as one wgmma."""
MOST_REGISTERS = 248
"""A thread has so many registers at most, in steps of 8."""
BARRIER_BYTES = 16
"""The two mbarriers of a stage take so many bytes."""

N = TypeVar("N", int, Ints)


@dataclass(frozen=True)
class AttentionSizes(Generic[N]):
    """All sizes of one setting (``N`` is int), or of many settings at once (``N`` is a column, int64[n]).

    The first fields are the knobs; the others follow from them.

    ``column_warpgroups``: how many consumer warpgroups share the columns of V for the same queries. ``tile_q``: how
    many queries a tile has. ``q_tiles``, ``tiles``: how many tiles cover the queries of one head, and those of all
    heads. ``kv_blocks``: how many blocks of ``tile_kv`` cover the keys. ``split_blocks``: how many of those a CTA
    takes, at most. ``blocks``, ``tile_iterations``: how many CTAs there are, and how many iterations the persistent
    loop over tiles has. ``threads``: how many threads a CTA has. ``shared_bytes``: how much shared memory a CTA takes.
    ``held_registers``: how many registers of a consumer thread hold accumulators, and weights as an operand.
    ``thread_registers``: how many it has in the end.
    """

    consumer_warpgroups: N
    tile_kv: N
    stages: N
    overlap: N
    ping_pong: N
    persistent: N
    q_stages: N
    split_kv: N
    group_heads: N
    score_tiles: N
    shared_kv: N
    column_warpgroups: N
    tile_q: N
    q_tiles: N
    tiles: N
    kv_blocks: N
    split_blocks: N
    blocks: N
    tile_iterations: N
    threads: N
    shared_bytes: N
    held_registers: N
    registers: N
    thread_registers: N

    @property
    def warps(self) -> N:
        return self.threads // WARP_LANES


def warpgroup_registers(p: Attention) -> Mapping[int, tuple[int, int]]:
    """Return how many registers a thread of the producer and one of a consumer has, as ``WARPGROUP_REGISTERS``."""
    return WARPGROUP_REGISTERS if all(bound.upper for bound in p.bounds) else WINDOW_REGISTERS


def knobs_of(p: Attention) -> tuple[Knob, ...]:
    """Return the knobs of a problem: ``score_tiles`` only where scores read something that TMA can bring, and
    ``shared_kv`` only where V is a part of K."""
    absent = {"score_tiles"} if not tile_loads(p) else set()
    absent |= set() if v_is_of_keys(p) else {"shared_kv"}
    return tuple(knob for knob in KNOBS if knob.name not in absent)


def column_warpgroups(p: Attention) -> int:
    """Return how many warpgroups have the columns of V."""
    return -(-p.d.extent // MOST_COLUMNS)


@derived_once
def attention_sizes(p: Attention, target: Target, columns: Columns) -> AttentionSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    k = {knob.name: columns.ints(knob.name) for knob in knobs_of(p)}
    k = {knob.name: np.zeros_like(k["tile_kv"]) for knob in KNOBS} | k
    columns_shared = column_warpgroups(p)
    tile_q, tile_kv = WGMMA_M * k["consumer_warpgroups"] // columns_shared, k["tile_kv"]
    q_tiles = -(-p.m.extent // tile_q)
    tiles = q_tiles * p.heads
    kv_blocks = -(-p.n.extent // tile_kv)
    ctas = np.where(k["persistent"] == 1, np.minimum(tiles, target.threads), tiles * k["split_kv"])
    threads = WARPGROUP_THREADS * (k["consumer_warpgroups"] + 1)
    registers = np.minimum(REGISTERS // threads // 8 * 8, MOST_REGISTERS)
    given = warpgroup_registers(p).items()
    moved = sum(np.where(k["consumer_warpgroups"] == n, consumer, 0) for n, (_, consumer) in given)
    row_bytes = 2 * SWIZZLE_128B_ELEMENTS
    q_bytes = tile_q * max(column_atoms(p.k.extent), column_atoms(p.d.extent)) * row_bytes
    q_bytes = q_bytes * k["q_stages"]
    own_v = 1 - k["shared_kv"]
    stage_bytes = tile_kv * (column_atoms(p.k.extent) + own_v * column_atoms(p.d.extent)) * row_bytes
    stage_bytes = stage_bytes + (own_v + columns_shared) * BARRIER_BYTES
    stage_bytes = stage_bytes + k["score_tiles"] * len(tile_loads(p)) * tile_q * tile_kv * 2
    shared_bytes = q_bytes + k["stages"] * stage_bytes + k["q_stages"] * BARRIER_BYTES
    if columns_shared > 1:  # weights in place of queries: see WeightExchange
        atoms = -(-tile_kv // SWIZZLE_128B_ELEMENTS)
        shared_bytes = shared_bytes + WGMMA_M * (p.weight_parts * atoms * row_bytes + 4) + BARRIER_BYTES
    return AttentionSizes(
        **k,
        column_warpgroups=np.full_like(tile_kv, columns_shared),
        tile_q=tile_q,
        q_tiles=q_tiles,
        tiles=tiles,
        kv_blocks=kv_blocks,
        split_blocks=-(-kv_blocks // k["split_kv"]),
        blocks=ctas,
        tile_iterations=np.where(k["persistent"] == 1, -(-tiles // ctas), 1),
        threads=threads,
        shared_bytes=shared_bytes,
        held_registers=p.d.extent // columns_shared // 2 + tile_kv // 2 + tile_kv // 4 * p.weight_parts,
        registers=registers,
        thread_registers=np.where(moved > 0, moved, registers),
    )
