"""Runs the passes of a backend: its own over a launch, or ``LOOP_PASSES`` where the target has neither loops of vectors
nor unrolled loops of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...ir.simplify import simplify_kernel
from ...ir.stmt import Kernel, Seq, Stmt, seq
from ...ir.verify import verify
from .block_sums import block_sums
from .copies import FreshNames, bound_names
from .deduplicate import find_duplicates, with_names
from .narrow import narrow
from .partition import partition
from .transpose_gathers import transpose_gathers
from .unroll import unroll
from .vectorise import vectorise

Pass = Callable[[Kernel], Kernel]
KernelsAfterPasses = tuple[tuple[str, Kernel], ...]

LOOP_PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify_kernel),
    ("partition", partition),
    ("vectorise", vectorise),
    ("unroll", unroll),
    ("simplify unrolled", simplify_kernel),
    ("narrow", narrow),
    ("transpose gathers", transpose_gathers),
    ("block sums", block_sums),
)
"""These passes run in this order; each has a name. They leave serial and parallel loops over vector expressions."""


def run_launch_passes(passes: Sequence[tuple[str, Pass]], kernel: Kernel) -> KernelsAfterPasses:
    """Return (name, kernel after it) for each of ``passes``, in order. Raises InvalidKernel where the last
    kernel is not legal."""
    after = _run(passes, kernel)
    verify(after[-1][1], final=True)
    return after


def run_passes(kernel: Kernel) -> KernelsAfterPasses:
    """Return (name, kernel after it) for each of ``LOOP_PASSES``, in order.

    Of top-level statements that differ in names alone only the first goes through the passes. A last step makes the
    others from it.
    """
    statements = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    duplicates = find_duplicates(statements)
    return (_run_deduplicated(kernel, statements, duplicates) if duplicates else None) or _run(LOOP_PASSES, kernel)


def _run(passes: Sequence[tuple[str, Pass]], kernel: Kernel) -> KernelsAfterPasses:
    after: list[tuple[str, Kernel]] = []
    for name, run in passes:
        kernel = run(kernel)
        after.append((name, kernel))
    return tuple(after)


def _run_deduplicated(
    kernel: Kernel, statements: Sequence[Stmt], duplicates: Mapping[int, tuple[int, Mapping[str, str]]]
) -> KernelsAfterPasses | None:
    """Return None where two statements bind the same name after their passes."""
    runs = {
        n: _run(LOOP_PASSES, replace(kernel, body=stmt)) for n, stmt in enumerate(statements) if n not in duplicates
    }
    after = [
        (name, replace(kernel, body=seq(*(run[step][1].body for run in runs.values()))))
        for step, (name, _) in enumerate(LOOP_PASSES)
    ]
    done = {n: run[-1][1].body for n, run in runs.items()}
    bound = [name for stmt in done.values() for name in bound_names(stmt)]
    taken = {*bound, *bound_names(kernel.body), *(b.name for b in kernel.parameters)}
    if len(set(bound)) < len(bound):
        return None
    names = FreshNames(taken)
    for n, (first, mapping) in duplicates.items():
        done[n] = with_names(done[first], mapping, names)
    return (*after, ("put copies back", replace(kernel, body=seq(*(done[n] for n in range(len(statements)))))))
