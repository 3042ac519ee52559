"""Describes large matrix products on Hopper, by wgmma: which settings there are, which are legal, and which are
promising.

Operands are floats of 16 or 8 bits, 8-bit integers, or float32 where the precision of the workload lets matrix units
multiply it (``mma_atom``). Each operand may lie along either of its axes, and there may be batches. The outputs are any
pointwise functions of the accumulator, or of several accumulators of the same A, whose columns then share a tile. TMA
wants rows at multiples of 16 bytes: operands with other rows are repacked by a first launch, or threads bring them to
shared memory. Rows of A may lie in groups that each have a B of their own
(``problems.grouped_gemm``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import cast

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import Var
from ....ir.stmt import Kernel
from ....te.workload import Axis, Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, Operand, gemm_of, skinny_gemm_of, with_dynamic_rows
from ...problems.grouped_gemm import grouped_gemm_of
from ...sketch import NO_PEAKS, Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, columns_of_setting, derived_once, row_of_record
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..skinny.mma_mainloop import can_lower_skinny_mma
from ..tma_view import in_slices
from .constraints import gemm_constraints
from .fragments import with_a_in_registers
from .kernel import lower_gemm
from .mainloop import can_use_wgmma
from .mma_atom import find_atom, is_packed
from .prior import prior_seconds, tiles_per_sm, unit_cycles, wave_efficiency
from .pruning import GemmPruning
from .repack import uneven_operands
from .shifted_rows import can_shift
from .sizes import KNOBS, REPACKED, VERSION, GemmSizes, gemm_sizes

ARCHITECTURE = "sm_90a"
PRUNING = GemmPruning()

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("tiles", "tiles", "how many tiles the result has, each tile of a cluster counted"),
    Quantity("stages", "stages", "how many stages the pipeline has"),
    Quantity("accumulator_registers", "registers", "how many registers of a thread hold accumulators"),
    Quantity("wave_efficiency", "1", "which share of the multiply-adds of all waves the result needs"),
    Quantity("mma_cycles", "cycles", "how long a multiprocessor's tensor cores take for all of its tiles"),
    Quantity("shared_cycles", "cycles", "how long its shared memory takes for them"),
    Quantity("l2_cycles", "cycles", "how long its share of L2 takes for them"),
)


@dataclass(frozen=True)
class GemmPlan(GpuPlan):
    """One product on one target."""

    gemm: Gemm
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (*self.chosen, *self._repacked)

    @property
    def chosen(self) -> tuple[Knob, ...]:
        """The knobs that are choices."""
        return KNOBS

    @property
    def _repacked(self) -> tuple[Knob, ...]:
        """This knob is a choice where threads can copy the rows. Elsewhere it says in the schedule why there is a
        launch before the product."""
        uneven = uneven_operands(self.gemm, as_views=True)
        if not uneven:
            return ()
        rows = " and ".join(f"rows of {b.name} begin every {b.shape[-1] * b.dtype.bytes} bytes" for b in uneven)
        why = f"TMA needs multiples of 16 bytes, {rows}"
        if self._may_shift:
            return (Knob(REPACKED, (1, 0), f"whether operands are repacked first, or threads shift them: {why}"),)
        return (Knob(REPACKED, (1,), f"operands are repacked first: {why}"),)

    @property
    def _may_shift(self) -> bool:
        """Whether a producer warpgroup may copy operands."""
        return any(knob.name == "producer_warpgroup" for knob in self.chosen) and can_shift(self.gemm)

    @derived_once
    def sizes(self, columns: Columns) -> GemmSizes[Ints]:
        return gemm_sizes(self.gemm, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return gemm_constraints(self.gemm, self.target, self.knobs)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return prior_seconds(self.gemm, self.sizes(columns), gpu_peaks(self.target, peaks))

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        prior = self.prior_seconds(columns, peaks)
        return PRUNING.promising(self.gemm, self.target, self.sizes(columns), prior)

    def derive(self, columns: Columns) -> Derived:
        s = self.sizes(columns)
        work, iterations = unit_cycles(self.gemm, s, gpu_peaks(self.target, NO_PEAKS)), tiles_per_sm(s) * s.k_iters
        return {
            **gpu_columns(self.target, s, wanted=s.stage_bytes * np.maximum(s.stages - 1, 1) // s.threads),
            "tiles": s.cluster_tiles * s.tiles_per_cluster,
            "stages": s.stages,
            "accumulator_registers": s.accumulator_registers,
            "wave_efficiency": wave_efficiency(self.gemm, s, self.target.threads),
            "mma_cycles": iterations * work.mma,
            "shared_cycles": iterations * work.shared,
            "l2_cycles": iterations * work.l2,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_gemm(self.gemm, KERNEL_NAME, self.sizes_of(setting))

    def sizes_of(self, setting: Mapping[str, KnobValue]) -> GemmSizes[int]:
        """Return the sizes of one setting (knob -> value)."""
        sizes = self.sizes(columns_of_setting(self.knobs, setting, self.defaults))
        whole = GemmSizes(**{f.name: getattr(sizes, f.name) for f in fields(GemmSizes)})
        return cast(GemmSizes[int], row_of_record(whole, 0))


def _plan(workload: Workload, target: Target) -> GemmPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    gemm = gemm_of(workload, several=True, scaled=True) or grouped_gemm_of(workload)
    gemm = gemm and with_dynamic_rows(gemm, workload)
    gemm = gemm and with_slices(with_a_in_registers(gemm))
    if gemm is None or not can_use_wgmma(gemm):
        return None
    assert gemm.a.load is not None
    if gemm.dynamic is not None:
        return GemmPlan(gemm, target) if takes_dynamic_rows(gemm) else None
    if gemm.groups is not None and not _can_group(gemm):
        return None
    # those of few rows read rows at multiples of 16 bytes alone
    skinny = None if gemm.others or gemm.a.load.dtype.bits != 16 else skinny_gemm_of(workload)
    few = skinny is not None and (skinny.m.extent == 1 or can_lower_skinny_mma(skinny))
    return None if few and not uneven_operands(gemm, as_views=True) else GemmPlan(gemm, target)


def with_slices(gemm: Gemm) -> Gemm:
    """Return the product with slices of k or of rows, which a batch goes through, as a dimension of the operands, where
    TMA can see that."""

    def sliced(operand: Operand, own: Axis) -> Operand:
        load = operand.load
        for outer, inner in product(gemm.batch, (gemm.k, own)):
            load = None if load is None else in_slices(load, outer, inner)
        return replace(operand, load=load)

    if not gemm.batch or gemm.others or find_atom(gemm) is None:
        return gemm
    found = replace(gemm, a=sliced(gemm.a, gemm.m), b=sliced(gemm.b, gemm.n))
    copies = uneven_operands(found, as_views=True) or any(is_packed(found, o) for o in (found.a, found.b))
    return gemm if copies else found


def takes_dynamic_rows(gemm: Gemm) -> bool:
    """Return whether A is read in place: the launches that pack it and repack it copy a known number of rows."""
    assert gemm.a.load is not None
    repacked = {b.name for b in uneven_operands(gemm, as_views=True)}
    return not is_packed(gemm, gemm.a) and gemm.a.load.buffer.name not in repacked


def _can_group(gemm: Gemm) -> bool:
    """Return whether groups of rows may end anywhere: rows of 16-bit floats lie along ``k``, as TMA loads them and
    stores what comes of them."""
    assert gemm.a.load is not None
    along_k = gemm.a.load.indices[-1] == Var("k")
    return along_k and gemm.a.load.dtype.bits == 16 and not uneven_operands(gemm, as_views=True)


CUDA_GEMM = TileSketch("cuda_gemm", VERSION, QUANTITIES, _plan, dynamic=True)
