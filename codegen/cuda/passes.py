"""The passes for devices with launches: as for loops, but unrolled loops stay loops, for the compiler to write out, and
guarded ones stay whole: guards differ between threads, which run in step, so that two versions would cost both."""

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
    """(name, kernel after it) for each pass, in order. Raises InvalidKernel where the last one is not legal."""
    after: list[tuple[str, Kernel]] = []
    for name, run in CUDA_PASSES:
        kernel = run(kernel)
        after.append((name, kernel))
    verify(kernel, final=True)
    return tuple(after)
