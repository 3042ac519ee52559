"""Strided windows over rows of wider pixels (space to depth along a row).

Pixels of 32 channels fill half of each row of 128 bytes that TMA loads. But the channels of neighbouring pixels are
side by side in memory, and where windows move by two pixels, two of them are one with twice the channels. By those,
windows move one by one, so that their places in a row are loaded with one halo (``image_window``). Images stay as they
are. A first launch writes the filters, with zeros for what a window does not see of its wide pixels. (An infinity there
becomes NaN, since it is multiplied with zero.)

    window of 3 pixels from pixel -1 on             pixels          -1 | 0 1
    window of 2 wide pixels from wide pixel -1 on   wide pixels  -2 -1 | 0 1
"""

from dataclasses import dataclass, replace
from math import prod

from ....ir.buffer import Buffer
from ....ir.expr import Load, Var, const
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis
from ....ir.verifier.tma import CHUNK_BYTES
from ...problems.gemm import Gemm, Operand
from ...problems.image_window import TAP, ImageWindow
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter
from ..gemm.mainloop import can_use_wgmma
from ..gemm.mma_atom import find_atom

THREADS = 256
"""Threads of a CTA of the launch that writes filters."""


@dataclass(frozen=True, slots=True)
class SpaceToDepth:
    """How windows of ``gemm`` see wide pixels. ``filters`` is (tap, channel of a wide pixel, filter), or (filter, tap,
    channel) if ``k_major``."""

    gemm: Gemm
    filters: Buffer
    k_major: bool

    @property
    def _given(self) -> ImageWindow:
        assert self.gemm.window is not None
        return self.gemm.window

    @property
    def stride(self) -> int:
        """How many pixels are one."""
        return self._given.strides[-1]

    @property
    def window(self) -> ImageWindow:
        """The window over wide pixels."""
        old = self._given
        first, taps = _wide_taps(old)
        return replace(
            old,
            taps=(*old.taps[:-1], taps),
            strides=(*old.strides[:-1], 1),
            lower=(*old.lower[:-1], first),
            channels=self.stride * old.channels,
        )

    def product(self) -> Gemm:
        """Return the product on wide pixels."""
        window, image = self.window, self.gemm.a.load
        assert image is not None
        *outer, pixels, _ = image.buffer.shape
        wide = Buffer(
            image.buffer.name,
            (*outer, pixels // self.stride, window.channels),
            image.buffer.dtype,
            image.buffer.scope,
        )
        a = Load(wide, (*window.corner(Var("m")), Var("k")))
        place = (Var(TAP), Var("k"))
        b = Load(self.filters, (Var("n"), *place) if self.k_major else (*place, Var("n")))
        k = replace(self.gemm.k, extent=window.tap_count * window.channels)
        return replace(self.gemm, a=Operand(a, a, 0, 1), b=Operand(b, b, 0, 0), k=k, window=window)

    def write(self, w: FreshNameWriter) -> None:
        """The launch that writes filters, an element by each thread."""
        assert self.gemm.b.load is not None
        old, new = self._given, self.window
        ctas = -(-self.filters.elements // THREADS)
        axes = [("cta", ctas, HardwareAxis.GRID_X), ("thread", THREADS, HardwareAxis.THREAD)]
        with w.launch("space_to_depth", axes) as (cta, thread):
            element = cta * THREADS + thread
            with w.when(element < self.filters.elements):
                to = delinearize(element, self.filters.shape)
                tap, channel, n = (*to[1:], to[0]) if self.k_major else to
                *_, wide = delinearize(tap, new.taps)
                pixel = (wide + new.lower[-1]) * self.stride + channel // old.channels - old.lower[-1]
                w.store(self.filters, to, const(0.0, self.filters.dtype))
                with w.when(pixel >= 0, pixel < old.taps[-1], n < self.gemm.n.extent):
                    number = tap // new.taps[-1] * old.taps[-1] + pixel
                    at = {TAP: number, "k": channel % old.channels, "n": n}
                    w.store(self.filters, to, substitute(self.gemm.b.load, at))


def space_to_depth_of(gemm: Gemm, name: str = "wide_filters") -> SpaceToDepth | None:
    """Return how windows of ``gemm`` see wide pixels; None where rows are not whole ones, where a window is one of them
    (``row_taps``), where no fewer rows of 128 bytes are loaded even if all their places share them, or where TMA cannot
    load them."""
    window, image, filters, atom = gemm.window, gemm.a.load, gemm.b.load, find_atom(gemm)
    if window is None or image is None or filters is None or atom is None or gemm.batch or window.shifts:
        return None
    if image.buffer.layout is not None:
        return None
    *_, pixels, channels = image.buffer.shape
    stride, (_, taps) = window.strides[-1], _wide_taps(window)
    wide, vector = stride * channels, CHUNK_BYTES // image.dtype.bytes
    if stride == 1 or window.dilations[-1] > 1 or taps == 1 or pixels % stride or channels != window.channels:
        return None
    if -(-wide // atom.line) >= window.taps[-1] * -(-channels // atom.line) or wide % vector:
        return None
    tap_count = prod(window.taps[:-1]) * taps
    k_major = not atom.transposes or gemm.n.extent % SWIZZLE_128B_ELEMENTS > 0
    whole = -(-gemm.n.extent // vector) * vector
    shape = (gemm.n.extent, tap_count, wide) if k_major else (tap_count, wide, whole)
    found = SpaceToDepth(gemm, Buffer(name, shape, filters.buffer.dtype), k_major)
    return found if can_use_wgmma(found.product()) else None


def _wide_taps(window: ImageWindow) -> tuple[int, int]:
    """Return the wide pixel at which a window stands first, and how many of them it sees in a row."""
    stride, first = window.strides[-1], window.lower[-1]
    last = first + window.taps[-1] - 1
    return first // stride, last // stride - first // stride + 1
