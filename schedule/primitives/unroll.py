"""unroll: the iterations of a loop are written out."""

from dataclasses import replace

from ...core.errors import IllegalSchedule
from ...ir.stmt import Kernel, LoopKind
from ..loop_nest.tree import find_loop, require_serial, with_loop

MOST_COPIES = 256


def unroll(kernel: Kernel, loop: str) -> Kernel:
    """Marks ``loop`` as unrolled: its iterations will be written out one after the other.

    ::

        for i in 0..4:                    for i in unrolled(4):             # unroll(k, "i")
          A[i] = 0               ->         A[i] = 0

    Raises IllegalSchedule for a loop that is not there or not serial, or of more than 256 iterations.
    """
    place = find_loop(kernel, loop, primitive="unroll")
    require_serial(place.loop, primitive="unroll")
    if place.loop.extent > MOST_COPIES:
        raise IllegalSchedule(
            f"unroll: loop is {loop!r}, of {place.loop.extent} iterations; allowed: at most {MOST_COPIES}, so split "
            "it first",
            field="loop",
        )
    return with_loop(kernel, place.loop, replace(place.loop, kind=LoopKind.UNROLLED))
