"""Grouped products: the rows of A lie in groups, and each group is multiplied with a matrix of its own.

    C[m, n] = epilogue(sum over k of A[m, k] * B[g(m), k, n])

where ``g`` is what ``te.groups`` describes: an input says where the groups end. Sums of rows behind all ends are 0.
"""

from dataclasses import replace

from ...ir.expr import Expr, Load, Var
from ...ir.rewrite import loads_of
from ...te.contraction import grouped_contraction_of
from ...te.functions import within
from ...te.groups import RowGroups, of_group, row_groups_of
from ...te.inline import inline_stages
from ...te.workload import Stage, Workload
from .gemm import Gemm, GroupedRows, Side, Sides, has_constant_strides


def grouped_gemm_of(workload: Workload) -> Gemm | None:
    """``workload`` as a product whose ``rows`` lie in groups; None where it is none. There is one such product, its A
    has the rows of all groups one after the other, and its outputs are pointwise functions of the sums, contiguous
    along ``n``."""
    inlined = inline_stages(workload)
    groups = [g for g in map(row_groups_of, inlined.stages) if g is not None]
    sums = [s for s in inlined.stages if s.reducer is not None]
    if len(groups) != 1 or len(sums) != 2:
        return None
    (own,), (stage,) = groups, [s for s in sums if s != groups[0].stage]
    found = grouped_contraction_of(stage)
    if found is None or not _is_group_of_row(own, found.group, found.row, inlined):
        return None
    c = found.contraction
    extents = {a.name: a for a in (*c.stage.axes, *c.stage.reduce_axes)}
    left, right = (c.left, c.rows), (c.right, c.columns)
    if found.row in c.columns:
        left, right = right, left
    long_rows, columns, k = (
        tuple(extents[n] for n in names if extents[n].extent > 1) for names in (left[1], right[1], c.shared)
    )
    row = extents[found.row]
    load = Load(own.stage.tensor, (Var(row.name),))
    factor = of_group(left[0], load, own.count)
    if factor is None:
        return None
    others = tuple(s for s in inlined.stages if s != own.stage)
    if c.batch or long_rows not in ((), (row,)) or any(_reads(s, own) for s in others if s != stage):
        return None
    rest = replace(inlined, stages=tuple(c.stage if s == stage else s for s in others))
    sides = Sides(rest, c.stage, Side(factor, (row,)), Side(right[0], columns), k, ())
    product = sides.product(sides.rows, sides.columns)
    if product is None or product.results[0].step("n") != 1 or not has_constant_strides(product):
        return None
    skew = dict(workload.skews).get(own.ends.name, 0.0)
    return replace(product, groups=GroupedRows(own.ends, skew))


def _is_group_of_row(groups: RowGroups, group: Expr, row: str, workload: Workload) -> bool:
    """Return whether ``group`` is the index of the group of a row, and ``groups`` those whose ends an input holds."""
    wanted = within(Load(groups.stage.tensor, (Var(row),)), groups.count)
    return group == wanted and groups.ends in workload.inputs and groups.stage.name not in workload.outputs


def _reads(stage: Stage, groups: RowGroups) -> bool:
    return any(load.buffer == groups.stage.tensor for load in loads_of(stage.body))
