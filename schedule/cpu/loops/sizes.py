"""Derives the sizes of the loops of a tile group, for one setting and for whole columns of settings alike."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ...space.columns import Columns, Ints
from ..arithmetic import ceil_div
from ..shared_knobs import COLUMNS_INSIDE, ROWS_INSIDE
from .footprint import read_bytes
from .tiles import COLUMNS, OPERANDS, LoopTileAxes, lane_bytes

N = TypeVar("N", int, Ints)


@dataclass(frozen=True, eq=False)
class LoopTileSizes(Generic[N]):
    """``columns``, ``rows`` and ``planes`` are those of a register tile. ``column_count``, ``row_count`` and
    ``plane_count`` register tiles cover the tiled axes. ``tasks`` counts what threads take one after the other."""

    columns: N
    rows: N
    planes: N
    column_count: N
    row_count: N
    plane_count: N
    tasks: N


def tile_sizes(tiles: LoopTileAxes, c: Columns) -> LoopTileSizes[Ints]:
    """Return the sizes that settings imply."""
    vectors = c.ints("vectors")
    columns = np.where(c.flags("vectorise", COLUMNS), c.ints("lanes") * vectors, vectors)
    rows, planes = c.ints("rows"), c.ints("planes")
    column_count = ceil_div(tiles.extent(tiles.column), columns)
    row_count, plane_count = ceil_div(tiles.extent(tiles.row), rows), ceil_div(tiles.extent(tiles.plane), planes)
    blocks = ceil_div(column_count, c.ints("column_tiles")) * ceil_div(row_count, c.ints("row_tiles"))
    return LoopTileSizes(
        columns=columns,
        rows=rows,
        planes=planes,
        column_count=column_count,
        row_count=row_count,
        plane_count=plane_count,
        tasks=blocks * plane_count * tiles.outer_points,
    )


def accumulator_registers(tiles: LoopTileAxes, target: Target, c: Columns) -> Ints:
    """Return the vector registers that the accumulators of a register tile take, int64[n]."""
    vector = ceil_div(c.ints("lanes") * lane_bytes(tiles.group), target.vector_bytes)
    members = max(1, len(tiles.group.members))
    return c.ints("rows") * c.ints("planes") * c.ints("vectors") * vector * members


def packed_bytes(tiles: LoopTileAxes, c: Columns, s: LoopTileSizes[Ints]) -> Ints:
    """Return the bytes of the packed copy of an operand, int64[n]; 0 where none is packed."""
    total = np.zeros(len(c), dtype=np.int64)
    orders = {
        ROWS_INSIDE: [p for p in (tiles.column, tiles.row) if p is not None],
        COLUMNS_INSIDE: [p for p in (tiles.row, tiles.column) if p is not None],
    }
    sizes = {tiles.column: s.columns, tiles.row: s.rows, tiles.plane: s.planes}
    counts = {tiles.column: c.ints("column_tiles"), tiles.row: c.ints("row_tiles")}
    for i, (tensor, follows) in enumerate(tiles.packable):
        chosen = c.flags("pack", OPERANDS[i])
        for order, positions in orders.items():
            rows = np.flatnonzero(chosen & c.flags("order", order))
            loop = pack_loop(follows, positions)
            extents = {
                p: np.minimum(sizes[p][rows] * (counts[p][rows] if p in counts and p != loop else 1), tiles.extent(p))
                for p in tiles.tiled
            }
            extents |= {p: np.ones(len(rows), dtype=np.int64) for p in tiles.untiled}
            total[rows] = read_bytes(tiles.group, tensor, extents)
    return total


def pack_loop(follows: tuple[int, ...], order: list[int]) -> int | None:
    """Return the axis whose tile loop holds the packed copy, or None where the whole task does.

    The copy is made as far in as it is used again. ``follows``: the tiled axes that the tensor follows. ``order``: the
    axes of the tile loops, outermost first.
    """
    if len(order) == 2 and order[1] not in follows and order[0] in follows:
        return order[0]
    return None
