"""The passes in the order in which a backend without vector or unrolled loops needs them."""

from collections.abc import Callable

from ...ir.simplify import simplify_kernel
from ...ir.stmt import Kernel
from .narrow import narrow
from .partition import partition
from .unroll import unroll
from .vectorise import vectorise

Pass = Callable[[Kernel], Kernel]

LOOP_PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify_kernel),
    ("partition", partition),
    ("vectorise", vectorise),
    ("unroll", unroll),
    ("simplify unrolled", simplify_kernel),
    ("narrow", narrow),
)
"""Name -> pass. Afterwards only serial and parallel loops are left, with vector expressions inside."""


def run_passes(kernel: Kernel) -> tuple[tuple[str, Kernel], ...]:
    """(name, kernel after it) for each pass, in order."""
    after: list[tuple[str, Kernel]] = []
    for name, run in LOOP_PASSES:
        kernel = run(kernel)
        after.append((name, kernel))
    return tuple(after)
