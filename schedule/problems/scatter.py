"""Recognises reductions of the terms whose loaded index is that of the element, such as the gradient of an embedding,
in a workload."""

from dataclasses import dataclass, replace
from math import prod

from ...ir.expr import Expr, Var
from ...ir.rewrite import loads_of, map_loads, substitute
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
    load it at their own point, and inputs. ``others``: further scatters of the same terms to the same elements, on the
    same axes, which outputs load, too."""

    workload: Workload
    scatter: Scatter
    outputs: tuple[Stage, ...]
    others: tuple[Scatter, ...] = ()

    @property
    def each(self) -> tuple["ScatterProblem", ...]:
        """This one and the others, each as if it were the only one."""
        return tuple(replace(self, scatter=s, others=()) for s in (self.scatter, *self.others))

    @property
    def names(self) -> set[str]:
        """The names of all tensors and axes."""
        stage = self.scatter.stage
        tensors = [s.stage.tensor for s in (self.scatter, *self.others)]
        buffers = (*self.workload.inputs, *tensors, *(o.tensor for o in self.outputs))
        return {b.name for b in buffers} | {a.name for a in (*stage.axes, *stage.reduce_axes)}

    @property
    def accumulation(self) -> Accumulation:
        """How terms are reduced."""
        stage = self.scatter.stage
        assert stage.reducer is not None
        return Accumulation(stage.reducer, stage.body.dtype, stage.tensor.dtype)

    def body_of(self, output: Stage, *totals: Expr) -> Expr:
        """Return the body of an output with ``totals`` for the elements of the scatter, and of the others, that it
        reads."""
        known = {s.stage.tensor: t for s, t in zip((self.scatter, *self.others), totals, strict=True)}
        return map_loads(output.body, lambda load: known.get(load.buffer, load))

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
    problem = joint_scatter_problem(workload)
    return problem if problem is not None and not problem.others else None


def joint_scatter_problem(workload: Workload) -> ScatterProblem | None:
    """Return a workload that is one scatter, or several of the same terms such as sums and counts of segments, and what
    is computed from these at the same point, as such; None for any other."""
    if workload.dynamic or workload.skews:
        return None
    inlined = inline_stages(workload)
    reductions = [s for s in inlined.stages if s.reducer is not None]
    found = [scatter_of(s) for s in reductions]
    if not found or found[0] is None or found[0].term_count > MOST_TERMS:
        return None
    first, others = found[0], list[Scatter]()
    for other in found[1:]:
        same = None if other is None else _on_axes_of(first, other)
        if same is None:
            return None
        others.append(same)
    outputs = outputs_of_reduction(inlined, first.stage, *(o.stage for o in others))
    inputs = {b.name for b in workload.inputs}
    read = {load.buffer.name for place in first.places for load in loads_of(place)}
    return None if outputs is None or not read <= inputs else ScatterProblem(workload, first, outputs, tuple(others))


def _on_axes_of(first: Scatter, other: Scatter) -> Scatter | None:
    """Return a scatter on the axes of the first one; None where its terms belong to other elements."""
    a, b = ((*s.stage.axes, *s.stage.reduce_axes) for s in (first, other))
    if [x.extent for x in a] != [x.extent for x in b] or len(first.stage.axes) != len(other.stage.axes):
        return None
    at = {old.name: Var(new.name) for new, old in zip(a, b, strict=True)}
    own = [new.name for new, old in zip(a, b, strict=True) if old in other.keys]
    places = tuple(substitute(p, at) for p in other.places)
    if own != [k.name for k in first.keys] or places != first.places:
        return None
    axes, count = a, len(first.stage.axes)
    stage = replace(other.stage, axes=axes[:count], reduce_axes=axes[count:], body=substitute(other.stage.body, at))
    return Scatter(stage, first.keys, places, substitute(other.term, at))
