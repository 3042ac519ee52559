"""Workloads that work through rows: reductions of each row, and outputs computed from the row and what was reduced.

total[i] = sum over k of X[i, k]                rows: i, columns: k or j
Y[i, j] = X[i, j] - total[i] * G[j] + B[i]      X is held, G beside the row, B and total of the row
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from ...ir.buffer import Buffer
from ...ir.expr import Expr, Load, Var, walk
from ...ir.linear_form import LinearForm, affine_form
from ...ir.rewrite import free_variables, map_loads, substitute
from ...te.inline import MAX_INLINED_NODES, inline_stages
from ...te.workload import Reducer, Stage, Workload


@dataclass(frozen=True, slots=True)
class Reduced:
    """``tensor[rows] = reducer over columns of body``."""

    tensor: Buffer
    reducer: Reducer
    body: Expr


@dataclass(frozen=True, slots=True)
class Computed:
    """``tensor[rows, columns] = body``, or ``tensor[rows] = body``."""

    tensor: Buffer
    body: Expr


@dataclass(frozen=True, slots=True)
class RowForm:
    """``rows`` and ``columns``: extents of the axes, which bodies call ``row_axis(n)`` and ``column_axis(n)``.

    ``held``: inputs read at exactly (rows, columns). ``beside``: loads whose last indices are the columns, the others
    row axes or constants: the same for many rows. All else that is loaded depends on the row alone. ``reductions`` in
    an order in which each reads only earlier ones (at its own row). ``wide`` outputs have rows and columns, ``narrow``
    ones rows only.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    held: tuple[Buffer, ...]
    beside: tuple[Load, ...]
    reductions: tuple[Reduced, ...]
    wide: tuple[Computed, ...]
    narrow: tuple[Computed, ...]

    @property
    def row_count(self) -> int:
        return prod(self.rows)

    @property
    def column_count(self) -> int:
        return prod(self.columns)

    @property
    def bodies(self) -> tuple[Expr, ...]:
        return (*(r.body for r in self.reductions), *(c.body for c in (*self.wide, *self.narrow)))

    @property
    def held_bytes(self) -> int:
        """Of one column: what is read of it."""
        return sum(b.dtype.bytes for b in self.held)

    @property
    def written_bytes(self) -> int:
        """Of one column: what is written of it."""
        return sum(s.tensor.dtype.bytes for s in self.wide)


def row_axis(n: int) -> str:
    """The name of a row axis in the bodies of a form; no tensor is called so."""
    return f"row#{n}"


def column_axis(n: int) -> str:
    """The name of a column axis in the bodies of a form."""
    return f"column#{n}"


def row_form(workload: Workload) -> RowForm | None:
    """The workload as work on rows, or None where it is none: a reduction over other than the last axes, over other
    axes than its neighbours', or something read at another place than its own row and column."""
    stages = written_out(inline_stages(workload))
    reducing = [s for s in stages if s.reducer is not None] if stages else []
    if not stages or not reducing:
        return None
    rows = tuple(a.extent for a in reducing[0].axes)
    columns = tuple(a.extent for a in reducing[0].reduce_axes)
    reductions: list[Reduced] = []
    wide: list[Computed] = []
    narrow: list[Computed] = []
    for stage in stages:
        extents = tuple(a.extent for a in stage.axes)
        over = tuple(a.extent for a in stage.reduce_axes)
        if stage.reducer is not None and (extents, over) == (rows, columns):
            reductions.append(Reduced(stage.tensor, stage.reducer, _renamed(stage, len(rows))))
        elif stage.reducer is None and extents == rows + columns:
            wide.append(Computed(stage.tensor, _renamed(stage, len(rows))))
        elif stage.reducer is None and extents == rows:
            narrow.append(Computed(stage.tensor, _renamed(stage, len(rows))))
        else:
            return None
    for r in reductions:
        if r.tensor.name in workload.outputs:
            narrow.append(Computed(r.tensor, Load(r.tensor, tuple(Var(row_axis(n)) for n in range(len(rows))))))
    return _with_loads(rows, columns, reductions, wide, narrow)


def written_out(workload: Workload) -> tuple[Stage, ...] | None:
    """The stages with every one that does not reduce written out in its readers, outputs too: what is left reads only
    inputs and reductions. None where a body would grow too large."""
    written: dict[str, Stage] = {}
    stages: list[Stage] = []
    for stage in workload.stages:

        def body_at(load: Load) -> Expr:
            found = written.get(load.buffer.name)
            if found is None:
                return load
            return substitute(found.body, {a.name: i for a, i in zip(found.axes, load.indices, strict=True)})

        body = map_loads(stage.body, body_at)
        if len(list(islice(walk(body), MAX_INLINED_NODES + 1))) > MAX_INLINED_NODES:
            return None
        new = Stage(stage.tensor, stage.axes, body, stage.reduce_axes, stage.reducer)
        stages.append(new)
        if stage.reducer is None:
            written[stage.name] = new
    return tuple(stages)


def _renamed(stage: Stage, rank: int) -> Expr:
    """The body on the form's axes."""
    places = [*stage.axes, *stage.reduce_axes]
    names = [row_axis(n) if n < rank else column_axis(n - rank) for n in range(len(places))]
    return substitute(stage.body, {a.name: Var(n) for a, n in zip(places, names, strict=True)})


def _with_loads(
    rows: tuple[int, ...],
    columns: tuple[int, ...],
    reductions: Sequence[Reduced],
    wide: Sequence[Computed],
    narrow: Sequence[Computed],
) -> RowForm | None:
    """The form, if every load is one that it allows."""
    row_names = [row_axis(n) for n in range(len(rows))]
    column_names = [column_axis(n) for n in range(len(columns))]
    held: dict[str, Buffer] = {}
    beside: dict[Load, None] = {}
    results = {r.tensor.name: r for r in reductions}
    across = [*(r.body for r in reductions), *(c.body for c in wide)]
    for body in (*across, *(c.body for c in narrow)):
        for load in _loads(body):
            kind = _kind(load, row_names, column_names)
            if kind is None:
                return None
            if load.buffer.name in results:
                if [affine_form(i) for i in load.indices] != _forms(row_names):
                    return None
            elif kind == "held":
                held[load.buffer.name] = load.buffer
            elif kind == "beside":
                beside[load] = None
    if any(free_variables(c.body) & set(column_names) for c in narrow):
        return None
    if not held or any(not _reads(r.body, held) for r in reductions):
        return None
    return RowForm(rows, columns, tuple(held.values()), tuple(beside), tuple(reductions), tuple(wide), tuple(narrow))


def _loads(body: Expr) -> Iterator[Load]:
    return (e for e in walk(body) if isinstance(e, Load))


def _reads(body: Expr, held: Mapping[str, Buffer]) -> bool:
    return any(load.buffer.name in held for load in _loads(body))


def _forms(names: Sequence[str]) -> list[LinearForm | None]:
    return [LinearForm({Var(n): 1}) for n in names]


def _kind(load: Load, rows: Sequence[str], columns: Sequence[str]) -> str | None:
    """``held``, ``beside`` or ``row`` (see ``RowForm``); None for any other load."""
    forms = [affine_form(i) for i in load.indices]
    if load.mask is not None or any(f is None for f in forms):
        return None
    if forms == _forms([*rows, *columns]):
        return "held"
    leading, last = forms[: len(forms) - len(columns)], forms[len(forms) - len(columns) :]
    if last == _forms(columns) and all(f is not None and (f.is_constant or f in _forms(rows)) for f in leading):
        return "beside"
    if not any(f is not None and set(f.variables) & set(columns) for f in forms):
        return "row"
    return None
