"""What is known of a group's loops before any knob is set: which axes are tiled, and which can be vectorised."""

from dataclasses import dataclass
from math import prod

from ....core.target import Target
from ....ir.expr import Expr, Load
from ....ir.lane_offsets import MOST_WINDOWS
from ....ir.linear_form import affine_form
from ....ir.rewrite import free_variables, loads_of
from ....te.workload import Axis, Stage
from .fusion import FusedGroup

COLUMNS, REDUCTION = "columns", "reduction"
"""Along what vectors can lie."""
FEW_COLUMNS = 4
"""So few columns leave most lanes of a vector idle, so that vectors may rather lie along the reduction."""
LEAST_TERMS = 4
"""Along fewer terms of a reduction no vectors lie."""
OPERANDS = tuple(f"operand_{i}" for i in range(8))
"""Knob values for operands by their position, so that they do not depend on what a user calls a tensor."""


@dataclass(frozen=True, slots=True)
class LoopTileAxes:
    """The tiled axes of a group, as positions among the root's axes.

    ``column`` is the axis along which the output is contiguous. ``row`` and ``plane`` are axes along which what is
    loaded for one column can be used again. ``modes``: along what vectors can lie, the better guess first.
    ``packable``: tensors worth packing into a contiguous buffer, with the positions of the tiled axes that they
    follow.
    """

    group: FusedGroup
    column: int
    row: int | None
    plane: int | None
    modes: tuple[str, ...]
    packable: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the root."""
        return self.group.root.axes

    def extent(self, position: int | None) -> int:
        """Return the extent of the axis in ``position``; 1 for None."""
        return 1 if position is None else self.axes[position].extent

    @property
    def tiled(self) -> tuple[int, ...]:
        """The positions of the tiled axes, in the order of the axes."""
        return tuple(sorted(p for p in (self.column, self.row, self.plane) if p is not None))

    @property
    def untiled(self) -> tuple[int, ...]:
        """The positions of the other axes."""
        return tuple(p for p in range(len(self.axes)) if p not in self.tiled)

    @property
    def outer_points(self) -> int:
        """How many iterations the axes that are not tiled have."""
        return prod(self.axes[p].extent for p in self.untiled)


def lane_bytes(group: FusedGroup) -> int:
    """Return how many bytes the widest element has that the group computes."""
    return max(s.tensor.dtype.bytes for s in group.stages)


def most_lanes(group: FusedGroup, target: Target) -> int:
    """Return how many elements of the group fit the widest vector register."""
    return max(1, target.vector_bytes // lane_bytes(group))


def tiles_of(group: FusedGroup) -> LoopTileAxes:
    """Return the tiled axes of a group of kind ``tile``."""
    root = group.root
    wide = [p for p, a in enumerate(root.axes) if a.extent > 1]
    column = wide[-1] if wide else len(root.axes) - 1
    others = [p for p in wide if p != column]
    ranked = sorted(others, key=lambda p: (-_reuse(group, p, column), -root.axes[p].extent))
    useful = [p for p in ranked if _reuse(group, p, column) > 0]
    row = useful[0] if useful else None
    plane = useful[1] if len(useful) > 1 else None
    tiled = [p for p in (column, row, plane) if p is not None]
    return LoopTileAxes(group, column, row, plane, _modes(group, column), _packable(group, tiled))


def bodies(group: FusedGroup) -> tuple[tuple[Stage, tuple[str, ...]], ...]:
    """Return the stages whose inner loops matter, with the names of their axes: the reductions, or the root alone."""
    stages = group.reductions or (group.root,)
    return tuple((s, tuple(a.name for a in s.axes)) for s in stages)


def uses(load: Load, name: str) -> bool:
    """Return whether an index of the load depends on the variable."""
    return any(name in free_variables(i) for i in load.indices)


def stride_along(load: Load, name: str) -> int | None:
    """Return how many elements lie between the loads of neighbouring values of the variable: 0 where the load does not
    use it, None where the distance varies."""
    total = 0
    for i, stride in zip(load.indices, load.buffer.strides, strict=True):
        if name in free_variables(i):
            step = coefficient(i, name)
            if step is None:
                return None
            total += step * stride
    return total


def coefficient(expr: Expr, name: str) -> int | None:
    """Return how much an index grows with the variable; None when it is not affine."""
    form = affine_form(expr)
    return None if form is None else dict(form.coefficients).get(name, 0)


def _reuse(group: FusedGroup, position: int, column: int) -> float:
    """Return a score of what a tile along the axis saves, in loads; loads of vectors weigh most."""
    score = 0.0
    for stage, names in bodies(group):
        for load in loads_of(stage.body):
            if uses(load, names[position]):
                unit = stride_along(load, names[position])
                # The contiguous direction of a transposed load: a tile uses whole cache lines.
                if uses(load, names[column]) and unit == 1 and stride_along(load, names[column]) != 1:
                    score += 0.75
                continue
            score += 1.0 if uses(load, names[column]) else 0.5
    return score


def _modes(group: FusedGroup, column: int) -> tuple[str, ...]:
    """Return along what vectors can lie: ``columns`` always works, and ``reduction`` where all reductions read
    contiguous elements."""
    if not group.reductions:
        return (COLUMNS,)
    strided = any(
        stride_along(load, stage.axes[column].name) not in (0, 1)
        for stage in group.reductions
        for load in loads_of(stage.body)
    )
    chosen, extent = [vector_terms(stage) for stage in group.reductions], group.root.axes[column].extent
    if None in chosen or not (strided or extent <= FEW_COLUMNS):
        return (COLUMNS,)
    if chosen != [stage.reduce_axes[-1] for stage in group.reductions]:
        return (COLUMNS, REDUCTION)
    return (REDUCTION,) if extent == 1 else (REDUCTION, COLUMNS) if strided else (COLUMNS, REDUCTION)


def vector_terms(stage: Stage) -> Axis | None:
    """Return the axis of a reduction along which vectors may lie: the last one where something is contiguous along it,
    else another one along which all is, or lies so close together that few loads are shuffled; None where there is
    none."""
    last, loads = stage.reduce_axes[-1], loads_of(stage.body)
    if last.extent >= LEAST_TERMS and any(stride_along(load, last.name) == 1 for load in loads):
        return last
    for axis in stage.reduce_axes:
        strides = {stride_along(load, axis.name) for load in loads}
        if axis.extent >= LEAST_TERMS and 1 in strides and strides <= set(range(MOST_WINDOWS + 1)):
            return axis
    return None


def _packable(group: FusedGroup, tiled: list[int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the tensors read by a reduction that some tiled axis reuses, each with the tiled axes that it follows."""
    found: dict[str, tuple[int, ...]] = {}
    for stage in group.reductions:
        for load in loads_of(stage.body):
            follows = tuple(p for p in tiled if uses(load, stage.axes[p].name))
            misses = [p for p in tiled if p not in follows and stage.axes[p].extent > 1]
            if follows and misses and any(uses(load, a.name) for a in stage.reduce_axes):
                found.setdefault(load.buffer.name, follows)
    members = {s.name for s in group.stages}
    return tuple((name, follows) for name, follows in found.items() if name not in members)[: len(OPERANDS)]
