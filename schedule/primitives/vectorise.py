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

    Iterations may not depend on each other, except that all may accumulate into one element (a sum over the
    lanes). Raises IllegalSchedule for a loop that is not there or not serial, of more than 256 iterations, that
    holds or stands in a parallel or vectorised loop, or whose iterations do depend on each other.
    """
    place = find_loop(kernel, loop, primitive="vectorise")
    require_serial(place.loop, primitive="vectorise")
    if place.loop.extent > MOST_LANES:
        raise IllegalSchedule(
            f"vectorise: loop is {loop!r}, of {place.loop.extent} iterations; allowed: at most {MOST_LANES}, so "
            "split it first",
            field="loop",
        )
    lanes = (LoopKind.PARALLEL, LoopKind.VECTORIZED)
    for s in walk_statements(place.loop.body):
        if isinstance(s, For) and s.kind in lanes:
            raise IllegalSchedule(f"vectorise: loop is {loop!r}, which holds the {s.kind} loop {s.var!r}", field="loop")
    for s in place.around:
        if isinstance(s, For) and s.kind is LoopKind.VECTORIZED:
            raise IllegalSchedule(f"vectorise: loop is {loop!r}, inside the vectorised loop {s.var!r}", field="loop")
    shared = [b for b in shared_buffers(place.loop, place.loops[:-1]) if not only_accumulates(place.loop, b)]
    if shared:
        raise IllegalSchedule(
            f"vectorise: loop is {loop!r}, whose iterations may touch the same elements of {shared[0]!r}; only "
            "independent iterations, or ones that accumulate into one element, can be lanes (see rfactor)",
            field="loop",
        )
    return with_loop(kernel, place.loop, replace(place.loop, kind=LoopKind.VECTORIZED))
