"""The same workload with fewer stages: what is cheap to compute twice is inlined where it is read."""

from dataclasses import replace
from functools import lru_cache

from ..ir.expr import Expr, Load
from ..ir.rewrite import map_expr, map_loads, substitute
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
    for name in [s.name for s in workload.stages]:
        stage = workload.stage(name)
        if stage.reducer is None and name not in workload.outputs:
            workload = _without(workload, stage) or workload
    return workload


def _without(workload: Workload, stage: Stage) -> Workload | None:
    """``workload`` with every load of ``stage`` replaced by its body; None where that would grow too large."""

    def body_at(load: Load) -> Expr:
        if load.buffer.name != stage.name:
            return load
        return substitute(stage.body, {a.name: i for a, i in zip(stage.axes, load.indices, strict=True)})

    stages: list[Stage] = []
    for reader in workload.stages:
        if reader.name == stage.name:
            continue
        body = map_loads(reader.body, body_at)
        if body is not reader.body:
            if not _is_small(body):
                return None
            reader = replace(reader, body=_respelled(body, reader))
        stages.append(reader)
    return replace(workload, stages=tuple(stages))


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


def _respelled(body: Expr, stage: Stage) -> Expr:
    """``body`` with the indices of its loads in the spelling of ``te.check``."""
    order = [a.name for a in (*stage.axes, *stage.reduce_axes)]

    def spelled(place: Expr) -> Expr:
        found = index_of(place)
        return place if found is None else found.expr(order)

    return map_expr(body, lambda e: Load(e.buffer, tuple(map(spelled, e.indices))) if isinstance(e, Load) else e)
