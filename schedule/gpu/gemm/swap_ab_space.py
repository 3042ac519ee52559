"""Describes products on Hopper whose sides change places: the sketch ``cuda_gemm_swap_ab``.

The kernel is that of ``cuda_gemm`` for the transposed product: rows of the result are columns of its tiles, and columns
are rows. The epilogue transposes what it stages. Tiles have multiples of 64 rows and of 8 columns, so that swapped
ones can divide the rows of a result more evenly among the multiprocessors:

    6272 x 256 on 132 of them      49 x 2 tiles of 128 x 128, or swapped 66 x 2 tiles of 96 x 128

``mma_n`` is how many columns a tile has at most. Tiles have as many columns each as share those of the product evenly,
so that one setting serves few rows of any number well:

    150, 300, 600 rows, mma_n 256      1 tile of 152, 2 of 152, 3 of 200

Operands and results are 16-bit floats, whose rows TMA loads and stores. There is one sum. Results of many rows and more
columns gain nothing, nor do large ones, which have many waves of tiles.

Products in TF32 of a B whose rows lie along ``n`` gain at any size: B would be packed first, and the left operand of
wgmma may come from registers (``fragments``). These are stored from registers.
"""

from dataclasses import dataclass, replace

import numpy as np

from ....core.target import Target
from ....ir.gpu.wgmma import WGMMA_M
from ....ir.rewrite import free_variables, loads_of
from ....te.workload import Workload
from ...problems.gemm import Gemm, gemm_of, skinny_gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...space.pruning import best_by_prior
from ...tile_sketch import TileSketch
from .constraints import GRID
from .fragments import with_a_in_registers
from .mainloop import can_use_wgmma
from .repack import uneven_operands
from .result_box import can_store_by_tma
from .sizes import MMA_N, even_mma_n, stores_tiles
from .space import ARCHITECTURE, QUANTITIES, GemmPlan, with_slices

VERSION = 2
FEW_ROWS = 1536
"""A result with so many rows at most may have more columns than rows."""
MOST_TILES = 4
"""The result has at most so many tiles of 128 x 128 for each multiprocessor."""
WORTH = 0.98
"""A setting is tried whose prior is less than so many times the least of the product as it is."""
MOST_COLUMNS = "how many columns, which are rows of the result, wgmma and a tile have at most; tiles share them evenly"
FEW_SETTINGS = 12
"""So many settings are tried where fewer are that good."""


@dataclass(frozen=True)
class SwappedPlan(GemmPlan):
    """One product on one target: ``gemm`` is the transposed one, and ``plain`` has it as it is."""

    plain: GemmPlan

    @property
    def chosen(self) -> tuple[Knob, ...]:
        return tuple(replace(knob, meaning=MOST_COLUMNS) if knob.name == "mma_n" else knob for knob in super().chosen)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        if self.gemm.a_in_registers:
            return tuple(_with_cluster(rule) for rule in super().constraints)
        staged = Constraint(
            "whole tiles are transposed in shared memory: epilogue_stages is not 0 where CTAs have any to store",
            (*GRID.split(), "epilogue_stages"),
            lambda c: (c.ints("epilogue_stages") > 0) | ~stores_tiles(self.sizes(c)),
        )
        return (*(_with_cluster(rule) for rule in super().constraints), staged)

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Return what is worth a measurement and, by the prior, faster than any setting of the product as it is; a few
        settings where hardly any is."""
        prior = self.prior_seconds(columns, peaks)
        kept = super().promising(columns, peaks) & self._stands_for_equals(columns)
        legal = np.all([rule.holds(columns) for rule in self.plain.constraints], axis=0)
        others = self.plain.prior_seconds(columns, peaks)[legal]
        faster: Bools = kept & (prior < WORTH * others.min(initial=np.inf))
        return faster if faster.sum() >= FEW_SETTINGS else best_by_prior(prior, kept, FEW_SETTINGS)

    def _stands_for_equals(self, columns: Columns) -> Bools:
        """Return whether ``mma_n`` is the largest of those that make tiles of its width."""
        values = np.array(sorted(MMA_N), np.int64)
        most, cluster_m = columns.ints("mma_n"), columns.ints("cluster_m")
        stands: Bools = np.zeros(len(columns), dtype=bool)
        for ctas in np.unique(cluster_m):
            widths = even_mma_n(self.gemm.n.extent, values, np.full_like(values, ctas))
            widest = dict(zip(widths.tolist(), values.tolist(), strict=True))
            stands |= (cluster_m == ctas) & np.isin(most, list(widest.values()))
        return stands


def _plan(workload: Workload, target: Target) -> SwappedPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    gemm, plain = gemm_of(workload, swapped=True), gemm_of(workload)
    if gemm is None or plain is None or not gemm.along_m:
        return None
    loaded = with_slices(with_a_in_registers(gemm))
    if loaded.a_in_registers and gemm.m.extent >= WGMMA_M and can_use_wgmma(loaded):
        return SwappedPlan(loaded, target, GemmPlan(with_slices(with_a_in_registers(plain)), target))
    if skinny_gemm_of(workload) is not None:
        return None
    few_rows = gemm.n.extent <= FEW_ROWS
    if gemm.m.extent < WGMMA_M or not (few_rows or gemm.m.extent < gemm.n.extent):
        return None
    if not can_use_wgmma(gemm) or uneven_operands(gemm, as_views=True):
        return None
    assert gemm.a.load is not None
    if gemm.a.load.dtype.bits != 16 or not can_store_by_tma(gemm):
        return None
    if gemm.n.extent % 2 and _reads_along_n(gemm):
        return None
    tiles = -(-gemm.m.extent // 128) * -(-gemm.n.extent // 128)
    return SwappedPlan(gemm, target, GemmPlan(plain, target)) if tiles <= MOST_TILES * target.threads else None


def _with_cluster(rule: Constraint) -> Constraint:
    """Return the constraint, which reads ``cluster_m``, too, where it reads ``mma_n``: the width of tiles depends on
    both."""
    width = "mma_n" in rule.knobs and "cluster_m" not in rule.knobs
    return replace(rule, knobs=(*rule.knobs, "cluster_m")) if width else rule


def _reads_along_n(gemm: Gemm) -> bool:
    """Return whether results read other tensors along ``n``, which are loaded two at a time."""
    loads = (load for result in gemm.results for load in loads_of(result.value))
    return any("n" in free_variables(load) for load in loads if load.buffer.name not in gemm.accumulators)


CUDA_GEMM_SWAP_AB = TileSketch("cuda_gemm_swap_ab", VERSION, QUANTITIES, _plan)
