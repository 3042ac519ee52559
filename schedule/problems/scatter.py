"""Recognises reductions of the terms whose loaded index is that of the element, such as the gradient of an embedding,
in a workload."""

from dataclasses import dataclass
from math import prod

from ...ir.expr import Expr
from ...ir.rewrite import loads_of, map_loads
from ...te.inline import inline_stages
from ...te.scatter import Scatter, scatter_of
from ...te.workload import Axis, Stage, Workload
from ..tile.accumulation import Accumulation
from .outputs import outputs_of_reduction

MOST_TERMS = (1 << 31) - 1
"""Terms are numbered by 32 bits."""


@dataclass(frozen=True)
class ScatterProblem:
    """A scatter, and what is computed from it. ``outputs``: the stored stages, on the axes of the scatter; their bodies
    load it at their own point, and inputs."""

    workload: Workload
    scatter: Scatter
    outputs: tuple[Stage, ...]

    @property
    def names(self) -> set[str]:
        """The names of all tensors and axes."""
        stage = self.scatter.stage
        buffers = (*self.workload.inputs, stage.tensor, *(o.tensor for o in self.outputs))
        return {b.name for b in buffers} | {a.name for a in (*stage.axes, *stage.reduce_axes)}

    @property
    def accumulation(self) -> Accumulation:
        """How terms are reduced."""
        stage = self.scatter.stage
        assert stage.reducer is not None
        return Accumulation(stage.reducer, stage.body.dtype, stage.tensor.dtype)

    def body_of(self, output: Stage, total: Expr) -> Expr:
        """Return the body of an output with ``total`` for the element of the scatter that it reads."""
        tensor = self.scatter.stage.tensor
        return map_loads(output.body, lambda load: total if load.buffer == tensor else load)

    @property
    def batches(self) -> int:
        """How many places each term has one of."""
        return prod(a.extent for a in self.scatter.batch)

    @property
    def keys(self) -> int:
        """How many elements there are along the keys."""
        return self.scatter.key_count

    @property
    def terms(self) -> int:
        """How many terms there are in a batch."""
        return self.scatter.term_count

    @property
    def columns(self) -> int:
        """How many elements have the same terms."""
        return prod(a.extent for a in self.scatter.rest)

    @property
    def lane_axis(self) -> Axis | None:
        """The axis along which elements with the same terms are neighbours in memory; None where there is none."""
        last = self.scatter.stage.axes[-1]
        return last if self.scatter.rest and self.scatter.rest[-1] == last else None


def scatter_problem(workload: Workload) -> ScatterProblem | None:
    """Return a workload that is one scatter, and what is computed from it at the same point, as such; None for any
    other."""
    if workload.dynamic or workload.skews:
        return None
    inlined = inline_stages(workload)
    reductions = [s for s in inlined.stages if s.reducer is not None]
    scatter = scatter_of(reductions[0]) if len(reductions) == 1 else None
    if scatter is None or scatter.term_count > MOST_TERMS:
        return None
    outputs = outputs_of_reduction(inlined, scatter.stage)
    inputs = {b.name for b in workload.inputs}
    read = {load.buffer.name for place in scatter.places for load in loads_of(place)}
    return None if outputs is None or not read <= inputs else ScatterProblem(workload, scatter, outputs)
