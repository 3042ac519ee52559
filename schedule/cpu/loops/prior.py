"""Estimates the time of a loop nest, from its derived columns.

    seconds = launch + norm(vector instructions / busy share of the threads, tiles from the caches, tensors from memory)
              + packing

It looks at the group with the most work, and adds what the others take by their default settings. Nothing in it was
fitted.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from ....ir.buffer import Buffer
from ....ir.expr import Expr, Load, Select
from ....ir.rewrite import free_variables, loads_of
from ....te.workload import Stage, Workload
from ...space.columns import Bools, Columns, Floats, Ints
from ..arithmetic import overlapped
from ..limits import LINE_BYTES, PAGE_BYTES, WAYS
from ..peaks import CpuPeaks
from ..shared_knobs import NON_TEMPORAL, ROWS_INSIDE
from .footprint import body_loads, tensor_bytes
from .fusion import FusedGroup, own_cost, paddings, points
from .promising import BUSY_ACCUMULATORS
from .tile_loops import INLINE
from .tiles import COLUMNS, lane_bytes, stride_along, tiles_of, uses

Quantities = Mapping[str, Floats]

L1_BYTES, L2_BYTES = 32 << 10, 1 << 20
"""Nominal sizes of the caches of a core."""
SPARE_REGISTERS = 8
"""Vector registers that conditions on inlined padding need besides accumulators. Tiles of 28 accumulators of 32 took
1.4 and 1.6 times as long as those of 24 and 14 on an EPYC, for a depthwise and a grouped convolution."""
OPEN_LINES = 6
"""How many lines that are stored past the caches a core fills at once, about."""
LOOP_STEPS = 2
"""What counting and jumping cost for each run of the innermost body, in vector instructions."""


def group_seconds(group: FusedGroup, c: Columns, q: Quantities, peaks: CpuPeaks) -> Floats:
    """Return the estimated time in seconds, float64[n], of a group and of those of its shape, which take the same
    setting. ``q``: the derived columns of the settings. What goes through memory is not in it."""
    packing = 2 * q["packing_share"] * group.work * lane_bytes(group) / peaks.l2_bytes_per_second
    caches = _cache_seconds(q, peaks) + _conflict_seconds(group, c, peaks) + _again(group, q, peaks)
    steps = overlapped(_instruction_seconds(group, c, q, peaks), caches)
    return group.same_shape * (peaks.launch_seconds + steps + packing)


def memory_seconds(workload: Workload, group: FusedGroup, c: Columns, peaks: CpuPeaks) -> Floats:
    """All inputs and outputs go through memory once, float64[n]. An output that goes through the caches is read before
    it is written, as most of one is whose rows are not aligned. One that goes past them in parts of many lines at once
    is read and written again for each part, since there are few buffers for such lines. A stored padding is written and
    read again. ``group``: the one with the knobs."""
    inputs = sum(b.bytes for b in workload.inputs)
    padded = sum(workload.stage(name).tensor.bytes for name in paddings(workload))
    non_temporal, inlined = c.flags("store", NON_TEMPORAL), c.flags("padding", INLINE)
    past = sum(np.where(_is_aligned(b, c.ints("lanes")), b.bytes, 0) for b in workload.output_buffers)
    past = past * (1 - 3 * _partial_lines(group, c))
    outputs = 2 * sum(b.bytes for b in workload.output_buffers) - non_temporal * past
    moved = inputs + outputs + np.where(inlined, 0, 2 * padded)
    return moved / peaks.memory_bytes_per_second


def _is_aligned(output: Buffer, lanes: Ints) -> Bools:
    """Return whether all vectors along the rows of an output begin at a multiple of their size, which past the caches
    they must."""
    shape = output.squeezed.shape
    return shape[-1] % lanes == 0 if len(shape) > 1 else np.ones(len(lanes), dtype=bool)


def _partial_lines(group: FusedGroup, c: Columns) -> Floats:
    """Return the share of the lines that register tiles store in parts, while a core fills more lines than it keeps
    open, float64[n]."""
    if group.kind != "tile":
        return np.zeros(len(c))
    element, tensor = group.root.tensor.dtype.bytes, group.root.tensor.squeezed
    run = c.ints("lanes") * c.ints("vectors") * element
    pitch = tensor.shape[-1] * element if tensor.shape else 0
    whole = (run % LINE_BYTES == 0) & (pitch % LINE_BYTES == 0)
    below = np.where(c.flags("order", ROWS_INSIDE), c.ints("row_tiles"), 1)
    lines = c.ints("rows") * c.ints("planes") * below
    return np.where(~whole & (lines > OPEN_LINES), np.minimum(LINE_BYTES / run, 1), 0.0)


def _instruction_seconds(group: FusedGroup, c: Columns, q: Quantities, peaks: CpuPeaks) -> Floats:
    """Arithmetic or loads of vectors, whichever takes longer. A load that is not contiguous costs one for each lane,
    and one under a condition costs two. With few accumulators, each step of a reduction waits for the one before it."""
    lanes = c.ints("lanes")
    operations = sum(points(s) * np.maximum(1, _operations_of_stage(group, s, c)) for s in group.stages)
    vectors = operations / lanes / np.maximum(1 - q["edge_waste"], 1e-3)
    busy = BUSY_ACCUMULATORS if group.reductions else 1
    arithmetic = vectors * np.maximum(busy / np.maximum(q["accumulators"], 1), 1)
    loads = vectors * q["loads_per_operation"] * (1 + q["uneven_loads"] * (lanes - 1)) * (1 + q["inlined_padding"])
    combining = vectors * q["across_lanes"] * np.log2(np.maximum(lanes, 2))
    tests = np.where(c.flags("store", NON_TEMPORAL), points(group.root) / lanes, 0)  # whether a vector is aligned
    spare = q["accumulators"] / q["register_share"] - q["accumulators"]
    tight = (q["inlined_padding"] > 0) & (spare < SPARE_REGISTERS) | (spare <= _kept_loads(group, c))
    steps = np.maximum(arithmetic, loads) * np.where(tight, 1.5, 1) + combining + tests
    steps = steps + LOOP_STEPS * q["body_repeats"]
    return steps / peaks.vector_steps() / (1 - q["idle_share"])


def _kept_loads(group: FusedGroup, c: Columns) -> Ints:
    """Return how many of the vectors that a step of a tile loads the next unrolled steps need again, int64[n], as those
    of a window that moves along rows or planes. The compiler keeps them in registers, and where there are too few it
    spills them: a depthwise convolution of 7x7 took 2 to 3 times as long with 24 accumulators of 32 as with 14."""
    kept, mains = np.zeros(len(c), dtype=np.int64), [s for s in group.reductions if s.reduce_axes]
    if group.kind != "tile" or not mains:
        return kept
    main, tiles = max(mains, key=points), tiles_of(group)
    last = next((a.name for a in reversed(main.reduce_axes) if a.extent > 1), "")
    sizes = {tiles.row: c.ints("rows"), tiles.plane: c.ints("planes")}
    along = {main.axes[p].name: size for p, size in sizes.items() if p is not None}
    for load in body_loads(main):
        moves = [
            along[n] > 1 for i in load.indices for n in free_variables(i) & set(along) if last in free_variables(i)
        ]
        if moves:
            count = np.prod([size for n, size in along.items() if uses(load, n)], axis=0)
            kept += np.where(np.any(moves, axis=0) & (c.ints("unroll") > 1), count, 0)
    return kept


def _operations_of_stage(group: FusedGroup, stage: Stage, c: Columns) -> Floats | int:
    """Plain operations for each point of a stage. In a register tile, what does not depend on its rows, planes or
    columns is computed once for all of these, and what does not depend on the axes of a sum, once for the sum."""
    if group.kind != "tile" or stage.reducer is None:
        return _operations(stage.body)
    tiles, terms = tiles_of(group), {a.name for a in stage.reduce_axes}
    sizes = {tiles.column: c.ints("vectors"), tiles.row: c.ints("rows"), tiles.plane: c.ints("planes")}
    along = {stage.axes[p].name: size for p, size in sizes.items() if p is not None}
    total = np.zeros(len(c))
    for part in _parts(stage.body):
        used = free_variables(part)
        if used & terms:
            total = total + own_cost(part) / np.prod([size for n, size in along.items() if n not in used], axis=0)
    return total


def _parts(body: Expr) -> dict[Expr, None]:
    """Return the operations of a body that ``_operations`` counts, each once."""
    if isinstance(body, Load):
        return {}
    if isinstance(body, Select):
        return max(_parts(body.then), _parts(body.otherwise), key=lambda parts: sum(map(own_cost, parts)))
    return {part: None for child in body.children for part in _parts(child)} | {body: None}


def _operations(body: Expr) -> int:
    """Return the plain operations of one evaluation without loads and conditions, which mostly leave the innermost
    loop."""
    if isinstance(body, Load):
        return 0
    if isinstance(body, Select):
        return max(_operations(body.then), _operations(body.otherwise))
    return own_cost(body) + sum(_operations(child) for child in body.children)


def _cache_seconds(q: Quantities, peaks: CpuPeaks) -> Floats:
    """Return what tiles read, less what the first-level cache keeps from tile to tile. Where a task's data does not fit
    the second level, it comes from further away, at the rate of memory."""
    kept = np.where(q["reused_bytes"] <= L1_BYTES, q["reused_bytes"] * q["tiles"], 0)
    traffic = np.maximum(q["tile_traffic"] - kept, q["task_traffic"])
    far = min(peaks.read_bytes_per_second, peaks.l2_bytes_per_second)
    rate = np.where(q["task_bytes"] <= L2_BYTES, peaks.l2_bytes_per_second, far)
    return traffic / rate


def _conflict_seconds(group: FusedGroup, c: Columns, peaks: CpuPeaks) -> Floats:
    """Return what it takes to read a line for each element, where more rows than a set of a cache holds fall on one
    set, so that no line stays for the next step of a sum: those of vectors across rows, or those of which each has an
    element for a whole vector. Of the latter, the rows that a set holds may stay."""
    if group.kind != "tile":
        return np.zeros(len(c))
    tiles, lines, columns = tiles_of(group), np.zeros(len(c)), c.ints("lanes") * c.ints("vectors")
    sides = [(p, c.ints(name)) for p, name in ((tiles.row, "rows"), (tiles.plane, "planes")) if p is not None]
    for stage in group.reductions:
        loads, names = loads_of(stage.body), [a.name for a in stage.axes]
        across = any(_in_whole_pages(load, names[tiles.column]) for load in loads)
        lines += across * points(stage) * (columns > WAYS)
        for load in loads:
            if not uses(load, names[tiles.column]):
                apart = [size for p, size in sides if _in_whole_pages(load, names[p])]
                together = prod(apart, start=np.ones(len(c)))
                lines += points(stage) / columns * np.maximum(1 - WAYS / together, 0)
    return c.flags("vectorise", COLUMNS) * lines * LINE_BYTES / peaks.l2_bytes_per_second


def _in_whole_pages(load: Load, name: str) -> bool:
    """Return whether what is loaded for neighbouring values of a variable lies whole pages apart."""
    pitch = (stride_along(load, name) or 0) * load.buffer.dtype.bytes
    return pitch > 0 and pitch % PAGE_BYTES == 0


def _again(group: FusedGroup, q: Quantities, peaks: CpuPeaks) -> Floats:
    """Return what it takes to read rows again for each further stage of a row group, where they do not stay in the
    second level."""
    if group.kind != "row" or len(group.stages) == 1:
        return np.zeros(len(q["tiles"]))
    one = {p: np.ones(len(q["tiles"]), dtype=np.int64) for p in range(group.depth)}
    read = np.where(q["tile_bytes"] > L2_BYTES, tensor_bytes(group, one) * q["tiles"], 0.0)
    return (len(group.stages) - 1) * read / min(peaks.read_bytes_per_second, peaks.l2_bytes_per_second)
