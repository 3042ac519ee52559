"""Writes what a thread computes of a tile of the gradient: ``tile_h`` rows of ``tile_w`` pixels, of ``vector_width``
neighbouring channels.

It goes through the rows of the image that the tile sees. Each is loaded once, and multiplied by all rows of the
gradient that meet it in a tap of the filter::

    for each row of the image:
        load the next row, and the row of the gradient that it is the first to meet
        for each row q of the gradient whose tap r is here, for p in unrolled(tile_w), s in unrolled(taps):
            acc[r, s, :] += x_regs[stride*p + dilation*s, :] * d_regs[q, p, :]

Registers hold circular buffers of rows of both; the compiler loads as many of them ahead as registers allow. Where
channels stand last, each pixel is a vector of them. Where columns do, a row of the tile is one, or several aligned
pieces, which may begin ``lead`` positions earlier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, Var, const, index
from ....te.workload import Axis
from ...problems.depthwise_gradient import DepthwiseGradient, moved
from ...space.columns import Size
from ...tile.masked_loads import MaskedLoad
from ...tile.names import FreshNameWriter
from ...tile.pieces import are_together
from ...tile.register_loads import RegisterLoad, allocate_registers, bounded, load_registers, without_kept_conditions
from ..warp_reduce_scatter import warp_reduce_scatter

VECTOR_BYTES = 16
"""Bytes of the widest access of the hardware."""

ROW_TILE, COLUMN_TILE = "row_tile#", "column_tile#"
"""The axes that number the tiles of an image; no variable of a kernel has these names."""
_POSITION = "position#"
_SLOTS = 2
"""Rows of the image in registers: one is loaded while the one before it is multiplied."""


@dataclass(frozen=True, slots=True)
class DepthwiseGradientSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``vector_width``, ``tile_w``, ``tile_h``, ``threads_x``, ``threads``, ``ctas_per_sm``, ``rounds`` and ``mma`` are
    knobs. ``lead``: how many positions ahead of the first one that a thread sees its rows of the image are loaded from.
    ``near``: how many positions are loaded of each, ``load_width`` at once. ``rows``, ``lines``: rows of the gradient
    and of the image that a thread has of a tile. ``held``: rows of the gradient in registers. ``tiles``: tiles of all
    images, for each channel; with ``mma`` they are those of warps, each lane of which has a part of ``tile_w`` columns.
    ``block_tiles``: how many a block has at once. ``channel_blocks``: how many blocks have the vectors of channels.
    ``splits``: how many blocks share the tiles. ``blocks``: thread blocks of the first launch. ``shared_bytes``: shared
    memory of a block. ``registers``: those that ``ctas_per_sm`` leaves to a thread. ``resident``: how many blocks a
    multiprocessor runs at once.
    """

    vector_width: Size
    tile_w: Size
    tile_h: Size
    threads_x: Size
    threads: Size
    ctas_per_sm: Size
    rounds: Size
    mma: Size
    lead: Size
    near: Size
    load_width: Size
    rows: Size
    lines: Size
    held: Size
    tiles: Size
    block_tiles: Size
    channel_blocks: Size
    splits: Size
    blocks: Size
    shared_bytes: Size
    registers: Size
    resident: Size


def aligned_row(problem: DepthwiseGradient, tile_w: int) -> tuple[int, int, int]:
    """Return how a row of the image that a tile sees is loaded where columns are neighbours in memory, so that this
    takes the fewest accesses: (positions ahead of the first one that is needed, positions in all, those at once)."""
    needed, widest = problem.width.positions(tile_w), VECTOR_BYTES // problem.pixels.load.dtype.bytes
    found = []
    for width in (n for n in (1, 2, 4, 8) if n <= widest):
        for lead in range(width):
            row = moved(bounded(problem.pixels, problem.width.names), seen(problem, tile_w, lead, 1, index(0)))
            if width == 1 or are_together(row, _POSITION, width, aligned=True):
                positions = -(-(lead + needed) // width) * width
                found.append((positions / width + positions / widest, lead, positions, width))
                break
    _, lead, positions, width = min(found)
    return lead, positions, width


def seen(problem: DepthwiseGradient, tile_w: int, lead: int, tile_h: int, line: Expr) -> dict[str, Expr]:
    """Return the axes of the image's load at position ``_POSITION`` of row ``line`` of those that a tile sees."""
    return {
        **problem.unit_axes,
        **problem.height.at(Var(ROW_TILE) * tile_h, line),
        **problem.width.at(Var(COLUMN_TILE) * tile_w, Var(_POSITION) - lead),
    }


def load_row(
    w: FreshNameWriter,
    registers: RegisterLoad,
    slot: int,
    place: dict[str, Expr],
    positions: int,
    at: Mapping[str, Expr],
    axes: Sequence[Axis],
) -> None:
    """Load a row of neighbours in memory from ``place``, which depends on ``_POSITION`` and on ``axes``, those of
    ``at``."""
    needed = without_kept_conditions(moved(registers.masked, place), {}, (*axes, Axis(_POSITION, positions)))
    here = {**at, _POSITION: index(0)}
    load_registers(w, replace(registers, masked=needed), (index(slot),), here, _POSITION, positions)


def held_rows(problem: DepthwiseGradient, tile_h: int) -> int:
    """Return how many rows of the gradient are in registers at a time: those that the row of the image at hand meets,
    and the next one."""
    reading = [[row for row, _ in rows] for rows in problem.height.consumers(tile_h).values()]
    spans = ([*chain(*reading[n : n + _SLOTS])] for n in range(len(reading)))
    return max(max(rows) - min(rows) + 1 for rows in spans if rows)


class TileWriter:
    """Writes the products of tiles. ``axes``: those that number images and channels."""

    def __init__(
        self, problem: DepthwiseGradient, sizes: DepthwiseGradientSizes, w: FreshNameWriter, axes: Sequence[Axis]
    ) -> None:
        self.problem, self.s, self.w, self.axes = problem, sizes, w, axes
        self.consumers = problem.height.consumers(sizes.tile_h)
        ends = ((problem.height, sizes.tile_h), (problem.width, sizes.tile_w))
        ragged = {name for a, tile in ends if a.axis.extent % tile for name in a.names}
        beyond = ragged if problem.channels_last else ragged | problem.width.names
        self.pixels = self._allocate(bounded(problem.pixels, beyond), (_SLOTS, sizes.near))
        self.gradients = self._allocate(bounded(problem.gradients, ragged), (sizes.held, sizes.tile_w))
        count = problem.taps * sizes.vector_width
        self.acc = w.allocate("acc", (count,), problem.accumulator_dtype, MemoryScope.REGISTER)
        with w.unrolled("zero", count) as n:
            w.store(self.acc, (n,), const(0, self.acc.dtype))

    def _allocate(self, masked: MaskedLoad, shape: tuple[int, int]) -> RegisterLoad:
        """Allocate registers for [row, column], or for [row, column, channel]."""
        if self.problem.channels_last:
            return allocate_registers(self.w, masked, shape, self.problem.lanes.name, self.s.vector_width)
        return allocate_registers(self.w, masked, shape[:1], self.problem.lanes.name, shape[1])

    def multiply(self, at: Mapping[str, Expr], lane: Expr) -> None:
        """Add what a tile contributes to the accumulators, [tap and channel]. ``at``: where the tile of the thread and
        its first channel are."""
        lines = list(self.consumers)
        self._load(at, 0, lines[0])
        for number, line in enumerate(lines):
            for later in lines[number + 1 : number + 2]:
                self._load(at, number + 1, later)
            for row, tap in self.consumers[line]:
                self._accumulate(number % _SLOTS, row, tap)

    def _load(self, at: Mapping[str, Expr], number: int, line: int) -> None:
        """Load a row of the image, and the row of the gradient that no row before it meets."""
        problem, s = self.problem, self.s
        for row in (row for row, tap in self.consumers[line] if tap == 0):
            first = {problem.height.axis.name: Var(ROW_TILE) * s.tile_h + row}
            first |= {problem.width.axis.name: Var(COLUMN_TILE) * s.tile_w + Var(_POSITION)}
            place = {**problem.unit_axes, **first}
            self._load_row(at, self.gradients, row % s.held, place, s.tile_w)
        place = seen(problem, s.tile_w, s.lead, s.tile_h, index(line))
        self._load_row(at, self.pixels, number % _SLOTS, place, s.near)

    def _load_row(
        self, at: Mapping[str, Expr], registers: RegisterLoad, slot: int, place: dict[str, Expr], positions: int
    ) -> None:
        """Load a row from ``place``, which depends on the tile and on ``_POSITION``."""
        axis, lanes, last = self.problem.lanes.name, self.s.vector_width, self.problem.channels_last
        if not last:
            load_row(self.w, registers, slot, place, positions, at, self.axes)
            return
        masked = moved(registers.masked, place)
        for position in range(positions):
            needed = without_kept_conditions(moved(masked, {_POSITION: index(position)}), {}, self.axes)
            load_registers(self.w, replace(registers, masked=needed), (index(slot), index(position)), at, axis, lanes)

    def _accumulate(self, slot: int, row: int, tap: int) -> None:
        """Multiply a row of the image and a row of the gradient, which meet in row ``tap`` of the filter."""
        w, s, acc, width = self.w, self.s, self.acc, self.problem.width
        with w.unrolled("p", s.tile_w) as p:
            for point in range(width.window_points):
                first = (tap * width.window_points + point) * s.vector_width
                with w.vectorized("v", s.vector_width) as v:
                    seen = p * width.stride + (point * width.dilation + s.lead)
                    pixel = self._value(self.pixels, slot, seen, v)
                    product = self.problem.product(pixel, self._value(self.gradients, row % s.held, p, v))
                    w.store(acc, (v + first,), Load(acc, (v + first,)) + product)

    def _value(self, registers: RegisterLoad, slot: int, position: Expr, v: Expr) -> Expr:
        """Return what was loaded at a position of a row."""
        if self.problem.channels_last:
            return registers.value((index(slot), position), v)
        return registers.value((index(slot),), position)

    def leave(self, of_warps: Buffer, warp: Expr, lane: Expr) -> None:
        """Leave the sums of the warp in shared memory: [warp, tap and channel, lane among those side by side]."""
        w, side = self.w, of_warps.shape[-1]
        if side < WARP_LANES:
            for left in warp_reduce_scatter(w, self.acc, lane, side):
                with w.when(left.owns):
                    w.store(of_warps, (warp, left.number, lane % side), Load(self.acc, (index(left.register),)))
            return
        with w.unrolled("number", self.acc.shape[0]) as n:
            w.store(of_warps, (warp, n, lane), Load(self.acc, (n,)))
