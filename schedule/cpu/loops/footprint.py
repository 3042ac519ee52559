"""Says how much of each tensor a tile or a task of a group touches, as formulas over columns."""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from ....ir.expr import Load
from ....ir.rewrite import free_variables, loads_of
from ....te.workload import Stage
from ...space.columns import Ints
from ..limits import PAGE_BYTES
from .fusion import FusedGroup
from .tiles import coefficient

AxisExtents = Mapping[int, Ints]
"""Position of an axis of the root -> how many of its values a tile or task covers. Other axes are covered whole."""


def body_loads(stage: Stage) -> tuple[Load, ...]:
    """Return the different loads of a stage."""
    return tuple(dict.fromkeys(loads_of(stage.body)))


def spans(stage: Stage, load: Load, extents: AxisExtents) -> list[Ints]:
    """Return how many elements are covered along each dimension of the tensor, over the whole reduction."""
    values: dict[str, Ints | int] = {a.name: extents.get(p, a.extent) for p, a in enumerate(stage.axes)}
    values |= {a.name: a.extent for a in stage.reduce_axes}
    found = []
    for expr, extent in zip(load.indices, load.buffer.shape, strict=True):
        span = _ones(extents)
        for name in free_variables(expr):
            step = abs(coefficient(expr, name) or 1)
            span = span + step * (np.asarray(values.get(name, 1), dtype=np.int64) - 1)
        found.append(np.minimum(span, extent))
    return found


def read_bytes(group: FusedGroup, tensor: str, extents: AxisExtents) -> Ints:
    """Return how many bytes of ``tensor`` the stages of the group read: of several loads, by the one that covers
    most."""
    total = 0 * _ones(extents)
    for stage, load in _outside_loads(group):
        if load.buffer.name == tensor:
            elements = prod(spans(stage, load, extents), start=_ones(extents))
            total = np.maximum(total, elements * load.buffer.dtype.bytes)
    return total


def tensor_bytes(group: FusedGroup, extents: AxisExtents, *, without: int | None = None) -> Ints:
    """Return how many bytes are read of tensors from outside of the group. ``without``: only of those that do not
    follow that axis."""
    total = 0 * _ones(extents)
    done: set[str] = set()
    for stage, load in _outside_loads(group):
        name = load.buffer.name
        if name in done:
            continue
        done.add(name)
        follows = without is not None and any(
            stage.axes[without].name in free_variables(i) for i in load.indices if without < len(stage.axes)
        )
        if not follows:
            total = total + read_bytes(group, name, extents)
    return total


def written_bytes(group: FusedGroup, extents: AxisExtents) -> Ints:
    """Return how many bytes of the root's tensor are written."""
    sizes = (np.asarray(extents.get(p, a.extent)) for p, a in enumerate(group.root.axes))
    return prod(sizes, start=group.root.tensor.dtype.bytes * _ones(extents))


def load_pages(group: FusedGroup, extents: AxisExtents) -> dict[str, Ints]:
    """Tensor -> how many memory pages of it are read."""
    found: dict[str, Ints] = {}
    for stage, load in _outside_loads(group):
        sizes, strides = spans(stage, load, extents), load.buffer.strides
        pages = _ones(extents)
        for size, stride in zip(sizes, strides, strict=True):
            step = stride * load.buffer.dtype.bytes
            pages = pages * (size if step >= PAGE_BYTES else 1 + (size - 1) * step // PAGE_BYTES)
        found[load.buffer.name] = np.maximum(found.get(load.buffer.name, pages), pages)
    return found


def _outside_loads(group: FusedGroup) -> Iterator[tuple[Stage, Load]]:
    own = {s.name for s in group.stages}
    for stage in group.stages:
        for load in body_loads(stage):
            if load.buffer.name not in own:
                yield stage, load


def _ones(extents: AxisExtents) -> Ints:
    return np.ones(len(next(iter(extents.values()))) if extents else 1, dtype=np.int64)
