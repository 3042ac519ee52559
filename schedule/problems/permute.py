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


@dataclass(frozen=True)
class Permute:
    """``stages``: the outputs, all on the same axes. ``transposed_loads``: the loads whose inputs are contiguous along
    ``input_axes``, which are adjacent axes of the outputs that can be walked as a single one. ``output_axes``: those
    along which the outputs are contiguous."""

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
    """The permuting copy that ``workload`` is; None for any other workload, such as one that reduces, gathers, or
    transposes by no single pair of axes."""
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
    if prod(a.extent for a in (*input_axes, *output_axes)) < LEAST_TILE_ELEMENTS:
        return None
    return Permute(workload, stages, tuple(transposed), input_axes, output_axes)


def _merged(axes: Sequence[Axis], last: int, offsets: Iterable[LinearForm]) -> tuple[Axis, ...]:
    """The adjacent axes up to number ``last`` through which outputs and ``offsets`` go as if they were one axis."""
    first = last
    known = tuple(offsets)
    while first > 0 and all(
        o.coefficient(axes[first - 1].name) == o.coefficient(axes[first].name) * axes[first].extent for o in known
    ):
        first -= 1
    return tuple(axes[first : last + 1])
