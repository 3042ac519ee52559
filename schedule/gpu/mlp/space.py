"""Describes the space of ``cuda_mlp``: layers of products with row statistics in one kernel, as wide as a block can
hold rows.

The sketch takes operands of 16-bit floats that are accumulated in float32. A is K-major, and B is K-major or N-major.
Layer after layer it takes any pointwise functions of the accumulators and of reductions of their rows (layer norm,
softmax).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.mlp import Mlp, mlp_of
from ...sketch import NO_PEAKS, Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.enumerate import all_settings
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from .kernel import can_lower_mlp, lower_mlp
from .prior import mlp_seconds
from .sizes import MlpSizes, mlp_sizes

LEAST_BLOCK_N = 64
"""How many columns a block of a cluster must have. Fewer are no work for its warps."""
MOST_ACCUMULATORS = 64
"""How many accumulators a thread may have. With more, the functions of them do not fit in registers."""
LEAST_COPIED = 64
"""How many elements of a row are copied at a time for a single layer. Shorter rows are slow."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("k_tiles", "tiles", "how many tiles of k all layers have, one after the other"),
    Quantity("stages", "stages", "how many of them the circular buffer in shared memory holds"),
    Quantity("accumulators", "registers", "how many accumulators a thread has, each in a register"),
    Quantity("b_bytes", "B", "how many bytes of B of all layers all blocks read together"),
)


@dataclass(frozen=True)
class MlpPlan(GpuPlan):
    """One chain of layers on one target."""

    mlp: Mlp
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        clusters = (1, 2, 4, 8) if self.limits.clusters and len(self.mlp.layers) == 1 else (1,)
        return (
            Knob("atoms_m", (1, 2, 4), "how many times 16 rows a block has"),
            Knob("warps_n", (8, 4, 16, 2), "how many warps of a block divide the columns among them"),
            Knob("tile_k", (64, 32, 128), "how many elements along k a block copies and multiplies at a time"),
            Knob("cluster_n", clusters, "how many blocks of a cluster divide the columns of the layer among them"),
            Knob(
                "ctas_per_sm",
                (1, 2, 4),
                "how many blocks a multiprocessor is meant to run at once; they share its memory",
            ),
        )

    @derived_once
    def sizes(self, columns: Columns) -> MlpSizes[Ints]:
        return mlp_sizes(self.mlp, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        p = self.mlp

        def whole_tiles(columns: Columns) -> Bools:
            found: Bools = np.all([layer.k.extent % columns.ints("tile_k") == 0 for layer in p.layers[1:]], axis=0)
            return found

        def whole_atoms(columns: Columns) -> Bools:
            cluster_n = columns.ints("cluster_n")
            found: Bools = np.all([layer.n.extent % (cluster_n * ATOM_N) == 0 for layer in p.layers], axis=0) | (
                cluster_n == 1
            )
            return found

        later = Constraint("tile_k divides the width of every layer but the last", ("tile_k",), whole_tiles)
        return (
            *((later,) if len(p.layers) > 1 else ()),
            Constraint(
                f"cluster_n divides the columns of a layer into multiples of {ATOM_N}", ("cluster_n",), whole_atoms
            ),
            self.rule(
                f"a thread has at most {MOST_ACCUMULATORS} accumulators for atoms_m times {ATOM_M} rows of its part of "
                "the columns (divided among cluster_n blocks of warps_n warps), and the registers of ctas_per_sm "
                "blocks fit on a multiprocessor",
                ("atoms_m", "warps_n", "cluster_n", "ctas_per_sm"),
                lambda s: (
                    (self.limits.resident_blocks(s.threads, s.registers, 0) >= s.ctas_per_sm)
                    & (s.accumulators <= MOST_ACCUMULATORS)
                ),
            ),
            self.rule(
                "two stages of tile_k elements (or all there are), A and the row statistics fit in the shared memory "
                "of each of ctas_per_sm blocks",
                None,
                lambda s: s.stages >= np.minimum(s.k_tiles, 2),
            ),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        p, size = self.mlp, self.sizes(columns)
        shortest = min(layer.k.extent for layer in p.layers)
        short_copies_pay = len(p.layers) > 1 or shortest % LEAST_COPIED > 0 or not self.limits.clusters
        copied = short_copies_pay | (size.tile_k >= LEAST_COPIED)
        # nothing is gained by warps without columns, by rows or elements of k that there are none of, or by room on
        # a multiprocessor that no block takes
        busy = (size.warps_n - 1) * size.warp_atoms < size.block_n // ATOM_N
        enough = (size.cluster_n == 1) | (size.block_n >= LEAST_BLOCK_N)
        filled = (size.block_m < p.m.extent + ATOM_M) & ((size.tile_k == 32) | (size.tile_k < shortest + 32))
        resident = (size.ctas_per_sm == 1) | (size.blocks > self.target.threads * (size.ctas_per_sm // 2))
        found: Bools = copied & busy & enough & filled & resident
        return found

    @cached_property
    def is_possible(self) -> bool:
        """Whether there is a legal setting that is promising."""
        columns = all_settings(self.knobs)
        legal = np.all([rule.holds(columns) for rule in self.constraints], axis=0)
        return bool((legal & self.promising(columns, NO_PEAKS)).any())

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return mlp_seconds(self.mlp, gpu_peaks(self.target, peaks), self.sizes(columns))

    def derive(self, columns: Columns) -> Derived:
        size = self.sizes(columns)
        within = replace(size, registers=np.minimum(size.registers, 255))
        return {
            **gpu_columns(self.target, within, wanted=size.stage_bytes * np.maximum(size.stages, 1) // size.threads),
            "k_tiles": size.k_tiles,
            "stages": size.stages,
            "accumulators": size.accumulators,
            "b_bytes": size.b_bytes,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_mlp(self.mlp, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> MlpPlan | None:
    mlp = mlp_of(workload)
    if mlp is None or not can_lower_mlp(mlp):
        return None
    plan = MlpPlan(mlp, target)
    return plan if plan.is_possible else None


CUDA_MLP = TileSketch("cuda_mlp", 4, QUANTITIES, _plan)
