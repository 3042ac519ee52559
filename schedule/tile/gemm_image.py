"""Blocked products whose right operand is an image seen through windows: its columns are pixels, and ``k`` counts the
places of a window. Nothing goes along all pixels in even steps, but a row of pixels does: each task copies the rows of
pixels that its columns fall into.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ...ir.buffer import Buffer, Scope
from ...ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, Select, const, index, logical_and
from ...ir.stmt import Kernel, LoopKind
from .gemm import GemmProgram, GemmSetting
from .gemm_operand import GemmOperand, Panel, lanes_below
from .image import PIXEL, ROW, Image
from .naming import NamingWriter
from .pointwise import vector_at
from .product import Product


def lower_images(p: Product, name: str, setting: GemmSetting, image: Image) -> Kernel:
    """The kernel of one setting, with ``image`` as the right operand of ``p``; each task copies it."""
    program = GemmProgram(p, setting, taken=(ROW, PIXEL))
    program.b = _ImageOperand(**_fields(program.b), image=image)
    return program.kernel(name)


def _fields(value: GemmOperand | Panel) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImageOperand(GemmOperand):
    """The right operand. In a copy, every step of ``k`` has whole rows of pixels behind one another, beginning with
    that of the task's first column."""

    image: Image

    def allocate(self, w: NamingWriter, name: str, panels: int) -> Buffer:
        width = self._rows(panels) * self.image.pixels + self.lanes
        return w.allocate(name, (self.depth, -(-width // self.lanes) * self.lanes), self.image.body.dtype, Scope.LOCAL)

    def copy_block(
        self, w: NamingWriter, buffer: Buffer, at: Mapping[str, Expr], first: Expr, panels: int, k0: Expr
    ) -> None:
        width, lanes = self.image.pixels, self.lanes
        first_row = first * self.size // width
        with w.loop("step", self.depth) as k, w.loop("line", self._rows(panels)) as i:
            with w.loop("part", -(-width // lanes), LoopKind.UNROLLED) as part:
                here = {**at, "k": k0 + k, ROW: first_row + i, PIXEL: part * lanes}
                # What a vector writes beyond its row of pixels, the next one overwrites.
                w.store(buffer, (k, Ramp(i * width + part * lanes, 1, lanes)), self._pixels(here))

    def _pixels(self, here: Mapping[str, Expr]) -> Expr:
        """A vector of one row of pixels; zeros where there are none."""
        lanes = self.lanes
        terms: list[Expr] = [Broadcast(Compare(CompareOp.LT, here[ROW], index(self.image.rows)), lanes)]
        if self.steps > self.k.extent:
            terms.append(Broadcast(Compare(CompareOp.LT, here["k"], index(self.k.extent)), lanes))
        if self.image.pixels % lanes:
            terms.append(lanes_below(here[PIXEL], self.image.pixels, lanes))
        value = vector_at(self.image.body, here, PIXEL, lanes)
        return Select(logical_and(*terms), value, Broadcast(const(0, value.dtype), lanes))

    def panel(self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, block: Expr) -> Panel:
        plain = super(_ImageOperand, self).panel(buffer, at, first, j, block)
        begin = first * self.size // self.image.pixels * self.image.pixels
        return _ImagePanel(**_fields(plain), shift=plain.number * self.size - begin)

    def _rows(self, panels: int) -> int:
        """Rows of pixels that the columns of some panels may fall into."""
        return (panels * self.size + self.image.pixels - 2) // self.image.pixels + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImagePanel(Panel):
    """``shift``: the column of the copy that the panel begins in."""

    shift: Expr

    def vector(self, own: Expr, k: Expr) -> Expr:
        assert self.buffer is not None
        return Load(self.buffer, (k, Ramp(self.shift + own, 1, self.of.lanes)))
