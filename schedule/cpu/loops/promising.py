"""Which settings of a tile group are worth a measurement: rules of thumb, apart from what is legal."""

import numpy as np

from ....core.target import Target
from ...space.columns import Bools, Columns, Ints
from .fusion import MOST_LOCAL_BYTES, is_contraction
from .sizes import LoopTileSizes, accumulator_registers, packed_bytes, tile_sizes
from .tile_loops import PARALLEL_WORK
from .tiles import OPERANDS, LoopTileAxes, most_lanes

MOST_BODY = 256
"""Statements of an unrolled body: compile time grows with them."""
BUSY_ACCUMULATORS = 8
"""Independent multiply-adds under way that keep the units busy. With fewer, each waits for the one before it."""
BUSY_REDUCTION = 4
"""The same for other reductions, which wait for memory rather."""


def promising(tiles: LoopTileAxes, target: Target, c: Columns) -> Bools:
    """Which settings keep all rules, bool[n]. With few accumulators, those with the most stay."""
    good = keeps_rules(tiles, target, c)
    if tiles.group.reductions:
        accumulators, small = accumulator_registers(tiles, target, c), _is_small(tiles, target, c)
        contracts = any(is_contraction(s) for s in tiles.group.reductions)
        busy = BUSY_ACCUMULATORS if contracts else BUSY_REDUCTION
        good &= accumulators >= min(busy, int(accumulators[small].max(initial=0)))
    return good


def keeps_rules(tiles: LoopTileAxes, target: Target, c: Columns) -> Bools:
    """The rules that look at one setting alone: a body of bearable size, a packed operand that is used again and stays
    in the cache, and a task for each thread."""
    s = tile_sizes(tiles, c)
    good = _is_small(tiles, target, c) & (packed_bytes(tiles, c, s) <= MOST_LOCAL_BYTES) & _packing_pays(tiles, c)
    return good & _has_tasks(tiles, target, s)


def _is_small(tiles: LoopTileAxes, target: Target, c: Columns) -> Bools:
    unroll = c.ints("unroll")
    statements = accumulator_registers(tiles, target, c) * unroll * tiles.group.same_shape
    small: Bools = (statements <= MOST_BODY) | (unroll == 1)
    return small


def _packing_pays(tiles: LoopTileAxes, c: Columns) -> Bools:
    """Whether several register tiles of a task read the same packed elements."""
    pays: Bools = np.ones(len(c), dtype=bool)
    row_tiles, column_tiles = c.ints("row_tiles"), c.ints("column_tiles")
    for i, (_, follows) in enumerate(tiles.packable):
        again = np.maximum(
            np.where(tiles.row is None or tiles.row in follows, 1, row_tiles),
            np.where(tiles.column in follows, 1, column_tiles),
        )
        pays &= ~c.flags("pack", OPERANDS[i]) | (again > 1)
    return pays


def _has_tasks(tiles: LoopTileAxes, target: Target, s: LoopTileSizes[Ints]) -> Bools:
    """Whether every thread has a task, as far as any setting gives it one."""
    if tiles.group.work < PARALLEL_WORK:
        return np.ones(len(s.tasks), dtype=bool)
    most = tiles.outer_points * tiles.extent(tiles.row) * tiles.extent(tiles.plane)
    least_columns = -(-tiles.extent(tiles.column) // most_lanes(tiles.group, target))
    enough: Bools = s.tasks >= min(target.threads, most * least_columns)
    return enough
