"""parallelise: the iterations of a loop run on different threads."""

from dataclasses import replace

from ...core.errors import IllegalSchedule
from ...ir.stmt import For, Kernel, LoopKind, walk_statements
from ..loop_nest.dependence import shared_buffers
from ..loop_nest.tree import find_loop, require_serial, with_loop


def parallelise(kernel: Kernel, loop: str) -> Kernel:
    """Marks ``loop`` as parallel: its iterations may run at once, on different threads.

    ::

        for i in 0..64:                   for i in parallel(64):            # parallelise(k, "i")
          A[i] = 0               ->         A[i] = 0

    Raises IllegalSchedule for a loop that does not exist or is not serial, that is inside a loop that is not serial or
    holds a parallel one, and when two iterations may touch one element that one of them writes (a reduction runs in
    parallel after rfactor).
    """
    path = find_loop(kernel, loop, primitive="parallelise")
    require_serial(path.loop, primitive="parallelise")
    for s in path.enclosing:
        if isinstance(s, For) and s.kind is not LoopKind.SERIAL:
            raise IllegalSchedule(
                f"parallelise: loop is {loop!r}, inside the {s.kind} loop {s.var!r}; only serial loops may stand "
                "around a parallel one",
                field="loop",
            )
    for s in walk_statements(path.loop.body):
        if isinstance(s, For) and s.kind is LoopKind.PARALLEL:
            raise IllegalSchedule(
                f"parallelise: loop is {loop!r}, which holds the parallel loop {s.var!r}", field="loop"
            )
    shared = shared_buffers(path.loop, path.loops[:-1])
    if shared:
        raise IllegalSchedule(
            f"parallelise: loop is {loop!r}, whose iterations may touch the same elements of {shared[0]!r}; only "
            "independent iterations can run at once (a reduction does after rfactor)",
            field="loop",
        )
    return with_loop(kernel, path.loop, replace(path.loop, kind=LoopKind.PARALLEL))
