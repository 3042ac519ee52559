"""Describes products on Hopper whose rows are reduced and not stored: the sketch ``cuda_gemm_row_reduction``.

The kernel is that of ``cuda_gemm`` with another epilogue, and a second launch (``row_reduction``): the nearest of some
vectors, the largest logit of a row, the logarithm of a sum of exponentials of logits. Tiles are of one CTA, so that
there is neither split-K nor stream-K. Few rows are left to the classes for those (``skinny``, ``gemv``) and to a
kernel that reduces what they store, and so are few tiles with long sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel, seq
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import LARGEST_SKINNY_M
from ...problems.row_reduced_gemm import RowReducedGemm, row_reduced_gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Ints, columns_of_setting
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..peaks import GpuPeaks, gpu_peaks
from ..rowwise.kernel import launch_rows
from ..rowwise.sizes import RowStorage
from ..rowwise.space import RowwisePlan
from .constraints import THREADS, TILE
from .epilogue import spare_registers
from .kernel import lower_gemm
from .mainloop import can_use_wgmma
from .prior import EpilogueCycles, prior_seconds
from .row_reduction import RowPartials, RowReducingEpilogue, state_registers
from .sizes import GemmSizes
from .space import ARCHITECTURE, QUANTITIES, GemmPlan, with_slices

VERSION = 1
FIXED: Mapping[str, KnobValue] = {"split_k": 1, "stream_k": 0, "epilogue_stages": 0}
"""Knobs of ``cuda_gemm`` that are no choices here, and what they stand for."""
EPILOGUE_LATENCY_CYCLES, WARPGROUP_SHARE = 600, 0.6
"""From a warpgroup's last wgmma on it takes so many cycles until the first elements are reduced and the last partial
results are stored, and it uses such a share of the units of a multiprocessor meanwhile (estimates)."""
JOINED = "join_tiles"
"""The second launch has this name."""
JOINING_THREADS = 128
"""A CTA of it has so many threads."""
FEW_TILES, LONG_SUM = 64, 4096
"""Where there are so few tiles of 128 x 128, sums of more terms than these are better split among CTAs."""


@dataclass(frozen=True)
class RowReductionPlan(GemmPlan):
    """One product on one target. ``gemm`` is that of ``product``, or loads its operands in slices."""

    workload: Workload
    product: RowReducedGemm

    @property
    def chosen(self) -> tuple[Knob, ...]:
        return tuple(knob for knob in super().chosen if knob.name not in FIXED)

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return FIXED

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        of_state, spare = state_registers(self.product), spare_registers(self.gemm)

        def holds(c: Columns) -> Bools:
            s = self.sizes(c)
            fits: Bools = s.registers_beside(spare) + s.atoms_m * of_state <= s.registers
            return fits

        meaning = (
            f"the registers of a consumer thread hold atoms_m x {of_state} for what is reduced, besides atoms_m x "
            f"mma_n / 2 accumulators and about {spare} more"
        )
        return (*super().constraints, Constraint(meaning, (*TILE.split(), *THREADS.split()[1:]), holds))

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> NDArray[np.float64]:
        s, measured = self.sizes(columns), gpu_peaks(self.target, peaks)
        seconds = prior_seconds(self.gemm, s, measured, self._epilogue_cycles(s, measured))
        tile_n = s.tile_n

        @cache
        def joining(tile_n: int) -> float:
            plan, setting = self._joining(tile_n)
            return float(plan.prior_seconds(columns_of_setting(plan.knobs, setting), peaks)[0])

        return seconds + np.array([joining(int(n)) for n in tile_n], np.float64)

    def _epilogue_cycles(self, s: GemmSizes[Ints], peaks: GpuPeaks) -> EpilogueCycles:
        """Return what it takes to reduce the rows of a tile. Few warps have the units of a multiprocessor for
        themselves in part."""
        partials = self._partials(1)
        elements = (s.tile_m * s.tile_n).astype(np.float64)
        whole, masked = (partials.cycles(peaks, masked=masked) for masked in (False, True))
        least = elements * np.where(self.gemm.n.extent % s.tile_n > 0, masked, whole)
        warpgroups = np.where(s.ping_pong == 1, 1, s.consumer_warpgroups)
        alone = EPILOGUE_LATENCY_CYCLES + least / np.minimum(WARPGROUP_SHARE * warpgroups, 1.0)
        together = s.tiles_per_iteration * s.active_ctas_per_sm
        return EpilogueCycles(np.where(together > 1, 0.0, alone), alone, least)

    def _partials(self, tile_n: int) -> RowPartials:
        return RowPartials(self.product, -(-self.gemm.n.extent // tile_n))

    def _joining(self, tile_n: int) -> tuple[RowwisePlan, Mapping[str, KnobValue]]:
        """Return the plan of the second launch, and its setting: a warp has a row of partial results or several, which
        it reads once for each reduction."""
        plan = RowwisePlan(self.workload, self.target, self._partials(tile_n).joining())
        knobs = {knob.name: knob.values for knob in plan.knobs}
        threads = max(int(n) for n in knobs["threads_per_row"] if int(n) <= WARP_LANES)
        chosen = {"threads_per_row": threads, "rows_per_cta": JOINING_THREADS // threads}
        return plan, {**{name: v[0] for name, v in knobs.items()}, **chosen, "row_storage": RowStorage.GLOBAL.text}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        sizes = self.sizes_of(setting)
        partials = self._partials(sizes.tile_n)
        product = lower_gemm(self.gemm, KERNEL_NAME, sizes, epilogue=partial(RowReducingEpilogue, partials=partials))
        plan, joining = self._joining(sizes.tile_n)
        join = launch_rows(self.workload, plan.problem, plan.sizes_of(joining), JOINED)
        workspace = (*product.workspace, *partials.tensors)
        return Kernel(
            KERNEL_NAME, self.workload.inputs, self.workload.output_buffers, workspace, seq(product.body, join)
        )


def _plan(workload: Workload, target: Target) -> RowReductionPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    product = row_reduced_gemm_of(workload)
    if product is None:
        return None
    gemm = with_slices(product.gemm)
    if not can_use_wgmma(gemm) or gemm.m.extent <= LARGEST_SKINNY_M:
        return None
    tiles = -(-gemm.m.extent // 128) * -(-gemm.n.extent // 128) * product.rows.row_count // gemm.m.extent
    if tiles <= FEW_TILES and gemm.k.extent > LONG_SUM:
        return None
    return RowReductionPlan(gemm, target, workload, product)


CUDA_GEMM_ROW_REDUCTION = TileSketch("cuda_gemm_row_reduction", VERSION, QUANTITIES, _plan)
