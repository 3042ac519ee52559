"""Facts about one load of a stage: where it reads, and whether it stays inside its buffer."""

from collections.abc import Iterable, Mapping

from ...ir.bounds import Interval, interval_of
from ...ir.expr import Expr, Load
from ...ir.linear_form import LinearForm, affine_form
from ...te.region import Region, box_bounds
from ...te.workload import Axis


def flat_offset(load: Load) -> LinearForm | None:
    """Return the offset of the element that ``load`` reads, in elements from the start of its buffer; None where it is
    not affine in the axes."""
    total = LinearForm({})
    for at, stride in zip(load.indices, load.buffer.strides, strict=True):
        form = affine_form(at)
        if form is None:
            return None
        total = total + form.scaled(stride)
    return total


def in_bounds(load: Load, axes: Iterable[Axis]) -> bool:
    """Return whether ``load`` stays inside its buffer at every point of ``axes``, whatever masks it."""
    box = {a.name: (0, a.extent - 1) for a in axes}
    for at, extent in zip(load.indices, load.buffer.shape, strict=True):
        form = affine_form(at)
        if form is None:
            return False
        low, high = box_bounds(form, box)
        if low < 0 or high >= extent:
            return False
    return True


def always_holds(condition: Expr, axes: Iterable[Axis]) -> bool:
    """Return whether the extents of the axes alone prove that ``condition`` holds at every point."""
    return Region({a.name: (0, a.extent - 1) for a in axes}).where(condition, False).is_empty


def conditions_inside(load: Load, extents: Mapping[str, int]) -> list[Expr]:
    """Return the conditions on which a load lies in its tensor, where its variables go from 0 to their extents."""
    ranges = {name: Interval(0, extent - 1) for name, extent in extents.items()}
    found = list[Expr]()
    for i, extent in zip(load.indices, load.buffer.shape, strict=True):
        span = interval_of(i, ranges)
        if span.low < 0 or span.high >= extent:
            found += [i >= 0, i < extent]
    return found
