"""Convolutions on Hopper, by im2col TMA and wgmma: those of the settings of a product, and the order of k.

Images and filters are 16-bit floats with the channels of an image side by side (NHWC and its kin), in one to three
dimensions, with padding, strides and dilations. Groups are a batch of products. Epilogues are those of ``cuda_gemm``.
What that sketch takes, a window of one place that moves pixel by pixel, is left to it. Images whose channels TMA cannot
load, since pixels do not begin at multiples of 16 bytes, are repacked by a first launch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, skinny_gemm_of
from ...problems.implicit_gemm import implicit_gemm_of
from ...sketch import Peaks
from ...space.columns import Columns, Ints
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..gemm.epilogue import can_store_by_tma
from ..gemm.kernel import lower_gemm
from ..gemm.mainloop import can_use_wgmma
from ..gemm.prior import prior_seconds
from ..gemm.space import ARCHITECTURE, CUDA_GEMM, QUANTITIES, GemmPlan
from ..peaks import gpu_peaks

VERSION = 1
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""

K_ORDER = Knob("taps_innermost", (0, 1), "whether k goes through all taps of 64 channels before the next 64 channels")
PIXELS, IM2COL = "pixels", "im2col"
"""The knob that says how pixels are loaded, and its value where they are loaded by im2col. Other values are patches."""
MOST_PATCHES = 2
"""So many kinds of patches are tried: those of the fewest images, and of these the most even ones."""


@dataclass(frozen=True)
class ConvPlan(GemmPlan):
    """One convolution on one target. ``patched``: the same product for each kind of patch, by its name."""

    patched: Mapping[str, Gemm]

    @property
    def knobs(self) -> tuple[Knob, ...]:
        meaning = "how pixels are loaded: by im2col, or in boxes of images x pixels along each dimension"
        return (*super().knobs, K_ORDER, Knob(PIXELS, (IM2COL, *self.patched), meaning))

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        window = self.gemm.window
        assert window is not None
        ordered = window.tap_count > 1 and window.channels > SWIZZLE_128B_ELEMENTS
        rule = Constraint(
            "taps_innermost is 0 where it changes no order: with one tap, or 64 channels at most",
            (K_ORDER.name,),
            lambda c: (c.ints(K_ORDER.name) == 0) | ordered,
        )
        whole = Constraint(
            f"pixels are loaded by {IM2COL} where a CTA loads no whole patches of {WGMMA_M} rows of A",
            ("consumer_warpgroups", "ping_pong", "atoms_m", "cluster_n", PIXELS),
            lambda c: c.flags(PIXELS, IM2COL) | (_rows_of_a_load(c) % WGMMA_M == 0),
        )
        return (*super().constraints, rule, whole)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> NDArray[np.float64]:
        """As for products. Patches take as long as a matrix to load, pixels by im2col may take longer."""
        by_im2col = super().prior_seconds(columns, peaks)
        for gemm in self.patched.values():
            in_patches = prior_seconds(gemm, self.sizes(columns), gpu_peaks(self.target, peaks))
            return np.where(columns.flags(PIXELS, IM2COL), by_im2col, in_patches)
        return by_im2col

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        gemm = self.patched.get(str(setting[PIXELS]), self.gemm)
        assert gemm.window is not None
        window = replace(gemm.window, taps_innermost=bool(setting[K_ORDER.name]))
        return lower_gemm(replace(gemm, window=window), KERNEL_NAME, self.sizes_of(setting))


def _rows_of_a_load(columns: Columns) -> Ints:
    """How many rows of A a CTA loads for one k atom: those of its tile, shared out among the CTAs that need it."""
    groups = columns.ints("consumer_warpgroups")
    atoms = columns.ints("atoms_m") * np.where(columns.ints("ping_pong") == 1, 1, groups)
    rows: Ints = WGMMA_M * atoms // columns.ints("cluster_n")
    return rows


def _plan(workload: Workload, target: Target) -> ConvPlan | None:
    if target.arch != ARCHITECTURE or skinny_gemm_of(workload) is not None or CUDA_GEMM.matches(workload, target):
        return None
    gemm = implicit_gemm_of(workload)
    if gemm is None or not can_use_wgmma(gemm):
        return None
    return ConvPlan(gemm, target, _patched(workload, gemm))


def _patched(workload: Workload, gemm: Gemm) -> Mapping[str, Gemm]:
    """The products whose rows come patch by patch, for windows that move pixel by pixel."""
    assert gemm.window is not None
    found = dict[str, Gemm]()
    for patch in gemm.window.patches(WGMMA_M) if set(gemm.window.strides) == {1} else ():
        product = implicit_gemm_of(workload, patch)
        if product is not None and can_store_by_tma(product) == can_store_by_tma(gemm) and len(found) < MOST_PATCHES:
            found["x".join(map(str, patch))] = product
    return found


CUDA_CONV = TileSketch("cuda_conv", VERSION, QUANTITIES, _plan)
