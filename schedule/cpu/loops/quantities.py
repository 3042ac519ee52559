"""Describes the derived columns of the CPU loop sketch: what a setting implies, in units that mean the same in every
workload.

All of them are formulas over columns; nothing is lowered for them.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from ....core.target import Target
from ....ir.cpu import LEAST_TRANSPOSED
from ....ir.expr import Load
from ....te.workload import Stage, Workload
from ...space.columns import Bools, Columns, Floats, Ints
from ...space.knob import Quantity
from ..arithmetic import idle_share
from ..limits import PAGE_BYTES, vector_registers
from ..shared_knobs import NON_TEMPORAL, ROWS_INSIDE
from .footprint import AxisExtents, body_loads, load_pages, tensor_bytes, written_bytes
from .fusion import FusedGroup, points
from .lane_loads import steps_of_load
from .row_loops import terms_alone
from .sizes import LoopTileSizes, accumulator_registers, packed_bytes, tile_sizes
from .tile_loops import INLINE, NO_PACK
from .tiles import COLUMNS, OPERANDS, LoopTileAxes, lane_bytes, stride_along, tiles_of, uses, vector_terms

QUANTITIES = (
    Quantity("tasks", "tasks", "how many tasks threads take one after the other"),
    Quantity("idle_share", "fraction", "share of thread time that is left idle when the tasks do not divide evenly"),
    Quantity("task_operations", "operations", "how many plain operations a task has"),
    Quantity("tiles", "tiles", "how many register tiles, or rows, the whole computation has"),
    Quantity("vector_share", "fraction", "share of the widest vector register that is in use"),
    Quantity(
        "edge_waste", "fraction", "share of the computed elements that lie beyond the edges of output or reduction"
    ),
    Quantity("accumulators", "registers", "how many vector registers hold the accumulators of a register tile"),
    Quantity("register_share", "fraction", "share of the vector registers that accumulators take"),
    Quantity("tile_rows", "elements", "how many rows, times planes, a register tile has"),
    Quantity("tile_columns", "elements", "how many columns a register tile has"),
    Quantity("body_statements", "statements", "how many vector statements the innermost body has after unrolling"),
    Quantity("body_repeats", "iterations", "how often the innermost body runs, over all tiles and reduction steps"),
    Quantity("inner_steps", "iterations", "how many iterations the loops over the reduction have inside a tile"),
    Quantity(
        "loads_per_operation", "loads", "how many vectors and elements are loaded for each vector operation of the body"
    ),
    Quantity(
        "uneven_loads",
        "fraction",
        "share of the loads that gather; a register transpose counts as the gathers that take as long",
    ),
    Quantity("across_lanes", "fraction", "share of the work that combines the lanes of a vector"),
    Quantity("tile_bytes", "bytes", "how much a tile reads over its whole reduction"),
    Quantity("reused_bytes", "bytes", "how much of that the next tile of a task reads again"),
    Quantity("task_bytes", "bytes", "how much a task reads and writes when each element counts once"),
    Quantity("tile_traffic", "bytes", "how much all tiles read together"),
    Quantity("task_traffic", "bytes", "how much all tasks read and write together"),
    Quantity("task_intensity", "operations/byte", "how many plain operations there are for each byte of task traffic"),
    Quantity("tile_pages", "pages", "how many memory pages of 4 KiB a tile reads from, a packed operand left out"),
    Quantity("packed_bytes", "bytes", "how large the packed copy of an operand is"),
    Quantity("packing_share", "fraction", "how many elements are packed for each plain operation"),
    Quantity("local_bytes", "bytes", "how large the intermediate results are that a task holds"),
    Quantity("non_temporal", "fraction", "1 where outputs are stored past the caches"),
    Quantity("inlined_padding", "fraction", "1 where padding conditions are tested as padded inputs are read"),
)


def derive(workload: Workload, group: FusedGroup, target: Target, c: Columns) -> Mapping[str, Floats]:
    """Return the derived columns of n settings of the group's knobs, float64[n] each."""
    found: dict[str, Ints | Floats | float] = {q.name: 0.0 for q in QUANTITIES}
    found["non_temporal"] = c.flags("store", NON_TEMPORAL).astype(np.float64)
    found["inlined_padding"] = c.flags("padding", INLINE).astype(np.float64)
    if group.kind == "tile":
        found.update(_tile_columns(tiles_of(group), target, c))
    else:
        found.update(_row_columns(group, target, c))
    tasks = np.maximum(np.asarray(found["tasks"], dtype=np.float64), 1)
    found["idle_share"] = idle_share(tasks.astype(np.int64), target.threads)
    found["task_operations"] = group.work / tasks
    found["task_intensity"] = group.work / np.maximum(found["task_traffic"], 1)
    found["register_share"] = np.asarray(found["accumulators"]) / vector_registers(target)
    found["vector_share"] = np.minimum(c.ints("lanes") * lane_bytes(group) / target.vector_bytes, 1)
    return {q.name: np.broadcast_to(np.asarray(found[q.name], np.float64), len(c)).copy() for q in QUANTITIES}


def _tile_columns(tiles: LoopTileAxes, target: Target, c: Columns) -> dict[str, Ints | Floats]:
    """Return the columns of a tile group."""
    s = tile_sizes(tiles, c)
    accumulators = accumulator_registers(tiles, target, c)
    main = max(tiles.group.reductions or (tiles.group.root,), key=points)
    steps = prod(a.extent for a in main.reduce_axes)
    by_columns = c.flags("vectorise", COLUMNS)
    lanes, unroll = c.ints("lanes"), c.ints("unroll")
    terms = vector_terms(main) if main.reduce_axes else None
    width = terms.extent if terms else max(steps, 1)
    vectors = steps // width * -(-width // lanes)  # where they lie along the reduction
    padded_steps = np.where(by_columns, steps, vectors * lanes)
    serial = -(-np.where(by_columns, steps, vectors) // unroll)
    tile = {tiles.column: s.columns, tiles.row: s.rows, tiles.plane: s.planes}
    block = {
        tiles.column: s.columns * c.ints("column_tiles"),
        tiles.row: s.rows * c.ints("row_tiles"),
        tiles.plane: s.planes,
    }
    tile_extents, task_extents = _extents(tiles, tile), _extents(tiles, block)
    count = s.column_count * s.row_count * s.plane_count * tiles.outer_points
    computed = s.columns * s.rows * s.planes * count * padded_steps
    tile_bytes, reused = tensor_bytes(tiles.group, tile_extents), _reused_bytes(tiles, c, tile_extents)
    task_bytes = tensor_bytes(tiles.group, task_extents) + written_bytes(tiles.group, task_extents)
    packed = packed_bytes(tiles, c, s)
    loads, uneven = _loads(tiles, main, s, accumulators, by_columns, lanes)
    return {
        "tasks": s.tasks,
        "tiles": count,
        "edge_waste": 1 - points(main) / np.maximum(computed, 1),
        "accumulators": accumulators,
        "tile_rows": s.rows * s.planes,
        "tile_columns": s.columns,
        "body_statements": accumulators * unroll,
        "body_repeats": count * serial,
        "inner_steps": serial,
        "loads_per_operation": loads / np.maximum(accumulators, 1),
        "uneven_loads": uneven / np.maximum(loads, 1),
        "across_lanes": np.where(by_columns, 0, lanes / np.maximum(padded_steps, 1)),
        "tile_bytes": tile_bytes,
        "reused_bytes": reused,
        "task_bytes": task_bytes,
        "tile_traffic": tile_bytes.astype(np.float64) * count,
        "task_traffic": task_bytes.astype(np.float64) * s.tasks,
        "tile_pages": _pages(tiles, c, tile_extents),
        "packed_bytes": packed,
        "packing_share": _packing_share(tiles, c, s, packed),
        "local_bytes": s.columns * s.rows * s.planes * lane_bytes(tiles.group) * len(tiles.group.members),
    }


def _extents(tiles: LoopTileAxes, sizes: Mapping[int | None, Ints]) -> AxisExtents:
    """Return how many values of each axis a tile or task covers: at most the axis's own."""
    ones = np.ones(len(sizes[tiles.column]), dtype=np.int64)
    extents = {p: ones for p in tiles.untiled}
    return extents | {p: np.minimum(sizes[p], tiles.extent(p)) for p in tiles.tiled}


def _reused_bytes(tiles: LoopTileAxes, c: Columns, extents: AxisExtents) -> Ints:
    """Return the bytes of the tensors that do not follow the innermost tile loop. The next tile reads them again."""
    total = np.zeros(len(c), dtype=np.int64)
    for inner, chosen in (
        (tiles.row, c.flags("order", ROWS_INSIDE)),
        (tiles.column, ~c.flags("order", ROWS_INSIDE)),
    ):
        if inner is not None:
            total = np.where(chosen, tensor_bytes(tiles.group, extents, without=inner), total)
    return total


def _pages(tiles: LoopTileAxes, c: Columns, extents: AxisExtents) -> Ints:
    """Return the memory pages that a tile reads from, those of a packed operand left out."""
    total = np.zeros(len(c), dtype=np.int64)
    names = [name for name, _ in tiles.packable]
    for tensor, pages in load_pages(tiles.group, extents).items():
        packed = c.flags("pack", OPERANDS[names.index(tensor)]) if tensor in names else np.zeros(len(c), bool)
        total += np.where(packed, 0, pages)
    return total


def _packing_share(tiles: LoopTileAxes, c: Columns, s: LoopTileSizes[Ints], packed: Ints) -> Floats:
    """Return packed elements over operations. A task packs once, or for each iteration of its outer tile loop."""
    copies = s.tasks.astype(np.float64)
    for i, (_, follows) in enumerate(tiles.packable):
        for outer, inner, blocks, order in (
            (tiles.column, tiles.row, c.ints("column_tiles"), c.flags("order", ROWS_INSIDE)),
            (tiles.row, tiles.column, c.ints("row_tiles"), ~c.flags("order", ROWS_INSIDE)),
        ):
            if outer in follows and inner is not None and inner not in follows:
                copies = np.where(order & c.flags("pack", OPERANDS[i]), s.tasks * blocks, copies)
    copies = np.where(c.flags("pack", NO_PACK), 0, copies)
    return copies * packed / lane_bytes(tiles.group) / max(tiles.group.work, 1)


def _loads(
    tiles: LoopTileAxes,
    stage: Stage,
    s: LoopTileSizes[Ints],
    accumulators: Ints,
    by_columns: Bools,
    lanes: Ints,
) -> tuple[Ints, Floats]:
    """Return how many loads one step of a tile has, and how many of them, in part, take a load for each lane."""
    loads = np.zeros(len(s.columns), dtype=np.int64)
    uneven = np.zeros(len(s.columns))
    column = stage.axes[tiles.column].name
    chosen = vector_terms(stage) if stage.reduce_axes else None
    last = chosen.name if chosen else stage.reduce_axes[-1].name if stage.reduce_axes else None
    vectors = accumulators // np.maximum(s.rows * s.planes, 1)
    terms = [a.name for a in stage.reduce_axes]
    for load in body_loads(stage):
        if terms and not any(uses(load, name) for name in terms):
            continue  # before the sum
        count = np.ones(len(s.columns), dtype=np.int64)
        for position, size in ((tiles.row, s.rows), (tiles.plane, s.planes)):
            if position is not None and uses(load, stage.axes[position].name):
                count = count * size
        if uses(load, column):
            count = count * np.maximum(vectors, 1)
        loads += count
        transposed = tiles.row is not None and stride_along(load, stage.axes[tiles.row].name) == 1
        for width in np.unique(lanes):
            along = [_uneven_share(load, name, int(width)) for name in (column, last)]
            share = np.where(by_columns, *along)
            share = np.where(share == 1, _gathered_share(s.rows, lanes), share) if transposed else share
            uneven += np.where(lanes == width, count * share, 0)
    return loads, uneven


def _uneven_share(load: Load, axis: str | None, lanes: int) -> float:
    """Return the share of a load for each lane that loads and shuffles take whose lanes lie along ``axis``."""
    steps = 1 if axis is None else steps_of_load(load, axis, lanes)
    return (steps - 1) / max(lanes - 1, 1)


def _gathered_share(rows: Ints, lanes: Ints) -> Floats:
    """Return the share of gathers that would take as long as what is loaded where ``rows`` neighbouring gathers are
    transposed in registers: blocks of powers of two of them, each with a load for each lane, and the rest alone
    (``codegen.passes.transpose_gathers``)."""
    rest = rows % lanes
    blocks = rows // lanes + sum((rest >> bit) & 1 for bit in range(LEAST_TRANSPOSED.bit_length() - 1, 8))
    each = lanes * (blocks + rest % LEAST_TRANSPOSED) / rows
    found: Floats = (each - 1) / np.maximum(lanes - 1, 1)
    return found


def _row_columns(group: FusedGroup, target: Target, c: Columns) -> dict[str, Ints | Floats | float]:
    """Return the columns of a row group or a scalar group."""
    lanes, vectors, rows = c.ints("lanes"), c.ints("vectors"), c.ints("rows")
    outer = prod(a.extent for a in group.root.axes[: group.depth]) if group.kind == "row" else 1
    elements = max(points(s) // max(outer, 1) for s in group.stages)
    step = np.minimum(lanes * vectors, -(-elements // lanes) * lanes)
    padded = -(-elements // step) * step
    across: Floats = step / np.maximum(padded, 1) * len(group.reductions) / len(group.stages)
    if (alone := terms_alone(group)) is not None:  # a vector or two for the few terms of each column, added up then
        few, of_row = alone.terms < 2 * lanes, elements // alone.terms * -(-alone.terms // lanes)
        padded, step = np.where(few, of_row * lanes, padded), np.where(few, lanes, step)
        across = np.where(few, elements // alone.of_column / of_row, across)
    extents = {p: np.ones(len(c), dtype=np.int64) for p in range(group.depth)}
    row_bytes = np.zeros(len(c), dtype=np.int64) + tensor_bytes(group, extents) + written_bytes(group, extents)
    local = sum(prod(s.tensor.shape[group.depth :]) * s.tensor.dtype.bytes for s in group.members)
    registers = vectors * -(-lanes * lane_bytes(group) // target.vector_bytes)
    tasks = -(-outer // rows)
    return {
        "tasks": tasks,
        "tiles": np.full(len(c), outer),
        "edge_waste": 1 - elements / np.maximum(padded, 1),
        "accumulators": registers,
        "tile_rows": np.ones(len(c)),
        "tile_columns": step,
        "body_statements": registers * len(group.stages),
        "body_repeats": padded // step * outer * len(group.stages),
        "inner_steps": padded // step,
        "loads_per_operation": np.ones(len(c)),
        "across_lanes": across,
        "tile_bytes": row_bytes,
        "reused_bytes": np.full(len(c), local),
        "task_bytes": row_bytes * np.minimum(rows, outer),
        "tile_traffic": row_bytes.astype(np.float64) * outer,
        "task_traffic": row_bytes.astype(np.float64) * outer,
        "tile_pages": row_bytes // PAGE_BYTES + 1,
        "local_bytes": np.full(len(c), local),
    }
