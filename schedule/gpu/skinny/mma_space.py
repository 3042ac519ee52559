"""Describes the space of ``cuda_skinny_mma``: products with at most 64 rows on mma.sync.

The sketch takes operands of 16-bit floats that are accumulated in float32, A K-major and B K-major or N-major, and
outputs that are any pointwise functions of the accumulator. Where an operand has rows that begin anywhere, A may lie
along ``m``, and operands may be float32 that are rounded to TF32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.gemm import Gemm, Operand, skinny_gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .mma_mainloop import can_lower_skinny_mma, can_shift_skinny_mma, lower_skinny_mma
from .mma_sizes import LEAST_STAGES, SkinnyMmaSizes, skinny_mma_sizes
from .mma_tiles import ATOM_M, ATOM_N
from .prior import EXCHANGE_BYTES_PER_CYCLE, EXCHANGE_CYCLES, MMA_SHARE, WeightStream, weight_stream_seconds
from .shifted_tiles import is_for_ldmatrix
from .tma_mainloop import can_lower_skinny_tma

LEAST_M = 2
"""From how many rows of A on matrix instructions are faster than plain arithmetic."""
MOST_M_WHERE_TMA_APPLIES = 8
"""With more rows of A ``cuda_skinny_tma`` is always faster where it applies (with 16 by 3 to 5 % on an H200)."""
SMALL = 1 << 20
"""With fewer elements of B it hardly matters how they are read, so that every setting that pipelines is promising."""
LEAST_IN_FLIGHT = 24 * 1024
"""How many bytes of B a multiprocessor must have in flight to keep up with memory."""
LEAST_PIPELINE = 3
"""How many stages a pipeline must have to overlap copies with products."""
LEAST_THREADS = 128
"""How many threads of a block are worth its start."""
STEP_CYCLES = 150
"""How many cycles of a tile of ``k`` nothing overlaps, by estimate: the wait for copies, a barrier, ldmatrix."""
SHIFTED_START_CYCLES, SHIFTED_READ_CYCLES, SHIFTED_TILE_CYCLES = 4600, 2, 200
"""What rows that begin anywhere take: at first, for each load of a warp from them, and for each tile of ``k``. They
were fitted to kernels of ten products on an H200."""
ROUNDING_CYCLES = 1
"""How many more it takes to round such a load to TF32, by estimate: 87 kernels of eight products took an H200 0.74 to
1.76 times their prior."""
MOST_REGISTERS = 255
"""A thread has so many registers at most."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("k_tiles", "tiles", "how many tiles of k a warp goes through"),
    Quantity("a_bytes", "B", "how many bytes of A all blocks read together"),
    Quantity("exchanged_bytes", "B", "how many bytes of partial accumulators a block reads from others of its cluster"),
    Quantity("idle_blocks", "blocks", "how many more blocks the last wave could run"),
)


@dataclass(frozen=True)
class SkinnyMmaPlan(GpuPlan):
    """One product with up to 64 rows on one target."""

    product: Gemm
    target: Target

    @property
    def _bytes(self) -> int:
        """Bytes of an element of an operand."""
        assert self.product.b.load is not None
        return self.product.b.load.buffer.dtype.bytes

    @property
    def knobs(self) -> tuple[Knob, ...]:
        most = (1, 2, 4) if can_shift_skinny_mma(self.product) else (1, 2)
        splits = most if self.limits.clusters else (1,)
        return (
            Knob("atoms_n", (1, 2, 4), "how many times 16 outputs n a warp computes"),
            Knob("warps_n", (1, 2, 4), "how many warps of a block divide n; they share their tiles of A"),
            Knob("warps_k", (1, 2, 4, 8), "how many warps of a block divide k"),
            Knob(
                "tile_k",
                (128 // self._bytes, 256 // self._bytes),
                "how many elements along k a warp loads and multiplies at a time",
            ),
            Knob("split_k", splits, "how many blocks of a cluster divide k among them"),
            Knob(
                "ctas_per_sm",
                (1, 2, 3, 4),
                "how many blocks a multiprocessor is meant to run at once; they share its memory",
            ),
        )

    @derived_once
    def sizes(self, columns: Columns) -> SkinnyMmaSizes[Ints]:
        return skinny_mma_sizes(self.product, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            self.rule(
                "the registers of ctas_per_sm blocks of warps_n times warps_k warps fit on a multiprocessor, "
                "with atoms_n times as many accumulators as there are atoms of 8 rows",
                ("atoms_n", "warps_n", "warps_k", "ctas_per_sm"),
                lambda s: self.limits.resident_blocks(s.threads, s.registers, 0) >= s.ctas_per_sm,
            ),
            self.rule(
                f"{LEAST_STAGES} stages of tile_k elements for all warps, and their partial accumulators, fit in the "
                "shared memory of each of ctas_per_sm blocks",
                None,
                lambda s: s.shared_bytes <= s.shared_limit,
            ),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        p, size = self.product, self.sizes(columns)
        pipelined = (size.stages >= LEAST_PIPELINE) & ((size.registers <= MOST_REGISTERS) | (self._bytes == 2))
        if p.n.extent * p.k.extent < SMALL:
            return pipelined if pipelined.any() else columns.plainest
        in_flight = size.stage_b_bytes * (size.stages - 1) * size.ctas_per_sm
        worth_a_block = (size.threads >= LEAST_THREADS) & (size.k_tiles >= 2) & (size.block_n - p.n.extent < ATOM_M)
        # a second block is for what the first ones leave over, and a cluster that must wait for room starts late
        one_each = self._one_each(size)
        used = (size.ctas_per_sm == 1) | (size.blocks > one_each)
        at_once = (size.split_k == 1) | (size.blocks <= one_each * size.ctas_per_sm)
        spread = size.blocks >= self._least_blocks
        promising = pipelined & (in_flight >= LEAST_IN_FLIGHT) & worth_a_block & used & at_once & spread
        return promising if promising.any() else columns.plainest

    @cached_property
    def _least_blocks(self) -> int:
        """Blocks for three quarters of the multiprocessors, or of 32 outputs each where ``n`` is too short for that."""
        return min(self.target.threads * 3 // 4, -(-self.product.n.extent // (2 * ATOM_M)))

    def _one_each(self, size: SkinnyMmaSizes[Ints]) -> Ints:
        """Return how many blocks run at once with one on a multiprocessor, in whole clusters."""
        return self.target.threads // size.split_k * size.split_k

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        p, size, ceilings = self.product, self.sizes(columns), gpu_peaks(self.target, peaks)
        b_elements = size.block_n * size.k_tiles * size.warps_k * size.tile_k
        a_elements = ATOM_N * size.atoms_m * size.k_tiles * size.warps_k * size.tile_k
        operations = 2 * ATOM_N * size.atoms_m * b_elements * self._bytes / 2  # TF32 takes twice as long
        mma = operations / (MMA_SHARE * ceilings.tensor_flops_per_cycle)
        exchanged = self._exchanged_bytes(size)
        exchange = np.where(size.split_k > 1, EXCHANGE_CYCLES + exchanged / EXCHANGE_BYTES_PER_CYCLE, 0)
        stream = WeightStream(
            blocks=size.blocks,
            resident=size.ctas_per_sm,
            in_flight=size.stage_b_bytes * (size.stages - 1),
            l2_bytes=self._bytes * size.blocks * (a_elements + b_elements) + size.blocks * exchanged,
            shared_bytes=self._moved_bytes(p.b) * b_elements
            + (self._bytes + (self._moved_bytes(p.a) - self._bytes) * size.warps_n) * a_elements,
            mma_cycles=mma,
            chain_cycles=size.k_tiles * STEP_CYCLES + mma + exchange,
            exposed_cycles=self._shifting_cycles(size),
        )
        return weight_stream_seconds(p, ceilings, stream)

    def _moved_bytes(self, operand: Operand) -> int:
        """Return how many bytes of shared memory an element of an operand takes: copied once, read once. Of rows that
        begin anywhere 32 elements are read at once, or 64 where they begin at even places."""
        if self._bytes > 2:
            return 2 * self._bytes
        if is_for_ldmatrix(self.product, operand):
            return 4
        return 4 if operand.k == 1 and operand.row % 2 == 0 else 6

    def _shifting_cycles(self, size: SkinnyMmaSizes[Ints]) -> Floats | float:
        """Return how many cycles of a multiprocessor go by while rows that begin anywhere are read: a load for each
        pair of a lane at even places, and for each element at others."""
        p, k = self.product, size.k_tiles * size.tile_k
        if can_lower_skinny_mma(p):
            return 0.0
        reads = np.zeros(len(size.blocks))
        for operand, places in ((p.b, ATOM_M * size.atoms_n), (p.a, ATOM_N * size.atoms_m)):
            if not is_for_ldmatrix(p, operand):
                pairs = operand.k == 1 and operand.row % 2 == 0 and self._bytes == 2
                reads += size.warps * places * k / (WARP_LANES * (2 if pairs else 1))
        reads *= SHIFTED_READ_CYCLES + (ROUNDING_CYCLES if self._bytes > 2 else 0)
        blocks = -(-size.blocks // self.target.threads)
        waves = -(-size.blocks // (self.target.threads * size.ctas_per_sm))
        return SHIFTED_START_CYCLES + blocks * reads + waves * size.k_tiles * SHIFTED_TILE_CYCLES

    def _exchanged_bytes(self, size: SkinnyMmaSizes[Ints]) -> Ints:
        return 4 * self.product.m.extent * size.block_n * (size.split_k - 1) // size.split_k

    def derive(self, columns: Columns) -> Derived:
        p, size = self.product, self.sizes(columns)
        within = replace(size, registers=np.minimum(size.registers, MOST_REGISTERS))
        return {
            **gpu_columns(self.target, within, wanted=size.stage_b_bytes * (size.stages - 1) // size.threads),
            "k_tiles": size.k_tiles,
            "a_bytes": size.blocks_n * p.m.extent * p.k.extent * self._bytes,
            "exchanged_bytes": self._exchanged_bytes(size),
            "idle_blocks": -size.blocks % (self._one_each(size) * size.ctas_per_sm),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_skinny_mma(self.product, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> SkinnyMmaPlan | None:
    product = skinny_gemm_of(workload)
    if product is None or product.m.extent < LEAST_M:
        return None
    if not can_lower_skinny_mma(product) and not can_shift_skinny_mma(product):
        return None
    if target.arch == "sm_90a" and product.m.extent > MOST_M_WHERE_TMA_APPLIES and can_lower_skinny_tma(product):
        return None
    return SkinnyMmaPlan(product, target)


CUDA_SKINNY_MMA = TileSketch("cuda_skinny_mma", 3, QUANTITIES, _plan)
