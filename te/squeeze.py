"""The same workload without dimensions of one element, as in ``numpy.squeeze``."""

from collections.abc import Iterable
from dataclasses import replace

from ..ir.expr import Expr, Load, index
from ..ir.rewrite import map_loads, substitute
from .workload import Axis, Stage, Workload


def squeezed(workload: Workload) -> Workload:
    """Return ``workload`` with tensors of the same names and elements that have no dimensions of one element, and with
    stages that have no axes of one element, but for one where nothing else is reduced."""
    inputs, stages = (b.squeezed for b in workload.inputs), (_squeezed_stage(s) for s in workload.stages)
    return replace(workload, inputs=tuple(inputs), stages=tuple(stages))


def _squeezed_stage(stage: Stage) -> Stage:
    axes, reduced = _longer(stage.axes), _longer(stage.reduce_axes) or stage.reduce_axes[:1]
    at_zero: dict[str, Expr] = {
        a.name: index(0) for a in (*stage.axes, *stage.reduce_axes) if a not in (*axes, *reduced)
    }

    def moved(load: Load) -> Load:
        indices = zip(load.indices, load.buffer.shape, strict=True)
        return replace(load, buffer=load.buffer.squeezed, indices=tuple(i for i, n in indices if n > 1))

    return replace(
        stage,
        tensor=stage.tensor.squeezed,
        axes=axes,
        reduce_axes=reduced,
        body=map_loads(substitute(stage.body, at_zero), moved),
    )


def _longer(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    return tuple(a for a in axes if a.extent > 1)
