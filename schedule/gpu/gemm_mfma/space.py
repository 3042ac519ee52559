"""Describes products on the matrix instructions of AMD's graphics processors: which settings there are, and which are
legal.

Operands are floats of 16 or 32 bits in any layout, accumulators float32; there may be batches, and the outputs are any
pointwise functions of the accumulator.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.gemm import Gemm, gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .mainloop import can_use_mfma, lower_gemm_mfma
from .prior import prior_seconds
from .sizes import ATOM, KNOBS, VERSION, GemmMfmaSizes, gemm_mfma_sizes

LEAST_SIDE = 8
"""Up to so many rows, or columns, most of what matrix instructions do would be wasted."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("k_iters", "iterations", "how many iterations the main loop of a block has"),
    Quantity("products_per_byte", "1/B", "how many multiply-adds a k iteration has for each byte it copies"),
)


@dataclass(frozen=True)
class GemmMfmaPlan(GpuPlan):
    """One product on one target."""

    gemm: Gemm
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return KNOBS

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            self.rule(
                "a compute unit has registers and shared memory for a block",
                None,
                lambda s: self.limits.resident(s) >= 1,
            ),
        )

    @derived_once
    def sizes(self, columns: Columns) -> GemmMfmaSizes[Ints]:
        return gemm_mfma_sizes(self.gemm, columns)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return prior_seconds(self.gemm, self.sizes(columns), self.limits, gpu_peaks(self.target, peaks))

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """A tile that is half empty gains nothing, nor does an iteration beyond the end of ``k``."""
        s, gemm = self.sizes(columns), self.gemm
        fitting = (s.tile_m < 2 * max(gemm.m.extent, ATOM)) & (s.tile_n < 2 * max(gemm.n.extent, ATOM))
        return fitting & (s.block_k < gemm.k.extent + ATOM)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        per_byte = s.tile_m * s.tile_n * s.block_k / s.stage_bytes
        return {
            **gpu_columns(self.target, s, wanted=s.stage_bytes // s.threads),
            "k_iters": s.k_iters,
            "products_per_byte": per_byte,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_gemm_mfma(self.gemm, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> GemmMfmaPlan | None:
    gemm = gemm_of(workload)
    if gemm is None or not can_use_mfma(gemm) or min(gemm.m.extent, gemm.n.extent) <= LEAST_SIDE:
        return None
    return GemmMfmaPlan(gemm, target)


AMDGPU_GEMM = TileSketch("amdgpu_gemm", VERSION, QUANTITIES, _plan, kind="amdgpu")
