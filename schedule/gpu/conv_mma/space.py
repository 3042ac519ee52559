"""Describes the space of kernels of convolutions with few filters: knobs, constraints, quantities and what is promising
(sketch ``cuda_conv_mma``).

Images and filters are 16-bit floats, or float32 that the precision lets matrix units round to TF32. The channels of an
image are side by side (NHWC and its kin), a multiple of 16 bytes. There are one to three dimensions, with padding,
strides and dilations. Epilogues are those of products. With up to 16 filters, convolutions may be transposed, and
outputs may lie in any order. With up to 128, images have up to 64 channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.gpu.tma import MAX_BOX_EXTENT
from ....ir.rewrite import free_variables
from ....ir.stmt import Kernel
from ....ir.verifier.tma import CHUNK_BYTES
from ....te.workload import Workload
from ...problems.gemm import Gemm, gemm_of
from ...problems.implicit_gemm import implicit_gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, derived_once
from ...space.constraint import Constraint
from ...space.enumerate import has_legal_setting
from ...space.knob import Knob
from ...space.pruning import best_by_prior
from ...tile_sketch import TileSketch
from ..occupancy import limits_of
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, WINDOW_QUANTITIES, gpu_columns
from .kernel import conv_mma_kernel
from .prior import conv_mma_seconds
from .sizes import (
    ConvMmaSizes,
    chunk_channels,
    column_dimensions,
    conv_mma_sizes,
    filter_count,
    operand_bytes,
    stores_registers,
    tile_extents,
    warp_atom,
)

FEW_FILTERS = 16
"""With more filters, a tap fills the columns of instructions alone."""
MOST_FILTERS, MOST_CHANNELS = 128, 64
"""Filters at most, and channels with more than a few filters: sums and filters fit registers and shared memory."""
MOST_PAIRS = 48 * 64
"""Pairs of a channel and a filter at most, with more than a few filters. wgmma multiplies more of them faster, and
shared memory has no room for them beside the pixels of a volume."""
LEAST_PIXELS = 16
"""A plane of outputs has so many pixels, those of one matrix instruction. Filters of the size of an image are none."""
MOST_COLUMNS = 256
"""Columns at most. A thread has half as many accumulators for each matrix instruction that has its pixels."""
WARPS = (4, 2, 3, 5, 6, 8, 10, 11, 12, 16)
"""Warps of a block."""
LARGEST_TILE = 128
"""Outputs of a patch along a dimension, at most."""
NEAR, MOST_SETTINGS = 1.5, 400
"""How much slower than the best one a promising setting may be by the prior, and how many there are at most."""


@dataclass(frozen=True)
class ConvMmaPlan(GpuPlan):
    """The settings of a convolution on a target. ``gemm``: the workload as a product."""

    workload: Workload
    gemm: Gemm
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        assert self.gemm.window is not None
        depth, height, width = (1, 1, *self.gemm.window.positions)[-3:]
        few, from_registers = self.gemm.n.extent <= FEW_FILTERS, stores_registers(self.gemm)
        return (
            Knob(
                "tile_d",
                tuple(n for n in (1, 2, 4, 8) if n < 2 * depth) if from_registers else (1,),
                "how many neighbouring planes of outputs a patch has",
            ),
            Knob(
                "tile_h",
                tile_extents(height, LARGEST_TILE),
                "how many neighbouring outputs along the height a patch has",
            ),
            Knob(
                "tile_w", tile_extents(width, LARGEST_TILE), "how many neighbouring outputs along the width a patch has"
            ),
            Knob(
                "column_taps",
                tuple(column_dimensions(self.gemm.window)) if few else (1,),
                "how many taps of a filter are columns at once",
            ),
            Knob("threads", tuple(WARP_LANES * n for n in WARPS), "how many threads a block has"),
            Knob("stages", (2, 1, 3, 4, 6), "how many stages of pixels and channels are in shared memory"),
            Knob("persistent", (0, 1), "whether as many blocks as fit compute all patches"),
            Knob(
                "staged_epilogue",
                (*((1,) if few else ()), *((0,) if from_registers else ())),
                "whether sums go through shared memory, where those of several taps are added up",
            ),
        )

    @derived_once
    def sizes(self, columns: Columns) -> ConvMmaSizes:
        return conv_mma_sizes(self.gemm, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        chunks = -(-self.channels // chunk_channels(self.gemm))
        return (
            Constraint(
                "blocks with one patch have no more stages than pixels have parts of 128 bytes",
                ("stages", "persistent"),
                lambda c: (c.ints("persistent") == 1) | (c.ints("stages") <= chunks),
            ),
            self.rule(
                f"a patch sees at most {MAX_BOX_EXTENT} pixels along each dimension",
                None,
                lambda s: s.most_along_box <= MAX_BOX_EXTENT,
            ),
            Constraint(
                "only sums of one tap at a time, with which patches may have several planes, stay in registers",
                ("tile_d", "column_taps", "staged_epilogue"),
                lambda c: np.where(c.ints("staged_epilogue") == 1, c.ints("tile_d") == 1, c.ints("column_taps") == 1),
            ),
            Constraint(
                f"a product has at most {MOST_COLUMNS} columns, one for each of these taps and each filter",
                ("column_taps",),
                lambda c: c.ints("column_taps") * filter_count(self.gemm) <= MOST_COLUMNS,
            ),
            self.rule("all warps have pixels to multiply", None, lambda s: s.threads // WARP_LANES <= s.atoms),
            self.rule(
                "blocks stay where there are patches for several rounds",
                None,
                lambda s: (s.persistent == 0) | (s.rounds > 1),
            ),
            *self.launch_rules(self.limits.shared_bytes_per_block),
        )

    @property
    def channels(self) -> int:
        assert self.gemm.window is not None
        return self.gemm.window.channels

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        seconds = self.prior_seconds(columns, peaks)
        return best_by_prior(seconds, np.ones(len(columns), dtype=bool), MOST_SETTINGS, NEAR)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return conv_mma_seconds(self.workload, self.gemm, self.target, self.sizes(columns), peaks)

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        outputs = sizes.tile_d * sizes.tile_h * sizes.tile_w
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.stages * sizes.stage_bytes // sizes.threads),
            "outputs": outputs / sizes.threads,
            "loads_per_output": sizes.box_pixels * self.channels / outputs,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        sizes = self.sizes_of(setting)
        assert self.gemm.window is not None
        patch = (1, *(sizes.tile_d, sizes.tile_h, sizes.tile_w)[-len(self.gemm.window.positions) :])
        gemm = implicit_gemm_of(self.workload, patch, along_n=None)
        assert gemm is not None
        return conv_mma_kernel(gemm, sizes)


def _plan(workload: Workload, target: Target) -> ConvMmaPlan | None:
    if not limits_of(target).clusters:  # where there is TMA, there are clusters
        return None
    gemm = implicit_gemm_of(workload, along_n=None)
    if gemm is None or gemm.window is None or gemm.a.load is None or gemm.b.load is None:
        return None
    if free_variables(gemm.a.load) & {axis.name for axis in gemm.batch}:  # the batch is groups, not phases
        return None
    window = gemm.window
    if warp_atom(gemm) is None or window.channels * operand_bytes(gemm) % CHUNK_BYTES:
        return None
    if gemm.n.extent > MOST_FILTERS or filter_count(gemm) > MOST_COLUMNS:
        return None
    if gemm.n.extent > FEW_FILTERS and (window.channels > MOST_CHANNELS or not stores_registers(gemm)):
        return None
    if gemm.n.extent > FEW_FILTERS and gemm.n.extent * window.channels > MOST_PAIRS:
        return None
    if prod(window.positions[-2:]) < LEAST_PIXELS:
        return None
    if window.tap_count == 1 and gemm_of(workload) is not None:  # it is a product of matrices
        return None
    plan = ConvMmaPlan(workload, gemm, target)
    return (
        plan if has_legal_setting(plan.knobs, plan.constraints) else None
    )  # the filters of many taps and channels fit no shared memory


CUDA_CONV_MMA = TileSketch("cuda_conv_mma", 1, (*GPU_QUANTITIES, *WINDOW_QUANTITIES), _plan)
"""Convolutions with few filters on matrix units."""
