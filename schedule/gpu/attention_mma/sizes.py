"""The sizes that follow from a setting of ``cuda_attention_mma``."""

from dataclasses import dataclass

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.stored_attention import StoredAttention
from ...space.columns import Columns, Ints, derived_once
from ..attention.sizes import AttentionSizes, N
from ..block_reduce import QUAD
from ..occupancy import limits_of
from ..streamed_operand import StreamedOperand

TILE_Q = 16
"""How many queries a warp has: the M of mma.sync."""
KEYS, COLUMNS = 8, 8
"""How many keys, and columns of V, one mma.sync takes as its N."""
SPARE_REGISTERS = 48
"""Registers for addresses, constants and the state of rows, roughly (from compiled kernels)."""


@dataclass(frozen=True, slots=True)
class StreamedKeys:
    """An attention with keys and values as operands that are streamed."""

    stored: StoredAttention
    key: StreamedOperand
    v: StreamedOperand

    @property
    def key_chunks(self) -> int:
        """How many times the vectors of four lanes cover a key."""
        return self.stored.attention.k.extent // (QUAD * self.key.vector)

    @property
    def v_chunks(self) -> int:
        """How many times the vectors of eight lanes cover a row of V."""
        return self.stored.attention.d.extent // (COLUMNS * self.v.vector)


@dataclass(frozen=True)
class AttentionMmaSizes(AttentionSizes[N]):
    """As ``AttentionSizes``, of CTAs whose ``warps_n`` warps each take a share of the keys of a tile. ``split_kv``
    counts all shares. ``loaded_bytes`` is what a CTA loads of keys and values at once, and ``resident`` how many CTAs a
    multiprocessor holds."""

    warps_n: N
    prefetched_blocks: N
    loaded_bytes: N
    resident: N


@derived_once
def attention_mma_sizes(a: StreamedKeys, target: Target, columns: Columns) -> AttentionMmaSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    p = a.stored.attention
    tile_kv, split_kv, warps_n = columns.ints("tile_kv"), columns.ints("split_kv"), columns.ints("warps_n")
    one, zero = np.ones_like(tile_kv), np.zeros_like(tile_kv)
    kv_blocks = -(-p.n.extent // tile_kv)
    key_bytes = tile_kv // KEYS * a.key_chunks * a.key.vector_bytes
    v_bytes = tile_kv // QUAD * a.v_chunks * a.v.vector_bytes
    held = p.d.extent // 2 + tile_kv // 2 + tile_kv // 4 + p.k.extent // 4
    once = tile_kv // KEYS * a.key_chunks * len(a.key.once) + tile_kv // QUAD * a.v_chunks * len(a.v.once)
    registers = SPARE_REGISTERS + held + (key_bytes + v_bytes) // 4 + once
    threads = WARP_LANES * warps_n
    return AttentionMmaSizes(
        consumer_warpgroups=one,
        tile_kv=tile_kv,
        stages=one,
        overlap=zero,
        ping_pong=zero,
        persistent=zero,
        q_stages=one,
        split_kv=split_kv,
        group_heads=one,
        score_tiles=zero,
        shared_kv=zero,
        column_warpgroups=one,
        tile_q=TILE_Q * one,
        q_tiles=-(-p.m.extent // TILE_Q) * one,
        tiles=-(-p.m.extent // TILE_Q) * p.heads * one,
        kv_blocks=kv_blocks,
        split_blocks=-(-kv_blocks // split_kv),
        blocks=-(-p.m.extent // TILE_Q) * p.heads * split_kv // warps_n,
        tile_iterations=one,
        threads=threads,
        shared_bytes=zero,
        held_registers=held,
        registers=registers,
        thread_registers=registers,
        warps_n=warps_n,
        prefetched_blocks=columns.ints("prefetched_blocks"),
        loaded_bytes=threads * (key_bytes + v_bytes),
        resident=limits_of(target).resident_blocks(threads, registers, zero),
    )
