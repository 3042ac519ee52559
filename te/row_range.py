"""Workloads of a range of rows: what the static workloads of many shapes have in common.

    y[b, s, d] = x[b, s, d] * w[d]    # b in 4, s in 37
    y[r, d] = x[r, d] * w[d]          # r in 1..256, measured at 128: a call with 148 rows computes the same

A kernel of the latter serves every static workload whose rows are in range. That it computes the same is compared, not
concluded: ``at_extent`` gives the static workload again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var
from ..ir.rewrite import free_variables, fresh_name, loads_of, map_expr
from .check import check
from .dynamic import at_extent, has_dynamic_rows, resized, with_dynamic
from .workload import Axis, Stage, Workload

STEP = 4
"""The largest extent of a range is so many times that of the range before it."""
FIRST = 64
"""The largest extent of the first range."""


def range_of_rows(rows: int) -> tuple[int, int]:
    """Return the largest extent of the range that ``rows`` are in, and the representative one: 1 to 64, measured at 16;
    65 to 256, measured at 128; and so on, always at the half."""
    most = FIRST
    while most < rows:
        most *= STEP
    return most, most // 2 if most > FIRST else FIRST // 4


def rows_of(workload: Workload) -> int:
    """Return the extent of the first dimension of the first output; 1 for a number."""
    return next(iter(workload.output_buffers[0].shape), 1)


def of_row_range(workload: Workload) -> Workload | None:
    """Return the workload with dynamic rows, for a whole range of them, that is the static ``workload`` at its
    ``rows_of``. None where there is no such workload: a tensor is read along the rows in another way than row by row,
    they are reduced, or an index would leave its tensor at other rows."""
    most, representative = range_of_rows(rows_of(workload))
    try:
        narrow = with_dynamic(workload)
        if not has_dynamic_rows(narrow):
            return None
        dynamic = tuple(replace(d, representative=representative) for d in narrow.dynamic)
        wide = check(replace(resized(narrow, most), dynamic=dynamic))
    except InvalidWorkload:
        return None
    return wide if at_extent(wide, rows_of(workload)) == workload else None


def with_joined_rows(workload: Workload) -> Workload | None:
    """Return the same computation on the same memory, with one dimension for the first two of the outputs, in all
    tensors that have them. None where a stage reads a tensor along one of the two, or knows where it is."""
    shape = workload.output_buffers[0].shape
    names = {t.name for t in workload.inputs} | {s.name for s in workload.stages}
    names |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    joined: dict[str, Buffer] = {}

    def tensor(t: Buffer) -> Buffer:
        return joined.setdefault(t.name, replace(t, shape=(t.shape[0] * t.shape[1], *t.shape[2:])))

    stages: list[Stage] = []
    for s in workload.stages:
        if s.tensor.shape[:2] != shape[:2] or len(shape) < 3:
            stages.append(s)
            continue
        one, two = Var(s.axes[0].name), Var(s.axes[1].name)
        row = Axis(fresh_name("row", names), s.axes[0].extent * s.axes[1].extent)
        names.add(row.name)

        def node(e: Expr, one: Var = one, two: Var = two, row: Axis = row) -> Expr:
            if isinstance(e, Load) and e.indices[:2] == (one, two) and e.buffer.shape[:2] == shape[:2]:
                return replace(e, buffer=tensor(e.buffer), indices=(Var(row.name), *e.indices[2:]))
            return e

        body = map_expr(s.body, node)
        if free_variables(body) & {one.name, two.name}:
            return None
        stages.append(replace(s, tensor=tensor(s.tensor), axes=(row, *s.axes[2:]), body=body))
    loads = [load.buffer for s in stages for load in loads_of(s.body)]
    if not joined.keys() >= set(workload.outputs) or any(b != joined.get(b.name, b) for b in loads):
        return None
    inputs = tuple(joined.get(t.name, t) for t in workload.inputs)
    return replace(workload, inputs=inputs, stages=tuple(stages))


@dataclass(frozen=True, slots=True)
class DynamicRows:
    """A workload with dynamic rows, of which a static workload is that of a call with ``rows`` rows."""

    workload: Workload
    rows: int


def row_range(workload: Workload, extents: Collection[int], fits: Callable[[Workload], bool]) -> DynamicRows | None:
    """Return the range of a static workload whose number of rows is one of ``extents``, where ``fits`` takes the
    workload of the range. Ranges of joined rows come first: they serve more shapes."""
    for one in (with_joined_rows(workload), workload):
        if one is not None and rows_of(one) in extents:
            wide = of_row_range(one)
            if wide is not None and fits(wide):
                return DynamicRows(wide, rows_of(one))
    return None
