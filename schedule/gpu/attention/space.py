"""Describes attention on Hopper: which settings there are, which are legal, and which are promising.

Q, K and V are 16-bit floats with contiguous rows: of V at most 256 elements, or 384 or 512, which two warpgroups
share. The expression rounds weights to the same dtype, or not at all: then they are split into several numbers of it.
Sums are float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.dtypes import float32
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.gpu.mma import WARP_MMA_ATOMS
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.attention import Attention, attention_of
from ...sketch import NO_PEAKS, Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.enumerate import has_legal_setting
from ...space.knob import Knob, Quantity
from ...space.pruning import best_by_prior
from ...tile_sketch import TileSketch
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .constraints import SPARE_REGISTERS, attention_constraints
from .kernel import lower_attention
from .operand_tiles import can_load
from .prior import prior_seconds, step_cycles, steps_of_busiest
from .score_loads import pairs_of, tile_loads
from .sizes import MOST_COLUMNS, VERSION, AttentionSizes, attention_sizes, column_warpgroups, knobs_of

ARCHITECTURE = "sm_90a"
MOST_COLUMN_WARPGROUPS = 2
"""How many warpgroups share the columns of V at most: the registers of a multiprocessor hold no more sums."""
SCORES_PER_REGISTER = 4
"""The function of the product that a score is takes a register more for every so many keys of a block (from compiled
kernels of ALiBi, which spill with more)."""
MOST_PROMISING = 300
"""How many settings are promising, those of the least prior."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("tiles", "tiles", "how many tiles of queries there are"),
    Quantity("steps", "steps", "how many blocks of keys the busiest multiprocessor goes through"),
    Quantity("held_registers", "registers", "how many registers of a thread hold accumulators and weights"),
    Quantity("mma_cycles", "cycles", "how long the tensor cores take for a step"),
    Quantity("weight_cycles", "cycles", "how long arithmetic and exponentials take for a step"),
    Quantity("shared_cycles", "cycles", "how long shared memory takes for a step"),
)


@dataclass(frozen=True)
class AttentionPlan(GpuPlan):
    """One attention on one target."""

    p: Attention
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return knobs_of(self.p)

    @derived_once
    def sizes(self, columns: Columns) -> AttentionSizes[Ints]:
        return attention_sizes(self.p, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return attention_constraints(self.p, self.target)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return prior_seconds(self.p, self.sizes(columns), gpu_peaks(self.target, peaks))

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        sizes, prior = self.sizes(columns), self.prior_seconds(columns, peaks)
        busy = sizes.tile_q - WGMMA_M < self.p.m.extent  # each warpgroup has queries
        usual = busy & (sizes.stages >= np.minimum(2, sizes.kv_blocks))
        further = np.zeros_like(sizes.tile_kv)
        for load in pairs_of(self.p):  # those that are under way stay in registers
            by_tile = (sizes.score_tiles == 1) & (load in tile_loads(self.p))
            further += np.where(by_tile, 0, sizes.tile_kv // 2 * load.dtype.bytes // 4)
        further += sizes.tile_kv // SCORES_PER_REGISTER * (self.p.score is not None)
        usual &= sizes.held_registers + SPARE_REGISTERS + further <= sizes.thread_registers
        return best_by_prior(prior, usual, MOST_PROMISING)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        work = step_cycles(self.p, s, gpu_peaks(self.target, NO_PEAKS))
        return {
            **gpu_columns(self.target, s, wanted=s.shared_bytes // s.threads),
            "tiles": s.tiles,
            "steps": steps_of_busiest(self.p, s, self.target.threads)[0],
            "held_registers": s.held_registers,
            "mma_cycles": work.mma,
            "weight_cycles": work.weights,
            "shared_cycles": work.shared,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_attention(self.p, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> AttentionPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    p = attention_of(workload)
    if p is None or not _can_attend(p):
        return None
    plan = AttentionPlan(p, target)
    narrow = max(p.k.extent, p.d.extent) <= MOST_COLUMNS
    return plan if narrow or has_legal_setting(plan.knobs, plan.constraints) else None  # shared memory may lack room


def _can_attend(p: Attention) -> bool:
    """Return whether wgmma takes the operands, TMA can load them, and warpgroups can share the columns of V."""
    dtypes = {p.q.buffer.dtype, p.key.buffer.dtype, p.v.buffer.dtype, p.weights} - {float32}
    if len(dtypes) != 1 or dtypes.isdisjoint(a.operand for a in WARP_MMA_ATOMS.values() if a.k == 16):
        return False
    shared = column_warpgroups(p)
    if shared > MOST_COLUMN_WARPGROUPS or p.d.extent % (8 if shared == 1 else SWIZZLE_128B_ELEMENTS * shared):
        return False
    return can_load(p.q, "m", "k") and can_load(p.key, "n", "k") and can_load(p.v, "n", "d")


CUDA_ATTENTION = TileSketch("cuda_attention", VERSION, QUANTITIES, _plan, lengths=True)
