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
from math import prod

from ....ir.buffer import MemoryScope
from ....ir.rewrite import loads_of
from ....te.workload import Axis, Stage
from .editor import LoopEditor
from .fusion import FusedGroup
from .inner_loops import vector_dimension, vector_reduction
from .tile_loops import PARALLEL_WORK, terms_last
from .tiles import stride_along, uses

MOST_SUMS = 24
"""So many vectors of partial sums stay in registers, of which processors with the widest vectors have 32."""


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
    wide = [n for n, loop in enumerate(update[:rank]) if editor.extent(loop) > 1]
    if not wide:
        terms_last(editor, stage, update, rank)
        vector_reduction(editor, stage.name, inside, update[rank:], setting.lanes, setting.vectors)
        return
    column = stage.axes[skip + wide[-1]]
    along = _contiguous_terms(stage, column)
    if along is None:
        vector_dimension(editor, start, setting.lanes, setting.vectors)
        chosen = update.pop(wide[-1])
        editor.reorder([*update, chosen])
        vector_dimension(editor, [chosen], setting.lanes, setting.vectors)
        return
    terms = update.pop(rank + stage.reduce_axes.index(along))
    if along.extent >= setting.lanes or not _joins(stage, column, along):
        editor.reorder([*update, terms])
        vector_reduction(editor, stage.name, inside, [terms], setting.lanes, setting.vectors, each=True)
        return
    _joined_reduction(editor, stage, inside, update[rank:], terms, setting)


@dataclass(frozen=True, slots=True)
class TermsAlone:
    """A reduction of a row group whose ``terms`` side by side are vectors of their own, for each column. Each column
    has ``of_column`` terms in all."""

    terms: int
    of_column: int


def terms_alone(group: FusedGroup) -> TermsAlone | None:
    """Return the reduction of a row group that reads contiguous terms where its columns are not; None where there is
    none, or where terms and columns are contiguous as one."""
    for stage in group.reductions:
        wide = [axis for axis in stage.axes[group.depth if stage is group.root else 0 :] if axis.extent > 1]
        along = _contiguous_terms(stage, wide[-1]) if wide else None
        if along is not None and not _joins(stage, wide[-1], along):
            return TermsAlone(along.extent, prod(axis.extent for axis in stage.reduce_axes))
    return None


def _contiguous_terms(stage: Stage, column: Axis) -> Axis | None:
    """Return the axis of a reduction along which it reads contiguous elements; None where it does so along ``column``,
    or where it does along none."""
    found = [_strides(stage, axis.name) for axis in (column, *stage.reduce_axes)]
    even = [strides <= {0, 1} and 1 in strides for strides in found]
    return (
        None
        if even[0] or found[0] <= {0}
        else next((a for a, e in zip(stage.reduce_axes, even[1:], strict=True) if e), None)
    )


def _joins(stage: Stage, column: Axis, terms: Axis) -> bool:
    """Return whether what is read along ``terms`` and then along ``column`` is contiguous as one axis."""
    read = [load for load in loads_of(stage.body) if uses(load, terms.name)]
    return all(stride_along(load, column.name) == terms.extent for load in read)


def _strides(stage: Stage, axis: str) -> set[int | None]:
    return {stride_along(load, axis) for load in loads_of(stage.body)}


def _joined_reduction(
    editor: LoopEditor, stage: Stage, inside: str | None, others: list[str], terms: str, setting: RowLoopSetting
) -> None:
    """Reduce over ``others`` first, for each column and each of the few ``terms``, which are one loop of vectors."""
    partial = editor.rfactor(stage.name, terms)
    for nest in editor.nests(partial, inside):
        kept = [loop for loop in nest if loop not in others]
        outer = [loop for loop in nest if loop in others]
        editor.reorder([*outer, *kept])
        fused = editor.fuse(kept[-2:], editor.fresh(f"{kept[-2]}_terms"))
        all_vectors = -(-editor.extent(fused) // setting.lanes)
        vector_dimension(editor, [fused], setting.lanes, all_vectors if all_vectors <= MOST_SUMS else setting.vectors)
    combine = editor.nests(stage.name, inside)[-1]
    last = combine.pop()
    editor.reorder([last, *combine])
    for nest in (editor.nests(stage.name, inside)[0], combine):
        vector_dimension(editor, nest, setting.lanes, setting.vectors)
