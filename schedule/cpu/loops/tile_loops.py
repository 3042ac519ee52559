"""Writes the loops of a tile group: tasks in parallel, tiles inside a task, a register tile of vectors inside a tile.

for task in parallel(..):                     # blocks of tiles, and the axes that are not tiled
  for j_tile: for i_tile:                     # the register tiles of a task, in either order
    register acc[rows, columns]
    acc[..] = 0                               # unrolled and vectorised
    for k: for k_in in unrolled(..):
      for i_in in unrolled(rows): for j_vector in unrolled(vectors): for j_lane in vectorized(lanes):
        acc[..] = acc[..] + A[..] * B[..]
    C[..] = epilogue(acc[..])                 # unrolled and vectorised
"""

from dataclasses import dataclass

from ....ir.buffer import MemoryScope
from ....te.workload import Stage
from ..shared_knobs import ROWS_INSIDE
from .editor import LoopEditor
from .inner_loops import mark, split_column, unrolled_reduction
from .sizes import LoopTileSizes, pack_loop
from .tiles import COLUMNS, OPERANDS, LoopTileAxes, vector_terms

STORE, INLINE = "store", "inline"
NO_PACK = "none"
PARALLEL_WORK = 1 << 15
"""With fewer plain operations, starting the other threads costs more than they bring."""


@dataclass(frozen=True, slots=True)
class TileLoopSetting:
    """One value for each knob of a tile group. ``knobs.tile_knobs`` says what they mean."""

    vectorise: str = COLUMNS
    lanes: int = 1
    vectors: int = 1
    rows: int = 1
    planes: int = 1
    row_tiles: int = 1
    column_tiles: int = 1
    order: str = ROWS_INSIDE
    unroll: int = 1
    pack: str = NO_PACK


def lower_tiles(editor: LoopEditor, tiles: LoopTileAxes, setting: TileLoopSetting, sizes: LoopTileSizes[int]) -> None:
    """Apply ``setting``, which implies ``sizes``, to the nests of the group."""
    tasks, tile_loops = _split_root(editor, tiles, setting, sizes)
    task = editor.fuse(tasks, editor.fresh("task"))
    attach = tile_loops[-1][1]
    for member in reversed(tiles.group.members):
        editor.compute_at(member.name, attach, MemoryScope.REGISTER)
    for member in tiles.group.members:
        if member.reducer is None:
            (loops,) = editor.nests(member.name, attach)
            _unroll_tile(editor, loops, tiles.column, setting)
        elif setting.vectorise == COLUMNS:
            _reduction(editor, tiles, member, attach, setting)
        else:
            _lane_reduction(editor, member, attach, setting)
    if setting.pack != NO_PACK:
        _pack(editor, tiles, setting, task, tile_loops)
    if tiles.group.work >= PARALLEL_WORK:
        editor.parallelise(task)


def _split_root(
    editor: LoopEditor, tiles: LoopTileAxes, setting: TileLoopSetting, sizes: LoopTileSizes[int]
) -> tuple[list[str], list[tuple[int, str]]]:
    """Split, reorder and mark the root's loops. Returns the task loops and, outermost first, the tile loops with the
    positions of their axes."""
    sizes_along = {tiles.column: sizes.columns, tiles.row: sizes.rows, tiles.plane: sizes.planes}
    tasks: list[str] = []
    inner: dict[int, str] = {}
    inside: list[str] = []
    for position, axis in enumerate(tiles.axes):
        if position not in tiles.tiled:
            tasks.append(axis.name)
            continue
        tile, within = editor.split(axis.name, sizes_along[position], f"{axis.name}_tile", f"{axis.name}_in")
        inside.append(within)
        if position == tiles.plane:
            tasks.append(tile)
            continue
        count = setting.row_tiles if position == tiles.row else setting.column_tiles
        block, inner[position] = editor.split(tile, count, f"{axis.name}_block", tile)
        tasks.append(block)
    order = [tiles.column, tiles.row] if setting.order == ROWS_INSIDE else [tiles.row, tiles.column]
    tile_loops = [(p, inner[p]) for p in order if p is not None]
    column = inside.pop(tiles.tiled.index(tiles.column))
    around = [*tasks, *(loop for _, loop in tile_loops)]
    if setting.vectorise == COLUMNS:
        vector, lane = split_column(editor, column, setting.lanes)
        editor.reorder([*around, *inside, vector, lane])
        mark(editor, [*inside, vector], lane)
    else:
        editor.reorder([*around, *inside, column])
        mark(editor, [*inside, column], None)
    return tasks, tile_loops


def _unroll_tile(editor: LoopEditor, loops: list[str], column: int, setting: TileLoopSetting) -> None:
    """Unroll the loops over the dimensions of a register tile, with the vectors of its columns innermost."""
    dimensions = list(loops)
    chosen = dimensions.pop(column)
    if setting.vectorise != COLUMNS:
        mark(editor, [*dimensions, chosen], None)
        return
    vector, lane = split_column(editor, chosen, setting.lanes)
    editor.reorder([*dimensions, vector, lane])
    mark(editor, [*dimensions, vector], lane)


def _reduction(editor: LoopEditor, tiles: LoopTileAxes, member: Stage, attach: str, setting: TileLoopSetting) -> None:
    """Vectors lie along the columns: each vector of the register tile has an accumulator."""
    rank = len(member.axes)
    start, update = editor.nests(member.name, attach)
    _unroll_tile(editor, start, tiles.column, setting)
    serial, unrolled = unrolled_reduction(editor, update[rank:], setting.unroll)
    dimensions = update[:rank]
    vector, lane = split_column(editor, dimensions.pop(tiles.column), setting.lanes)
    editor.reorder([*serial, *unrolled, *dimensions, vector, lane])
    mark(editor, [*unrolled, *dimensions, vector], lane)


def _lane_reduction(editor: LoopEditor, member: Stage, attach: str, setting: TileLoopSetting) -> None:
    """Vectors lie along the reduction: each element of the register tile has a vector of partial results."""
    rank = len(member.axes)
    start, update = editor.nests(member.name, attach)
    mark(editor, start, None)
    last = terms_last(editor, member, update, rank)
    step, lane = editor.split(last, setting.lanes, f"{last}_step", f"{last}_lane")
    partial = editor.rfactor(member.name, lane)
    part_start, update = editor.nests(partial, attach)
    mark(editor, part_start[:-1], part_start[-1])
    serial, unrolled = unrolled_reduction(editor, [*update[rank:-2], step], setting.unroll)
    editor.reorder([*serial, *unrolled, *update[:rank], lane])
    mark(editor, [*unrolled, *update[:rank]], lane)
    combine = editor.nests(member.name, attach)[-1]
    mark(editor, combine[:-1], combine[-1])


def terms_last(editor: LoopEditor, stage: Stage, update: list[str], rank: int) -> str:
    """Make the loop along which vectors of a reduction lie the innermost of ``update``, whose first ``rank`` loops run
    over elements. Returns its name."""
    terms = vector_terms(stage) or stage.reduce_axes[-1]
    update.append(update.pop(rank + stage.reduce_axes.index(terms)))
    editor.reorder(update)
    return update[-1]


def _pack(
    editor: LoopEditor, tiles: LoopTileAxes, setting: TileLoopSetting, task: str, tile_loops: list[tuple[int, str]]
) -> None:
    """Pack what a task, or one iteration of its outer tile loop, reads of a tensor into a contiguous buffer."""
    tensor, follows = tiles.packable[OPERANDS.index(setting.pack)]
    loop = pack_loop(follows, [p for p, _ in tile_loops])
    buffer = editor.cache_read(tensor, task if loop is None else dict(tile_loops)[loop])
    (nest,) = editor.nests(buffer, task)
    last = nest[-1]
    if editor.extent(last) > setting.lanes:
        _, last = editor.split(last, setting.lanes, f"{last}_vector", f"{last}_lane")
    editor.vectorise(last)
