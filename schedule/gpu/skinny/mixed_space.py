"""Describes the space of ``cuda_skinny_mixed``: products with at most 64 rows whose weights are stored in another form
than that in which they are multiplied, such as integers of 4 or 8 bits with scales, floats of 8 bits, or places in a
table; or in the same form, in rows that begin anywhere.

The sketch takes an A of 16-bit floats that is K-major, a B whose values are of that dtype and follow from any
expression (``gpu.streamed_operand``), float32 accumulators, and outputs that are any pointwise functions of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from ....core.dtypes import DType, float32
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import Binary, BinaryOp, Expr
from ....ir.stmt import Kernel
from ....te.narrow_floats import narrow_value
from ....te.workload import Workload
from ...problems.gemm import Gemm, skinny_gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.enumerate import has_legal_setting
from ...space.knob import Knob, Quantity
from ...space.pruning import best_by_prior
from ...tile_sketch import TileSketch
from ..block_reduce import QUAD
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..streamed_operand import VECTOR_BYTES, StreamedOperand, is_same, streamed_operand
from ..term_cost import value_cost
from .mixed_mainloop import lower_skinny_mixed
from .mixed_sizes import SkinnyMixedSizes, chunks_of, skinny_mixed_sizes
from .mma_mainloop import can_lower_skinny_mma, can_shift_skinny_mma
from .mma_tiles import ATOM_K, ATOM_M, ATOM_N, COPY_ELEMENTS, mma_atom_of
from .prior import EXCHANGE_BYTES_PER_CYCLE, EXCHANGE_CYCLES, MMA_SHARE, WeightStream, weight_stream_seconds
from .shifted_tiles import in_whole_vectors, is_in_vectors

MOST_PROMISING = 64
"""How many settings are promising, those of the least prior."""
MOST_REGISTERS = 208
"""With more registers by the estimate, threads may have to spill some (from compiled kernels)."""
SHIFTED_B_CYCLES, SHIFTED_A_CYCLES = 17, 22
"""What a vector of a row that begins anywhere takes a warp, of B and of A, fitted to kernels of eight products on an
H200."""
STEP_CYCLES = 700
"""How many cycles of a step of a warp nothing of its own overlaps, by estimate: A comes from L2."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("steps", "steps", "how often a warp waits for loads of B"),
    Quantity("a_bytes", "B", "how many bytes of A all blocks read together"),
    Quantity("exchanged_bytes", "B", "how many bytes of partial accumulators a block reads from others of its cluster"),
)


@dataclass(frozen=True)
class SkinnyMixedPlan(GpuPlan):
    """One product with up to 64 rows on one target."""

    product: Gemm
    weights: StreamedOperand
    scale: Expr | None
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        splits = (1, 2, 4) if self.limits.clusters else (1,)
        return (
            Knob("atoms_n", (1, 2, 4), "how many times 16 outputs n a warp computes"),
            Knob("warps_n", (1, 2, 4, 8), "how many warps of a block divide n; they read the same A"),
            Knob("warps_k", (1, 2, 4, 8), "how many warps of a block divide k"),
            Knob("vectors", (1, 2, 4), "how many vectors of a row a lane loads before it multiplies the first"),
            Knob("split_k", splits, "how many blocks of a cluster divide k among them"),
        )

    @derived_once
    def sizes(self, columns: Columns) -> SkinnyMixedSizes[Ints]:
        return skinny_mixed_sizes(self.product, self.weights, self.scale is not None, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        chunks = chunks_of(self.product, self.weights)
        return (
            self.rule(
                f"vectors times warps_k times split_k is at most {chunks}, the vectors of a row over {QUAD} lanes",
                ("warps_k", "vectors", "split_k"),
                lambda s: s.vectors * s.warps_k * s.split_k <= max(chunks, 1),
            ),
            self.rule(
                "a multiprocessor has room for the registers of warps_n times warps_k warps and for their partial "
                "accumulators",
                ("atoms_n", "warps_n", "warps_k", "vectors"),
                lambda s: s.resident >= 1,
            ),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        size = self.sizes(columns)
        usual = (size.block_n - self.product.n.extent < ATOM_M) & (size.registers <= MOST_REGISTERS)
        usual = usual if usual.any() else np.ones_like(usual)
        return best_by_prior(self.prior_seconds(columns, peaks), usual, MOST_PROMISING)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        p, size, ceilings = self.product, self.sizes(columns), gpu_peaks(self.target, peaks)
        k = -(-p.k.extent // size.split_k)
        b_elements, a_elements = size.block_n * k, size.warps_n * p.m.extent * k
        mma = size.atoms_m * b_elements / (ATOM_M * ATOM_K) * (2 * ATOM_M * ATOM_N * ATOM_K)
        mma = mma / (MMA_SHARE * ceilings.tensor_flops_per_cycle)
        computed = b_elements * value_cost(self.weights.value, self.weights.once, ceilings).cycles
        exchanged = self._exchanged_bytes(size)
        exchange = np.where(size.split_k > 1, EXCHANGE_CYCLES + exchanged / EXCHANGE_BYTES_PER_CYCLE, 0)
        places, stored = self.weights.places, self.weights.load.dtype.bytes
        stream = WeightStream(
            blocks=size.blocks,
            resident=size.resident,
            in_flight=size.loaded_bytes,
            l2_bytes=size.blocks * (2 * a_elements + b_elements * stored // places + exchanged),
            shared_bytes=2 * a_elements,
            mma_cycles=np.maximum(mma, computed),
            chain_cycles=size.steps * STEP_CYCLES + exchange,
            exposed_cycles=self._shifting_cycles(size),
        )
        return weight_stream_seconds(p, ceilings, stream)

    def _shifting_cycles(self, size: SkinnyMixedSizes[Ints]) -> Floats | float:
        """Return how many cycles of a multiprocessor it takes to shift vectors of rows that begin anywhere."""
        p = self.product
        if not can_shift_skinny_mma(p):
            return 0.0
        vectors = size.warps * size.steps * size.vectors * -(-size.blocks // self.target.threads)
        b, a = (not is_in_vectors(p, operand) for operand in (p.b, p.a))
        return vectors * (2 * size.atoms_n * b * SHIFTED_B_CYCLES + size.atoms_m * a * SHIFTED_A_CYCLES)

    def _exchanged_bytes(self, size: SkinnyMixedSizes[Ints]) -> Ints:
        return 4 * self.product.m.extent * size.block_n * (size.split_k - 1) // size.split_k

    def derive(self, columns: Columns) -> Derived:
        p, size = self.product, self.sizes(columns)
        return {
            **gpu_columns(self.target, size, wanted=size.loaded_bytes // size.threads),
            "steps": size.steps,
            "a_bytes": size.blocks_n * size.warps_n * p.m.extent * p.k.extent * 2,
            "exchanged_bytes": self._exchanged_bytes(size),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_skinny_mixed(self.product, self.weights, self.scale, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> SkinnyMixedPlan | None:
    p = skinny_gemm_of(workload)
    if p is None or p.accumulator.dtype != float32 or can_lower_skinny_mma(p):
        return None
    a = p.a
    if a.load is None or mma_atom_of(a.load.dtype) is None:
        return None
    if can_shift_skinny_mma(p) and p.a.k == p.b.k == 1:
        assert p.b.load is not None
        found: tuple[StreamedOperand, Expr | None] | None
        found = StreamedOperand(p.b.body, "k", p.b.load, 1, COPY_ELEMENTS, ()), None
    else:
        found = _streamed(p, a.load.dtype) if in_whole_vectors(a, p.k.extent, a.k, a.row) else None
    if found is None:
        return None
    plan = SkinnyMixedPlan(p, *found, target)
    return plan if has_legal_setting(plan.knobs, plan.constraints) else None  # A may not fit the registers


def _streamed(p: Gemm, dtype: DType) -> tuple[StreamedOperand, Expr | None] | None:
    """Return B as what is streamed and multiplied in ``dtype``, and a scale in float32, if it has one that is the same
    for all places of ``k`` that a warp multiplies at once."""
    factors: list[tuple[Expr, Expr | None]] = [(p.b.body, None)]
    if isinstance(p.b.body, Binary) and p.b.body.op is BinaryOp.MUL:
        factors += [(p.b.body.a, p.b.body.b), (p.b.body.b, p.b.body.a)]
    for (body, scale), most_bytes in product(factors, (VECTOR_BYTES, VECTOR_BYTES // 2, VECTOR_BYTES // 4)):
        value = narrow_value(body, dtype)
        weights = None if value is None else streamed_operand(value, "k", p.k.extent, 1, "n", most_bytes)
        if weights is None or weights.vector % COPY_ELEMENTS:
            continue
        if scale is None or (scale.dtype == float32 and is_same(scale, "k", QUAD * weights.vector)):
            return weights, scale
    return None


CUDA_SKINNY_MIXED = TileSketch("cuda_skinny_mixed", 1, QUANTITIES, _plan)
"""Its name follows CUTLASS, where such products are those of mixed input."""
