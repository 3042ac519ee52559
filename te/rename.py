"""The same workload under other names."""

from collections.abc import Mapping
from dataclasses import replace

from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var
from ..ir.rewrite import map_expr
from .workload import Axis, Stage, Workload


def renamed(workload: Workload, names: Mapping[str, str]) -> Workload:
    """``workload`` with tensors, axes and extents renamed. Names that are not in ``names`` stay. The caller keeps names
    unique."""

    def tensor(t: Buffer) -> Buffer:
        return replace(t, name=names.get(t.name, t.name))

    def axes(given: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(names.get(a.name, a.name), a.extent) for a in given)

    def node(e: Expr) -> Expr:
        if isinstance(e, Var):
            return Var(names.get(e.name, e.name))
        return Load(tensor(e.buffer), e.indices) if isinstance(e, Load) else e

    return Workload(
        inputs=tuple(tensor(t) for t in workload.inputs),
        stages=tuple(
            Stage(tensor(s.tensor), axes(s.axes), map_expr(s.body, node), axes(s.reduce_axes), s.reducer)
            for s in workload.stages
        ),
        outputs=tuple(names.get(n, n) for n in workload.outputs),
        constants=frozenset(names.get(n, n) for n in workload.constants),
        precision=workload.precision,
        skews=frozenset((names.get(n, n), skew) for n, skew in workload.skews),
        dynamic=tuple(
            replace(d, name=names.get(d.name, d.name), places=frozenset((names.get(n, n), at) for n, at in d.places))
            for d in workload.dynamic
        ),
    )
