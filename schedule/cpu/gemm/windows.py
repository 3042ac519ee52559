"""Blocked convolutions whose windows move pixel by pixel (``image.Windows``): each task copies the rows of the image
that its columns see, once, and reads the operands of all places of a window out of them.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from ....ir.buffer import Buffer
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, index, logical_and
from ....ir.stmt import Kernel, LoopKind
from ....te.workload import Axis
from ...problems.convolution import CHANNEL, PIXEL, ROW, Image, Windows
from ...problems.gemm import Gemm
from ...tile.delinearize import delinearize
from .im2col import ImageOperand, ImagePanel, Layers, fields_of
from .kernel import GemmProgram, GemmSetting, Run, TilePlace
from .packing import Panel, lanes_below


def with_margins(p: Gemm, image: Image, windows: Windows) -> Gemm:
    """``p`` with the pixels of all rows for columns, those in the margins between two rows included."""
    return replace(p, n=Axis(p.n.name, (image.rows - 1) * windows.pixels + image.pixels))


def lower_windows(p: Gemm, name: str, setting: GemmSetting, image: Image, windows: Windows) -> Kernel:
    """The kernel of one setting for ``p`` as ``with_margins`` gives it; each task copies the image. ``depth`` is
    a multiple of the places of a window. A row of pixels, margins included, has as many as a vector or more."""
    return _Program(p, setting, image, windows).kernel(name)


class _Program(GemmProgram):
    def __init__(self, p: Gemm, s: GemmSetting, image: Image, windows: Windows) -> None:
        super().__init__(p, s, taken=(ROW, PIXEL, CHANNEL))
        size = prod(windows.extents)
        rows = image.rows + windows.more_rows
        layers = Layers(windows.body, CHANNEL, p.k.extent // size, size, rows, windows.pixels, windows.more_rows)
        self.b = _Operand(**fields_of(self.b), layers=layers, windows=windows)
        self.home = None  # neighbouring columns are not always neighbouring outputs
        self.minimal_passes = True  # much code, which a compiler makes no faster
        self.image, self.windows = image, windows

    def multiply_all(self, sums: Buffer, t: TilePlace) -> None:
        w, extents = self.w, self.windows.extents
        with ExitStack() as loops:
            step: Expr = loops.enter_context(w.loop("channel", self.s.depth // prod(extents)))
            for n, extent in enumerate(extents, 1):
                kind = LoopKind.UNROLLED if n == len(extents) else LoopKind.SERIAL
                step = step * extent + loops.enter_context(w.loop("place", extent, kind))
            self.multiply(sums, t, step)

    def runs(self, t: TilePlace, vector: Expr) -> tuple[Run, ...]:
        """The outputs in the row of a vector's first lane, and those in the next row."""
        lanes, pixels, width = self.s.lanes, self.image.pixels, self.windows.pixels
        column = t.column + vector * lanes
        row, pixel = column // width, column % width
        first = row * pixels + pixel
        begun = Run(first, _less(row, index(self.image.rows)), lanes_below(pixel, pixels, lanes))
        more = logical_and(_less(row, index(self.image.rows - 1)), _less(index(width - lanes), pixel))
        next_row = Compare(CompareOp.GE, Ramp(pixel, 1, lanes), Broadcast(index(width), lanes))
        return begun, Run(first - (width - pixels), more, next_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand(ImageOperand):
    windows: Windows

    def panel(self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, block: Expr) -> Panel:
        plain = super(_Operand, self).panel(buffer, at, first, j, block)
        return _Panel(**fields_of(plain), windows=self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel(ImagePanel):
    windows: Windows

    def vector(self, own: Expr, k: Expr) -> Expr:
        assert self.buffer is not None
        windows = self.windows
        channel, *window = delinearize(k, (self.of.depth, *windows.extents))
        place = self.shift + own
        for n, rows, pixels in zip(window, windows.rows_apart, windows.pixels_apart, strict=True):
            place = place + n * (rows * windows.pixels + pixels)
        return Load(self.buffer, (channel, Ramp(place, 1, self.of.lanes)))


def _less(a: Expr, b: Expr) -> Expr:
    return Compare(CompareOp.LT, a, b)
