"""The knobs of the CPU loop sketch, and which settings of them are legal: formulas over columns."""

from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.target import Target
from ....te.workload import Stage
from ...space.columns import Bools, Columns, Ints
from ...space.knob import Knob
from .footprint import read_bytes
from .fusion import MOST_LOCAL_BYTES, Group, is_contraction
from .tile_loops import COLUMNS_INSIDE, INLINE, NO_PACK, OPERANDS, PARALLEL_WORK, ROWS_INSIDE, STORE, pack_loop
from .tiles import COLUMNS, Tiles, lane_bytes, most_lanes, vector_registers

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
PLANES = (1, 2, 3, 4, 7, 8)
VECTORS = (1, 2, 3, 4, 5, 6, 7, 8)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_STEPS = 36
MOST_BODY = 256
"""Statements of an unrolled body: compile time grows with them."""
CACHED, STREAMED = "cached", "streamed"
BUSY_ACCUMULATORS = 8
"""Independent multiply-adds in flight that keep the units busy; with fewer each waits for the one before it."""
REGISTER_KNOBS = ("vectorise", "lanes", "vectors", "rows", "planes", "unroll")
"""The knobs that ``register_legal`` looks at."""


def padding_knob() -> Knob:
    return Knob(
        "padding",
        (STORE, INLINE),
        "whether padded inputs are stored once (store) or the padding condition is tested where they are read (inline)",
    )


def store_knob() -> Knob:
    return Knob(
        "store", (CACHED, STREAMED), "whether the output goes through the caches (cached) or past them (streamed)"
    )


def tile_knobs(tiles: Tiles, target: Target) -> tuple[Knob, ...]:
    """The knobs of a tile group; a knob with no effect on it is left out, ``lanes`` is always there."""
    column, row, plane = (tiles.extent(p) for p in (tiles.column, tiles.row, tiles.plane))
    name = tiles.axes[tiles.column].name
    knobs: list[Knob] = []
    if len(tiles.modes) > 1 or tiles.modes != (COLUMNS,):
        knobs.append(Knob("vectorise", tiles.modes, "whether vectors lie along the columns or along the reduction"))
    width = max(column, *(_last_extent(s) for s in tiles.group.stages)) if tiles.modes != (COLUMNS,) else column
    knobs.append(Knob("lanes", lane_values(tiles.group, width, target), "elements of a vector"))
    vectors = tuple(v for v in VECTORS if v == 1 or v <= column)
    knobs.append(Knob("vectors", vectors, f"vectors held at once along the columns ({name}) of a register tile"))
    if tiles.row is not None:
        rows = tuple(v for v in ROWS if v <= row)
        knobs.append(Knob("rows", rows, f"rows ({tiles.axes[tiles.row].name}) of a register tile"))
    if tiles.plane is not None:
        planes = tuple(v for v in PLANES if v <= plane)
        knobs.append(Knob("planes", planes, f"planes ({tiles.axes[tiles.plane].name}) of a register tile"))
    if tiles.row is not None:
        knobs.append(Knob("row_tiles", counts(row), "register tiles of a task along the rows"))
    knobs.append(Knob("column_tiles", counts(column), "register tiles of a task along the columns"))
    if tiles.row is not None:
        meaning = "which tiles of a task follow each other: those of one column (rows_inside) or of one row"
        knobs.append(Knob("order", (ROWS_INSIDE, COLUMNS_INSIDE), meaning))
    if tiles.group.reductions:
        knobs.append(
            Knob(
                "unroll",
                unroll_values(tiles.group.reductions[0]),
                "steps of the reduction written out one after the other",
            )
        )
    if tiles.packable:
        names = (NO_PACK, *(OPERANDS[i] for i in range(len(tiles.packable))))
        read = ", ".join(f"{OPERANDS[i]} is {name}" for i, (name, _) in enumerate(tiles.packable))
        knobs.append(Knob("pack", names, f"operand that is copied to a buffer without gaps first ({read})"))
    return tuple(knobs)


def row_knobs(group: Group, target: Target) -> tuple[Knob, ...]:
    """The knobs of a row group."""
    width = max(_last_extent(s) for s in group.stages)
    lanes = lane_values(group, width, target)
    vectors = tuple(v for v in VECTORS if v == 1 or v <= -(-width // min(lanes)))
    return (
        Knob("lanes", lanes, "elements of a vector"),
        Knob("vectors", vectors, "vectors handled in one step along a row; partial results of a reduction"),
        Knob("rows", counts(prod(a.extent for a in group.root.axes[: group.depth])), "rows of a task"),
    )


def scalar_knobs(group: Group, target: Target) -> tuple[Knob, ...]:
    """The knobs of a reduction to one element, or of a computation of one element."""
    width = _last_extent(group.root)
    lanes = lane_values(group, width, target)
    vectors = tuple(v for v in VECTORS if v == 1 or v <= -(-width // min(lanes)))
    return (
        Knob("lanes", lanes, "elements of a vector"),
        Knob("vectors", vectors, "vectors of partial results of the reduction"),
    )


def _last_extent(stage: Stage) -> int:
    axes = (*stage.axes, *stage.reduce_axes)
    return max((a.extent for a in axes[-1:]), default=1)


def lane_values(group: Group, width: int, target: Target) -> tuple[int, ...]:
    """The two widest useful vectors, widest first, and no vector at all where elements are few."""
    full = most_lanes(group, target)
    while full > 1 and full // 2 >= width:
        full //= 2
    values = [full, max(1, full // 2)] if full > 1 else [1]
    return tuple(dict.fromkeys(values))


def counts(extent: int) -> tuple[int, ...]:
    """Powers of two up to the first that covers ``extent``."""
    return tuple(c for c in COUNTS if c == 1 or c < 2 * extent)


def unroll_values(reduction: Stage) -> tuple[int, ...]:
    """Steps worth writing out: whole inner loops (a 3 x 3 window), and powers of two of a longer loop."""
    values = {1}
    whole = 1
    for axis in reversed(reduction.reduce_axes):
        parts = [f for f in (2, 4, 8, 16) if f < axis.extent and (axis.extent >= 8 or axis.extent % f == 0)]
        values |= {whole * f for f in parts if whole * f <= MOST_STEPS}
        whole *= axis.extent
        if whole > MOST_STEPS:
            break
        values.add(whole)
    return tuple(sorted(values))


@dataclass(frozen=True, slots=True)
class TileShape:
    """Columns that several formulas need, int64[n] each."""

    columns: Ints
    rows: Ints
    planes: Ints
    column_count: Ints
    """Register tiles along the columns, and so on."""
    row_count: Ints
    plane_count: Ints
    tasks: Ints
    accumulators: Ints
    """Vector registers of all accumulators."""


def tile_shape(tiles: Tiles, target: Target, c: Columns) -> TileShape:
    lanes, vectors = c.ints("lanes"), c.ints("vectors")
    along = c.flags("vectorise", COLUMNS)
    columns = np.where(along, lanes * vectors, vectors)
    rows, planes = c.ints("rows"), c.ints("planes")
    column_count = _ceil(tiles.extent(tiles.column), columns)
    row_count, plane_count = _ceil(tiles.extent(tiles.row), rows), _ceil(tiles.extent(tiles.plane), planes)
    tasks = _ceil(column_count, c.ints("column_tiles")) * _ceil(row_count, c.ints("row_tiles")) * plane_count
    registers = _ceil(lanes * lane_bytes(tiles.group), target.vector_bytes)
    members = max(1, len(tiles.group.members))
    return TileShape(
        columns=columns,
        rows=rows,
        planes=planes,
        column_count=column_count,
        row_count=row_count,
        plane_count=plane_count,
        tasks=tasks * tiles.outer_points,
        accumulators=rows * planes * vectors * registers * members,
    )


def register_legal(tiles: Tiles, target: Target, c: Columns) -> Bools:
    """Which register tiles fit the registers and give a body of bearable size; no two that mean the same."""
    s = tile_shape(tiles, target, c)
    along = c.flags("vectorise", COLUMNS)
    vectors, lanes, unroll = c.ints("vectors"), c.ints("lanes"), c.ints("unroll")
    reserved = np.where(along, 2, 2 + vectors)
    ok: Bools = s.accumulators + np.where(s.accumulators > 1, reserved, 0) <= vector_registers(target)
    ok &= (s.accumulators * unroll * tiles.group.alike <= MOST_BODY) | (unroll == 1)
    ok &= (unroll == 1) | along | (unroll <= -(-_steps(tiles) // lanes))
    ok &= np.where(along, (vectors - 1) * lanes, vectors - 1) < tiles.extent(tiles.column)
    if tiles.group.reductions and ok.any():
        enough = BUSY_ACCUMULATORS if any(is_contraction(s) for s in tiles.group.reductions) else 4
        ok &= s.accumulators >= min(enough, int(s.accumulators[ok].max()))
    return ok


def tile_legal(tiles: Tiles, target: Target, c: Columns) -> Bools:
    """Which settings are worth compiling: registers, code size, local bytes, and no two that mean the same."""
    ok = register_legal(tiles, target, c)
    s = tile_shape(tiles, target, c)
    row_tiles, column_tiles = c.ints("row_tiles"), c.ints("column_tiles")
    ok &= (row_tiles == 1) | (row_tiles < 2 * s.row_count)
    ok &= (column_tiles == 1) | (column_tiles < 2 * s.column_count)
    ok &= c.flags("order", ROWS_INSIDE) | ((row_tiles > 1) & (column_tiles > 1))
    packed = packed_bytes(tiles, c, s)
    ok &= packed <= MOST_LOCAL_BYTES
    for i, (_, follows) in enumerate(tiles.packable):
        again = np.maximum(
            np.where(tiles.row is None or tiles.row in follows, 1, row_tiles),
            np.where(tiles.column in follows, 1, column_tiles),
        )
        ok &= ~c.flags("pack", OPERANDS[i]) | (again > 1)
    if tiles.group.work >= PARALLEL_WORK:
        most = tiles.outer_points * tiles.extent(tiles.row) * tiles.extent(tiles.plane)
        ok &= s.tasks >= min(target.threads, most * _tiles_of_least_columns(tiles, target))
    return ok


def _tiles_of_least_columns(tiles: Tiles, target: Target) -> int:
    """Register tiles along the columns that every choice of ``lanes`` allows."""
    return -(-tiles.extent(tiles.column) // most_lanes(tiles.group, target))


def packed_bytes(tiles: Tiles, c: Columns, s: TileShape) -> Ints:
    """Bytes of the local copy of an operand; 0 without one."""
    total = np.zeros(len(c), dtype=np.int64)
    orders = {
        ROWS_INSIDE: [p for p in (tiles.column, tiles.row) if p is not None],
        COLUMNS_INSIDE: [p for p in (tiles.row, tiles.column) if p is not None],
    }
    sizes = {tiles.column: s.columns, tiles.row: s.rows, tiles.plane: s.planes}
    blocks = {tiles.column: c.ints("column_tiles"), tiles.row: c.ints("row_tiles")}
    for i, (tensor, follows) in enumerate(tiles.packable):
        chosen = c.flags("pack", OPERANDS[i])
        for order, positions in orders.items():
            rows = np.flatnonzero(chosen & c.flags("order", order))
            loop = pack_loop(follows, positions)
            held = {
                p: np.minimum(sizes[p][rows] * (blocks[p][rows] if p in blocks and p != loop else 1), tiles.extent(p))
                for p in tiles.tiled
            }
            held |= {p: np.ones(len(rows), dtype=np.int64) for p in tiles.untiled}
            total[rows] = read_bytes(tiles.group, tensor, held)
    return total


def _steps(tiles: Tiles) -> int:
    """Iterations of the longest reduction of the group."""
    return max((prod(a.extent for a in s.reduce_axes) for s in tiles.group.reductions), default=1)


def _ceil(extent: int | Ints, size: int | Ints) -> Ints:
    return np.asarray(-(-np.asarray(extent, dtype=np.int64) // np.asarray(size, dtype=np.int64)))
