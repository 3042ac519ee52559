"""unroll: the iterations of a loop are written one after the other, without the loop."""

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

    Raises IllegalSchedule for a loop that does not exist, is not serial, or has more than 256 iterations.
    """
    path = find_loop(kernel, loop, primitive="unroll")
    require_serial(path.loop, primitive="unroll")
    if path.loop.extent > MOST_COPIES:
        raise IllegalSchedule(
            f"unroll: loop is {loop!r}, of {path.loop.extent} iterations; allowed: at most {MOST_COPIES}, so split "
            "it first",
            field="loop",
        )
    return with_loop(kernel, path.loop, replace(path.loop, kind=LoopKind.UNROLLED))
