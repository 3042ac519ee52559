"""Writes blocked convolutions whose windows move pixel by pixel (``problems.convolution.SlidingWindow``).

Each task packs the rows of the image that its columns see, and the micro-kernel reads the operands of all positions of
a window out of them. Im2col would copy each pixel once for each position. There are two ways to pack:

    padded      padded rows, once for each channel. Each position of a window is another begin in them. Pixels in the
                padding between two rows are columns, too, which are computed and thrown away.
    flattened   what one position of a window along the rows sees of them, once for each channel and such position, as
                wide as the outputs are. Rows lie behind one another without a gap, so that all columns are outputs. A
                position across the rows is another begin.

Of flattened rows tasks have even numbers of vectors, and the last panel of a task is as narrow as that asks for. On an
AMD EPYC the 13 vectors of 14 x 14 pixels, of which the last has 4 lanes, took 9 % less time than the 14 of padded rows.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from ....ir.buffer import Buffer
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, Var, index, logical_and
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel, LoopKind
from ....te.workload import Axis
from ...problems.convolution import CHANNEL, PIXEL, ROW, ConvolutionColumns, SlidingWindow
from ...problems.gemm import Gemm
from ...tile.delinearize import delinearize
from .im2col import Im2colOperand, Im2colPanel, PackedImages, fields_of
from .kernel import BlockedGemmWriter, CpuGemmSetting, OutputVector, RegisterTile
from .packing import OperandPanel, lanes_below

PADDED, FLATTENED = "padded", "flattened"
MOST_UNROLLED = 32
"""Vectors that unrolled code packs, at most."""
SHORT_BYTES = 16
"""The least vectors that processors have."""


@dataclass(frozen=True, slots=True)
class DirectConvolution:
    """``columns`` of a product whose ``window`` moves pixel by pixel."""

    columns: ConvolutionColumns
    window: SlidingWindow

    @property
    def positions(self) -> int:
        """Positions of the window, which one pixel of padded rows serves."""
        return prod(self.window.extents)

    @property
    def extents_along(self) -> tuple[int, ...]:
        """The extents of the window along the rows of pixels."""
        return tuple(n for n, pixels in zip(self.window.extents, self.window.pixel_steps, strict=True) if pixels)

    @property
    def positions_along(self) -> int:
        """Positions along the rows, for each of which flattened rows have a copy."""
        return prod(self.extents_along)

    @property
    def positions_across(self) -> int:
        """Positions across the rows, which one pixel of flattened rows serves."""
        return self.positions // self.positions_along

    @property
    def padded_columns(self) -> int:
        """How many columns the pixels of all padded rows are."""
        return (self.columns.rows - 1) * self.window.padded_width + self.columns.width


def lower_direct_convolution(p: Gemm, name: str, setting: CpuGemmSetting, direct: DirectConvolution) -> Kernel:
    """Return the kernel of one setting; each task packs the image. ``kc`` is a multiple of the positions of a window.
    A padded row has as many pixels as a vector has lanes, or more."""
    if setting.flattened:
        return FlattenedConvolutionWriter(p, setting, direct).kernel(name)
    return PaddedConvolutionWriter(p, setting, direct).kernel(name)


class DirectConvolutionWriter(BlockedGemmWriter):
    """Steps of ``k`` are loops over channels and over the positions of a window, the last of them unrolled."""

    def __init__(
        self, p: Gemm, s: CpuGemmSetting, direct: DirectConvolution, body: Expr, steps: int, width: int
    ) -> None:
        """``body`` and ``steps``: of the packed images, as in ``PackedImages``; their rows are ``width`` pixels. Those
        of one channel are packed by unrolled code, if that is short."""
        super().__init__(p, s, taken=(ROW, PIXEL, CHANNEL))
        columns, window = direct.columns, direct.window
        rows = columns.rows + window.halo_rows
        together = direct.positions // steps
        unrolled = together if together * -(-width // s.lanes) <= MOST_UNROLLED else 1
        images = PackedImages(body, CHANNEL, p.k.extent // steps, steps, rows, width, window.halo_rows, unrolled)
        self.b = WindowOperand(**fields_of(self.b), images=images, window=window)
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


class PaddedConvolutionWriter(DirectConvolutionWriter):
    """The columns of the product are the pixels of padded rows."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, direct: DirectConvolution) -> None:
        p, window = replace(p, n=Axis(p.n.name, direct.padded_columns)), direct.window
        super().__init__(p, s, direct, window.body, direct.positions, window.padded_width)
        self.accumulating_output = None  # neighbouring columns are not always neighbouring outputs

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


class FlattenedConvolutionWriter(DirectConvolutionWriter):
    """The columns of the product are outputs. Those of the right operand are cut into single vectors, of which a
    register tile takes several."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, direct: DirectConvolution) -> None:
        channel, *digits = delinearize(Var(CHANNEL), (p.k.extent // direct.positions, *direct.extents_along))
        steps = [pixels for pixels in direct.window.pixel_steps if pixels]
        pixel = sum((n * step for n, step in zip(digits, steps, strict=True)), Var(PIXEL))
        body = substitute(direct.window.body, {CHANNEL: channel, PIXEL: pixel})
        super().__init__(p, s, direct, body, direct.positions_across, direct.columns.width)
        self.b = replace(self.b, size=s.lanes, task=None)
        self.b_task_panels = s.vectors_of_task

    def widths(self) -> Iterator[tuple[Self, int, int]]:
        for writer, before, panels in super().widths():
            lanes = self._last_lanes if before + panels == self.s.panels else self.s.lanes
            writer.s = replace(writer.s, lanes=lanes)
            writer.b = replace(writer.b, lanes=lanes)
            writer.store_lanes = lanes
            yield writer, before, panels

    @property
    def ends_narrow(self) -> bool:
        return super().ends_narrow or self._last_lanes < self.s.lanes

    def panel_number(self, j: Expr) -> Expr:
        return j * self.s.vectors

    @property
    def _last_lanes(self) -> int:
        """Lanes of the last panel of a task. Where that is one vector of few columns, and all columns are of one task,
        it is a shorter vector: cores that split vectors of 512 bits take less time for it."""
        rest = self.p.n.extent % self.s.lanes
        if not rest or self.s.last_vectors > 1 or self.b.panels != self.b_task_panels:
            return self.s.lanes
        return min(self.s.lanes, max(1 << (rest - 1).bit_length(), SHORT_BYTES // self.dtype.bytes))

    def column_mask(self, t: RegisterTile, vector: Expr) -> Expr | None:
        lanes, extent = self.s.lanes, self.p.n.extent
        whole = extent % lanes == 0 and self.b.panels % self.b_task_panels == 0
        return None if whole else lanes_below(t.column + vector * lanes, extent, lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOperand(Im2colOperand):
    """The right operand, packed as ``images`` says."""

    window: SlidingWindow

    def panel(self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, k_block: Expr) -> OperandPanel:
        plain = super(WindowOperand, self).panel(buffer, at, first, j, k_block)
        return WindowPanel(**fields_of(plain), window=self.window, images=self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPanel(Im2colPanel):
    """A step of ``k`` is a channel and a position of the window, which chooses an image or moves the pixels that are
    read."""

    window: SlidingWindow
    images: PackedImages

    def vector(self, own: Expr, k: Expr) -> Expr:
        assert self.buffer is not None
        window, flattened = self.window, self.images.steps < prod(self.window.extents)
        image, *position = delinearize(k, (self.of.kc, *window.extents))
        pixel = self.shift + own
        for n, extent, rows, pixels in zip(position, window.extents, window.row_steps, window.pixel_steps, strict=True):
            if flattened and pixels:
                image = image * extent + n
            else:
                pixel = pixel + n * (rows * self.images.width + pixels)
        return Load(self.buffer, (image, Ramp(pixel, 1, self.of.lanes)))


def _less(a: Expr, b: Expr) -> Expr:
    return Compare(CompareOp.LT, a, b)
