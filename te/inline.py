"""The same workload with fewer stages: what is cheap to compute twice is inlined where it is read."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ..ir.expr import Expr, Load, distinct_nodes
from ..ir.rewrite import map_loads, substitute
from .index import index_of
from .limits import MAX_DEPTH
from .workload import Stage, Workload

MAX_INLINED_NODES = 1024
"""How many expression nodes a stage may have after others were inlined into it. A stage that would make it larger
stays."""


@lru_cache(maxsize=64)  # every sketch asks it of a workload
def inline_stages(workload: Workload) -> Workload:
    """``workload`` with every stage that does not reduce and is no output substituted into the stages that read it.

    These are casts, epilogues and producers, and guarded paddings, whose selects come along with the indices of the
    reader. What is left are reductions and outputs, in their order, with indices in their one spelling.

    A stage stays where a reader would grow beyond ``MAX_INLINED_NODES`` nodes or ``MAX_DEPTH`` levels. Values are
    those of ``workload``, except that a float16 or bfloat16 stage in between may go unrounded (as in ``ir.expr``).
    """
    stages = {s.name: s for s in workload.stages}
    reads = {name: {b for b in _buffers_read(s.body) if b in stages} for name, s in stages.items()}
    readers: dict[str, set[str]] = {name: set() for name in stages}
    for reader, names in reads.items():
        for name in names:
            readers[name].add(reader)
    for name in reads:
        stage = stages[name]
        if stage.reducer is not None or name in workload.outputs:
            continue
        grown = _with_inlined(stage, [stages[reader] for reader in readers[name]])
        if grown is not None:
            del stages[name]
            stages |= {s.name: s for s in grown}
            for before in reads[name]:
                readers[before] |= readers[name]
                readers[before].remove(name)
            for reader in readers[name]:
                reads[reader] |= reads[name]
    return replace(workload, stages=tuple(stages.values()))


def _buffers_read(body: Expr) -> set[str]:
    return {e.buffer.name for e in distinct_nodes(body) if isinstance(e, Load)}


def _with_inlined(stage: Stage, readers: Sequence[Stage]) -> list[Stage] | None:
    """``readers`` with every load of ``stage`` replaced by its body; None where one would grow too large."""
    grown: list[Stage] = []
    for reader in readers:
        body = _body_with_inlined(stage, reader)
        if not _is_small(body):
            return None
        grown.append(replace(reader, body=body))
    return grown


def _body_with_inlined(stage: Stage, reader: Stage) -> Expr:
    """Return the body of ``reader`` with the indices of its loads in the spelling of ``te.check``. Loads of ``stage``
    at the same place become the same object."""
    order = [a.name for a in (*reader.axes, *reader.reduce_axes)]
    spellings: dict[Expr, Expr] = {}
    bodies: dict[tuple[Expr, ...], Expr] = {}

    def spelled(place: Expr) -> Expr:
        if place not in spellings:
            found = index_of(place)
            spellings[place] = place if found is None else found.expr(order)
        return spellings[place]

    def respelled(load: Load) -> Expr:
        indices = tuple(map(spelled, load.indices))
        return load if indices == load.indices else Load(load.buffer, indices)

    def body_at(load: Load) -> Expr:
        if load.buffer.name != stage.name:
            return respelled(load)
        if load.indices not in bodies:
            at = {a.name: i for a, i in zip(stage.axes, load.indices, strict=True)}
            bodies[load.indices] = map_loads(substitute(stage.body, at), respelled)
        return bodies[load.indices]

    return map_loads(reader.body, body_at)


def _is_small(body: Expr) -> bool:
    """Return whether ``body`` keeps the bounds on nodes and depth. The walk goes no further than the bounds."""
    nodes = 0
    todo = [(body, 1)]
    while todo:
        expr, depth = todo.pop()
        nodes += 1
        if nodes > MAX_INLINED_NODES or depth > MAX_DEPTH:
            return False
        todo.extend((child, depth + 1) for child in expr.children)
    return True
