"""Describes the settings of convolutions by Winograd's F(2 x 2, 3 x 3) (sketch ``cpu_winograd``).

They are those of the blocked products of tiles and filters. It takes convolutions in two dimensions with channels last,
without strides, dilations and groups, that are summed in float32 or float64.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ....core.dtypes import float32, float64
from ....core.target import Target
from ....te.workload import Axis, Workload
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Floats, Ints
from ...tile_sketch import FAR, TileSketch
from ..gemm.blocked_product import BlockedProduct
from ..gemm.micro_kernel import MicroKernel
from ..gemm.space import QUANTITIES, CpuGemmPlan, is_large, reads_nothing_else
from ..limits import vector_registers
from ..peaks import cpu_peaks
from .kernel import POINTS, lower_winograd, tile_rows_of
from .prior import sum_bytes, winograd_seconds

MR = (4, 6, 7, 8, 9, 10, 12, 14, 16)
VECTORS = (1, 2, 3, 4)


@dataclass(frozen=True)
class WinogradPlan(CpuGemmPlan):
    """Products of all points as one. An element of an operand has a number for each point."""

    def _scratch_bytes(self, c: Columns) -> Ints:
        return np.asarray(super()._scratch_bytes(c) + sum_bytes(self.product, self.product.sizes(c)))

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        seconds = self.prior_seconds(columns, peaks)
        return np.asarray(seconds <= FAR * seconds.min())

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return winograd_seconds(self.product, columns, cpu_peaks(self.product.target, peaks))


def _plan(workload: Workload, target: Target) -> WinogradPlan | None:
    p, tiles = tile_rows_of(workload) or (None, None)
    if p is None or tiles is None or not reads_nothing_else(p):
        return None
    dtype = p.accumulator.dtype
    if dtype not in (float32, float64):
        return None
    kernel = MicroKernel(
        lanes=max(1, target.vector_bytes // dtype.bytes),
        mr=MR,
        vectors=VECTORS,
        registers=vector_registers(target),
        k_step=p.k.extent,
        packed_bytes=POINTS * dtype.bytes,
        a_in_place=False,
        a_whole=False,
        sums_in_output=False,
        flops=lambda peaks: peaks.vector_flops(dtype) / POINTS,
        lower=partial(lower_winograd, tiles=tiles),
    )
    products = replace(p, batch=(Axis("point", POINTS),))
    return WinogradPlan(BlockedProduct(p, target, kernel, workload.constants)) if is_large(products, kernel) else None


CPU_WINOGRAD = TileSketch("cpu_winograd", 1, QUANTITIES, _plan, kind="llvm")
