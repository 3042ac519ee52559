"""Describes the space of ``cuda_gemv``: products with at most eight rows on plain arithmetic.

The sketch takes operands of any types that come from any pointwise functions, and outputs that are any pointwise
functions of the accumulator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from ..skinny.mma_mainloop import can_lower_skinny_mma
from ..skinny.prior import LATENCY_SECONDS, WeightStream, weight_stream_seconds
from .kernel import lower_gemv
from .sizes import (
    GemvSizes,
    b_is_k_major,
    b_vector_bytes,
    b_vector_elements,
    gemv_sizes,
    has_narrow_loads,
    vectors_of_lane,
)

LARGEST_M = 8
"""Up to how many rows of A plain arithmetic keeps up with memory."""
LARGEST_M_WHERE_MMA_APPLIES = 2
"""Up to how many rows it is used where matrix instructions apply, which are faster from then on."""
MOST_ACCUMULATORS = 32
"""How many accumulators of a thread are worth a measurement."""
MOST_LOADED = 64
"""How many registers of a thread for vectors of B in flight are worth a measurement."""
SMALL = 1 << 20
"""With fewer elements of B it hardly matters how they are read: any setting that makes sense is promising."""
MOST_REGISTERS_SMALL = 72
"""How many registers of a thread are worth a measurement there. The guards take more than the estimate says."""
MOST_REGISTERS_SMALL_NARROW = 128
"""How many of them are for loads of less than 16 bytes, few of which have guards."""
MOST_THREADS_SMALL = 256
"""How many threads of a block are worth a measurement there."""
LEAST_LOADED_NARROW = 16
"""How many registers of a thread such loads in flight must take (with a large B: those of both operands), unless it
loads all of a row at once."""
LEAST_IN_FLIGHT = 24 * 1024
"""How many bytes of B a multiprocessor must have in flight to come near the rate of its memory."""
LEAST_THREADS, LEAST_LOADS = 128, 2
"""How many threads of a block, and loads of a thread in flight, are worth the start of a block."""
ISSUE_CYCLES = 8
"""How many cycles pass from an instruction of a warp to its next. This was fitted to 24 kernels for 1x4096x4096 in
float16 on an H200, whose loads and arithmetic overlap little."""
END_CYCLES = 300
"""How many cycles pass from the last product to the stores, for shuffles and shared memory. This is an estimate."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("thread_loads", "loads", "how many loads of B a thread has in flight"),
    Quantity("steps", "steps", "how often a thread waits for loads of B"),
    Quantity("partial_accumulators", "values", "how many partial accumulators a block adds up for each output"),
)


@dataclass(frozen=True)
class GemvPlan(GpuPlan):
    """One product with very few rows on one target."""

    product: Gemm
    target: Target

    @property
    def small(self) -> bool:
        return self.product.n.extent * self.product.k.extent < SMALL

    @property
    def narrow(self) -> bool:
        return has_narrow_loads(self.product)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        fine = self.narrow and self.small
        own = (
            Knob("rows_per_warp", (1, 2, 3, 4, 5, 6, 8) if fine else (1, 2, 4, 8), "how many outputs n a warp computes")
            if b_is_k_major(self.product)
            else Knob(
                "lanes_n",
                (4, 8, 16, 2, 32),
                "how many lanes of a warp divide n, each with a vector of 16 bytes; the others divide k",
            )
        )
        return (
            own,
            Knob("warps_n", (1, 2, 4, 8) if fine else (1, 2, 4), "how many warps of a block divide n"),
            Knob("warps_k", (1, 2, 4, 8, 16, 32), "how many warps of a block divide k"),
            Knob(
                "unroll",
                (1, 2, 4, 8, 16, 32) if self.narrow else (1, 2, 4, 8, 16),
                "how many loads along k a thread starts at most before it uses the first",
            ),
        )

    @derived_once
    def sizes(self, columns: Columns) -> GemvSizes[Ints]:
        return gemv_sizes(self.product, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        p, limits = self.product, self.limits
        own = self.knobs[0].name
        canonical = self.rule(
            "half of unroll is less than the vectors of a row that warps_k warps leave to a lane, since all larger "
            "values of unroll give the same kernel",
            ("warps_k", "unroll"),
            lambda s: s.unroll // 2 < vectors_of_lane(p, s.warps_k),
        )
        return (
            self.rule(
                f"warps_n times warps_k is at most {limits.threads_per_block // WARP_LANES}, the warps of a block",
                ("warps_n", "warps_k"),
                lambda s: s.threads <= limits.threads_per_block,
            ),
            *((canonical,) if b_is_k_major(p) else ()),
            self.rule(
                f"the partial accumulators of warps_k warps along k fit in {limits.shared_bytes_per_block} bytes of "
                "shared memory",
                (own, "warps_n", "warps_k"),
                lambda s: s.shared_bytes <= limits.shared_bytes_per_block,
            ),
            self.rule(
                f"the registers of warps_n times warps_k warps fit on a multiprocessor, each thread with unroll loads "
                f"in flight and the accumulators of its {own}",
                (own, "warps_n", "warps_k", "unroll"),
                lambda s: limits.resident_blocks(s.threads, s.registers, 0) >= 1,
            ),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        size = self.sizes(columns)
        promising = self._modest(size) & self._useful(size)
        if self.narrow:
            loaded = size.b_registers if self.small else size.b_registers + size.a_registers
            promising &= (size.steps == 1) | (loaded >= LEAST_LOADED_NARROW)
        promising &= self._small_blocks(size) if self.small else self._busy(size)
        return promising if promising.any() else columns.plainest

    def _modest(self, size: GemvSizes[Ints]) -> Bools:
        """Return where a thread holds no more than is worth a measurement."""
        most = max(MOST_ACCUMULATORS, self.product.m.extent * b_vector_elements(self.product))
        return (size.accumulators <= most) & (size.b_registers <= MOST_LOADED)

    def _useful(self, size: GemvSizes[Ints]) -> Bools:
        """Return where most warps have something to do."""
        p = self.product
        if b_is_k_major(p):
            return size.warps_k // 2 < vectors_of_lane(p, 1)
        least = 4 * WARP_LANES if self.small else WARP_LANES
        return size.step_k <= max(-(-p.k.extent // WARP_LANES) * WARP_LANES, least)

    def _small_blocks(self, size: GemvSizes[Ints]) -> Bools:
        """Return where blocks are light enough for a small B."""
        most = MOST_REGISTERS_SMALL_NARROW if self.narrow else MOST_REGISTERS_SMALL
        found: Bools = ((size.registers <= most) | (size.loads == 1)) & (size.threads <= MOST_THREADS_SMALL)
        return found

    def _busy(self, size: GemvSizes[Ints]) -> Bools:
        """Return where memory is busy while it reads a large B. Where a load of less than 16 bytes takes a whole
        register, there are not registers for many: a quarter of the most bytes in flight will do then."""
        n = self.product.n.extent
        in_flight = self._in_flight(size)
        least = (
            min(LEAST_IN_FLIGHT, int(in_flight[self._modest(size)].max(initial=0)) // 4)
            if self.narrow
            else LEAST_IN_FLIGHT
        )
        busy = (in_flight >= least) | (self.narrow & (size.steps == 1))
        narrowest = 1 if b_is_k_major(self.product) else 4 * b_vector_elements(self.product)
        least_blocks = min(self.target.threads * 3 // 4, n // narrowest)
        worth_a_block = (size.threads >= LEAST_THREADS) & (size.loads >= LEAST_LOADS) & (size.blocks >= least_blocks)
        found: Bools = busy & worth_a_block & (size.block_n - n < max(n, WARP_LANES))
        return found

    def _in_flight(self, size: GemvSizes[Ints]) -> Ints:
        """Bytes of B that a multiprocessor has in flight."""
        here = np.minimum(size.resident, -(-size.blocks // self.target.threads))
        return b_vector_bytes(self.product) * size.loads * size.threads * here

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        p, size, ceilings = self.product, self.sizes(columns), gpu_peaks(self.target, peaks)
        b_elements, a_elements = size.block_n * p.k.extent, p.m.extent * p.k.extent
        b_bytes, a_bytes = b_elements * _element_bytes(p.b), a_elements * _element_bytes(p.a)
        operations = (p.m.extent + 1) * b_elements  # a multiply-add for each row of A, and a conversion
        blocks = -(-size.blocks // ceilings.multiprocessors)
        warps = np.minimum(size.resident, blocks) * size.warps
        most_issued = ceilings.float32_flops_per_cycle / (2 * WARP_LANES)
        issued = WARP_LANES * np.minimum(most_issued, warps / ISSUE_CYCLES)
        stream = WeightStream(
            blocks=size.blocks,
            resident=size.resident,
            in_flight=b_vector_bytes(p) * size.loads * size.threads,
            l2_bytes=size.blocks * (b_bytes + a_bytes),
            shared_bytes=b_bytes + size.warps_n * a_bytes,
            chain_cycles=(size.steps - 1) * LATENCY_SECONDS * ceilings.clock_hz + END_CYCLES,
            exposed_cycles=blocks * operations / issued,
        )
        return weight_stream_seconds(p, ceilings, stream)

    def derive(self, columns: Columns) -> Derived:
        size = self.sizes(columns)
        within = replace(size, registers=np.minimum(size.registers, 255))
        return {
            **gpu_columns(self.target, within, wanted=b_vector_bytes(self.product) * size.loads),
            "thread_loads": size.loads,
            "steps": size.steps,
            "partial_accumulators": size.warps_k,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_gemv(self.product, self.sizes_of(setting))


def _element_bytes(operand: Operand) -> int:
    """Bytes of an element of what is read for an operand; of its value where it is computed from several tensors."""
    return operand.body.dtype.bytes if operand.load is None else operand.load.buffer.dtype.bytes


def _plan(workload: Workload, target: Target) -> GemvPlan | None:
    product = skinny_gemm_of(workload)
    if product is None or product.m.extent > LARGEST_M:
        return None
    if product.m.extent > LARGEST_M_WHERE_MMA_APPLIES and can_lower_skinny_mma(product):
        return None
    return GemvPlan(product, target)


CUDA_GEMV = TileSketch("cuda_gemv", 4, QUANTITIES, _plan)
