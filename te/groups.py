"""Groups of rows that run-time ends set apart: which group each row of a grouped product belongs to.

    g[i] = min over e < count of (e if ends[e] > i else count)

is the first group that ends behind row ``i``. With ascending ends, the group ``e`` has the rows from ``ends[e - 1]``
(from 0, if it is the first) to before ``ends[e]``. With any others, it has the rows from the largest of the ends before
its own. Rows behind all ends belong to no group (``count``): their products are 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import INDEX
from ..ir.buffer import Buffer
from ..ir.expr import Cast, Compare, CompareOp, Const, Expr, Load, Select, Var, const, index
from .workload import Reducer, Stage, Workload

MAX_SKEW = 4.0


@dataclass(frozen=True, slots=True)
class RowGroups:
    """``stage`` gives each of ``rows`` rows its group, of which ``ends`` (integers) says where each ends."""

    stage: Stage
    ends: Buffer

    @property
    def rows(self) -> int:
        return self.stage.axes[0].extent

    @property
    def count(self) -> int:
        return self.ends.elements


def group_of_row(end: Expr, row: Expr, group: Expr, count: int) -> Expr:
    """Return what the minimum is taken of, over all of ``count`` groups: ``end`` is where ``group`` ends."""
    return Select(Cast(end, INDEX) > row, group, index(count))


def in_group(group: Expr, count: int, value: Expr) -> Expr:
    """``value``, a factor of a product, for rows of a group; 0 for others. ``group``: that of the row."""
    return Select(group < index(count), value, const(0.0, value.dtype))


def of_group(value: Expr, group: Expr, count: int) -> Expr | None:
    """Return what ``in_group`` was given; None where ``value`` is nothing of it."""
    if isinstance(value, Select) and value == in_group(group, count, value.then):
        return value.then
    return None


def row_groups_of(stage: Stage) -> RowGroups | None:
    """``stage`` as the groups of rows; None where it is anything else."""
    if stage.reducer is not Reducer.MIN or len(stage.axes) != 1 or len(stage.reduce_axes) != 1:
        return None
    row, group = Var(stage.axes[0].name), Var(stage.reduce_axes[0].name)
    match stage.body:
        case Select(
            condition=Compare(op=CompareOp.GT, a=Cast(value=Load(buffer=ends, indices=(at,)), type=dtype), b=compared),
            then=then,
            otherwise=Const(value=last),
        ) if dtype == INDEX and at == then == group and compared == row and ends.dtype.is_integer:
            return RowGroups(stage, ends) if last == ends.elements == stage.reduce_axes[0].extent else None
    return None


def group_starts(ends: NDArray[np.integer[Any]], rows: int) -> NDArray[np.int64]:
    """Return where each group begins, and where the last one ends: int64[count + 1]."""
    return np.concatenate([[0], np.clip(np.maximum.accumulate(ends.astype(np.int64)), 0, rows)])


def all_row_groups(workload: Workload) -> dict[str, RowGroups]:
    """Return every input that holds the ends of groups of rows, by its name."""
    inputs = {t.name for t in workload.inputs}
    found = [groups for groups in map(row_groups_of, workload.stages) if groups is not None]
    return {groups.ends.name: groups for groups in found if groups.ends.name in inputs}


def draw_sizes(rows: int, count: int, skew: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return the sizes of ``count`` groups that have ``rows`` rows together, int64[count]. Each row goes to a group by
    its share, which is in proportion to rank^-skew (Zipf's law); which group has which rank is drawn, too."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    return np.asarray(draw.multinomial(rows, draw.permutation(weights / weights.sum())))
