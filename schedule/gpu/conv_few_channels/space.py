"""Describes the space of kernels of convolutions of few channels: knobs, constraints, quantities and what is promising
(sketch ``cuda_conv_few_channels``).

Images and filters are 16-bit floats, or float32 that the precision lets matrix units round to TF32. The channels of an
image are side by side (NHWC and its kin), and so few, or so odd a number, that TMA cannot load a pixel; or they are
planes (NCHW, NCW). There are one to three dimensions, with padding, strides, and dilations of all but the last one.
Epilogues are those of products. Neighbours in the results are filters or pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
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
from ..conv_mma.sizes import operand_bytes, tile_extents, warp_atom
from ..occupancy import limits_of
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, WINDOW_QUANTITIES, gpu_columns
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from .filter_columns import FilterColumnsWriter
from .filter_rows import FilterRowsWriter
from .prior import few_channels_seconds
from .sizes import FewChannelsSizes, few_channels_sizes, interleaved, k_atoms

MOST_CHANNELS, MOST_PLANES = 15, 7
"""Channels at most, where they are side by side, and where they are planes."""
MOST_SIDE_BY_SIDE = 8
"""Matrix instructions along k at most where no windows overlap. Copying such patches of pixels to the rows of a matrix
writes no pixel twice, and wgmma multiplies long rows faster."""
TILE_HEIGHTS = (8, 4, 16, 2, 1, 32)
"""Rows of outputs of a patch."""
LARGEST_TILE = 256
"""Outputs of a row of a patch, at most."""
NEAR, MOST_SETTINGS = 1.5, 400
"""How much slower than the best one a promising setting may be by the prior, and how many there are at most."""


@dataclass(frozen=True)
class FewChannelsPlan(GpuPlan):
    """The settings of a convolution on a target. ``gemm``: the workload as a product."""

    workload: Workload
    gemm: Gemm
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        assert self.gemm.window is not None
        height, width = (1, *self.gemm.window.positions)[-2:]
        unit = ATOM_M * interleaved(self.gemm)
        most, unit_n = -(-self.gemm.n.extent // ATOM_N), 2 if self.gemm.along_pixels else 1
        heights = tuple(n for n in TILE_HEIGHTS if n < 2 * height)
        return (
            Knob("tile_h", heights, "how many neighbouring outputs along the height a patch has"),
            Knob(
                "tile_w",
                tile_extents(width, LARGEST_TILE, unit),
                "how many neighbouring outputs along the width a patch has",
            ),
            Knob("warps_m", (4, 2, 8, 1), "how many warps of a block share its pixels"),
            Knob("warps_n", tuple(n for n in (1, 2, 4, 3, 5) if n <= most), "how many share its filters"),
            Knob("atoms_m", (1, 2, 4), "how many strips of 16 pixels a warp works on at once"),
            Knob(
                "atoms_n",
                tuple(n for n in (4, 8, 1, 2, 3, 5, 6, 7, 10, 12, 16) if n < most + unit_n and n % unit_n == 0),
                "how many matrix instructions along the filters a warp has",
            ),
            Knob("stages", (2, 1, 3), "how many stages of pixels are in shared memory"),
        )

    @derived_once
    def sizes(self, columns: Columns) -> FewChannelsSizes:
        return few_channels_sizes(self.gemm, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        together, n = interleaved(self.gemm), self.gemm.n.extent
        return (
            self.rule(
                "the warps share the strips of a row evenly, or the rows of a patch",
                ("tile_h", "tile_w", "warps_m"),
                lambda s: (
                    ((s.warps_m % s.across == 0) | (s.across % s.warps_m == 0))
                    & (s.tile_h * s.across % s.warps_m == 0)
                    & (s.warps_m % together == 0)
                ),
            ),
            self.rule(
                "a warp works on as many strips at once as divide all that it has",
                ("tile_h", "tile_w", "warps_m", "atoms_m"),
                lambda s: s.strips % s.atoms_m == 0,
            ),
            self.rule(
                "all warps have filters",
                ("warps_n", "atoms_n"),
                lambda s: s.groups * s.filters - n < s.atoms_n * ATOM_N,
            ),
            *self.launch_rules(self.limits.shared_bytes_per_block),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        seconds = self.prior_seconds(columns, peaks)
        return best_by_prior(seconds, np.ones(len(columns), dtype=bool), MOST_SETTINGS, NEAR)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return few_channels_seconds(self.workload, self.gemm, self.target, self.sizes(columns), peaks)

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        outputs = sizes.tile_h * sizes.tile_w
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.stages * sizes.stage_bytes // sizes.threads),
            "outputs": outputs / sizes.threads,
            "loads_per_output": sizes.rows * sizes.pitch / outputs,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        sizes = self.sizes_of(setting)
        assert self.gemm.window is not None
        sides = (sizes.tile_h, sizes.tile_w)[-len(self.gemm.window.positions) :]
        patch = (*(1 for _ in self.gemm.window.positions[: -len(sides)]), 1, *sides)
        gemm = _product(self.workload, patch)
        assert gemm is not None
        return (FilterRowsWriter if gemm.along_pixels else FilterColumnsWriter)(gemm, sizes).kernel()


def _product(workload: Workload, patch: tuple[int, ...] = ()) -> Gemm | None:
    """Return the product, of images with channels last or first; None where there is none with results whose filters,
    or else pixels, are neighbours. ``patch`` is one of windows with so many dimensions: channels ahead of the pixels
    count as one."""
    for channels_first, along_n in product((False, True), (True, False)):
        gemm = implicit_gemm_of(workload, along_n=along_n, channels_first=channels_first)
        window = None if gemm is None else gemm.window
        if window is None or window.positions[-1] == 1:
            continue
        if (window.taps[0] <= MOST_PLANES) if channels_first else (window.channels <= MOST_CHANNELS):
            return implicit_gemm_of(workload, patch, along_n=along_n, channels_first=channels_first)
    return None


def _plan(workload: Workload, target: Target) -> FewChannelsPlan | None:
    if not limits_of(target).async_copies or target.kind != "cuda":
        return None
    gemm = _product(workload)
    if gemm is None or gemm.window is None or gemm.a.load is None or gemm.b.load is None:
        return None
    window = gemm.window
    if gemm.batch or warp_atom(gemm) is None or gemm.a.load.buffer.name not in {b.name for b in gemm.inputs}:
        return None
    if window.channels * operand_bytes(gemm) % CHUNK_BYTES == 0:
        return None
    if window.taps[-1] > 1 and window.dilations[-1] > 1:
        return None
    if window.strides[-1] >= window.taps[-1] and (k_atoms(gemm) > MOST_SIDE_BY_SIDE or gemm_of(workload) is not None):
        return None  # no windows overlap: they are the rows of a matrix
    plan = FewChannelsPlan(workload, gemm, target)
    return plan if has_legal_setting(plan.knobs, plan.constraints) else None


CUDA_CONV_FEW_CHANNELS = TileSketch("cuda_conv_few_channels", 1, (*GPU_QUANTITIES, *WINDOW_QUANTITIES), _plan)
"""Convolutions of few channels on matrix units."""
