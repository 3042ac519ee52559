"""Permuting copies: outputs that are contiguous along one axis, computed from inputs contiguous along another.

Transposes, permutations of axes, and maps over them are such problems.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from ...ir.linear_form import LinearForm
from ...te.workload import Axis, Stage, Workload
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, masked_loads_of
from .outputs import has_indirect_load, resolved_outputs

LEAST_TILE_ELEMENTS = 64
"""With fewer elements along both contiguous axes together there is nothing to gain by a tile in shared memory."""
EVEN_EXTENT = 64
"""Tiles cover a side well where this divides its extent. Other sides take further axes."""


@dataclass(frozen=True)
class Permute:
    """``stages``: the outputs, all on the same axes. ``transposed_loads``: the loads whose inputs are contiguous along
    ``input_axes``, the last of which is the fastest. ``output_axes``: the last axes of the outputs, along which these
    are contiguous. No axis is in both."""

    workload: Workload
    stages: tuple[Stage, ...]
    transposed_loads: tuple[MaskedLoad, ...]
    input_axes: tuple[Axis, ...]
    output_axes: tuple[Axis, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the outputs."""
        return self.stages[0].axes

    @property
    def batch_axes(self) -> tuple[Axis, ...]:
        """The axes of the outputs along which neither side is contiguous."""
        return tuple(a for a in self.axes if a not in self.input_axes and a not in self.output_axes)

    @property
    def pitch_axes(self) -> tuple[Axis, ...]:
        """The axes of the outputs along which their rows follow, where a row is what is contiguous in a tile."""
        return tuple(a for a in self.axes if a not in self.output_axes and a.extent > 1)

    @property
    def input_extent(self) -> int:
        """Elements along ``input_axes``."""
        return prod(a.extent for a in self.input_axes)

    @property
    def output_extent(self) -> int:
        """Elements along ``output_axes``."""
        return prod(a.extent for a in self.output_axes)

    @property
    def batch(self) -> int:
        """Points of ``batch_axes``."""
        return prod(a.extent for a in self.batch_axes)


def permute_of(workload: Workload) -> Permute | None:
    """Return the permuting copy that ``workload`` is; None for any other workload, such as one that reduces, gathers,
    or transposes by no single pair of axes."""
    stages = resolved_outputs(workload)
    if stages is None or any(has_indirect_load(s) for s in stages):
        return None
    axes = [a for a in stages[0].axes if a.extent > 1]
    if len(axes) < 2:
        return None
    loads = tuple(dict.fromkeys(r for s in stages for r in masked_loads_of(s.body)))
    offsets = {r: flat_offset(r.load) for r in loads}
    transposed: dict[MaskedLoad, LinearForm] = {}
    for masked, offset in offsets.items():
        if offset is None:
            return None
        if offset.coefficient(axes[-1].name) not in (0, 1):
            transposed[masked] = offset
    if not transposed or any(r.mask is not None for r in transposed):
        return None
    inner = {a.name for a in axes[:-1] if all(o.coefficient(a.name) == 1 for o in transposed.values())}
    if len(inner) != 1:
        return None
    last = next(n for n, a in enumerate(axes) if a.name in inner)
    input_axes = _merged(axes, last, transposed.values())
    output_axes = _merged(axes, len(axes) - 1, transposed.values())
    if set(input_axes) & set(output_axes):
        return None
    input_axes, output_axes = _lengthened(axes, input_axes, output_axes, transposed.values())
    if prod(a.extent for a in (*input_axes, *output_axes)) < LEAST_TILE_ELEMENTS:
        return None
    return Permute(workload, stages, tuple(transposed), input_axes, output_axes)


def _merged(axes: Sequence[Axis], last: int, offsets: Iterable[LinearForm]) -> tuple[Axis, ...]:
    """Return the adjacent axes up to number ``last`` through which outputs and ``offsets`` go as if they were one
    axis."""
    first = last
    known = tuple(offsets)
    while first > 0 and all(
        o.coefficient(axes[first - 1].name) == o.coefficient(axes[first].name) * axes[first].extent for o in known
    ):
        first -= 1
    return tuple(axes[first : last + 1])


def _lengthened(
    axes: Sequence[Axis], input_axes: tuple[Axis, ...], output_axes: tuple[Axis, ...], offsets: Iterable[LinearForm]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Return both sides with further axes, the shorter side first, as long as tiles do not cover them well.

    An axis that comes next in the memory of a side need not be adjacent on the other one: elements that follow each
    other along a side may then be anywhere on the other, but each tile is contiguous on both.
    """
    known = tuple(offsets)

    def next_of_input() -> Axis | None:
        extent = prod(a.extent for a in input_axes)
        free = [a for a in axes if a not in (*input_axes, *output_axes)]
        return next((a for a in free if all(o.coefficient(a.name) == extent for o in known)), None)

    def next_of_output() -> Axis | None:
        before = axes[: len(axes) - len(output_axes)]
        return before[-1] if before and before[-1] not in input_axes else None

    while True:
        sides = ((input_axes, next_of_input()), (output_axes, next_of_output()))
        extents = [prod(a.extent for a in side) for side, _ in sides]
        free = [n for n, (_, axis) in enumerate(sides) if axis is not None and extents[n] % EVEN_EXTENT]
        if not free:
            return input_axes, output_axes
        chosen = min(free, key=lambda n: extents[n])
        side, axis = sides[chosen]
        assert axis is not None
        if chosen == 0:
            input_axes = (axis, *side)
        else:
            output_axes = (axis, *side)
