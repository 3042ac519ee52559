"""Describes the space of ``cuda_attention_mma``: attention of at most 64 queries of a head.

Weights are rounded to a 16-bit float, in which all values of queries, keys and values lie. Keys and values may follow
from any expression, and may be read at any places, as long as their elements are neighbours in memory. The sketch takes
what ``cuda_attention`` does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.stored_attention import stored_attention_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.enumerate import has_legal_setting
from ...space.knob import Knob, Quantity
from ...space.pruning import best_by_prior
from ...tile_sketch import TileSketch
from ..attention.score_loads import pairs_of
from ..attention.space import CUDA_ATTENTION
from ..attention.tile_scheduler import shares_any_keys
from ..block_reduce import QUAD
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..skinny.mma_tiles import mma_atom_of
from ..skinny.prior import LATENCY_SECONDS, soft_maximum
from ..streamed_operand import VECTOR_BYTES, streamed_operand
from ..term_cost import value_cost
from .kernel import lower_attention_mma
from .sizes import COLUMNS, TILE_Q, AttentionMmaSizes, StreamedKeys, attention_mma_sizes

MOST_QUERIES = 64
"""Of more queries, tensor cores are better used by what is copied as 16 bits first. Each 16 read the keys for
themselves."""
MOST_PROMISING = 80
"""How many settings are promising, those of the least prior."""
MOST_REGISTERS = 244
"""With more registers by the estimate, threads may have to spill some (from compiled kernels)."""
SCORE_INSTRUCTIONS = 12.0
"""How many instructions of a lane a score takes to become a weight and an operand, by estimate."""
BLOCK_CYCLES = 900.0
"""How many cycles of a block of keys nothing of its own warp overlaps, by estimate: shuffles and products."""
PREFETCH_CYCLES = 20.0
"""What a prefetch takes of a block, by estimate. What it saves has not been measured."""
COMBINE_CYCLES, COMBINE_SHARE_CYCLES = 3000.0, 40.0
"""What a second launch takes to combine shares, and each share of them, by estimate."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("steps", "steps", "how many blocks of keys a warp goes through"),
    Quantity("partial_bytes", "B", "how many bytes of sums all warps store, which are then combined"),
)


@dataclass(frozen=True)
class AttentionMmaPlan(GpuPlan):
    """One attention of few queries on one target."""

    a: StreamedKeys
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob("tile_kv", (32, 16, 64), "how many keys a warp loads and multiplies at once"),
            Knob(
                "split_kv",
                (8, 1, 2, 4, 16, 32, 64),
                "how many warps share the keys of a tile of queries; a second launch combines them",
            ),
            Knob("warps_n", (4, 1, 2, 8), "how many warps of a block share the keys of a tile of queries"),
            Knob(
                "prefetched_blocks",
                (0, 1, 2) if self._rows_are_prefetched else (0,),
                "how many blocks of keys ahead a warp prefetches rows into L2",
            ),
        )

    @property
    def _rows_are_prefetched(self) -> bool:
        """Whether rows are whole units of 16 bytes."""
        return all(operand.vector_bytes == VECTOR_BYTES for operand in (self.a.key, self.a.v))

    @derived_once
    def sizes(self, columns: Columns) -> AttentionMmaSizes[Ints]:
        return attention_mma_sizes(self.a, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            self.rule(
                "warps_n divides split_kv",
                ("split_kv", "warps_n"),
                lambda s: s.split_kv % s.warps_n == 0,
            ),
            self.rule(
                "each of split_kv warps has a block of tile_kv keys",
                ("tile_kv", "split_kv"),
                lambda s: s.split_kv <= s.kv_blocks,
            ),
            self.rule(
                "a warp that prefetches prefetched_blocks blocks ahead has more of them",
                ("tile_kv", "split_kv", "prefetched_blocks"),
                lambda s: (s.prefetched_blocks == 0) | (s.prefetched_blocks < s.split_blocks),
            ),
            self.rule(
                "a multiprocessor has room for the registers of warps_n warps, which hold K and V of tile_kv keys",
                ("tile_kv", "warps_n"),
                lambda s: s.resident >= 1,
            ),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        size, p = self.sizes(columns), self.a.stored.attention
        further = sum(size.tile_kv // 2 * load.dtype.bytes // 4 for load in pairs_of(p))  # under way in registers
        further = further + size.tile_kv // 4 * ((p.score is not None) + (self.a.stored.factor is not None))
        usual = size.registers + further <= MOST_REGISTERS
        usual = usual if usual.any() else np.ones_like(usual)
        return best_by_prior(self.prior_seconds(columns, peaks), usual, MOST_PROMISING)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        a, p, s, ceilings = self.a, self.a.stored.attention, self.sizes(columns), gpu_peaks(self.target, peaks)
        clock, most = ceilings.clock_hz, -(-s.blocks // ceilings.multiprocessors)
        at_once = np.minimum(s.resident * ceilings.multiprocessors, s.blocks)
        moved = sum(b.bytes for b in (*p.inputs, *p.outputs)) + 2 * self._partial_bytes(s)
        needed = ceilings.memory_bytes_per_second * LATENCY_SECONDS
        share = np.minimum(1.0, at_once * s.loaded_bytes / needed)
        keys = s.warps_n * s.split_blocks * s.tile_kv
        computed = p.k.extent * value_cost(a.key.value, a.key.once, ceilings).cycles
        computed = computed + p.d.extent * value_cost(a.v.value, a.v.once, ceilings).cycles
        weighed = TILE_Q * SCORE_INSTRUCTIONS / (4 * WARP_LANES)
        read = s.tiles * p.n.extent * (a.key.bytes_of(p.k.extent) + a.v.bytes_of(p.d.extent))
        waves = -(-s.blocks // np.maximum(s.resident * ceilings.multiprocessors, 1))
        overlapped = soft_maximum(
            moved / (ceilings.memory_bytes_per_second * share),
            read / (ceilings.l2_bytes_per_cycle * ceilings.multiprocessors * clock),
            most * keys * (computed + weighed) / clock,
            waves * s.split_blocks * (LATENCY_SECONDS + BLOCK_CYCLES / clock),
        )
        prefetch = PREFETCH_CYCLES * s.prefetched_blocks * s.split_blocks / clock
        combine = (COMBINE_CYCLES + COMBINE_SHARE_CYCLES * s.split_kv) / clock
        seconds: Floats = ceilings.launch_seconds + overlapped + prefetch + combine
        return seconds

    def _partial_bytes(self, s: AttentionMmaSizes[Ints]) -> Ints:
        p = self.a.stored.attention
        return 4 * s.split_kv * p.heads * p.m.extent * (p.d.extent + 2)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        return {
            **gpu_columns(self.target, s, wanted=s.loaded_bytes // s.threads),
            "steps": s.split_blocks,
            "partial_bytes": self._partial_bytes(s),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_attention_mma(self.a, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> AttentionMmaPlan | None:
    if CUDA_ATTENTION.matches(workload, target):
        return None
    stored = stored_attention_of(workload)
    if stored is None or mma_atom_of(stored.dtype) is None:
        return None
    p = stored.attention
    if p.is_dynamic or p.m.extent > MOST_QUERIES or (p.bounds and not shares_any_keys(p)):
        return None
    if p.m.extent > TILE_Q and any(limit.coefficient("m") for bound in p.bounds for limit in bound.limits):
        return None  # masks give tiles of queries different numbers of blocks
    key = streamed_operand(stored.key, "k", p.k.extent, QUAD, "n")
    v = streamed_operand(stored.v, "d", p.d.extent, COLUMNS, "n")
    if key is None or v is None or key.vector % 4 or v.vector % 2:
        return None
    plan = AttentionMmaPlan(StreamedKeys(stored, key, v), target)
    return (
        plan if has_legal_setting(plan.knobs, plan.constraints) else None
    )  # wide heads do not fit the registers of a warp


CUDA_ATTENTION_MMA = TileSketch("cuda_attention_mma", 1, QUANTITIES, _plan)
