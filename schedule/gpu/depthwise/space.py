"""Describes the space of kernels of depthwise convolutions on matrix units: knobs, constraints, quantities and what is
promising (sketch ``cuda_depthwise``)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.depthwise import CHUNK_CHANNELS, Depthwise, depthwise_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..occupancy import limits_of
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, WINDOW_QUANTITIES, gpu_columns
from .kernel import depthwise_kernel
from .prior import depthwise_seconds
from .sizes import DepthwiseSizes, depthwise_sizes

ROW_TILES = (1, 2, 3, 4, 5, 6, 8)
"""Into how many strips the rows of an image are divided."""
MOST_ROWS = 9
"""Rows of a window, at most: a thread has accumulators and filters for each."""
WARPS = (2, 3, 5, 6, 7, 8, 10, 14, 16)
"""Warps of a block."""
NEAR = 1.5
"""How much slower than the best one a promising setting may be by the prior."""


@dataclass(frozen=True)
class DepthwisePlan(GpuPlan):
    """The settings of a depthwise convolution on a target."""

    problem: Depthwise
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        heights = dict.fromkeys(-(-self.problem.height.axis.extent // tiles) for tiles in ROW_TILES)
        return (
            Knob("vector_width", (4, 8), "how many neighbouring channels a thread computes"),
            Knob("tile_h", tuple(heights), "how many neighbouring outputs along the height a strip has"),
            Knob("threads", tuple(WARP_LANES * n for n in WARPS), "how many threads a block has"),
            Knob("stages", (2, 3, 4, 5, 6), "how many stages of rows of the input are in shared memory"),
            Knob("persistent", (0, 1), "whether as many blocks as fit compute all strips"),
        )

    @derived_once
    def sizes(self, columns: Columns) -> DepthwiseSizes:
        return depthwise_sizes(self.problem, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            Constraint(
                "neighbouring pixels lie in different banks of shared memory: a block has 64 channels, or an odd "
                f"number of {CHUNK_CHANNELS}",
                ("vector_width", "threads"),
                self._pixels_lie_apart,
            ),
            self.rule(
                "there are no more stages than rows fill, or two",
                None,
                lambda s: s.stages <= np.maximum(s.rounds * s.steps, 2),
            ),
            self.rule(
                "blocks stay where there are strips for several rounds",
                None,
                lambda s: (s.persistent == 0) | (s.rounds > 1),
            ),
            *self.launch_rules(self.limits.shared_bytes_per_block),
        )

    def _pixels_lie_apart(self, columns: Columns) -> Bools:
        chunks, rest = np.divmod(columns.ints("threads") // WARP_LANES * columns.ints("vector_width"), CHUNK_CHANNELS)
        found: Bools = (rest == 0) & ((chunks % 2 == 1) | (chunks == 8))
        return found

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        seconds = self.prior_seconds(columns, peaks)
        found: Bools = seconds <= NEAR * seconds.min()
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return depthwise_seconds(self.problem, self.target, self.sizes(columns), peaks)

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        outputs = sizes.strips * sizes.tile_w * sizes.tile_h
        stage_bytes = (
            sizes.stage_rows * sizes.strips * sizes.row_room * sizes.vector_width * self.problem.pixels.dtype.bytes
        )
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.stages * stage_bytes // WARP_LANES),
            "outputs": outputs / WARP_LANES,
            "loads_per_output": sizes.strips * sizes.row_room * sizes.needed_rows / outputs,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return depthwise_kernel(self.problem, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> DepthwisePlan | None:
    problem = depthwise_of(workload) if limits_of(target).clusters else None  # where there is TMA, there are clusters
    return None if problem is None or problem.rows > MOST_ROWS else DepthwisePlan(problem, target)


CUDA_DEPTHWISE = TileSketch("cuda_depthwise", 1, (*GPU_QUANTITIES, *WINDOW_QUANTITIES), _plan)
