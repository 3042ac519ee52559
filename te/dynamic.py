"""Dynamic dimensions: workloads of which one dimension has an extent that every call gives.

    X: float32[8192, 1024]    # dynamic, measured at 4096 of 8192
    Y[i, j] = X[i, j] * 2

The dynamic dimension is the first one of its tensors, so that the strides of a row-major tensor do not depend on it.
The shapes of such a workload have the largest extent. ``at_extent`` gives the workload of one extent, which is
static; a kernel of the dynamic workload computes the same for each of them.
"""

from dataclasses import replace

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var
from ..ir.rewrite import fresh_name, loads_of, map_loads
from ..ir.stmt import DynamicExtent
from .workload import Axis, DynamicDimension, Stage, Workload

_VARIABLE = "dynamic_extent"


def check_dynamic(workload: Workload) -> None:
    """Raise InvalidWorkload unless the dynamic dimension of a workload, if it has one, is the first one of inputs, has
    one largest extent, and is read by the first axes of stages alone, which are not reduced."""
    dynamic = workload.dynamic
    if dynamic is None:
        return
    shapes = {t.name: t.shape for t in workload.inputs}
    unknown = sorted(dynamic.inputs - shapes.keys())
    if unknown or not dynamic.inputs:
        given = ", ".join(unknown) or "none"
        raise InvalidWorkload(f"dynamic inputs {given}; allowed: {', '.join(shapes)}", field="/dynamic/inputs")
    extents = {shapes[name][0] if shapes[name] else 0 for name in dynamic.inputs}
    if len(extents) > 1 or 0 in extents:
        raise InvalidWorkload(
            "the dynamic dimension is the first one of its inputs, with the same largest extent in all of them; given: "
            + ", ".join(f"{name}{list(shapes[name])}" for name in sorted(dynamic.inputs)),
            field="/dynamic/inputs",
        )
    (most,) = extents
    if isinstance(dynamic.representative, bool) or not 1 <= dynamic.representative <= most:
        raise InvalidWorkload(
            f"the representative extent is {dynamic.representative!r}; allowed: 1 to {most}",
            field="/dynamic/representative",
        )
    found = set(dynamic.inputs)
    for n, stage in enumerate(workload.stages):
        loads = [load for load in loads_of(stage.body) if load.buffer.name in found]
        if loads:
            first = Var(stage.axes[0].name) if stage.axes else None
            if any(load.indices[0] != first for load in loads):
                raise InvalidWorkload(
                    f"{stage.name} reads the dynamic dimension of {loads[0].buffer.name} at more than its own first "
                    "axis: a dynamic dimension is neither reduced nor moved, split or joined",
                    field=f"/stages/{n}/body",
                )
            found.add(stage.name)
    static = [name for name in workload.outputs if name not in found]
    if static:
        raise InvalidWorkload(f"output {', '.join(static)} lacks the dynamic dimension", field="/dynamic/inputs")


def dynamic_tensors(workload: Workload) -> frozenset[str]:
    """The names of all inputs and stages of a checked workload that have its dynamic dimension."""
    if workload.dynamic is None:
        return frozenset()
    found = set(workload.dynamic.inputs)
    for stage in workload.stages:
        if any(load.buffer.name in found for load in loads_of(stage.body)):
            found.add(stage.name)
    return frozenset(found)


def dynamic_extent(workload: Workload) -> DynamicExtent | None:
    """What kernels of a checked workload are given: the variable for the extent, and the parameters that have it. None
    where the workload is static."""
    if workload.dynamic is None:
        return None
    tensors = dynamic_tensors(workload)
    axes = {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    names = {t.name for t in workload.inputs} | {s.name for s in workload.stages} | axes
    parameters = [b for b in (*workload.inputs, *workload.output_buffers) if b.name in tensors]
    return DynamicExtent(fresh_name(_VARIABLE, names), parameters[0].shape[0], frozenset(b.name for b in parameters))


def at_extent(workload: Workload, extent: int) -> Workload:
    """The static workload of one extent; ``workload`` itself where it is static.

    Raises InvalidParameter for an extent that the workload does not allow.
    """
    dynamic = dynamic_extent(workload)
    if dynamic is None:
        return workload
    dynamic.check(extent)
    tensors = dynamic_tensors(workload)

    def tensor(t: Buffer) -> Buffer:
        return replace(t, shape=(extent, *t.shape[1:])) if t.name in tensors else t

    def load(e: Load) -> Expr:
        return replace(e, buffer=tensor(e.buffer))

    def stage(s: Stage) -> Stage:
        axes = (Axis(s.axes[0].name, extent), *s.axes[1:]) if s.name in tensors else s.axes
        return replace(s, tensor=tensor(s.tensor), axes=axes, body=map_loads(s.body, load))

    return replace(
        workload,
        inputs=tuple(tensor(t) for t in workload.inputs),
        stages=tuple(stage(s) for s in workload.stages),
        dynamic=None,
    )


def at_representative(workload: Workload) -> Workload:
    """The static workload that kernels of ``workload`` are measured on; itself where it is static."""
    return workload if workload.dynamic is None else at_extent(workload, workload.dynamic.representative)


def with_dynamic(workload: Workload, inputs: frozenset[str] | None = None, representative: int = 0) -> Workload:
    """``workload`` with the first dimension of ``inputs`` dynamic, up to its extent there, measured at
    ``representative`` (0: at the largest extent). Without ``inputs`` these are the inputs whose first dimension is
    that of the first output, as its first axis reads it.

    Raises InvalidWorkload where that dimension cannot be dynamic.
    """
    if inputs is None:
        inputs = _inputs_of_first_axis(workload)
    shapes = {t.name: t.shape for t in workload.inputs}
    most = max((shapes[n][0] for n in inputs if shapes.get(n)), default=1)
    made = replace(workload, dynamic=DynamicDimension(inputs, representative or most))
    check_dynamic(made)
    return made


def _inputs_of_first_axis(workload: Workload) -> frozenset[str]:
    """The inputs that are read at the first axis of the first output, alone, along their first dimension, also through
    earlier stages."""
    inputs = {t.name for t in workload.inputs}
    stages = {s.name: s for s in workload.stages}
    found: set[str] = set()
    pending = [workload.outputs[0]]
    seen: set[str] = set()
    while pending:
        stage = stages[pending.pop()]
        seen.add(stage.name)
        for load in loads_of(stage.body):
            if stage.axes and load.indices and load.indices[0] == Var(stage.axes[0].name):
                if load.buffer.shape[0] == stage.axes[0].extent and load.buffer.name in inputs:
                    found.add(load.buffer.name)
                elif load.buffer.name not in seen | inputs:
                    pending.append(load.buffer.name)
    return frozenset(found)
