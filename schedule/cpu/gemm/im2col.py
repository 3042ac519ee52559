"""Writes blocked products whose right operand is an image seen through a window (im2col).

The columns of the product are output pixels, and ``k`` counts the positions of the window in all channels. No load goes
along all pixels in even steps, but along one row of pixels it does: each task packs the rows of pixels that its columns
fall into, one image for each step of ``k``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, Select, const, index, logical_and
from ....ir.stmt import Kernel
from ...problems.convolution import PIXEL, ROW, ConvolutionColumns
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from .kernel import BlockedGemmWriter, CpuGemmSetting
from .packing import BlockedOperand, OperandPanel, lanes_below


def lower_im2col(p: Gemm, name: str, setting: CpuGemmSetting, columns: ConvolutionColumns) -> Kernel:
    """Return the kernel of one setting, with ``columns`` as the right operand of ``p``; each task packs it."""
    writer = BlockedGemmWriter(p, setting, taken=(ROW, PIXEL))
    images = PackedImages(columns.body, p.k.name, p.k.extent, 1, columns.rows, columns.width)
    writer.b = Im2colOperand(**fields_of(writer.b), images=images)
    return writer.kernel(name)


def fields_of(value: BlockedOperand | OperandPanel) -> dict[str, Any]:
    """Return the fields of a dataclass, to make one of a subclass from."""
    return {f.name: getattr(value, f.name) for f in fields(value)}


@dataclass(frozen=True, slots=True)
class PackedImages:
    """Images that tasks pack. ``body`` is their value on ``ROW``, ``PIXEL``, ``axis`` and the batch. ``axis`` counts
    ``count`` images, each of which serves ``steps`` steps of ``k``. The columns of the product fall into ``rows`` rows
    of ``width`` pixels; windows see ``halo_rows`` more rows below. ``unrolled``: how many images each pass of the loop
    over them packs, so that what differs between these is known to the compiler."""

    body: Expr
    axis: str
    count: int
    steps: int
    rows: int
    width: int
    halo_rows: int = 0
    unrolled: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Im2colOperand(BlockedOperand):
    """The right operand. Packed, every image has whole rows of pixels behind one another, from the row of the task's
    first column on."""

    images: PackedImages

    def allocate_block(self, w: FreshNameWriter, name: str, panels: int) -> Buffer:
        # A panel may see beyond the last row by some pixels of a window, and by lanes that count for nothing.
        pixels = self._rows(panels) * self.images.width + self.images.width + self.lanes
        shape = (self.kc // self.images.steps, -(-pixels // self.lanes) * self.lanes)
        return w.allocate(name, shape, self.images.body.dtype, MemoryScope.LOCAL)

    def pack_block(
        self, w: FreshNameWriter, buffer: Buffer, at: Mapping[str, Expr], first: Expr, panels: int, k0: Expr
    ) -> None:
        width, lanes, steps, unrolled = self.images.width, self.lanes, self.images.steps, self.images.unrolled
        first_row = self.begin(first) // width
        with (
            w.loop("images", self.kc // steps // unrolled) as images,
            w.unrolled("image", unrolled) as n,
            w.loop("image_line", self._rows(panels)) as i,
        ):
            image = images * unrolled + n
            with w.unrolled("vector", -(-width // lanes)) as v:
                here = {**at, self.images.axis: k0 // steps + image, ROW: first_row + i, PIXEL: v * lanes}
                # What a vector writes beyond its row of pixels, the next one overwrites.
                w.store(buffer, (image, Ramp(i * width + v * lanes, 1, lanes)), self._pixels(here))

    def _pixels(self, here: Mapping[str, Expr]) -> Expr:
        """Return a vector of one row of pixels; zeros where there are none."""
        lanes, images = self.lanes, self.images
        terms: list[Expr] = [Broadcast(Compare(CompareOp.LT, here[ROW], index(images.rows)), lanes)]
        if self.steps > self.k.extent:
            terms.append(Broadcast(Compare(CompareOp.LT, here[images.axis], index(images.count)), lanes))
        if images.width % lanes:
            terms.append(lanes_below(here[PIXEL], images.width, lanes))
        value = vector_at(images.body, here, PIXEL, lanes)
        return Select(logical_and(*terms), value, Broadcast(const(0, value.dtype), lanes))

    def panel(self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, k_block: Expr) -> OperandPanel:
        plain = super(Im2colOperand, self).panel(buffer, at, first, j, k_block)
        begin = self.begin(first) // self.images.width * self.images.width
        return Im2colPanel(**fields_of(plain), shift=plain.first - begin)

    def _rows(self, panels: int) -> int:
        """Return how many rows of pixels the columns of ``panels`` panels may see."""
        width = self.images.width
        return (panels * self.size + width - 2) // width + 1 + self.images.halo_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Im2colPanel(OperandPanel):
    """``shift``: the packed pixel that the panel begins at."""

    shift: Expr

    def vector(self, own: Expr, k: Expr) -> Expr:
        assert self.buffer is not None
        return Load(self.buffer, (k, Ramp(self.shift + own, 1, self.of.lanes)))
