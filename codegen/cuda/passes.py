"""The passes for devices with launches: as for loops, but unrolled loops stay loops, for the compiler to write out."""

from ...ir.simplify import simplify_kernel
from ...ir.stmt import Kernel
from ..passes.partition import partition
from ..passes.pipeline import Pass
from ..passes.vectorise import vectorise

CUDA_PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify_kernel),
    ("partition", partition),
    ("vectorise", vectorise),
    ("simplify vectors", simplify_kernel),
)


def run_passes(kernel: Kernel) -> tuple[tuple[str, Kernel], ...]:
    """(name, kernel after it) for each pass, in order."""
    after: list[tuple[str, Kernel]] = []
    for name, run in CUDA_PASSES:
        kernel = run(kernel)
        after.append((name, kernel))
    return tuple(after)
