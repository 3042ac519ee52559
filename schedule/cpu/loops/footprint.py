"""How much of each tensor a piece of a group touches: formulas over columns."""

from collections.abc import Iterator, Mapping

import numpy as np

from ....ir.expr import Load
from ....ir.rewrite import free_variables, loads_of
from ....te.workload import Stage
from ...space.columns import Ints
from .fusion import Group
from .tiles import coefficient

PAGE_BYTES = 4096

Held = Mapping[int, Ints]
"""Position of an axis of the root -> how many of its values the piece covers; axes not named are covered whole."""


def body_loads(stage: Stage) -> tuple[Load, ...]:
    """The loads of a stage, each once."""
    return tuple(dict.fromkeys(loads_of(stage.body)))


def spans(stage: Stage, load: Load, held: Held) -> list[Ints]:
    """Elements covered along each dimension of the tensor, the whole reduction included."""
    values: dict[str, Ints | int] = {a.name: held.get(p, a.extent) for p, a in enumerate(stage.axes)}
    values |= {a.name: a.extent for a in stage.reduce_axes}
    found = []
    for expr, extent in zip(load.indices, load.buffer.shape, strict=True):
        span = np.ones(len(next(iter(held.values()))) if held else 1, dtype=np.int64)
        for name in free_variables(expr):
            step = abs(coefficient(expr, name) or 1)
            span = span + step * (np.asarray(values.get(name, 1), dtype=np.int64) - 1)
        found.append(np.minimum(span, extent))
    return found


def read_bytes(group: Group, tensor: str, held: Held) -> Ints:
    """Bytes of ``tensor`` that the stages of the group read; of several loads the one that covers most."""
    total = _zeros(held)
    for stage, load in _outside_loads(group):
        if load.buffer.name == tensor:
            total = np.maximum(total, _product(spans(stage, load, held), held) * load.buffer.dtype.bytes)
    return total


def tensor_bytes(group: Group, held: Held, *, without: int | None = None) -> Ints:
    """Bytes read of all tensors from outside of the group; ``without``: only of those that do not follow the axis."""
    total = _zeros(held)
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
            total = total + read_bytes(group, name, held)
    return total


def written_bytes(group: Group, held: Held) -> Ints:
    """Bytes of the root's tensor that the piece writes."""
    sizes = [held.get(p, a.extent) for p, a in enumerate(group.root.axes)]
    total = _zeros(held) + group.root.tensor.dtype.bytes
    for size in sizes:
        total = total * size
    return total


def load_pages(group: Group, held: Held) -> dict[str, Ints]:
    """Tensor -> memory pages that the piece reads from."""
    found: dict[str, Ints] = {}
    for stage, load in _outside_loads(group):
        sizes, strides = spans(stage, load, held), load.buffer.strides
        pages = _zeros(held) + 1
        for size, stride in zip(sizes, strides, strict=True):
            step = stride * load.buffer.dtype.bytes
            pages = pages * (size if step >= PAGE_BYTES else 1 + (size - 1) * step // PAGE_BYTES)
        found[load.buffer.name] = np.maximum(found.get(load.buffer.name, _zeros(held)), pages)
    return found


def _outside_loads(group: Group) -> Iterator[tuple[Stage, Load]]:
    own = {s.name for s in group.stages}
    for stage in group.stages:
        for load in body_loads(stage):
            if load.buffer.name not in own:
                yield stage, load


def _product(sizes: list[Ints], held: Held) -> Ints:
    total = _zeros(held) + 1
    for size in sizes:
        total = total * size
    return total


def _zeros(held: Held) -> Ints:
    return np.zeros(len(next(iter(held.values()))) if held else 1, dtype=np.int64)
