"""Runs the passes for CUDA.

They are those for processors, with two left out. Unrolled loops stay loops, which the compiler unrolls. Guarded loops
are not partitioned: guards differ between the threads of a warp, so that a warp would run both versions.
"""

from ...ir.simplify import simplify_kernel
from ...ir.stmt import Kernel
from ...ir.verify import verify
from ..passes.pipeline import Pass
from ..passes.vectorise import vectorise

CUDA_PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify_kernel),
    ("vectorise", vectorise),
    ("simplify vectors", simplify_kernel),
)


def run_passes(kernel: Kernel) -> tuple[tuple[str, Kernel], ...]:
    """Return (name, kernel after it) for each pass, in order. Raises InvalidKernel where the last kernel is not
    legal."""
    after: list[tuple[str, Kernel]] = []
    for name, run in CUDA_PASSES:
        kernel = run(kernel)
        after.append((name, kernel))
    verify(kernel, final=True)
    return tuple(after)
