"""Large products by fused multiply-adds: which settings there are, which are legal, and which are promising.

Operands are float32, float64, int32 or int64 in any layout and of any alignment; there may be batches, and the outputs
are any pointwise functions of the accumulator. Instead of products any function of two elements may be reduced.
Products that may round their factors to TF32 are here where wgmma cannot be used, and those that split them always:
with few rows, splitting a matrix takes longer than multiplying it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ....core.precision import IEEE
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.gemm import Gemm, gemm_of
from ...sketch import NO_PEAKS, Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..gemm.mainloop import can_use_wgmma
from ..gemm.mma_atom import pair_count
from ..gemm_mma.sizes import CopyWidths
from ..multistage_plan import MultistageGemmPlan, multistage_columns, multistage_quantities
from ..peaks import gpu_peaks
from .mainloop import can_use_simt, lower_gemm_simt
from .prior import prior_seconds, promising, unit_cycles
from .sizes import VERSION, GemmSimtSizes, gemm_simt_knobs, gemm_simt_sizes, simt_copy_widths

LEAST_SIDE, LEAST_K = 8, 2
"""Up to so many rows or columns, or below so many places of k, memory bounds a product, and ``cuda_gemv`` or
``cuda_loops`` take it. Batches of so few rows are here, since ``cuda_gemv`` has no batches."""
MOST_COPIES = 48
"""A thread makes so many copies for a stage at most. Each takes an address."""

FMA_CYCLES = Quantity("fma_cycles", "cycles", "how long a multiprocessor issues the instructions of all of its tiles")


@dataclass(frozen=True)
class GemmSimtPlan(MultistageGemmPlan):
    """One product on one target."""

    gemm: Gemm
    target: Target

    @cached_property
    def _widths(self) -> CopyWidths:
        return simt_copy_widths(self.gemm)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return gemm_simt_knobs(self.target)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        copies = ("thread_m", "thread_n", "warps_m", "warps_n", "block_k", "repacked")
        most = f"a thread makes at most {MOST_COPIES} copies of a stage"
        own = (self.rule(most, copies, lambda s: s.copies <= MOST_COPIES),)
        return self.stage_rules(own, "do partial sums of split_k", (*copies, "split_k", "ctas_per_sm"))

    @derived_once
    def sizes(self, columns: Columns) -> GemmSimtSizes[Ints]:
        return gemm_simt_sizes(self.gemm, self.target, self._widths, columns)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return prior_seconds(self.gemm, self._widths, self.sizes(columns), gpu_peaks(self.target, peaks))

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        prior = self.prior_seconds(columns, peaks)
        return promising(self.gemm, self.target, self.sizes(columns), prior, gpu_peaks(self.target, peaks))

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        work = unit_cycles(self.gemm, self._widths, s, gpu_peaks(self.target, NO_PEAKS))
        return multistage_columns(self.gemm, self.target, s, work, FMA_CYCLES)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_gemm_simt(self.gemm, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> GemmSimtPlan | None:
    found = (gemm_of(workload, pairwise=pairwise) for pairwise in (False, True))
    gemm = next((g for g in found if g is not None and can_use_simt(g)), None)
    if gemm is None:
        return None
    if gemm.k.extent < LEAST_K or (min(gemm.m.extent, gemm.n.extent) <= LEAST_SIDE and not gemm.batch):
        return None
    if target.arch == "sm_90a" and gemm.term is None and can_use_wgmma(gemm) and pair_count(gemm) == 1:
        return None
    return GemmSimtPlan(replace(gemm, precision=IEEE), target)  # operands are multiplied as they are, not packed


CUDA_GEMM_SIMT = TileSketch("cuda_gemm_simt", VERSION, multistage_quantities(FMA_CYCLES), _plan)
