"""Describes large matrix products on data-center Blackwell (sm_100a), by tcgen05: the sketch ``cuda_gemm_tcgen05``.

The kernel is that of ``cuda_gemm`` with its accumulators in tensor memory (``tensor_memory``). Operands are floats of
16 bits, 8-bit integers, or, where the precision of the workload lets matrix units keep all sums, TF32 and floats of 8
bits. Within the sums, floats of 8 and of 4 bits may have a scale for every block of k of a row (``block_scales``):

    MXFP8    cast(A[i, k], "float32") * e8m0(S[i, k // 32])                     S of uint8
    MXFP4    e2m1(A[i, k // 2], k) * e8m0(S[i, k // 32])                        A and S of uint8
    NVFP4    e2m1(A[i, k // 2], k) * absolute(cast(S[i, k // 16], "float32"))   A of uint8, S of float8_e4m3fn

Scales of NVFP4 have no sign for matrix units. Those of whole tensors are factors of the result. There is neither
split-K nor stream-K, and no producer gives registers away, since accumulators take none.

Kernels are compiled and interpreted, and were run on no device. The estimates are those of ``cuda_gemm`` with figures
of the vendor's data sheet.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.gpu.wgmma import WGMMA_M
from ....te.workload import Workload
from ...problems.gemm import gemm_of, skinny_gemm_of, with_dynamic_rows
from ...sketch import Peaks
from ...space.columns import Bools, Columns
from ...space.knob import Knob
from ...space.pruning import best_by_prior
from ...tile_sketch import TileSketch
from .mainloop import can_use_wgmma
from .mma_atom import pair_count, promoted_k_atoms
from .sizes import KNOBS
from .space import QUANTITIES, GemmPlan, takes_dynamic_rows

ARCHITECTURE = "sm_100a"
VERSION = 1
FIXED: Mapping[str, KnobValue] = {"split_k": 1, "stream_k": 0, "producer_warpgroup": 0, "resident_b": 0}
"""Knobs of ``cuda_gemm`` that are no choices here, and what they stand for."""
MOST_SETTINGS = 300
"""How many settings are promising at most, those of the least prior."""


@dataclass(frozen=True)
class Tcgen05Plan(GemmPlan):
    """One product on one target with tensor memory."""

    @property
    def chosen(self) -> tuple[Knob, ...]:
        return tuple(knob for knob in KNOBS if knob.name not in FIXED)

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return FIXED

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Instructions of 128 rows, unless the result has no more than 64, and the least prior among these."""
        s = self.sizes(columns)
        usual: Bools = (s.atoms_m == 2) | (self.gemm.m.extent <= WGMMA_M)
        return best_by_prior(self.prior_seconds(columns, peaks), usual, MOST_SETTINGS, np.inf)


def _plan(workload: Workload, target: Target) -> Tcgen05Plan | None:
    if target.arch != ARCHITECTURE:
        return None
    gemm = gemm_of(workload, several=True, block_scaled=True)
    gemm = gemm and with_dynamic_rows(gemm, workload)
    if gemm is None or not can_use_wgmma(gemm) or pair_count(gemm) > 1 or promoted_k_atoms(gemm):
        return None
    if gemm.block_scales is not None:
        return Tcgen05Plan(gemm, target) if gemm.dynamic is None and not gemm.batch else None
    if gemm.dynamic is not None:
        return Tcgen05Plan(gemm, target) if takes_dynamic_rows(gemm) else None
    if not gemm.others and gemm.a.load is not None and gemm.a.load.dtype.bits == 16 and skinny_gemm_of(workload):
        return None
    return Tcgen05Plan(gemm, target)


CUDA_GEMM_TCGEN05 = TileSketch("cuda_gemm_tcgen05", VERSION, QUANTITIES, _plan, dynamic=True)
