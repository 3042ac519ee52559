"""Which settings of a tile group are worth a measurement: rules of thumb, apart from what is legal."""

from math import prod

import numpy as np

from ....core.target import Target
from ....ir.rewrite import free_variables
from ...space.columns import Bools, Columns, Ints
from ..arithmetic import ceil_div
from ..limits import vector_registers
from .footprint import body_loads, spans
from .fusion import MOST_LOCAL_BYTES, is_contraction
from .knobs import unroll_values
from .sizes import LoopTileSizes, accumulator_registers, packed_bytes, tile_sizes
from .tile_loops import NO_PACK, PARALLEL_WORK
from .tiles import OPERANDS, LoopTileAxes, lane_bytes, most_lanes, uses

MOST_BODY = 256
"""Statements of an unrolled body: compile time grows with them."""
BUSY_ACCUMULATORS = 8
"""Independent multiply-adds under way that keep the units busy. With fewer, each waits for the one before it."""
BUSY_REDUCTION = 4
"""The same for other reductions, which wait for memory rather."""


def promising(tiles: LoopTileAxes, target: Target, c: Columns) -> Bools:
    """Return which settings keep all rules, bool[n]. With few accumulators, those with the most stay."""
    good = keeps_rules(tiles, target, c)
    if tiles.group.reductions:
        accumulators, small = accumulator_registers(tiles, target, c), _is_small(tiles, target, c)
        contracts = any(is_contraction(s) for s in tiles.group.reductions)
        busy = BUSY_ACCUMULATORS if contracts else BUSY_REDUCTION
        good &= accumulators >= min(busy, int(accumulators[small].max(initial=0)))
    if _has_window(tiles):
        suits = good & _suits_window(tiles, c)
        if suits.any():
            held = accumulator_registers(tiles, target, c) + _window_registers(tiles, target, c)
            good = suits & (held <= max(vector_registers(target), held[suits].min()))
    return good


def _has_window(tiles: LoopTileAxes) -> bool:
    """Return whether all reductions go over a window that moves along rows or planes, such as those of a depthwise
    convolution with channels last, and can be unrolled as a whole."""
    for stage in tiles.group.reductions:
        column, *moving = (stage.axes[p].name for p in (tiles.column, tiles.row, tiles.plane) if p is not None)
        used = [free_variables(i) for load in body_loads(stage) for i in load.indices]
        for axis in stage.reduce_axes:
            own = [names for names in used if axis.name in names]
            if axis.extent > 1 and (not any({*moving} & names for names in own) or any(column in n for n in own)):
                return False
        if prod(a.extent for a in stage.reduce_axes) not in unroll_values(stage):
            return False
    return bool(tiles.group.reductions)


def _suits_window(tiles: LoopTileAxes, c: Columns) -> Bools:
    """Return which settings load what a register tile sees once for all places of the window, and go through memory as
    it lies: all columns of a tile, then its neighbours in a row, so that each thread reads and writes whole rows. Tiles
    are not wider than tall: their neighbours in a row find what both see in the first-level cache, those below come
    later."""
    steps = max(prod(a.extent for a in stage.reduce_axes) for stage in tiles.group.reductions)
    whole = c.ints("column_tiles") * tile_sizes(tiles, c).columns >= tiles.extent(tiles.column)
    suits = whole & (c.ints("row_tiles") == 1) & (c.ints("rows") >= c.ints("planes"))
    found: Bools = suits & (c.ints("unroll") == steps) & c.flags("pack", NO_PACK)
    return found


def _window_registers(tiles: LoopTileAxes, target: Target, c: Columns) -> Ints:
    """Return the vector registers for what a register tile sees of tensors that a window moves over, int64[n]."""
    s, total = tile_sizes(tiles, c), np.zeros(len(c), dtype=np.int64)
    lanes = c.ints("lanes")
    sizes = {tiles.column: s.columns, tiles.row: s.rows, tiles.plane: s.planes}
    extents = {p: np.minimum(sizes.get(p, total + 1), tiles.extent(p)) for p in range(len(tiles.axes))}
    for stage in tiles.group.reductions:
        for load in body_loads(stage):
            if tiles.row is not None and uses(load, stage.axes[tiles.row].name):
                vectors = ceil_div(np.prod(spans(stage, load, extents), axis=0), lanes)
                total = total + vectors * ceil_div(lanes * lane_bytes(tiles.group), target.vector_bytes)
    return total


def keeps_rules(tiles: LoopTileAxes, target: Target, c: Columns) -> Bools:
    """Return the rules that look at one setting alone: a body of bearable size, a packed operand that is used again and
    stays in the cache, and a task for each thread."""
    s = tile_sizes(tiles, c)
    good = _is_small(tiles, target, c) & (packed_bytes(tiles, c, s) <= MOST_LOCAL_BYTES) & _packing_pays(tiles, c)
    return good & _has_tasks(tiles, target, s)


def _is_small(tiles: LoopTileAxes, target: Target, c: Columns) -> Bools:
    unroll = c.ints("unroll")
    statements = accumulator_registers(tiles, target, c) * unroll * tiles.group.same_shape
    found: Bools = (statements <= MOST_BODY) | (unroll == 1)
    return found


def _packing_pays(tiles: LoopTileAxes, c: Columns) -> Bools:
    """Return whether several register tiles of a task read the same packed elements."""
    pays = np.ones(len(c), dtype=bool)
    row_tiles, column_tiles = c.ints("row_tiles"), c.ints("column_tiles")
    for i, (_, follows) in enumerate(tiles.packable):
        again = np.maximum(
            np.where(tiles.row is None or tiles.row in follows, 1, row_tiles),
            np.where(tiles.column in follows, 1, column_tiles),
        )
        pays &= ~c.flags("pack", OPERANDS[i]) | (again > 1)
    return pays


def _has_tasks(tiles: LoopTileAxes, target: Target, s: LoopTileSizes[Ints]) -> Bools:
    """Return whether every thread has a task, as far as any setting gives it one."""
    if tiles.group.work < PARALLEL_WORK:
        return np.ones(len(s.tasks), dtype=bool)
    most = tiles.outer_points * tiles.extent(tiles.row) * tiles.extent(tiles.plane)
    least_columns = -(-tiles.extent(tiles.column) // most_lanes(tiles.group, target))
    return s.tasks >= min(target.threads, most * least_columns)
