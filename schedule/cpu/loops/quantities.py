"""Derived columns of the CPU loop sketch: what a setting implies, in units that mean the same in every workload.

All are formulas over columns; nothing is lowered for them.
"""

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.target import Target
from ....te.workload import Stage, Workload
from ...space.columns import Columns, Ints
from ...space.knob import Quantity
from .footprint import Held, body_loads, load_pages, tensor_bytes, written_bytes
from .fusion import Group, points
from .knobs import STREAMED, TileShape, packed_bytes, tile_shape
from .tile_loops import INLINE, NO_PACK, ROWS_INSIDE
from .tiles import COLUMNS, Tiles, lane_bytes, stride_along, tiles_of, uses, vector_registers

QUANTITIES = (
    Quantity("tasks", "tasks", "pieces that threads take one after the other"),
    Quantity("idle_share", "fraction", "thread time left idle when the tasks do not divide evenly"),
    Quantity("task_operations", "operations", "plain operations of a task"),
    Quantity("tiles", "tiles", "register tiles, or rows, of the whole computation"),
    Quantity("vector_share", "fraction", "of the widest vector register in use"),
    Quantity("edge_waste", "fraction", "of the computed elements beyond the edges of the output or the reduction"),
    Quantity("accumulators", "registers", "vector registers of a tile's accumulators"),
    Quantity("register_share", "fraction", "of the vector registers taken by accumulators"),
    Quantity("tile_rows", "elements", "rows times planes of a register tile"),
    Quantity("tile_columns", "elements", "columns of a register tile"),
    Quantity("body_statements", "statements", "vector statements of the innermost body, written out"),
    Quantity("body_repeats", "iterations", "times the innermost body runs, tiles and reduction steps together"),
    Quantity("inner_steps", "iterations", "iterations of the loops over the reduction inside a tile"),
    Quantity("loads_per_operation", "loads", "vector and scalar loads for one vector operation of the body"),
    Quantity("uneven_loads", "fraction", "of the loads that gather or stride across the lanes"),
    Quantity("across_lanes", "fraction", "of the work that combines the lanes of a vector"),
    Quantity("tile_bytes", "bytes", "what a tile reads over its whole reduction"),
    Quantity("kept_bytes", "bytes", "what the next tile of a task reads again"),
    Quantity("task_bytes", "bytes", "what a task reads and writes, each element once"),
    Quantity("tile_traffic", "bytes", "read by all tiles together"),
    Quantity("task_traffic", "bytes", "read and written by all tasks together"),
    Quantity("task_intensity", "operations/byte", "plain operations for each byte of task traffic"),
    Quantity("tile_pages", "pages", "memory pages of 4 KiB that a tile reads from, without a packed operand"),
    Quantity("packed_bytes", "bytes", "local copy of an operand"),
    Quantity("packing_share", "fraction", "elements copied for each plain operation"),
    Quantity("local_bytes", "bytes", "intermediate results that a task holds"),
    Quantity("streamed", "fraction", "1 where outputs go past the caches"),
    Quantity("inlined_padding", "fraction", "1 where padding conditions are tested where padded inputs are read"),
)


def derive(workload: Workload, group: Group, target: Target, c: Columns) -> Mapping[str, NDArray[np.float64]]:
    """float64[n] for each quantity, n settings of the group's knobs."""
    found: dict[str, Ints | NDArray[np.float64] | float] = {q.name: 0.0 for q in QUANTITIES}
    found["streamed"] = c.flags("store", STREAMED).astype(np.float64)
    found["inlined_padding"] = c.flags("padding", INLINE).astype(np.float64)
    if group.kind == "tile":
        found.update(_tile_columns(tiles_of(group), target, c))
    else:
        found.update(_row_columns(group, target, c))
    tasks = np.maximum(np.asarray(found["tasks"], dtype=np.float64), 1)
    found["idle_share"] = 1 - tasks / (target.threads * np.ceil(tasks / target.threads))
    found["task_operations"] = group.work / tasks
    found["task_intensity"] = group.work / np.maximum(found["task_traffic"], 1)
    found["register_share"] = np.asarray(found["accumulators"]) / vector_registers(target)
    found["vector_share"] = np.minimum(c.ints("lanes") * lane_bytes(group) / target.vector_bytes, 1)
    return {q.name: np.broadcast_to(np.asarray(found[q.name], np.float64), len(c)).copy() for q in QUANTITIES}


def _tile_columns(tiles: Tiles, target: Target, c: Columns) -> dict[str, Ints | NDArray[np.float64]]:
    s = tile_shape(tiles, target, c)
    main = max(tiles.group.reductions or (tiles.group.root,), key=points)
    steps = prod(a.extent for a in main.reduce_axes)
    along = c.flags("vectorise", COLUMNS)
    lanes, unroll = c.ints("lanes"), c.ints("unroll")
    padded_steps = np.where(along, steps, -(-steps // lanes) * lanes)
    serial = -(-np.where(along, steps, -(-steps // lanes)) // unroll)
    tile = {tiles.column: s.columns, tiles.row: s.rows, tiles.plane: s.planes}
    block = {
        tiles.column: s.columns * c.ints("column_tiles"),
        tiles.row: s.rows * c.ints("row_tiles"),
        tiles.plane: s.planes,
    }
    tile_held, task_held = _held(tiles, tile), _held(tiles, block)
    count = s.column_count * s.row_count * s.plane_count * tiles.outer_points
    computed = s.columns * s.rows * s.planes * count * padded_steps
    tile_bytes, kept = tensor_bytes(tiles.group, tile_held), _kept_bytes(tiles, c, tile_held)
    task_bytes = tensor_bytes(tiles.group, task_held) + written_bytes(tiles.group, task_held)
    packed = packed_bytes(tiles, c, s)
    loads, uneven = _loads(tiles, main, s, along)
    return {
        "tasks": s.tasks,
        "tiles": count,
        "edge_waste": 1 - points(main) / np.maximum(computed, 1),
        "accumulators": s.accumulators,
        "tile_rows": s.rows * s.planes,
        "tile_columns": s.columns,
        "body_statements": s.accumulators * unroll,
        "body_repeats": count * serial,
        "inner_steps": serial,
        "loads_per_operation": loads / np.maximum(s.accumulators, 1),
        "uneven_loads": uneven / np.maximum(loads, 1),
        "across_lanes": np.where(along, 0, lanes / np.maximum(padded_steps, 1)),
        "tile_bytes": tile_bytes,
        "kept_bytes": kept,
        "task_bytes": task_bytes,
        "tile_traffic": tile_bytes.astype(np.float64) * count,
        "task_traffic": task_bytes.astype(np.float64) * s.tasks,
        "tile_pages": _pages(tiles, c, tile_held),
        "packed_bytes": packed,
        "packing_share": _packing_share(tiles, c, s, packed),
        "local_bytes": s.columns * s.rows * s.planes * lane_bytes(tiles.group) * len(tiles.group.members),
    }


def _held(tiles: Tiles, sizes: Mapping[int | None, Ints]) -> Held:
    """Elements of each tiled axis, cut at its extent."""
    ones = np.ones(len(sizes[tiles.column]), dtype=np.int64)
    held = {p: ones for p in tiles.untiled}
    return held | {p: np.minimum(sizes[p], tiles.extent(p)) for p in tiles.tiled}


def _kept_bytes(tiles: Tiles, c: Columns, held: Held) -> Ints:
    """Bytes of the tensors that do not follow the innermost tile loop: they are read again by the next tile."""
    total = np.zeros(len(c), dtype=np.int64)
    for inner, chosen in (
        (tiles.row, c.flags("order", ROWS_INSIDE)),
        (tiles.column, ~c.flags("order", ROWS_INSIDE)),
    ):
        if inner is not None:
            total = np.where(chosen, tensor_bytes(tiles.group, held, without=inner), total)
    return total


def _pages(tiles: Tiles, c: Columns, held: Held) -> Ints:
    total = np.zeros(len(c), dtype=np.int64)
    names = [name for name, _ in tiles.packable]
    for tensor, pages in load_pages(tiles.group, held).items():
        packed = c.flags("pack", f"operand_{names.index(tensor)}") if tensor in names else np.zeros(len(c), bool)
        total += np.where(packed, 0, pages)
    return total


def _packing_share(tiles: Tiles, c: Columns, s: TileShape, packed: Ints) -> NDArray[np.float64]:
    """Copied elements over operations; a copy is made once in a task, or for each tile of its outer tile loop."""
    copies = s.tasks.astype(np.float64)
    for i, (_, follows) in enumerate(tiles.packable):
        for outer, inner, blocks, order in (
            (tiles.column, tiles.row, c.ints("column_tiles"), c.flags("order", ROWS_INSIDE)),
            (tiles.row, tiles.column, c.ints("row_tiles"), ~c.flags("order", ROWS_INSIDE)),
        ):
            if outer in follows and inner is not None and inner not in follows:
                copies = np.where(order & c.flags("pack", f"operand_{i}"), s.tasks * blocks, copies)
    copies = np.where(c.flags("pack", NO_PACK), 0, copies)
    share: NDArray[np.float64] = copies * packed / lane_bytes(tiles.group) / max(tiles.group.work, 1)
    return share


def _loads(tiles: Tiles, stage: Stage, s: TileShape, along: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Loads of one step of a tile, and how many of them are not contiguous across the lanes."""
    loads = np.zeros(len(s.columns), dtype=np.int64)
    uneven = np.zeros(len(s.columns), dtype=np.int64)
    column = stage.axes[tiles.column].name
    last = stage.reduce_axes[-1].name if stage.reduce_axes else None
    vectors = s.accumulators // np.maximum(s.rows * s.planes, 1)
    for load in body_loads(stage):
        count = np.ones(len(s.columns), dtype=np.int64)
        for position, size in ((tiles.row, s.rows), (tiles.plane, s.planes)):
            if position is not None and uses(load, stage.axes[position].name):
                count = count * size
        if uses(load, column):
            count = count * np.maximum(vectors, 1)
        loads += count
        columns_even = stride_along(load, column) in (0, 1)
        steps_even = last is None or stride_along(load, last) in (0, 1)
        uneven += np.where(np.where(along, columns_even, steps_even), 0, count)
    return loads, uneven


def _row_columns(group: Group, target: Target, c: Columns) -> dict[str, Ints | NDArray[np.float64] | float]:
    lanes, vectors, rows = c.ints("lanes"), c.ints("vectors"), c.ints("rows")
    outer = prod(a.extent for a in group.root.axes[: group.depth]) if group.kind == "row" else 1
    elements = max(points(s) // max(outer, 1) for s in group.stages)
    step = np.minimum(lanes * vectors, -(-elements // lanes) * lanes)
    padded = -(-elements // step) * step
    held = {p: np.ones(len(c), dtype=np.int64) for p in range(group.depth)}
    row_bytes = np.zeros(len(c), dtype=np.int64) + tensor_bytes(group, held) + written_bytes(group, held)
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
        "across_lanes": step / np.maximum(padded, 1) * len(group.reductions) / len(group.stages),
        "tile_bytes": row_bytes,
        "kept_bytes": np.full(len(c), local),
        "task_bytes": row_bytes * np.minimum(rows, outer),
        "tile_traffic": row_bytes.astype(np.float64) * outer,
        "task_traffic": row_bytes.astype(np.float64) * outer,
        "tile_pages": row_bytes // 4096 + 1,
        "local_bytes": np.full(len(c), local),
    }
