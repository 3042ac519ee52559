"""Convolutions on Hopper, by im2col TMA and wgmma: those of the settings of a product, and the order of k.

Images and filters are 16-bit floats with the channels of an image side by side (NHWC and its kin), in one to three
dimensions, with padding, strides and dilations. Groups are a batch of products. Epilogues are those of ``cuda_gemm``.
What that sketch takes, a window of one place that moves pixel by pixel, is left to it. Images whose channels TMA cannot
load, since pixels do not begin at multiples of 16 bytes, are repacked by a first launch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm
from ...problems.implicit_gemm import implicit_gemm_of
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..gemm.kernel import lower_gemm
from ..gemm.mainloop import can_use_wgmma
from ..gemm.space import ARCHITECTURE, CUDA_GEMM, QUANTITIES, GemmPlan

VERSION = 1
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""

K_ORDER = Knob("taps_innermost", (0, 1), "whether k goes through all taps of 64 channels before the next 64 channels")


@dataclass(frozen=True)
class ConvPlan(GemmPlan):
    """One convolution on one target."""

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (*super().knobs, K_ORDER)

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
        return (*super().constraints, rule)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        assert self.gemm.window is not None
        window = replace(self.gemm.window, taps_innermost=bool(setting[K_ORDER.name]))
        return lower_gemm(replace(self.gemm, window=window), KERNEL_NAME, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> ConvPlan | None:
    if target.arch != ARCHITECTURE or CUDA_GEMM.matches(workload, target):
        return None
    gemm: Gemm | None = implicit_gemm_of(workload)
    return None if gemm is None or not can_use_wgmma(gemm) else ConvPlan(gemm, target)


CUDA_CONV = TileSketch("cuda_conv", VERSION, QUANTITIES, _plan)
