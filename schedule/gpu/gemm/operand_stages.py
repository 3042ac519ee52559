"""One operand on its way through shared memory: a circular buffer of stages that TMA fills.

A stage holds ``k_atoms`` rows of 128 bytes along k (64 elements of 16 bits each). Where several CTAs of a cluster need
the same tile, each of them loads a part of it and multicasts it to all of them. An operand is a matrix, loaded in
boxes, or images seen through a window. An atom of images is a row of channels of one tap, and they are loaded by im2col
or in boxes of patches of pixels. Where ``k`` counts pixels, the rows of channels lie along the axis.

TMA takes longer to bring zeros for a row outside of a matrix than to bring a row: an H200 took 46 us for 150x6144x4096
with tiles of 128 rows, not 27. So of a tile that a matrix fills in part only its rows arrive. Whatever is in the places
of the others, their products are not stored.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Select, Var, index, maximum, minimum
from ....ir.gpu.tma import Im2col, TmaLoad, TmaPrefetch, tma_swizzle
from ....ir.gpu.wgmma import LINE_BYTES, SWIZZLE_LINES
from ....ir.rewrite import substitute
from ....te.functions import equal
from ...problems.gemm import Gemm
from ...problems.image_window import TAP, ImageWindow
from ...problems.weight_gradient import column_of
from ..tma_view import ending_at, is_along, moved_dimensions, operand_view
from .k_atoms import joined_groups, lines_of_b, row_depth
from .mma_atom import wgmma_atom

DYNAMIC_ROWS = 16
"""So many rows are loaded at once where only a call knows how many there are. The last ones may be zeros."""


@dataclass(frozen=True, slots=True)
class Multicast:
    """How the CTAs of a cluster that need the same tile share its loads. There are ``ctas`` of them, and this one has
    the number ``cta``. ``mask`` has a bit for each of them; it is None where there is only one."""

    ctas: int
    cta: Expr
    mask: Expr | None


NO_MULTICAST = Multicast(1, index(0), None)


@dataclass(frozen=True, slots=True)
class TmaBox:
    """What one TMA load brings: ``extents`` elements of ``source`` from ``corner`` on, to ``target`` (indices) within a
    k atom of a stage."""

    source: Buffer
    corner: tuple[Expr, ...]
    extents: tuple[int, ...]
    target: tuple[Expr, ...]
    im2col: Im2col | None = None
    offsets: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class OperandStages:
    """One operand in shared memory, ``extent`` places of ``axis`` in each stage.

    ``buffer`` is (stage, k atom, place, k) where rows lie ``along_k``. Where patches of pixels have a halo, it has one
    k atom, and lines instead of places. Where rows lie along ``axis``, it is (stage, k atom, line, k, place of a line),
    of lines of 128 bytes along the axis; taps that share a patch with a halo have its lines as ``k``. The tiles of
    several ``loads`` (those of the B of several accumulators) follow one another along the axis. ``window``: how the
    one load is read where it is from images, or by patches of their pixels; None where it is from a matrix.
    ``joined_groups``: how many groups the places of ``axis`` belong to, if each has a part of k alone. A row
    ``along_k`` has the places of its group where a row of A has them, and zeros elsewhere. ``end``: how many rows
    ``along_k`` there are, where tiles may go beyond the last one.
    """

    buffer: Buffer
    loads: tuple[Load, ...]
    axis: str
    extent: int
    along_k: bool
    multicast: Multicast
    window: ImageWindow | None = None
    joined_groups: int = 1
    end: int | Expr | None = None

    @property
    def leading_lines(self) -> int | None:
        """How many lines apart the taps of a patch with a halo begin; None where rows of 64 places have no lines in
        common."""
        shared = self.window is not None and not self.along_k and self.window.halo_taps > 1
        return self.window.tap_lines if self.window is not None and shared else None

    @property
    def stage_bytes(self) -> int:
        return self.buffer.bytes // self.buffer.shape[0]

    def holds(self, k_atom: int) -> bool:
        """Return whether a k atom of a stage has lines of its own."""
        return k_atom < self.buffer.shape[1]

    def load(
        self, w: Writer, fill: Expr, k_atom: int, at: Mapping[str, Expr], full: Buffer, places: int | None = None
    ) -> None:
        """Issue this CTA's loads of a k atom that begins at ``at`` (axis -> index), into the stage of ``fill``. The
        barrier of ``full`` for that fill counts their bytes. Atoms that read what has been loaded for the first one
        load nothing. ``places``: how many places of ``k`` are loaded, if not all (``spared_bytes``)."""
        if not self.holds(k_atom):
            return
        stage, barrier = fill % self.buffer.shape[0], fill % full.shape[0]

        def issue(boxes: Iterable[TmaBox]) -> None:
            for box in boxes:
                target = (stage, index(k_atom), *box.target)
                parts = (target, box.source, box.corner, box.extents, full, barrier, True, self.multicast.mask)
                w.emit(TmaLoad(self.buffer, *parts, box.im2col, box.offsets))

        if self.end is None:
            issue(self._boxes(at, places))
            return
        begin, part = at[self.axis] + self._first, self._part
        pieces = [(place, DYNAMIC_ROWS) for place in range(0, part, DYNAMIC_ROWS)]
        if isinstance(self.end, int):
            pieces = [(0, self.end % part)] if self.end % part else []
        with w.when(begin + part <= self.end):
            issue(self._row_boxes(at, 0, part))
        with w.when(begin + part > self.end):
            for place, rows in pieces:
                with w.when(begin + place < self.end):
                    issue(self._row_boxes(at, place, rows))

    def rows_inside(self, begin: Expr, rows: int) -> int | Expr:
        """Return how many of ``rows`` rows from ``begin`` on count."""
        return rows if self.end is None else maximum(minimum(self.end - begin, index(rows)), index(0))

    def arriving_bytes(self, at: Mapping[str, Expr]) -> int | Expr:
        """Return how many bytes of a stage arrive for the tile at ``at``."""
        if self.window is not None and self.window.halo is not None:
            return self.stage_bytes // self.window.patch_lines * self.window.patch_pixels
        if self.end is None:
            return self.stage_bytes
        rows = self.rows_inside(at[self.axis], self.extent)
        if not isinstance(self.end, int):
            rows = (rows + (DYNAMIC_ROWS - 1)) // DYNAMIC_ROWS * DYNAMIC_ROWS
        return rows * (self.stage_bytes // self.extent)

    def spared_bytes(self, places: int) -> int:
        """Return how many bytes fewer arrive of an atom of which so many ``places`` of ``k`` are loaded; 0 where these
        cannot be loaded alone. They can where they are lines, of which each CTA that shares them loads whole periods of
        the swizzle."""
        if self.along_k or self.window is not None or places % (SWIZZLE_LINES * self.multicast.ctas):
            return 0
        atoms, lines = self.buffer.shape[1], self.buffer.shape[-2]
        return self.stage_bytes // atoms * (lines - places) // lines

    def prefetch(self, at: Mapping[str, Expr]) -> Iterator[TmaPrefetch]:
        """Prefetches into L2 of what ``load`` loads."""
        for box in self._boxes(at):
            yield TmaPrefetch(box.source, box.corner, box.extents, box.im2col, box.offsets)

    def _boxes(self, at: Mapping[str, Expr], places: int | None = None) -> Iterator[TmaBox]:
        """Yield this CTA's part of a k atom: a part of the axis where rows lie along ``k``, otherwise a part of ``k``,
        or of so many ``places`` of it."""
        part, first, line = self._part, self._first, self.buffer.shape[-1]
        if places is not None:
            part = places // self.multicast.ctas
            first = self.multicast.cta * part
        for number, load in enumerate(self.loads):
            if self.window is not None and self.along_k:
                corner = {**at, self.axis: at[self.axis] + first}
                yield from _image_boxes(load, self.window, corner, part, first, line)
                continue
            if self.along_k and self.joined_groups > 1:
                yield from self._group_boxes(load, at)
                continue
            if self.along_k:
                rows = min(part, self.end) if isinstance(self.end, int) else part
                yield from self._row_boxes(at, 0, rows)
                return
            atoms = self.buffer.shape[2] // len(self.loads)
            for n in range(atoms):
                corner = {**at, self.axis: at[self.axis] + n * line, "k": at["k"] + first}
                target = (index(number * atoms + n), first, index(0))
                if self.window is None:
                    yield _box(load, corner, {self.axis: line, "k": part}, target)
                    continue
                offsets = column_of(self.window, corner[self.axis], line).offsets(self.window)
                if not self.window.patch:
                    yield _im2col_box(load, self.window, corner, offsets, (part, line), target)
                else:
                    yield _patch_box(load, self.window, corner, offsets, line, target)

    @property
    def _part(self) -> int:
        """How much of the axis this CTA loads, or of ``k`` where rows lie along the axis."""
        return (self.extent if self.along_k else self.buffer.shape[-2]) // self.multicast.ctas

    @property
    def _first(self) -> Expr:
        """Where in a tile this CTA's part begins."""
        return self.multicast.cta * self._part if self.multicast.ctas > 1 else index(0)

    def _row_boxes(self, at: Mapping[str, Expr], place: int, rows: int) -> Iterator[TmaBox]:
        """Yield so many rows of this CTA's part of a k atom, from a ``place`` in it on."""
        corner = {**at, self.axis: at[self.axis] + self._first + place}
        for number, load in enumerate(self.loads):
            to = self._first + (number * self.extent + place)
            yield _box(load, corner, {self.axis: rows, "k": self.buffer.shape[-1]}, (to, index(0)))

    def _group_boxes(self, load: Load, at: Mapping[str, Expr]) -> Iterator[TmaBox]:
        """Yield a box for each of this CTA's groups. It begins so far before the first place of k that this arrives
        where a row of A has it; zeros arrive for what is outside of the tensor."""
        count, line = self.joined_groups // self.multicast.ctas, self.buffer.shape[-1]
        rows, depth = self.extent // self.joined_groups, line // self.joined_groups
        for n in range(count):
            group = self.multicast.cta * count + n if self.multicast.ctas > 1 else index(n)
            corner = {**at, self.axis: at[self.axis] + group * rows, "k": at["k"] - group * depth}
            yield _box(load, corner, {self.axis: rows, "k": line}, (group * rows, index(0)))


def allocate_stages(
    w: Writer,
    gemm: Gemm,
    axis: str,
    extent: int,
    stages: int,
    k_atoms: int,
    multicast: Multicast,
    end: int | Expr | None,
    kind: type[OperandStages] = OperandStages,
) -> OperandStages:
    """Return the stages of the operand along ``axis``: of A, or of all B, which must lie the same way. Where groups of
    columns are joined, each has a part of k alone: what lies along its own axis has all groups side by side, so that an
    atom has fewer places of k; what lies along k has whole rows. ``end``: how many places the axis has, where tiles may
    go beyond the last one. ``kind``: how the stages are filled."""
    atom, window = wgmma_atom(gemm), gemm.window if axis == "m" else gemm.b_window
    if axis == "m" and gemm.b_window is not None and gemm.b_window.patch:
        window = replace(gemm.b_window, taps=(1,) * len(gemm.b_window.taps))
    name, operands, dtype = ("a", (gemm.a,), atom.a) if axis == "m" else ("b", gemm.all_b, atom.b)
    groups = 1 if axis == "m" else joined_groups(gemm)
    given, side = [o.load for o in operands if o.load is not None], LINE_BYTES // dtype.bytes
    whole_k = {"k": row_depth(gemm)}
    loads = tuple(ending_at(operand_view(load), whole_k) if window is None else load for load in given)
    along_k = (axis == "m" and gemm.window is not None) or loads[0].indices[-1] == Var("k")
    lines = side if axis == "m" else int(lines_of_b(gemm, multicast.ctas))
    shape: tuple[int, ...] = (-(-extent // side) * len(loads), lines, side)
    strides: tuple[int, ...] = (lines * side, side, 1)
    if window is not None and window.halo_taps > 1 and not along_k:
        shape = (1, window.patch_lines, side)
    elif window is not None and window.halo is not None and along_k:
        k_atoms, shape, strides = 1, (extent // prod(window.patch) * window.patch_lines, side), (side, 1)
    elif along_k:
        shape, strides = (extent * len(loads), side), (side, 1)
    k_atom = prod(shape)
    layout = Layout((k_atoms * k_atom, k_atom, *strides), tma_swizzle(dtype))
    buffer = w.allocate(name, (stages, k_atoms, *shape), dtype, MemoryScope.SHARED, layout)
    end = end if along_k and window is None and groups == 1 else None
    return kind(buffer, loads, axis, extent, along_k, multicast, window, groups, end)


def multicast_mask(first: Expr, firsts: Iterable[int], distances: Iterable[int]) -> Expr:
    """Return a bit for each CTA of a cluster that a TMA load goes to. They are as far from the CTA ``first`` as
    ``distances`` say. ``first`` is known at run time only; it is one of ``firsts``."""
    pattern = sum(1 << n for n in distances)
    first_of_all, *rest = firsts
    mask: Expr = index(pattern << first_of_all)
    for n in rest:
        mask = Select(equal(first, n), index(pattern << n), mask)
    return mask


def _image_boxes(
    load: Load, window: ImageWindow, at: Mapping[str, Expr], rows: int, first: Expr, channels: int
) -> Iterator[TmaBox]:
    """Yield the pixels of ``at[TAP]`` that ``rows`` rows from ``at["m"]`` on see, in ``channels`` from ``at["k"]`` on:
    by im2col, or a box for each patch. They go to rows from ``first`` on."""
    offsets = tuple(substitute(i, at) for i in window.offsets(Var(TAP)))
    if not window.patch:
        yield _im2col_box(load, window, at, offsets, (rows, channels), (first, index(0)))
        return
    pixels = prod(window.patch)
    for patch in range(rows // pixels):
        here = {**at, "m": at["m"] + patch * pixels}
        line = first // pixels * window.patch_lines if window.halo is not None else first
        yield _patch_box(load, window, here, offsets, channels, (line + patch * window.patch_lines, index(0)))


def _im2col_box(
    load: Load,
    window: ImageWindow,
    at: Mapping[str, Expr],
    offsets: tuple[Expr, ...],
    extents: tuple[int, int],
    target: tuple[Expr, ...],
) -> TmaBox:
    """Return the (pixels, channels) of ``extents`` that so many positions from ``at`` on see so far from there."""
    corner = tuple(substitute(i, at) for i in load.indices)
    im2col = Im2col(window.lower, window.positions, window.strides)
    return TmaBox(load.buffer, corner, extents, target, im2col, offsets)


def _patch_box(
    load: Load,
    window: ImageWindow,
    at: Mapping[str, Expr],
    offsets: tuple[Expr, ...],
    channels: int,
    target: tuple[Expr, ...],
) -> TmaBox:
    """Return so many channels of the patch at ``at``, with its halo, so far from there."""
    sides = list(window.patch)
    if window.halo is not None:
        sides[window.halo + 1] += (window.halo_taps - 1) * window.dilations[window.halo]
    number, *start, channel = (substitute(i, at) for i in load.indices)
    moved = (i + offset for i, offset in zip(start, offsets, strict=True))
    box = moved_dimensions(Load(load.buffer, (number, *moved, channel)), window.patch_order)
    return TmaBox(box.buffer, box.indices, (*(sides[n] for n in window.patch_order), channels), target)


def _box(load: Load, at: Mapping[str, Expr], extents: Mapping[str, int], target: tuple[Expr, ...]) -> TmaBox:
    """Return the elements that ``load`` reads from ``at`` on, as many as ``extents`` says along each axis."""
    sizes = tuple(next((n for axis, n in extents.items() if is_along(i, axis)), 1) for i in load.indices)
    return TmaBox(load.buffer, tuple(substitute(i, at) for i in load.indices), sizes, target)
