"""The outputs of a workload, each as one expression of inputs, or of one reduction and inputs."""

from ...ir.expr import Expr, Load, Var, walk
from ...ir.rewrite import loads_of, map_loads, substitute
from ...te.inline import inline_stages
from ...te.workload import Stage, Workload

MAX_NODES = 4096
"""Expression nodes of an output, other outputs that it reads at the same point substituted."""


def resolved_outputs(workload: Workload) -> tuple[Stage, ...] | None:
    """The outputs, all on the axes of the first one, each computed from inputs alone; None where that is not possible:
    where something reduces, shapes differ, or an output is read at another point than it is needed for."""
    inlined = inline_stages(workload)
    first = inlined.stages[0]
    here = tuple(Var(a.name) for a in first.axes)
    known: dict[str, Expr] = {}
    stages: list[Stage] = []
    for stage in inlined.stages:
        if stage.reducer is not None or stage.tensor.shape != first.tensor.shape:
            return None
        body = substitute(stage.body, {a.name: i for a, i in zip(stage.axes, here, strict=True)})
        if any(load.buffer.name in known and load.indices != here for load in loads_of(body)):
            return None
        body = map_loads(body, lambda load: known.get(load.buffer.name, load))
        if not _is_small(body):
            return None
        known[stage.name] = body
        if stage.name in workload.outputs:
            stages.append(Stage(stage.tensor, first.axes, body))
    return tuple(stages)


def outputs_of(workload: Workload, reduction: Stage) -> tuple[Stage, ...] | None:
    """The outputs on the axes of the reduction, each from the reduction at its own point and inputs; None where one is
    anything else."""
    here = tuple(Var(a.name) for a in reduction.axes)
    known: dict[str, Expr] = {reduction.name: Load(reduction.tensor, here)}
    stages: list[Stage] = []
    for stage in workload.stages:
        if stage.name == reduction.name:
            body: Expr = known[stage.name]
        elif stage.tensor.shape != reduction.tensor.shape:
            return None
        else:
            body = substitute(stage.body, {a.name: i for a, i in zip(stage.axes, here, strict=True)})
            if any(load.buffer.name in known and load.indices != here for load in loads_of(body)):
                return None
            body = map_loads(body, lambda load: known.get(load.buffer.name, load))
            if not _is_small(body):
                return None
            known[stage.name] = body
        if stage.name in workload.outputs:
            stages.append(Stage(stage.tensor, reduction.axes, body))
    if any(load.buffer.name not in {b.name for b in workload.inputs} for load in loads_of(reduction.body)):
        return None
    return tuple(stages)


def reads_at_places_read(stage: Stage) -> bool:
    """Whether some index of a load is itself loaded."""
    return any(isinstance(e, Load) for load in loads_of(stage.body) for i in load.indices for e in walk(i))


def _is_small(body: Expr) -> bool:
    return all(n < MAX_NODES for n, _ in enumerate(walk(body)))
