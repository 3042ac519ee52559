"""The outputs of a workload, each as one expression of inputs, or of inputs and one reduction."""

from collections.abc import Mapping
from functools import lru_cache

from ...ir.expr import Expr, Load, Var, walk
from ...ir.rewrite import loads_of, map_loads, substitute
from ...te.inline import inline_stages
from ...te.workload import Stage, Workload
from ..loop_nest.nest import COMBINE

MAX_NODES = 4096
"""How many nodes the expression of an output may have, once other outputs that it reads are inlined into it."""


@lru_cache(maxsize=64)  # sketches of maps and of copies ask it of a workload
def resolved_outputs(workload: Workload) -> tuple[Stage, ...] | None:
    """Return the outputs on the axes of the first stage, each computed from inputs alone.

    None where a stage reduces, where shapes differ, where an output is read at another point than its own, and where an
    expression would grow beyond ``MAX_NODES``.
    """
    inlined = inline_stages(workload)
    return _outputs_on_axes_of(inlined.stages[0], inlined, {})


@lru_cache(maxsize=64)  # sketches of products and of windows ask it of a workload
def single_reduction(workload: Workload) -> tuple[Stage, tuple[Stage, ...]] | None:
    """Return the one stage that reduces, by an operation of two values, and the outputs (``outputs_of_reduction``);
    None for a workload that has not one such stage, or has other outputs."""
    inlined = inline_stages(workload)
    reductions = [s for s in inlined.stages if s.reducer is not None]
    if len(reductions) != 1 or reductions[0].reducer not in COMBINE:
        return None
    outputs = outputs_of_reduction(inlined, reductions[0])
    return None if outputs is None else (reductions[0], outputs)


def outputs_of_reduction(workload: Workload, reduction: Stage, *others: Stage) -> tuple[Stage, ...] | None:
    """Return the outputs on the axes of the reduction, each computed from inputs and from the reduction, or from it and
    ``others`` of the same shape, at its own point.

    None where an output is anything else, and where an expression would grow beyond ``MAX_NODES``.
    """
    reductions = (reduction, *others)
    point = tuple(Var(a.name) for a in reduction.axes)
    stages = _outputs_on_axes_of(reduction, workload, {r.name: Load(r.tensor, point) for r in reductions})
    inputs = {b.name for b in workload.inputs}
    return stages if all(load.buffer.name in inputs for r in reductions for load in loads_of(r.body)) else None


def _outputs_on_axes_of(first: Stage, workload: Workload, known: Mapping[str, Expr]) -> tuple[Stage, ...] | None:
    """Return the outputs on the axes of ``first``. ``known`` has the expressions of stages that are not to be
    inlined."""
    point = tuple(Var(a.name) for a in first.axes)
    bodies: dict[str, Expr] = {}
    for stage in workload.stages:
        if stage.name in known:
            bodies[stage.name] = known[stage.name]
            continue
        if stage.reducer is not None or stage.tensor.shape != first.tensor.shape:
            return None
        body = substitute(stage.body, {a.name: i for a, i in zip(stage.axes, point, strict=True)})
        if any(load.buffer.name in bodies and not _is_at(load, point) for load in loads_of(body)):
            return None
        body = map_loads(body, lambda load: bodies.get(load.buffer.name, load))
        if not _is_small(body):
            return None
        bodies[stage.name] = body
    tensors = {s.name: s.tensor for s in workload.stages}
    return tuple(Stage(tensors[n], first.axes, body) for n, body in bodies.items() if n in workload.outputs)


def _is_at(load: Load, point: tuple[Expr, ...]) -> bool:
    """Return whether a load reads at ``point``; along a dimension of one element every index does."""
    places = zip(load.indices, point, load.buffer.shape, strict=True)
    return all(extent == 1 or i == own for i, own, extent in places)


def has_indirect_load(stage: Stage) -> bool:
    """Return whether an index of some load is itself loaded, as in a gather."""
    return any(loads_of(i) for load in loads_of(stage.body) for i in load.indices)


def _is_small(body: Expr) -> bool:
    return all(n < MAX_NODES for n, _ in enumerate(walk(body)))
