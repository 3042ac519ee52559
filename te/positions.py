"""argmax and argmin by plain reductions, for whoever has no better way to find a position.

    Y[i] = argmax over k of A[i, k]    ->    Y_best[i] = max over k of A[i, k]
                                             Y[i] = min over k of select(A[i, k] == Y_best[i], k, n - 1)

With ``n - 1`` where no value is the best, the result is a position whatever the values are (NaN too).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..ir.buffer import Buffer
from ..ir.expr import Cast, Compare, CompareOp, Expr, Load, Select, Var, const
from ..ir.rewrite import fresh_name, substitute
from .workload import Axis, Reducer, Stage, Workload


@dataclass(frozen=True, slots=True)
class Plain:
    """An equal workload without argmax and argmin. Each has become two reductions that must see the very same values:
    a schedule must store the stages ``compared`` that hold these, not compute them in both places."""

    workload: Workload
    compared: frozenset[str] = frozenset()


def without_positions(workload: Workload) -> Plain:
    """``workload`` with every argmax and argmin rewritten as above. It is ``workload`` itself where there is none.

    A body that is more than a load, or a cast of a load, becomes a stage of its own.
    """
    if not any(_finds_position(stage) for stage in workload.stages):
        return Plain(workload)
    taken = {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    taken |= {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    stages: list[Stage] = []
    compared: set[str] = set()
    for stage in workload.stages:
        if not _finds_position(stage):
            stages.append(stage)
            continue
        *before, best, position = _plain(stage, taken)
        stages.extend((*before, best, position))
        loaded = best.body.value if isinstance(best.body, Cast) else best.body
        assert isinstance(loaded, Load)
        compared.add(loaded.buffer.name)
    return Plain(replace(workload, stages=tuple(stages)), frozenset(compared & {s.name for s in stages}))


def _finds_position(stage: Stage) -> bool:
    return stage.reducer is not None and stage.reducer.is_position


def _plain(stage: Stage, taken: set[str]) -> Iterator[Stage]:
    """Yield the stages that ``stage`` becomes; the last has its name. Names of new tensors and axes are added to
    ``taken``."""

    def fresh(base: str) -> str:
        taken.add(name := fresh_name(base, taken))
        return name

    assert stage.reducer is not None
    body, (over,), old = stage.body, stage.reduce_axes, (*stage.axes, *stage.reduce_axes)

    def copied(suffix: str) -> tuple[tuple[Axis, ...], Expr]:
        new = tuple(Axis(fresh(f"{a.name}_{suffix}"), a.extent) for a in old)
        return new, substitute(body, {a.name: Var(b.name) for a, b in zip(old, new, strict=True)})

    if not isinstance(body.value if isinstance(body, Cast) else body, Load):
        axes, value = copied("values")
        values = Buffer(fresh(f"{stage.name}_values"), tuple(a.extent for a in axes), body.dtype)
        yield Stage(values, axes, value)
        body = Load(values, tuple(Var(a.name) for a in old))
    axes, value = copied("best")
    best = Buffer(fresh(f"{stage.name}_best"), stage.tensor.shape, body.dtype)
    yield Stage(best, axes[:-1], value, axes[-1:], stage.reducer.extreme)
    place, dtype = Var(over.name), stage.tensor.dtype
    position: Expr = place if place.dtype == dtype else Cast(place, dtype)
    is_best = Compare(CompareOp.EQ, body, Load(best, tuple(Var(a.name) for a in stage.axes)))
    yield replace(stage, body=Select(is_best, position, const(over.extent - 1, dtype)), reducer=Reducer.MIN)
