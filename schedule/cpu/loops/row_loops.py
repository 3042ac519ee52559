"""Writes the loops of a row group: rows in parallel, every stage of the group on one row before the next row.

for task in parallel(..):
  for row:
    local top[1], power[columns], total[1]
    top = max over X[row, ..]                 # vectors of partial results, combined at the end
    power[..] = exp(X[row, ..] - top)         # vectorised
    total = sum over power[..]
    Y[row, ..] = power[..] / total
"""

from dataclasses import dataclass

from ....ir.buffer import MemoryScope
from ....te.workload import Stage
from .editor import LoopEditor
from .fusion import FusedGroup
from .inner_loops import vector_dimension, vector_reduction
from .tile_loops import PARALLEL_WORK


@dataclass(frozen=True, slots=True)
class RowLoopSetting:
    """One value for each knob of a row group. ``knobs.row_knobs`` says what they mean."""

    lanes: int = 1
    vectors: int = 1
    rows: int = 1


def lower_rows(editor: LoopEditor, group: FusedGroup, setting: RowLoopSetting) -> None:
    """Apply ``setting`` to the nests of the group."""
    leading = editor.fuse([a.name for a in group.root.axes[: group.depth]], editor.fresh("all_rows"))
    task, row = editor.split(leading, setting.rows, "task", "row")
    for member in reversed(group.members):
        editor.compute_at(member.name, row, MemoryScope.LOCAL)
    for stage in group.stages:
        vectorise_stage(editor, stage, row, setting, skip=group.depth if stage is group.root else 0)
    if group.work >= PARALLEL_WORK:
        editor.parallelise(task)


def vectorise_stage(
    editor: LoopEditor, stage: Stage, inside: str | None, setting: RowLoopSetting, *, skip: int
) -> None:
    """Vectorise the nests of a stage below the loop ``inside``. ``skip``: how many dimensions have their loops outside
    of it."""
    rank = len(stage.axes) - skip
    if stage.reducer is None:
        (loops,) = editor.nests(stage.name, inside)
        vector_dimension(editor, loops[:rank], setting.lanes, setting.vectors)
        return
    start, update = editor.nests(stage.name, inside)
    if any(editor.extent(loop) > 1 for loop in start):
        vector_dimension(editor, start, setting.lanes, setting.vectors)
        wide = [loop for loop in update[:rank] if editor.extent(loop) > 1]
        chosen = update.pop(update.index(wide[-1]))
        editor.reorder([*update, chosen])
        vector_dimension(editor, [chosen], setting.lanes, setting.vectors)
        return
    vector_reduction(editor, stage.name, inside, update[rank:], setting.lanes, setting.vectors)
