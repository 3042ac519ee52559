"""Describes large and medium products by mma.sync: which settings there are, which are legal, and which are promising.

Operands are 16-bit floats, or float32 that may be rounded to TF32, in any layout and of any alignment, accumulators
float32; there may be batches, and the outputs are any pointwise functions of the accumulator. On Hopper wgmma is faster
where it can be used. There this sketch takes what wgmma cannot, such as float64 with accumulators of float64, and small
products: many of one tile each, which it begins and ends sooner, those with rows that begin between multiples of 16
bytes, which wgmma needs repacked, and those of many rows and few columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ....core.precision import TF32
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.gemm import Gemm, gemm_of, skinny_gemm_of
from ...sketch import NO_PEAKS, Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..gemm.mainloop import can_use_wgmma
from ..gemm.repack import as_stored, uneven_operands
from ..multistage_plan import MultistageGemmPlan, multistage_columns, multistage_quantities
from ..peaks import gpu_peaks
from ..reduction_prior import SECTOR_BYTES
from ..skinny.mma_mainloop import can_lower_skinny_mma
from .mainloop import can_use_mma, lower_gemm_mma
from .operands import copy_elements
from .prior import prior_seconds, unit_cycles
from .pruning import GemmMmaPruning
from .sizes import VERSION, CopyWidths, GemmMmaSizes, copy_widths, gemm_mma_knobs, gemm_mma_sizes

LEAST_SIDE, LEAST_BESIDE_LARGE, LEAST_K = 8, 3, 16
"""With up to so many rows or columns, and with fewer places of k, most of what matrix instructions do would be wasted.
With fewer than three, it costs more than to load the other operand, even where that is large."""
LARGE = 1 << 24
"""An operand is large that has so many elements."""
WIDEST_ALONE, LONGEST_ALONE = 64, 128
"""A batch of products with up to so many rows and columns, and so many places of k, begins and ends sooner by mma.sync
than by wgmma: 512 products of 64^3 take an H200 4.9 us, not 5.1."""
MOST_UNCOPIED, WIDEST_UNCOPIED = 1 << 24, 128
"""A product of up to so many multiplications with uneven rows, and a batch of products with up to so many rows, columns
and places of k, may gain from doing without the repacking that wgmma needs: 1000 products of 50x60x70 took an H200
26 us with it, of which the repacking was 10."""
NARROW, LEAST_ROWS = 32, 1 << 12
"""A result with up to so many columns, and at least so many rows, takes as long as A takes to load. Many small CTAs
have more of it under way than the persistent ones with wgmma, whose lines of 128 bytes are zeros beyond the end of k:
401408x16x32 takes an H200 11.1 us, not 12.5. Rows of less than whole sectors gain nothing (100352x24x96 11.8, 8.7)."""
MOST_COPIES, MOST_LOADS = 48, 20
"""A thread makes so many copies for a stage at most, and so many that go through registers. With more, compiled kernels
spilled."""
PRUNING = GemmMmaPruning()

MMA_CYCLES = Quantity("mma_cycles", "cycles", "how long a multiprocessor's tensor cores take for all of its tiles")


@dataclass(frozen=True)
class GemmMmaPlan(MultistageGemmPlan):
    """One product on one target."""

    gemm: Gemm
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return gemm_mma_knobs(self.gemm, self.target)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        copies = ("atoms_m", "atoms_n", "warps_m", "warps_n", "block_k", "repacked")
        most = f"at most {MOST_COPIES} copies of a stage, {MOST_LOADS} where rows begin at odd elements"
        own = (
            self.rule(
                "with split_k CTAs add up tiles in shared memory: staged_epilogue is 1",
                ["split_k", "staged_epilogue"],
                lambda s: (s.split_k == 1) | (s.staged_epilogue == 1),
            ),
            self.rule(
                f"a thread makes {most}",
                copies,
                lambda s: (s.copies <= MOST_COPIES) & (s.loads <= MOST_LOADS),
            ),
        )
        return self.stage_rules(own, "does a staged_epilogue", (*copies, "split_k", "ctas_per_sm", "staged_epilogue"))

    @cached_property
    def _widths(self) -> CopyWidths:
        return copy_widths(self.gemm, copy_elements(self.gemm))

    @derived_once
    def sizes(self, columns: Columns) -> GemmMmaSizes[Ints]:
        return gemm_mma_sizes(self.gemm, self.target, self._widths, columns)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return prior_seconds(self.gemm, self.sizes(columns), gpu_peaks(self.target, peaks))

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        prior = self.prior_seconds(columns, peaks)
        return PRUNING.promising(self.gemm, self.target, self._widths, self.sizes(columns), prior)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        work = unit_cycles(self.gemm, s, gpu_peaks(self.target, NO_PEAKS))
        return multistage_columns(self.gemm, self.target, s, work, MMA_CYCLES)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_gemm_mma(self.gemm, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> GemmMmaPlan | None:
    gemm = gemm_of(workload)
    if gemm is None or not can_use_mma(gemm, target):
        return None
    few, many = sorted((gemm.m.extent, gemm.n.extent))
    large = few >= LEAST_BESIDE_LARGE and many * gemm.k.extent >= LARGE
    if (few <= LEAST_SIDE and not large) or gemm.k.extent < LEAST_K:
        return None
    skinny = skinny_gemm_of(workload)
    if skinny is not None and can_lower_skinny_mma(skinny):
        return None
    if target.arch == "sm_90a" and can_use_wgmma(gemm) and not _gains_beside_wgmma(gemm, few=skinny is not None):
        return None
    return GemmMmaPlan(gemm, target)


def _gains_beside_wgmma(gemm: Gemm, *, few: bool) -> bool:
    """Return whether mma.sync may be faster than wgmma: many results of one tile each, few columns, or less work than
    repacking takes. ``few``: whether it has few rows or columns."""
    if gemm.precision == TF32:
        return few and bool(uneven_operands(as_stored(gemm)))
    if few:
        return True
    if uneven_operands(gemm):
        sides = [axis.extent for axis in (gemm.m, gemm.n, gemm.k)]
        batch = prod(axis.extent for axis in gemm.batch)
        return prod(sides) * batch <= MOST_UNCOPIED or (batch > 1 and max(sides) <= WIDEST_UNCOPIED)
    if gemm.batch:
        return max(gemm.m.extent, gemm.n.extent) <= WIDEST_ALONE and gemm.k.extent <= LONGEST_ALONE
    whole = all(gemm.n.extent * result.tensor.dtype.bytes % SECTOR_BYTES == 0 for result in gemm.results)
    return whole and gemm.n.extent <= NARROW and gemm.m.extent >= LEAST_ROWS


CUDA_GEMM_MMA = TileSketch("cuda_gemm_mma", VERSION, multistage_quantities(MMA_CYCLES), _plan)
