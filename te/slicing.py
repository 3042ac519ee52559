"""Slices of a workload, each of which can be computed alone.

    S[h, i, j] = sum over r of Q[h, i, r] * K[h, j, r]         one slice:  S[0:1, 64:128, :]
    M[h, i]    = max over j of S[h, i, j]                                  M[0:1, 64:128]
    Y[h, i, d] = sum over j of exp(S[h, i, j] - M[h, i]) * V[h, j, d]      Y[0:1, 64:128, :]

Here ``h`` and ``i`` are cut: every stage has both, and reads other stages at both of its own, unchanged. So no slice
needs anything of another one, and the tensors between inputs and outputs need never be there as a whole. Tiles of a
loop nest are legal for the same reason; the polyhedral literature calls such dimensions parallel in all statements.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.expr import Var
from ..ir.rewrite import loads_of
from .workload import Stage, Workload

_Place = tuple[str, int]
"""A dimension of a stage's tensor."""


@dataclass(frozen=True, slots=True)
class Slicing:
    """``extents`` of the dimensions that are cut, outermost first. ``dimensions``: which ones they are of the tensor of
    each stage that is cut. All other stages are computed before."""

    extents: tuple[int, ...]
    dimensions: Mapping[str, tuple[int, ...]]

    def points(self, workload: Workload) -> int:
        """Return how many elements the largest tensor has at one point of the dimensions that are cut."""
        return max(workload.stage(name).tensor.elements for name in self.dimensions) // math.prod(self.extents)


def slicing_of(workload: Workload) -> Slicing | None:
    """Return the most dimensions in which a static workload can be cut; None where there are none, or where a stage
    that has none of them reads one that has."""
    classes = _classes(workload)
    if not classes:
        return None
    of: dict[_Place, int] = {place: n for n, places in enumerate(classes) for place in places}
    last = workload.stage(workload.outputs[0])
    chosen = [of[last.name, d] for d in range(len(last.axes)) if (last.name, d) in of]
    changed = True
    while changed:  # each stage has all of them, or none
        changed = False
        for stage in workload.stages:
            has = {of[stage.name, d] for d in range(len(stage.axes)) if (stage.name, d) in of}
            kept = [n for n in chosen if n in has]
            if kept and len(kept) < len(chosen):
                chosen, changed = kept, True
    dimensions: dict[str, tuple[int, ...]] = {}
    for stage in workload.stages:
        at = {of[stage.name, d]: d for d in range(len(stage.axes)) if (stage.name, d) in of}
        if chosen and all(n in at for n in chosen):
            dimensions[stage.name] = tuple(at[n] for n in chosen)
        elif any(load.buffer.name in dimensions for load in loads_of(stage.body)):
            return None
    if not dimensions:
        return None
    shape = last.tensor.shape
    return Slicing(tuple(shape[d] for d in dimensions[last.name]), dimensions)


def _classes(workload: Workload) -> list[frozenset[_Place]]:
    """Return the sets of dimensions that go together: where one is cut, all are. Dimensions that a stage reads at
    anything but an axis of its own are in none."""
    stages = {s.name for s in workload.stages}
    joined: dict[_Place, set[_Place]] = {
        (s.name, d): {(s.name, d)} for s in workload.stages for d in range(len(s.axes))
    }
    whole: set[_Place] = set()
    for stage in workload.stages:
        own = {a.name: (d, a.extent) for d, a in enumerate(stage.axes)}
        for load in loads_of(stage.body):
            if load.buffer.name not in stages:
                continue
            for k, (i, extent) in enumerate(zip(load.indices, load.buffer.shape, strict=True)):
                place = (load.buffer.name, k)
                if isinstance(i, Var) and own.get(i.name, (0, 0))[1] == extent:
                    _join(joined, place, (stage.name, own[i.name][0]))
                else:
                    whole.add(place)
    found: list[frozenset[_Place]] = []
    for places in joined.values():
        once = len({name for name, _ in places}) == len(places)  # a transposed read joins two of one tensor
        if once and not places & whole and frozenset(places) not in found:
            found.append(frozenset(places))
    return found


def _join(joined: dict[_Place, set[_Place]], a: _Place, b: _Place) -> None:
    if joined[a] is not joined[b]:
        both = joined[a] | joined[b]
        for place in both:
            joined[place] = both


def slice_of(stage: Stage, slicing: Slicing, part: tuple[tuple[int, int], ...]) -> dict[str, tuple[int, int]]:
    """Return the range (start, stop) of every axis of a stage in one ``part`` of the dimensions that are cut."""
    ranges = {a.name: (0, a.extent) for a in stage.axes}
    for d, cut in zip(slicing.dimensions[stage.name], part, strict=True):
        ranges[stage.axes[d].name] = cut
    return ranges
