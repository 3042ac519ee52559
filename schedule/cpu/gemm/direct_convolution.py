"""Writes blocked convolutions whose windows move pixel by pixel (``problems.convolution.SlidingWindow``).

Each task packs the rows of the padded image that its columns see, once for each channel, and the micro-kernel reads the
operands of all positions of a window out of them. Im2col would copy each pixel once for each position.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from ....ir.buffer import Buffer
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, index, logical_and
from ....ir.stmt import Kernel, LoopKind
from ....te.workload import Axis
from ...problems.convolution import CHANNEL, PIXEL, ROW, ConvolutionColumns, SlidingWindow
from ...problems.gemm import Gemm
from ...tile.delinearize import delinearize
from .im2col import Im2colOperand, Im2colPanel, PackedImages, fields_of
from .kernel import BlockedGemmWriter, CpuGemmSetting, OutputVector, RegisterTile
from .packing import OperandPanel, lanes_below


def with_padded_columns(p: Gemm, columns: ConvolutionColumns, window: SlidingWindow) -> Gemm:
    """``p`` with the pixels of all padded rows as columns. Those in the padding between two rows are computed, too."""
    return replace(p, n=Axis(p.n.name, (columns.rows - 1) * window.padded_width + columns.width))


def lower_direct_convolution(
    p: Gemm, name: str, setting: CpuGemmSetting, columns: ConvolutionColumns, window: SlidingWindow
) -> Kernel:
    """Return the kernel of one setting for ``p`` as ``with_padded_columns`` gives it; each task packs the image. ``kc``
    is a multiple of the positions of a window. A padded row has as many pixels as a vector has lanes, or more."""
    return DirectConvolutionWriter(p, setting, columns, window).kernel(name)


class DirectConvolutionWriter(BlockedGemmWriter):
    """Steps of ``k`` are loops over channels and over the positions of a window, the last of them unrolled."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, columns: ConvolutionColumns, window: SlidingWindow) -> None:
        super().__init__(p, s, taken=(ROW, PIXEL, CHANNEL))
        positions = prod(window.extents)
        rows, halo = columns.rows + window.halo_rows, window.halo_rows
        channels = p.k.extent // positions
        images = PackedImages(window.body, CHANNEL, channels, positions, rows, window.padded_width, halo)
        self.b = WindowOperand(**fields_of(self.b), images=images, window=window)
        self.accumulating_output = None  # neighbouring columns are not always neighbouring outputs
        self.minimal_passes = True  # much code, which LLVM makes no faster
        self.columns, self.window = columns, window

    def micro_kernel(self, accumulators: Buffer, t: RegisterTile) -> None:
        w, extents = self.w, self.window.extents
        with ExitStack() as loops:
            step: Expr = loops.enter_context(w.loop("channel", self.s.kc // prod(extents)))
            for n, extent in enumerate(extents, 1):
                kind = LoopKind.UNROLLED if n == len(extents) else LoopKind.SERIAL
                step = step * extent + loops.enter_context(w.loop("position", extent, kind))
            self.rank_update(accumulators, t, step)

    def output_vectors(self, t: RegisterTile, vector: Expr) -> tuple[OutputVector, ...]:
        """Return the outputs in the row of a vector's first lane, and those in the next row."""
        lanes, width, padded = self.s.lanes, self.columns.width, self.window.padded_width
        column = t.column + vector * lanes
        row, pixel = column // padded, column % padded
        first = row * width + pixel
        own_row = OutputVector(first, _less(row, index(self.columns.rows)), lanes_below(pixel, width, lanes))
        reaches = logical_and(_less(row, index(self.columns.rows - 1)), _less(index(padded - lanes), pixel))
        next_row = Compare(CompareOp.GE, Ramp(pixel, 1, lanes), Broadcast(index(padded), lanes))
        return own_row, OutputVector(first - (padded - width), reaches, next_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOperand(Im2colOperand):
    """The right operand, packed as one image for each channel."""

    window: SlidingWindow

    def panel(self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, k_block: Expr) -> OperandPanel:
        plain = super(WindowOperand, self).panel(buffer, at, first, j, k_block)
        return WindowPanel(**fields_of(plain), window=self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPanel(Im2colPanel):
    """A step of ``k`` is a channel and a position of the window, which moves the pixels that are read."""

    window: SlidingWindow

    def vector(self, own: Expr, k: Expr) -> Expr:
        assert self.buffer is not None
        window = self.window
        channel, *position = delinearize(k, (self.of.kc, *window.extents))
        pixel = self.shift + own
        for n, rows, pixels in zip(position, window.row_steps, window.pixel_steps, strict=True):
            pixel = pixel + n * (rows * window.padded_width + pixels)
        return Load(self.buffer, (channel, Ramp(pixel, 1, self.of.lanes)))


def _less(a: Expr, b: Expr) -> Expr:
    return Compare(CompareOp.LT, a, b)
