"""vectorise: the iterations of a loop become the lanes of a vector."""

from dataclasses import replace

from ...core.errors import IllegalSchedule
from ...ir.stmt import For, Kernel, LoopKind, walk_statements
from ..loop_nest.dependence import only_accumulates, shared_buffers
from ..loop_nest.tree import find_loop, require_serial, with_loop

MOST_LANES = 256


def vectorise(kernel: Kernel, loop: str) -> Kernel:
    """Marks ``loop`` as vectorised: its iterations will be the lanes of one vector.

    ::

        for j in 0..8:                    for j in vectorized(8):           # vectorise(k, "j")
          C[i, j] = A[i, j]      ->         C[i, j] = A[i, j]

    Iterations may not depend on each other, except that all may accumulate into one element (a sum over the lanes).
    Raises IllegalSchedule for a loop that does not exist, is not serial or has more than 256 iterations; that holds a
    parallel or vectorised loop, or is inside a vectorised one; or whose iterations depend on each other.
    """
    path = find_loop(kernel, loop, primitive="vectorise")
    require_serial(path.loop, primitive="vectorise")
    if path.loop.extent > MOST_LANES:
        raise IllegalSchedule(
            f"vectorise: loop is {loop!r}, of {path.loop.extent} iterations; allowed: at most {MOST_LANES}, so "
            "split it first",
            field="loop",
        )
    lanes = (LoopKind.PARALLEL, LoopKind.VECTORIZED)
    for s in walk_statements(path.loop.body):
        if isinstance(s, For) and s.kind in lanes:
            raise IllegalSchedule(f"vectorise: loop is {loop!r}, which holds the {s.kind} loop {s.var!r}", field="loop")
    for s in path.enclosing:
        if isinstance(s, For) and s.kind is LoopKind.VECTORIZED:
            raise IllegalSchedule(f"vectorise: loop is {loop!r}, inside the vectorised loop {s.var!r}", field="loop")
    shared = [b for b in shared_buffers(path.loop, path.loops[:-1]) if not only_accumulates(path.loop, b)]
    if shared:
        raise IllegalSchedule(
            f"vectorise: loop is {loop!r}, whose iterations may touch the same elements of {shared[0]!r}; only "
            "independent iterations, or ones that accumulate into one element, can be lanes (see rfactor)",
            field="loop",
        )
    return with_loop(kernel, path.loop, replace(path.loop, kind=LoopKind.VECTORIZED))
