"""Writes blocked convolutions of images with channels last: rows of the product are output pixels, columns are filters.

    k = (place of the window, channel), so that A[m, k] = image[stride * pixel + place, channel]

A register tile has neighbouring pixels of one row of the output, so that the elements of A that a step of ``k`` needs
lie at fixed distances. Each task packs the padded rows of the image that its pixels see, once for all places of the
window; an image without padding is read where it lies. Windows have one to three dimensions, with strides and dilations
of their own.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    Select,
    Var,
    const,
    index,
    logical_and,
    minimum,
)
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel
from ....te.workload import Axis, Workload
from ...problems.gemm import Gemm, Operand, operand_of
from ...problems.image_window import TAP
from ...problems.implicit_gemm import filters_exist, filters_inside, implicit_gemm_of
from ...tile.names import FreshNameWriter
from .im2col import fields_of
from .kernel import BlockedGemmWriter, CpuGemmSetting, RegisterTile
from .packing import NEVER, BlockedOperand, OperandPanel, below, lanes_below

PLANE = "image_plane"
"""The axis of the batch over what lies outside of rows and pixels: images, and their depth."""
Three = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PixelRows:
    """The left operand of such a product. Each triple has a number for depth, height and width, which are 1 where the
    window has fewer dimensions.

    ``image``: the tensor itself. ``numbered``: whether its first dimension counts images. ``grouped``: whether the
    dimension before its channels counts groups, and ``group`` the group of a product. ``dtype``: what is multiplied;
    ``shift`` is added to it, in the border too. ``exist``: the conditions on which there is a place of the window, on
    ``TAP`` and the axes of the batch: phases of a transposed convolution may have different numbers of places.
    ``dimensions``: those of the window. ``shifts``: how far it is moved, on the axes of the batch. The other fields are
    as in ``ImageWindow``; ``extents`` are those of the image.
    """

    image: Buffer
    dtype: DType
    numbered: bool
    grouped: bool
    group: Expr
    channels: int
    dimensions: int
    extents: Three
    taps: Three
    dilations: Three
    positions: Three
    strides: Three
    lower: Three
    shifts: tuple[Expr, ...] = (index(0), index(0), index(0))
    most_shifted: int = 0
    exist: tuple[Expr, ...] = ()
    shift: int = 0

    @property
    def depth(self) -> int:
        """Steps of ``k``."""
        return prod(self.taps) * self.channels

    @property
    def is_inside(self) -> bool:
        """Whether all windows lie within the image."""
        sides = zip(self.extents, self.taps, self.dilations, self.positions, self.strides, self.lower, strict=True)
        most = self.most_shifted
        return all(low >= 0 and low + most + (p - 1) * s + (t - 1) * d < n for n, t, d, p, s, low in sides)

    @property
    def shared(self) -> int:
        """For how many steps of ``k`` a packed element is used, about."""
        return max(1, prod(self.taps) // (self.strides[1] * self.strides[2]))

    def tiles(self, mr: int) -> int:
        """Return how many register tiles there are of a row of pixels."""
        return -(-self.positions[2] // mr)

    def padded_width(self, mr: int) -> int:
        """Return how many pixels of the image the register tiles of a row of output pixels see."""
        return (self.tiles(mr) * mr - 1) * self.strides[2] + (self.taps[2] - 1) * self.dilations[2] + 1

    def load(self, plane: Expr, at: tuple[Expr, Expr, Expr], channel: Expr) -> Expr:
        """Return the pixel ``at`` (depth, height, width) of the image that ``plane`` belongs to, in ``dtype``;
        ``channel`` may be a vector."""
        number = plane // self.positions[0] if self.positions[0] > 1 else plane
        indices = ([number] if self.numbered else []) + list(at[3 - self.dimensions :])
        if self.grouped:
            indices.append(self.group)
        found = Load(self.image, (*indices, channel))
        value = found if self.dtype == found.dtype else Cast(found, self.dtype)
        if not self.shift:
            return value
        shift: Expr = const(self.shift, value.dtype)
        return value + (Broadcast(shift, value.lanes) if value.lanes > 1 else shift)

    def corner(self, at: Mapping[str, Expr], row: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the depth and height at which windows stand for a row of output pixels, and the width at which the
        first of them stands, at indices ``at`` of the batch."""
        z = at.get(PLANE, index(0)) % self.positions[0] * self.strides[0] if self.positions[0] > 1 else index(0)
        first = zip((z, row * self.strides[1], index(0)), self.lower, self.shifts, strict=True)
        depth, height, width = (begin + low + substitute(shift, at) for begin, low, shift in first)
        return depth, height, width


def pixel_rows_of(workload: Workload, dtypes: tuple[DType, DType] | None = None) -> tuple[Gemm, PixelRows] | None:
    """Return ``workload`` as such a product; None where it is none. Its ``a`` stands for the image, and ``b`` takes all
    steps of ``k``. ``dtypes``: what pixels and filters are multiplied as, by default the dtype of the sums."""
    p = implicit_gemm_of(workload)
    if p is None or p.window is None or p.a.load is None or p.b.load is None:
        return None
    if prod(p.window.positions) == 1:  # with channels first, filters look like images of one window each
        return None
    window, given = p.window, p.a.load.buffer
    image = next(b for b in p.inputs if b.name == given.name)
    groups, dimensions = given.shape[-1] // window.channels, len(window.taps)
    rest = len(image.shape) - dimensions - 1 - (groups > 1)
    if rest not in (0, 1):
        return None
    left, right = dtypes or (p.accumulator.dtype, p.accumulator.dtype)
    rows = PixelRows(
        image,
        left,
        rest == 1,
        groups > 1,
        Var(p.batch[0].name) if groups > 1 else index(0),
        window.channels,
        dimensions,
        _three(given.shape[1:-1], 1),
        _three(window.taps, 1),
        _three(window.dilations, 1),
        _three(window.positions, 1),
        _three(window.strides, 1),
        _three(window.lower, 0),
        (*[index(0)] * (3 - len(window.shifts)), *window.shifts),
        window.most_shifted,
        tuple(filters_exist(p)),
    )
    planes, pixels = window.images * rows.positions[0], rows.positions[1] * rows.positions[2]
    plane = Var(PLANE) if planes > 1 else index(0)
    moved = {"m": plane * pixels + Var("m")}
    results = tuple(
        replace(
            r,
            indices=tuple(substitute(i, moved) for i in r.indices),
            value=substitute(r.value, moved),
            inside=tuple(substitute(i, moved) for i in r.inside),
        )
        for r in p.results
    )
    image_at = rows.load(plane, rows.corner({PLANE: plane}, index(0)), Var("k"))
    step = {TAP: Var("k") // window.channels, "k": Var("k") % window.channels}
    filters, exist = substitute(p.b.load, step), [substitute(condition, step) for condition in filters_inside(p)]
    filters = Select(logical_and(*exist), filters, const(0, filters.dtype)) if exist else filters
    filters = filters if filters.dtype == right else Cast(filters, right)
    batch = (*p.batch, Axis(PLANE, planes)) if planes > 1 else p.batch
    p = replace(
        p,
        a=Operand(image_at, None, 0, 0),
        b=replace(operand_of(filters, "n"), load=None) if _lies_along_k(filters) else Operand(filters, None, 1, 0),
        m=Axis("m", pixels),
        results=results,
        batch=batch,
        window=None,
    )
    return p, rows


def _lies_along_k(filters: Expr) -> bool:
    """Return whether the elements of each filter follow one another."""
    found = operand_of(filters, "n")
    return found.k == 1 and found.row != 1


def _three(numbers: tuple[int, ...], missing: int) -> Three:
    z, y, x = (*[missing] * (3 - len(numbers)), *numbers)
    return z, y, x


def lower_pixel_rows(p: Gemm, name: str, setting: CpuGemmSetting, rows: PixelRows) -> Kernel:
    """Return the kernel of one setting for ``p`` as ``pixel_rows_of`` gives it. ``kc`` is all of ``k``."""
    return PixelRowsWriter(p, setting, rows).kernel(name)


class PixelRowsWriter(BlockedGemmWriter):
    """Steps of ``k`` are loops over the places of a window and over channels."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, rows: PixelRows, k_group: int = 1) -> None:
        super().__init__(p, s, k_group, taken=(PLANE,))
        self.rows = rows
        width = rows.positions[2]
        together = s.tiles % rows.tiles(s.mr) == 0  # else two tasks would write what panels have in common
        overlaps = s.pack_a == NEVER and width % s.mr != 0 and width > s.mr and together
        self.a = PixelRowsOperand(**fields_of(self.a) | {"overlaps": overlaps}, rows=rows, task_panels=s.tiles)

    def micro_kernel(self, accumulators: Buffer, t: RegisterTile) -> None:
        w, (depths, heights, widths) = self.w, self.rows.taps
        assert isinstance(t.a, PixelRowsPanel)
        joined = t.a.buffer is not None and self.rows.dilations[2] == 1 and not self.rows.exist
        with ExitStack() as loops:
            depth, height = (loops.enter_context(w.loop("place", n)) for n in (depths, heights))
            width = index(0) if joined else loops.enter_context(w.loop("place", widths))
            here = {**t.batch, TAP: (depth * heights + height) * widths + width}
            loops.enter_context(w.when(*(substitute(condition, here) for condition in self.rows.exist)))
            channels, group = self.rows.channels, self.a.k_group
            channel = loops.enter_context(w.loop("channel", channels * (widths if joined else 1) // group))
            step = ((depth * heights + height) * widths + width) * (channels // group) + channel
            a = replace(t.a, place=(depth, height, width), channel=channel * group if group > 1 else channel)
            self.rank_update(accumulators, replace(t, a=a), step)

    def row_condition(self, t: RegisterTile, i: Expr) -> Expr | None:
        assert isinstance(t.a, PixelRowsPanel)
        return None if self.a.overlaps else below(t.a.pixel + i, self.rows.positions[2], self.s.mr)


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelRowsOperand(BlockedOperand):
    """The left operand. Packed, it has the padded rows of the image that a task of ``task_panels`` panels sees behind
    one another, those of each depth of the window apart."""

    rows: PixelRows
    task_panels: int

    @property
    def panels(self) -> int:
        return self.rows.positions[1] * self.rows.tiles(self.size)

    @property
    def lines(self) -> int:
        """How many rows of the image the pixels of a task see, at each depth of the window."""
        r = self.rows
        rows = min((self.task_panels + r.tiles(self.size) - 2) // r.tiles(self.size) + 1, r.positions[1])
        return (rows - 1) * r.strides[1] + (r.taps[1] - 1) * r.dilations[1] + 1

    def allocate_block(self, w: FreshNameWriter, name: str, panels: int) -> Buffer:
        # A vector may reach beyond the last pixel.
        elements = self.rows.taps[0] * self.lines * self.rows.padded_width(self.size) * self.rows.channels + self.lanes
        return w.allocate(name, (elements,), self.operand.body.dtype, MemoryScope.LOCAL)

    def pack_block(
        self, w: FreshNameWriter, buffer: Buffer, at: Mapping[str, Expr], first: Expr, panels: int, k0: Expr
    ) -> None:
        r, lanes, lines, width = self.rows, self.lanes, self.lines, self.rows.padded_width(self.size)
        plane = at.get(PLANE, index(0))
        z0, y0, x0 = r.corner(at, first // r.tiles(self.size))
        with w.loop("depth", r.taps[0]) as depth, w.loop("line", lines) as line:
            z, y = z0 + depth * r.dilations[0], y0 + line
            with w.loop("pixel", width) as pixel, w.loop("vector", -(-r.channels // lanes)) as v:
                x = pixel + x0
                terms = _within((z, y, x), r.extents, lanes)
                if r.channels % lanes:
                    terms.append(lanes_below(v * lanes, r.channels, lanes))
                value: Expr = substitute(r.load(plane, (z, y, x), Ramp(v * lanes, 1, lanes)), at)
                if terms:
                    value = Select(logical_and(*terms), value, Broadcast(const(r.shift, value.dtype), lanes))
                begin = ((depth * lines + line) * width + pixel) * r.channels + v * lanes
                # What a vector writes beyond its pixel, the next one overwrites.
                w.store(buffer, (Ramp(begin, 1, lanes),), value)

    def panel(self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, k_block: Expr) -> OperandPanel:
        plain = super(PixelRowsOperand, self).panel(buffer, at, first, j, k_block)
        return PixelRowsPanel(**fields_of(plain), begin=first, images=self)


def _within(at: tuple[Expr, ...], extents: Three, lanes: int) -> list[Expr]:
    """Return the conditions that a pixel is within the image, for each of ``lanes``."""
    terms: list[Expr] = []
    for i, extent in zip(at, extents, strict=True):
        terms.append(Broadcast(Compare(CompareOp.GE, i, index(0)), lanes))
        terms.append(Broadcast(Compare(CompareOp.LT, i, index(extent)), lanes))
    return terms


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelRowsPanel(OperandPanel):
    """Output pixels of a row. ``begin``: the first panel of the task. ``images``: the operand. ``place``: the place of
    the window that is read, and ``channel`` the channel. Packed pixels lie side by side, so that a channel behind the
    last one is one of the next pixel."""

    begin: Expr
    images: PixelRowsOperand
    place: tuple[Expr, Expr, Expr] = (index(0), index(0), index(0))
    channel: Expr = index(0)

    @property
    def row(self) -> Expr:
        """The row of output pixels."""
        return self.number // self._tiles

    @property
    def pixel(self) -> Expr:
        """The first output pixel in its row."""
        first = self.number % self._tiles * self.of.size
        return minimum(first, index(self.images.rows.positions[2] - self.of.size)) if self.of.overlaps else first

    @property
    def first(self) -> Expr:
        return self.row * self.images.rows.positions[2] + self.pixel

    @property
    def _tiles(self) -> int:
        return self.images.rows.tiles(self.of.size)

    def group(self, own: Expr, step: Expr) -> tuple[Buffer, tuple[Expr, ...]]:
        first = self.element(own, step)
        assert isinstance(first, Load)
        return first.buffer, first.indices

    def element(self, own: Expr, k: Expr) -> Expr:
        r = self.images.rows
        depth, height, width = (n * d for n, d in zip(self.place, r.dilations, strict=True))
        if self.buffer is not None:
            line = self.place[0] * self.images.lines + (self.row - self.begin // self._tiles) * r.strides[1] + height
            pixel = (self.pixel + own) * r.strides[2] + width
            return Load(self.buffer, ((line * r.padded_width(self.of.size) + pixel) * r.channels + self.channel,))
        x = self.pixel + own
        if r.positions[2] % self.of.size and not self.of.overlaps:
            x = minimum(x, index(r.positions[2] - 1))
        plane = self.at.get(PLANE, index(0))
        z, y, x0 = r.corner(self.at, self.row)
        at = (z + depth, y + height, x * r.strides[2] + x0 + width)
        return substitute(r.load(plane, at, self.channel), self.at)
