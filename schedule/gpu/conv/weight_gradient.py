"""Gradients of convolutions towards their filters on Hopper, by TMA and wgmma: the sketch ``cuda_conv_wgrad``.

The kernel is that of a product, whose operand B is images seen through a window (``problems.weight_gradient``). Both
operands are 16-bit floats with channels last. wgmma takes them as they lie, along their own axes, so that nothing is
copied. The sum goes over all output pixels, which are many, and its results are few: CTAs share it by split-K or
stream-K, and add up their sums in a fixed order.

Pixels are loaded by im2col, 64 in the order of memory, or in patches of 64. Of patches with a halo, a tile has all taps
along one dimension, whose columns begin some lines apart:

    3x3 on 28x28 pixels, halo_4x4x4      96 lines of 128 bytes for 192 columns of a k atom, not 192
"""

from collections.abc import Mapping

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, SWIZZLE_LINES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.gemm import Gemm, skinny_gemm_of
from ...problems.weight_gradient import weight_gradient_of
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch
from ..gemm.mainloop import can_use_wgmma
from ..gemm.repack import uneven_operands
from ..gemm.sizes import MMA_N
from ..gemm.space import ARCHITECTURE, CUDA_GEMM, QUANTITIES, GemmPlan
from .space import K_ORDER, ConvPlan, ConvPlans

VERSION = 1
LEAST_SHARE = 0.5
"""Which share of the places of a tap is channels, and of 64 rows filters, at least."""
VECTOR = 4
"""So many channels are stored at once."""


class WeightGradientPlan(ConvPlan):
    """One gradient on one target, whose pixels are loaded in one way."""

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return tuple(knob for knob in super().knobs if knob != K_ORDER)

    @property
    def _of_window(self) -> tuple[Constraint, ...]:
        return ()

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return GemmPlan.lower(self, setting)


def _plan(workload: Workload, target: Target) -> ConvPlans | None:
    if target.arch != ARCHITECTURE or skinny_gemm_of(workload) is not None or CUDA_GEMM.matches(workload, target):
        return None
    gemm, row = weight_gradient_of(workload, SWIZZLE_128B_ELEMENTS), SWIZZLE_128B_ELEMENTS
    if gemm is None or gemm.b.load is None or gemm.b_window is None or not can_use_wgmma(gemm):
        return None
    channels = gemm.b.load.buffer.shape[-1]
    if min(channels / gemm.b_window.channels, gemm.m.extent / row) < LEAST_SHARE or channels % VECTOR:
        return None
    products = [gemm] if uneven_operands(gemm, as_views=True) else [gemm, *_in_patches(workload, gemm)]
    return ConvPlans(tuple(WeightGradientPlan(product, target, {}) for product in products))


def _in_patches(workload: Workload, gemm: Gemm) -> list[Gemm]:
    """Return the products whose pixels come in patches, one of each kind. They are for windows that move pixel by
    pixel."""
    window, row = gemm.b_window, SWIZZLE_128B_ELEMENTS
    if window is None or set(window.strides) != {1}:
        return []
    patches = window.patches(row)
    wanted: list[tuple[tuple[int, ...], int | None]] = [(patch, None) for patch in patches[:1]]
    found = window.with_halo(row, SWIZZLE_LINES, patches, len(window.taps))
    if found is not None and found.halo_taps * row <= max(MMA_N):
        wanted.append((found.patch, found.halo))
    products = [weight_gradient_of(workload, row, patch, halo) for patch, halo in wanted]
    return [product for product in products if product is not None]


CUDA_CONV_WGRAD = TileSketch("cuda_conv_wgrad", VERSION, QUANTITIES, _plan)
