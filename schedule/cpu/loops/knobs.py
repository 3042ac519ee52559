"""Describes the knobs of the CPU loop sketch, for each kind of group."""

from math import gcd, prod

from ....core.target import Target
from ....ir.expr import Binary, BinaryOp, Const, walk
from ....ir.rewrite import free_variables, loads_of
from ....te.workload import Stage
from ...space.knob import Knob
from ..shared_knobs import COLUMNS_INSIDE, ROWS_INSIDE
from .fusion import FusedGroup
from .tile_loops import INLINE, NO_PACK, STORE
from .tiles import COLUMNS, OPERANDS, LoopTileAxes, most_lanes, vector_terms

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
PLANES = (1, 2, 3, 4, 7, 8)
VECTORS = (1, 2, 3, 4, 5, 6, 7, 8)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_STEPS = 36
LEAST_LANES = 4
"""Shorter vectors are not worth a value of their own."""


def padding_knob() -> Knob:
    """Return how stages that only pad their input are computed."""
    return Knob(
        "padding",
        (STORE, INLINE),
        "whether padded inputs are stored once (store) or the padding condition is tested where they are read (inline)",
    )


def tile_knobs(tiles: LoopTileAxes, target: Target) -> tuple[Knob, ...]:
    """Return the knobs of a tile group. A knob that has no effect on it is left out; ``lanes`` is always there."""
    column, row, plane = (tiles.extent(p) for p in (tiles.column, tiles.row, tiles.plane))
    name = tiles.axes[tiles.column].name
    knobs: list[Knob] = []
    if len(tiles.modes) > 1 or tiles.modes != (COLUMNS,):
        knobs.append(Knob("vectorise", tiles.modes, "whether vectors lie along the columns or along the reduction"))
    terms = [axis.extent for s in tiles.group.reductions if (axis := vector_terms(s)) is not None]
    longest = max([column, *(_last_extent(s) for s in tiles.group.stages), *terms])
    widths = (*([] if tiles.modes == (COLUMNS,) else [longest]), *([column] if tiles.modes[0] == COLUMNS else []))
    values = dict.fromkeys(v for width in widths for v in lane_values(tiles.group, width, target))
    even = _even_lanes(tiles)
    values |= {even: None} if LEAST_LANES <= even < min(values) else {}
    knobs.append(Knob("lanes", tuple(values), "how many elements a vector has"))
    vectors = tuple(v for v in VECTORS if v == 1 or v <= column)
    knobs.append(Knob("vectors", vectors, f"how many vectors a register tile has along its columns ({name})"))
    if tiles.row is not None:
        rows = tuple(v for v in ROWS if v <= row)
        knobs.append(Knob("rows", rows, f"how many rows ({tiles.axes[tiles.row].name}) a register tile has"))
    if tiles.plane is not None:
        planes = tuple(v for v in PLANES if v <= plane)
        knobs.append(Knob("planes", planes, f"how many planes ({tiles.axes[tiles.plane].name}) a register tile has"))
    if tiles.row is not None:
        knobs.append(Knob("row_tiles", counts(row), "how many register tiles a task has along the rows"))
    knobs.append(Knob("column_tiles", counts(column), "how many register tiles a task has along the columns"))
    if tiles.row is not None:
        meaning = "whether register tiles of one column follow one another in a task (rows_inside), or those of one row"
        knobs.append(Knob("order", (ROWS_INSIDE, COLUMNS_INSIDE), meaning))
    if tiles.group.reductions:
        steps = unroll_values(tiles.group.reductions[0])
        knobs.append(Knob("unroll", steps, "how many steps of the reduction the unrolled body has"))
    if tiles.packable:
        names = (NO_PACK, *(OPERANDS[i] for i in range(len(tiles.packable))))
        read = ", ".join(f"{OPERANDS[i]} is {name}" for i, (name, _) in enumerate(tiles.packable))
        knobs.append(Knob("pack", names, f"which operand is packed into a contiguous buffer first ({read})"))
    return tuple(knobs)


def _even_lanes(tiles: LoopTileAxes) -> int:
    """Return how many lanes at most a vector may have so that none has two quotients of what divides the columns; 0
    where nothing does. Of pixels p of rows of 56 (``X[p // 56, p % 56]``), vectors of 8 are contiguous."""
    divisors = {
        int(e.b.value)
        for stage in tiles.group.stages
        for load in loads_of(stage.body)
        for i in load.indices
        for e in walk(i)
        if isinstance(e, Binary) and e.op in (BinaryOp.FLOORDIV, BinaryOp.MOD) and isinstance(e.b, Const)
        if stage.axes[tiles.column].name in free_variables(e.a)
    }
    common = gcd(*divisors)
    return common & -common


def row_knobs(group: FusedGroup, target: Target) -> tuple[Knob, ...]:
    """Return the knobs of a row group."""
    return (
        *_vector_knobs(group, target, "one step along a row has; a reduction has as many partial results"),
        Knob("rows", counts(prod(a.extent for a in group.root.axes[: group.depth])), "how many rows a task has"),
    )


def scalar_knobs(group: FusedGroup, target: Target) -> tuple[Knob, ...]:
    """Return the knobs of a reduction to one element, or of a computation of one element."""
    return _vector_knobs(group, target, "of partial results the reduction has")


def _vector_knobs(group: FusedGroup, target: Target, whose: str) -> tuple[Knob, ...]:
    width = max(_last_extent(s) for s in group.stages)
    lanes = lane_values(group, width, target)
    vectors = tuple(v for v in VECTORS if v == 1 or v <= -(-width // min(lanes)))
    return (
        Knob("lanes", lanes, "how many elements a vector has"),
        Knob("vectors", vectors, f"how many vectors {whose}"),
    )


def _last_extent(stage: Stage) -> int:
    """Return the extent of the last axis of more than one element; 1 where there is none."""
    longer = [a.extent for a in (*stage.axes, *stage.reduce_axes) if a.extent > 1]
    return longer[-1] if longer else 1


def lane_values(group: FusedGroup, width: int, target: Target) -> tuple[int, ...]:
    """Return the two widest useful vectors, widest first; 1 where there are too few elements for a vector."""
    full = most_lanes(group, target)
    while full > 1 and full // 2 >= width:
        full //= 2
    values = [full, max(1, full // 2)] if full > 1 else [1]
    return tuple(dict.fromkeys(values))


def counts(extent: int) -> tuple[int, ...]:
    """Return the powers of two up to the first that covers ``extent``."""
    return tuple(c for c in COUNTS if c == 1 or c < 2 * extent)


def unroll_values(reduction: Stage) -> tuple[int, ...]:
    """Return how many steps can be unrolled: whole inner loops (a 3 x 3 window), and powers of two of a longer loop."""
    values = {1}
    whole = 1
    for axis in reversed(reduction.reduce_axes):
        factors = [f for f in (2, 4, 8, 16) if f < axis.extent and (axis.extent >= 8 or axis.extent % f == 0)]
        values |= {whole * f for f in factors if whole * f <= MOST_STEPS}
        whole *= axis.extent
        if whole > MOST_STEPS:
            break
        values.add(whole)
    return tuple(sorted(values))
