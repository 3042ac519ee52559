"""Blocked products whose right operand is an image seen through windows: its columns are pixels, and ``k`` counts the
places of a window. Nothing goes along all pixels in even steps, but a row of pixels does: each task copies the rows of
pixels that its columns fall into.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, Select, const, index, logical_and
from ....ir.stmt import Kernel, LoopKind
from ...problems.convolution import PIXEL, ROW, Image
from ...problems.gemm import Gemm
from ...tile.naming import NamingWriter
from ...tile.stage_body import vector_at
from .kernel import GemmProgram, GemmSetting
from .packing import GemmOperand, Panel, lanes_below


def lower_images(p: Gemm, name: str, setting: GemmSetting, image: Image) -> Kernel:
    """The kernel of one setting, with ``image`` as the right operand of ``p``; each task copies it."""
    program = GemmProgram(p, setting, taken=(ROW, PIXEL))
    layers = Layers(image.body, p.k.name, p.k.extent, 1, image.rows, image.pixels)
    program.b = ImageOperand(**fields_of(program.b), layers=layers)
    return program.kernel(name)


def fields_of(value: GemmOperand | Panel) -> dict[str, Any]:
    """What a dataclass was made of."""
    return {f.name: getattr(value, f.name) for f in fields(value)}


@dataclass(frozen=True, slots=True)
class Layers:
    """Images that are copied: ``body`` on ``ROW``, ``PIXEL``, ``axis`` (of so many places as ``count``) and the batch.
    Each serves ``steps`` of ``k``. ``more_rows``: below those that columns fall into, that they see, too."""

    body: Expr
    axis: str
    count: int
    steps: int
    rows: int
    pixels: int
    more_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOperand(GemmOperand):
    """The right operand. In a copy, every layer has whole rows of pixels behind one another, beginning with that of
    the task's first column."""

    layers: Layers

    def allocate(self, w: NamingWriter, name: str, panels: int) -> Buffer:
        # A panel may see beyond the last row by some pixels of a window, and by lanes that count for nothing.
        width = self._rows(panels) * self.layers.pixels + self.layers.pixels + self.lanes
        shape = (self.depth // self.layers.steps, -(-width // self.lanes) * self.lanes)
        return w.allocate(name, shape, self.layers.body.dtype, MemoryScope.LOCAL)

    def copy_block(
        self, w: NamingWriter, buffer: Buffer, at: Mapping[str, Expr], first: Expr, panels: int, k0: Expr
    ) -> None:
        width, lanes, steps = self.layers.pixels, self.lanes, self.layers.steps
        first_row = first * self.size // width
        with w.loop("layer", self.depth // steps) as layer, w.loop("line", self._rows(panels)) as i:
            with w.loop("part", -(-width // lanes), LoopKind.UNROLLED) as part:
                here = {**at, self.layers.axis: k0 // steps + layer, ROW: first_row + i, PIXEL: part * lanes}
                # What a vector writes beyond its row of pixels, the next one overwrites.
                w.store(buffer, (layer, Ramp(i * width + part * lanes, 1, lanes)), self._pixels(here))

    def _pixels(self, here: Mapping[str, Expr]) -> Expr:
        """A vector of one row of pixels; zeros where there are none."""
        lanes, layers = self.lanes, self.layers
        terms: list[Expr] = [Broadcast(Compare(CompareOp.LT, here[ROW], index(layers.rows)), lanes)]
        if self.steps > self.k.extent:
            terms.append(Broadcast(Compare(CompareOp.LT, here[layers.axis], index(layers.count)), lanes))
        if layers.pixels % lanes:
            terms.append(lanes_below(here[PIXEL], layers.pixels, lanes))
        value = vector_at(layers.body, here, PIXEL, lanes)
        return Select(logical_and(*terms), value, Broadcast(const(0, value.dtype), lanes))

    def panel(self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, block: Expr) -> Panel:
        plain = super(ImageOperand, self).panel(buffer, at, first, j, block)
        begin = first * self.size // self.layers.pixels * self.layers.pixels
        return ImagePanel(**fields_of(plain), shift=plain.number * self.size - begin)

    def _rows(self, panels: int) -> int:
        """Rows of pixels that the columns of some panels may see."""
        pixels = self.layers.pixels
        return (panels * self.size + pixels - 2) // pixels + 1 + self.layers.more_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePanel(Panel):
    """``shift``: the column of the copy that the panel begins in."""

    shift: Expr

    def vector(self, own: Expr, k: Expr) -> Expr:
        assert self.buffer is not None
        return Load(self.buffer, (k, Ramp(self.shift + own, 1, self.of.lanes)))
