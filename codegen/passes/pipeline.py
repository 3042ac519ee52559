"""The passes in the order in which a backend without vector or unrolled loops needs them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...ir.simplify import simplify_kernel
from ...ir.stmt import Kernel, Seq, Stmt, seq
from .copies import Names, bound_names
from .deduplicate import copies_among, renamed
from .narrow import narrow
from .partition import partition
from .unroll import unroll
from .vectorise import vectorise

Pass = Callable[[Kernel], Kernel]
Passed = tuple[tuple[str, Kernel], ...]

LOOP_PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify_kernel),
    ("partition", partition),
    ("vectorise", vectorise),
    ("unroll", unroll),
    ("simplify unrolled", simplify_kernel),
    ("narrow", narrow),
)
"""Name -> pass. Afterwards only serial and parallel loops are left, with vector expressions inside."""


def run_passes(kernel: Kernel) -> Passed:
    """(name, kernel after it) for each pass, in order. Of top-level statements that differ in names alone only the
    first goes through them; a last step puts the others back."""
    statements = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    copies = copies_among(statements)
    return (_by_parts(kernel, statements, copies) if copies else None) or _run(kernel)


def _run(kernel: Kernel) -> Passed:
    after: list[tuple[str, Kernel]] = []
    for name, run in LOOP_PASSES:
        kernel = run(kernel)
        after.append((name, kernel))
    return tuple(after)


def _by_parts(
    kernel: Kernel, statements: Sequence[Stmt], copies: Mapping[int, tuple[int, Mapping[str, str]]]
) -> Passed | None:
    """None where two parts have given the same name to something of their own."""
    parts = {n: _run(replace(kernel, body=stmt)) for n, stmt in enumerate(statements) if n not in copies}
    after = [
        (name, replace(kernel, body=seq(*(part[step][1].body for part in parts.values()))))
        for step, (name, _) in enumerate(LOOP_PASSES)
    ]
    done = {n: part[-1][1].body for n, part in parts.items()}
    bound = [name for stmt in done.values() for name in bound_names(stmt)]
    taken = {*bound, *bound_names(kernel.body), *(b.name for b in kernel.parameters)}
    if len(set(bound)) < len(bound):
        return None
    names = Names(taken)
    for n, (first, mapping) in copies.items():
        done[n] = renamed(done[first], mapping, names)
    return (*after, ("put copies back", replace(kernel, body=seq(*(done[n] for n in range(len(statements)))))))
