"""Describes the space of ``cuda_skinny_tma``: products with at most 64 rows on wgmma, fed by TMA.

The sketch takes operands of 16-bit floats that are accumulated in float32, A K-major and B K-major or
N-major, and outputs that are any pointwise functions of the accumulator. It also takes float32 that is split into
planes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.tma import MAX_BOX_EXTENT
from ....ir.gpu.wgmma import LINE_BYTES, SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.gemm import Gemm, skinny_gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..gemm.mma_atom import splitting, wgmma_atom
from ..gemm.prior import PACK_CYCLES, flops_per_cycle
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .prior import EXCHANGE_BYTES_PER_CYCLE, EXCHANGE_CYCLES, WeightStream, weight_stream_seconds
from .tma_mainloop import can_lower_skinny_tma, can_split, lower_skinny_tma
from .tma_sizes import BARRIER_BYTES, SkinnyTmaSizes, skinny_tma_sizes

ARCHITECTURE = "sm_90a"
LEAST_SPLIT_M = 3
"""From how many rows of A on split float32 is faster on matrix instructions than with plain arithmetic."""
SMALL = 1 << 20
"""With fewer elements of B it hardly matters how they are read, so that every setting with few stages is promising."""
LEAST_STAGED = 64 * 1024
"""How many bytes of B the stages of a multiprocessor must hold to keep memory busy (48 KiB cost 15 % on an H200)."""
STAGES = (3, 4, 5, 6, 7, 8, 9, 10, 12)
FEW_SPLITS = 2
"""So many blocks share ``k`` at most where that makes enough blocks, of ``WGMMA_M`` outputs each, for the device."""
LEAST_BLOCK_N = 32
"""How many outputs ``n`` of a block are worth its start."""
LARGE_BLOCK_N = 192
"""How many outputs ``n`` of a block are worth more than one wave."""
LEAST_OCCUPIED = 0.8
"""Which share of the last wave's slots for blocks should be taken."""
TMA_LATENCY_SECONDS = 1.2e-6
"""How long the last byte of a stage takes while memory is busy, fitted to what ``LEAST_STAGED`` says."""
STEP_CYCLES = 150
"""How many cycles of a tile of ``k`` nothing overlaps, by estimate: the wait on its mbarrier, and the last wgmma."""

SPLIT_OPERATIONS = 10
"""How many operations of a lane it takes to load an element of float32 and to split it, by estimate."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("k_tiles", "tiles", "how many tiles of k a block goes through"),
    Quantity("a_bytes", "B", "how many bytes of A all blocks read together"),
    Quantity("exchanged_bytes", "B", "how many bytes of partial accumulators a block reads from others of its cluster"),
    Quantity("idle_blocks", "blocks", "how many more blocks the last wave could run"),
)


@dataclass(frozen=True)
class SkinnyTmaPlan(GpuPlan):
    """One product with up to 64 rows on one target."""

    product: Gemm
    target: Target

    @property
    def pairs(self) -> int:
        """How many products of planes there are; 0 where operands are not split."""
        return len(splitting(self.product).pairs)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        whole = not self.pairs
        columns = (64, 32, 40, 48, 56, 96, 112, 128, 192, 224, 256)
        return (
            Knob(
                "swap_ab",
                (1, 0) if whole else (1,),
                "whether B is the left operand of wgmma, which has 64 rows, instead of A",
            ),
            Knob(
                "mma_n",
                columns if whole else (WGMMA_M,),
                "how many outputs n a consumer warpgroup computes: the N of wgmma, or its M of 64 with swap_ab",
            ),
            Knob(
                "consumer_warpgroups",
                (1, 2, 4) if whole else (2, 1, 3, 4),
                "how many warpgroups of a block multiply, each its own outputs n",
            ),
            Knob("k_atoms", (2, 4, 1), "how many lines of 128 bytes of a multiplied operand a stage holds along k"),
            Knob("stages", STAGES if whole else (2, *STAGES), "how many stages the pipeline between TMA and wgmma has"),
            Knob("split_k", (1, 2, 4, 8), "how many blocks of a cluster divide k among them"),
            Knob(
                "ctas_per_sm",
                (1, 2) if whole else (1, 2, 3),
                "how many blocks a multiprocessor is meant to run at once; they share its memory",
            ),
        )

    @derived_once
    def sizes(self, columns: Columns) -> SkinnyTmaSizes[Ints]:
        return skinny_tma_sizes(self.product, self.target, columns)

    @property
    def b_is_k_major(self) -> bool:
        return self.product.b.k == 1

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        least_stages = min(next(k for k in self.knobs if k.name == "stages").values)
        return (
            self.rule(
                f"with swap_ab, mma_n is {WGMMA_M}, the rows of wgmma",
                ("swap_ab", "mma_n"),
                lambda s: (s.swap_ab == 0) | (s.mma_n == WGMMA_M),
            ),
            self.rule(
                f"consumer_warpgroups times mma_n is at most {MAX_BOX_EXTENT}, the rows of a TMA box"
                if self.b_is_k_major
                else f"mma_n is a multiple of {SWIZZLE_128B_ELEMENTS}, the side of the TMA boxes of an N-major B",
                ("mma_n", "consumer_warpgroups"),
                lambda s: s.block_n <= MAX_BOX_EXTENT if self.b_is_k_major else s.mma_n % SWIZZLE_128B_ELEMENTS == 0,
            ),
            Constraint(
                f"stages is no larger than the number of tiles of {wgmma_atom(self.product).line} times k_atoms "
                f"elements of k for each of split_k blocks, or is {least_stages}",
                ("k_atoms", "stages", "split_k"),
                lambda c: (c.ints("stages") == self.sizes(c).stages) | (c.ints("stages") == least_stages),
            ),
            self.rule(
                "the registers of ctas_per_sm blocks of consumer_warpgroups and a producer warp fit on a "
                "multiprocessor, with the accumulators of mma_n outputs",
                ("swap_ab", "mma_n", "consumer_warpgroups", "ctas_per_sm"),
                lambda s: self.limits.resident_blocks(s.threads, s.registers, 0) >= s.ctas_per_sm,
            ),
            self.rule(
                "all stages of k_atoms, or the accumulators of the block, fit in the shared memory of each of "
                "ctas_per_sm blocks",
                None,
                lambda s: s.shared_bytes <= s.shared_limit,
            ),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        p, size = self.product, self.sizes(columns)
        useful = (size.block_n - p.n.extent < WGMMA_M) & (size.block_n <= MAX_BOX_EXTENT)
        if not self.pairs and p.n.extent * FEW_SPLITS > LEAST_OCCUPIED * WGMMA_M * self.target.threads:
            useful &= size.split_k <= FEW_SPLITS
        if p.n.extent * p.k.extent < SMALL:
            useful &= columns.ints("stages") == STAGES[0]
            return useful if useful.any() else columns.plainest
        if self.pairs:
            return self._promising_planes(columns, useful)
        alone = size.ctas_per_sm == 1
        busy = size.stage_b_bytes * size.stages * size.ctas_per_sm >= LEAST_STAGED
        # one atom a stage is for blocks that have no room for three stages of two
        spare_bytes = 2 * SWIZZLE_128B_ELEMENTS * size.a_spare_rows
        stages_of_two = (size.shared_limit - spare_bytes) // (2 * size.atom_bytes + BARRIER_BYTES)
        deep = (size.k_atoms > 1) | (stages_of_two < STAGES[0])
        full_atoms = (size.consumer_warpgroups == 1) | (size.mma_n >= WGMMA_M)
        used = ((size.split_k == 1) & (size.blocks > self.target.threads)) | alone
        promising = useful & busy & deep & full_atoms & used & self._balanced(size)
        return promising if promising.any() else columns.plainest

    def _promising_planes(self, columns: Columns, useful: Bools) -> Bools:
        """Return which settings are worth a measurement where operands are split: one warpgroup splits while another
        one's products are under way."""
        size = self.sizes(columns)
        staged = size.stage_b_bytes * size.stages * size.ctas_per_sm >= LEAST_STAGED // 2
        overlap = size.consumer_warpgroups * size.ctas_per_sm >= 2
        used = (size.ctas_per_sm == 1) | (size.blocks > self.target.threads)
        promising = useful & staged & overlap & used & (size.stages == columns.ints("stages"))
        return promising if promising.any() else columns.plainest

    def _balanced(self, size: SkinnyTmaSizes[Ints]) -> Bools:
        """Return whether all multiprocessors have about the same to do: in one wave, or in more of large blocks."""
        at_once = self.target.threads * size.ctas_per_sm
        waves = -(-size.blocks // at_once)
        least = np.minimum(LEAST_OCCUPIED * at_once * waves, -(-self.product.n.extent // LEAST_BLOCK_N))
        large = (size.block_n >= LARGE_BLOCK_N) & (size.split_k == 1)
        found: Bools = ((waves == 1) | large) & ((size.blocks >= least) | (waves > 3))
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        size, ceilings = self.sizes(columns), gpu_peaks(self.target, peaks)
        # wgmma reads both operands from shared memory, which takes longer than the arithmetic where N is small
        pairs, line = max(self.pairs, 1), wgmma_atom(self.product).line
        arithmetic = 2 * WGMMA_M * size.wgmma_n * line * pairs / flops_per_cycle(self.product, ceilings)
        operands = LINE_BYTES * (WGMMA_M * size.b_lines + size.wgmma_n * pairs) / ceilings.shared_bytes_per_cycle
        mma = size.k_tiles * size.k_atoms * size.consumer_warpgroups * np.maximum(arithmetic, operands)
        split = np.zeros(len(mma))
        if self.pairs:
            elements = WGMMA_M * (line * SPLIT_OPERATIONS + size.wgmma_n)
            split = size.k_tiles * size.k_atoms * elements / WARPGROUP_THREADS
        read = size.k_tiles * size.k_atoms * size.atom_bytes
        exchanged = self._exchanged_bytes(size)
        exchange = np.where(size.split_k > 1, EXCHANGE_CYCLES + exchanged / EXCHANGE_BYTES_PER_CYCLE, 0)
        stream = WeightStream(
            blocks=size.blocks,
            resident=size.ctas_per_sm,
            in_flight=size.stage_b_bytes * np.maximum(size.stages - 1, 1),
            l2_bytes=size.blocks * (read + exchanged),
            shared_bytes=read,
            mma_cycles=mma,
            chain_cycles=size.k_tiles * STEP_CYCLES + mma + split + exchange,
            latency=TMA_LATENCY_SECONDS,
        )
        packing = PACK_CYCLES / ceilings.clock_hz if self.pairs else 0.0
        return packing + weight_stream_seconds(self.product, ceilings, stream)

    def _exchanged_bytes(self, size: SkinnyTmaSizes[Ints]) -> Ints:
        return 4 * self.product.m.extent * size.block_n * (size.split_k - 1) // size.split_k

    def derive(self, columns: Columns) -> Derived:
        p, size = self.product, self.sizes(columns)
        within = replace(size, registers=np.minimum(size.registers, 255))
        return {
            **gpu_columns(self.target, within, wanted=size.stage_b_bytes * size.stages // size.threads),
            "k_tiles": size.k_tiles,
            "a_bytes": size.blocks_n * p.m.extent * p.k.extent * 2,
            "exchanged_bytes": self._exchanged_bytes(size),
            "idle_blocks": -size.blocks % (self.target.threads * size.ctas_per_sm),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_skinny_tma(self.product, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> SkinnyTmaPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    product = skinny_gemm_of(workload)
    if product is None or not (can_lower_skinny_tma(product) or _can_split(product)):
        return None
    return SkinnyTmaPlan(product, target)


def _can_split(product: Gemm) -> bool:
    return product.m.extent >= LEAST_SPLIT_M and can_split(product)


CUDA_SKINNY_TMA = TileSketch("cuda_skinny_tma", 5, QUANTITIES, _plan)
