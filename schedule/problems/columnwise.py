"""Workloads that reduce over axes in front of the last ones: neighbours in memory go to different results.

total[o, j] = sum over k of X[o, k, j]          outer: o, over: k, columns: j
Y[o, j] = total[o, j] * B[j]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...ir.buffer import Buffer
from ...ir.expr import Expr, Load, Var, walk
from ...ir.linear_form import LinearForm, affine_form
from ...ir.rewrite import substitute
from ...te.inline import inline_stages
from ...te.workload import Stage, Workload
from .rowwise import Computed, Reduced, written_out


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """``outer``, ``over`` and ``columns``: extents of the axes, which bodies call ``outer_axis(n)``, ``over_axis(n)``
    and ``column_axis(n)``. ``held``: inputs read at exactly (outer, over, columns). ``reductions`` read no other one.
    ``outputs`` are computed from what is reduced at their own place."""

    outer: tuple[int, ...]
    over: tuple[int, ...]
    columns: tuple[int, ...]
    held: tuple[Buffer, ...]
    reductions: tuple[Reduced, ...]
    outputs: tuple[Computed, ...]

    @property
    def outer_count(self) -> int:
        return prod(self.outer)

    @property
    def over_count(self) -> int:
        return prod(self.over)

    @property
    def column_count(self) -> int:
        return prod(self.columns)

    @property
    def held_bytes(self) -> int:
        """Of one point: what is read of it."""
        return sum(b.dtype.bytes for b in self.held)


def outer_axis(n: int) -> str:
    """The name of an outer axis in the bodies of a form; no tensor is called so."""
    return f"outer#{n}"


def over_axis(n: int) -> str:
    """The name of a reduced axis in the bodies of a form."""
    return f"over#{n}"


def column_axis(n: int) -> str:
    """The name of a column axis in the bodies of a form."""
    return f"column#{n}"


def column_form(workload: Workload) -> ColumnForm | None:
    """The workload as a reduction over leading axes, or None where it is none."""
    stages = written_out(inline_stages(workload))
    first = next((s for s in stages or () if s.reducer is not None), None)
    if not stages or first is None:
        return None
    outer = _outer_axes(first)
    if outer is None:
        return None
    kept = tuple(a.extent for a in first.axes)
    over = tuple(a.extent for a in first.reduce_axes)
    reductions: list[Reduced] = []
    outputs: list[Computed] = []
    for stage in stages:
        extents = tuple(a.extent for a in stage.axes)
        body = _renamed(stage, outer)
        if stage.reducer is not None and (extents, tuple(a.extent for a in stage.reduce_axes)) == (kept, over):
            reductions.append(Reduced(stage.tensor, stage.reducer, body))
            if stage.name in workload.outputs:
                outputs.append(Computed(stage.tensor, Load(stage.tensor, _kept_variables(outer, len(kept) - outer))))
        elif stage.reducer is None and extents == kept:
            outputs.append(Computed(stage.tensor, body))
        else:
            return None
    form = ColumnForm(kept[:outer], over, kept[outer:], (), tuple(reductions), tuple(outputs))
    return _with_held(form)


def _outer_axes(stage: Stage) -> int | None:
    """How many of the stage's axes stand before the reduced ones, by its first load; None where the reduced axes do not
    lie together before at least one kept one."""
    names = [a.name for a in stage.axes]
    over = [a.name for a in stage.reduce_axes]
    for load in (e for e in walk(stage.body) if isinstance(e, Load)):
        for outer in range(len(names)):
            if [affine_form(i) for i in load.indices] == _forms([*names[:outer], *over, *names[outer:]]):
                return outer
    return None


def _renamed(stage: Stage, outer: int) -> Expr:
    """The body on the form's axes."""
    kept = _kept_variables(outer, len(stage.axes) - outer)
    values = {a.name: v for a, v in zip(stage.axes, kept, strict=True)}
    return substitute(stage.body, values | {a.name: Var(over_axis(n)) for n, a in enumerate(stage.reduce_axes)})


def _kept_variables(outer: int, columns: int) -> tuple[Expr, ...]:
    return (*(Var(outer_axis(n)) for n in range(outer)), *(Var(column_axis(n)) for n in range(columns)))


def _forms(names: Sequence[str]) -> list[LinearForm | None]:
    return [LinearForm({Var(n): 1}) for n in names]


def _with_held(form: ColumnForm) -> ColumnForm | None:
    """The form with what it holds, if every load is one that it allows: of a whole point, or (in a reduction) of what
    does not follow the columns, or (in an output) of what a reduction found there or anything else."""
    outer = [outer_axis(n) for n in range(len(form.outer))]
    over = [over_axis(n) for n in range(len(form.over))]
    columns = [column_axis(n) for n in range(len(form.columns))]
    held: dict[str, Buffer] = {}
    results = {r.tensor.name for r in form.reductions}
    for reduced in form.reductions:
        found = False
        for load in (e for e in walk(reduced.body) if isinstance(e, Load)):
            forms = [affine_form(i) for i in load.indices]
            if forms == _forms([*outer, *over, *columns]) and load.mask is None:
                held[load.buffer.name] = load.buffer
                found = True
            elif load.buffer.name in results or any(f is None or set(f.variables) & set(columns) for f in forms):
                return None
        if not found:
            return None
    for output in form.outputs:
        for load in (e for e in walk(output.body) if isinstance(e, Load)):
            at_place = [affine_form(i) for i in load.indices] == _forms([*outer, *columns])
            if load.buffer.name in held or (load.buffer.name in results and not at_place):
                return None
    return ColumnForm(form.outer, form.over, form.columns, tuple(held.values()), form.reductions, form.outputs)
