"""How ``cuda_loops`` cuts a workload into launches: one for every reduction or map that is left after inlining. A map
that only finishes a reduction becomes the epilogue of its launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ....ir.expr import Load, Var
from ....ir.linear_form import affine_form
from ....ir.rewrite import free_variables, loads_of
from ....te.inline import inline_stages
from ....te.workload import Axis, Stage, Workload
from ...space.columns import Size
from ...tile.ranges import range_of


@dataclass(frozen=True, slots=True)
class LoopLaunch:
    """One launch. ``epilogue``: the map over the same points that alone reads ``stage``, or None."""

    stage: Stage
    epilogue: Stage | None = None

    @property
    def stored(self) -> Stage:
        """The stage whose tensor the launch writes."""
        return self.epilogue or self.stage

    @property
    def points(self) -> int:
        """How many outputs the launch computes."""
        return prod(a.extent for a in self.stage.axes)

    @property
    def reduction(self) -> int:
        """How many points one output reduces; 1 for a map."""
        return prod(a.extent for a in self.stage.reduce_axes)

    @property
    def visited(self) -> int:
        """How many of these a thread, or those that share an output, go through, as far as that is known."""
        found = range_of(self.stage)
        return self.reduction if found is None else found.likely_terms


def launches_of(workload: Workload) -> tuple[LoopLaunch, ...]:
    """Return the launches of ``workload``, in order."""
    inlined = inline_stages(workload)
    found: list[LoopLaunch] = []
    done: set[str] = set()
    for stage in inlined.stages:
        if stage.name in done:
            continue
        found.append(LoopLaunch(stage, _epilogue(inlined, stage)))
        done.update((stage.name, found[-1].stored.name))
    return tuple(found)


def heaviest(launches: Sequence[LoopLaunch]) -> LoopLaunch:
    """Return the launch with the most work. Its knobs are searched."""
    return max(launches, key=lambda g: g.points * g.reduction)


def _epilogue(workload: Workload, stage: Stage) -> Stage | None:
    if stage.reducer is None or stage.name in workload.outputs:
        return None
    readers = [s for s in workload.stages if any(load.buffer.name == stage.name for load in loads_of(s.body))]
    if len(readers) != 1 or readers[0].reducer is not None:
        return None
    reader = readers[0]
    if [a.extent for a in reader.axes] != [a.extent for a in stage.axes]:
        return None
    here = tuple(Var(a.name) for a in reader.axes)
    same = all(load.indices == here for load in loads_of(reader.body) if load.buffer.name == stage.name)
    later = workload.stages[workload.stages.index(stage) + 1 : workload.stages.index(reader)]
    computed = {s.name for s in later}
    return reader if same and not any(load.buffer.name in computed for load in loads_of(reader.body)) else None


@dataclass(frozen=True, slots=True)
class TileAxes:
    """The axes of a reduction that are tiled: ``y`` and ``x`` of the output, ``k`` of the reduction."""

    y: Axis
    x: Axis
    k: Axis


def tile_axes(stage: Stage) -> TileAxes | None:
    """Axes along which tiles reuse what they load, or None where a thread for each output does as well.

    ``x`` is the innermost axis, so that neighbouring threads store neighbouring elements. ``y`` is the longest of the
    others on which some load does not depend, and ``k`` the longest of the reduction.
    """
    if stage.reducer is None or stage.reducer.is_position or len(stage.axes) < 2 or range_of(stage) is not None:
        return None
    x, loads = stage.axes[-1], loads_of(stage.body)
    candidates = [a for a in stage.axes[:-1] if a.extent >= 4 and any(not _depends_on(load, a) for load in loads)]
    if x.extent < 4 or not candidates or not any(not _depends_on(load, x) for load in loads):
        return None
    k = max(stage.reduce_axes, key=lambda a: a.extent)
    return TileAxes(max(candidates, key=lambda a: a.extent), x, k)


def _depends_on(load: Load, axis: Axis) -> bool:
    return any(axis.name in free_variables(i) for i in load.indices)


def footprint(load: Load, extents: Mapping[str, Size]) -> tuple[Size, ...]:
    """Return how many elements along each dimension ``load`` touches while each axis in ``extents`` takes so many
    values. Empty where an index is not affine."""
    found = []
    for expr in load.indices:
        form = affine_form(expr)
        if form is None:
            return ()
        found.append(1 + sum(abs(form.coefficient(name)) * (count - 1) for name, count in extents.items()))
    return tuple(found)
