"""Images whose rows are padded in memory, so that windows see all their places in a row at once (``row_taps``).

A first launch copies the images, with zeros beside each row. They are written and read once more for that, but rows of
128 bytes in shared memory are fuller: 5 places of 24 channels are 2 rows, and were 5 of which most was empty.
"""

from dataclasses import dataclass, replace

from ....ir.buffer import Buffer
from ....ir.expr import Broadcast, Load, Ramp, Var, const, logical_and
from ....ir.stmt import HardwareAxis
from ....ir.verifier.tma import CHUNK_BYTES
from ....te.functions import negated
from ...problems.gemm import Gemm, Operand
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter

THREADS = 256
"""Threads of a CTA of the launch that copies images."""


@dataclass(frozen=True, slots=True)
class RowPadding:
    """``images`` is (image, pixel along each dimension, channel): those of ``gemm`` with ``left`` zeros ahead of each
    row, and as many behind it as windows reach beyond it."""

    gemm: Gemm
    images: Buffer
    left: int

    def product(self) -> Gemm:
        """Return the product on padded images."""
        assert self.gemm.window is not None
        window = replace(self.gemm.window, lower=(*self.gemm.window.lower[:-1], 0))
        image = Load(self.images, (*window.corner(Var("m")), Var("k")))
        return replace(self.gemm, a=Operand(image, image, 0, 1), window=window)

    def write(self, w: FreshNameWriter) -> None:
        """The launch that copies images, a vector of channels by each thread."""
        assert self.gemm.a.load is not None
        source, width = self.gemm.a.load.buffer, CHUNK_BYTES // self.images.dtype.bytes
        *pixels, channels = self.images.shape
        vectors = self.images.elements // width
        axes = [("cta", -(-vectors // THREADS), HardwareAxis.GRID_X), ("thread", THREADS, HardwareAxis.THREAD)]
        with w.launch("pad_rows", axes) as (cta, thread):
            vector = cta * THREADS + thread
            with w.when(vector < vectors):
                *place, part = delinearize(vector, (*pixels, channels // width))
                row, pixel, lanes = place[:-1], place[-1], Ramp(part * width, 1, width)
                inside = logical_and(pixel >= self.left, pixel < self.left + source.shape[-2])
                to = (*(Broadcast(i, width) for i in place), lanes)
                with w.when(negated(inside)):
                    w.store(self.images, to, Broadcast(const(0.0, source.dtype), width))
                with w.when(inside):
                    at = (*(Broadcast(i, width) for i in (*row, pixel - self.left)), lanes)
                    w.store(self.images, to, Load(source, at))


def row_padding_of(gemm: Gemm, name: str = "padded_images") -> RowPadding | None:
    """Return how rows of images of ``gemm`` are padded; None where windows see no padding in a row, or where TMA could
    not load such images."""
    window, image = gemm.window, gemm.a.load
    if window is None or image is None or window.shifts or image.buffer not in gemm.inputs:
        return None
    *outer, pixels, channels = image.buffer.shape
    reach = (window.positions[-1] - 1) * window.strides[-1] + (window.taps[-1] - 1) * window.dilations[-1] + 1
    if channels != window.channels or channels * image.dtype.bytes % CHUNK_BYTES:
        return None
    if window.lower[-1] > 0 or (window.lower[-1] == 0 and reach <= pixels):
        return None
    return RowPadding(gemm, Buffer(name, (*outer, reach, channels), image.buffer.dtype), -window.lower[-1])
