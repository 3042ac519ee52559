"""The prologue of a kernel: what it computes of constant inputs alone, such as a copy of weights in another order. Done
once, it serves for all calls on the same workspace."""

from collections.abc import Iterable

from .buffer import Buffer, MemoryScope
from .global_writes import globals_written
from .rewrite import free_variables, loads_of
from .stmt import Kernel, Launch, Operation, Seq, Stmt, expressions, seq, walk_statements


def split_prologue(kernel: Kernel) -> tuple[Stmt | None, Stmt]:
    """Return the prologue and the rest of a kernel. The prologue is None where there is none.

    Both are statements of the top level. The prologue reads only constant inputs and what it has written itself. What
    it writes is workspace that the rest only reads.
    """
    first = prologue_places(kernel)
    if not first:
        return None, kernel.body
    top = _top(kernel)
    return seq(*(top[n] for n in sorted(first))), seq(*(s for n, s in enumerate(top) if n not in first))


def prologue_places(kernel: Kernel) -> frozenset[int]:
    """Return which statements of the top level are the prologue, by their places. None of them depends on a dynamic
    extent."""
    if not kernel.constants:
        return frozenset()
    top, extents = _top(kernel), {d.var for d in kernel.dynamic}
    accesses = [_accesses(s) for s in top]
    workspace = {b.name for b in kernel.workspace}
    first = {n for n, (_, written) in enumerate(accesses) if written and written <= workspace}
    first = {n for n in first if not _read_variables(top[n]) & extents}
    while True:
        later: set[str] = set().union(*(written for n, (_, written) in enumerate(accesses) if n not in first))
        kept = {n for n in first if accesses[n][0] <= kernel.constants | (workspace - later)}
        kept = {n for n in kept if not accesses[n][1] & later}
        if kept == first:
            return frozenset(first)
        first = kept


def _read_variables(stmt: Stmt) -> frozenset[str]:
    """Return the free variables of a statement of the top level, and those of its grid."""
    counts = [a.count for a in stmt.axes if a.count is not None] if isinstance(stmt, Launch) else []
    return frozenset().union(free_variables(stmt), *map(free_variables, counts))


def _top(kernel: Kernel) -> tuple[Stmt, ...]:
    return kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)


def _accesses(stmt: Stmt) -> tuple[set[str], set[str]]:
    """Return the global buffers that ``stmt`` reads, and those that it writes."""
    read: set[str] = set()
    written: set[str] = set()

    def note(names: set[str], buffers: Iterable[Buffer]) -> None:
        names |= {b.name for b in buffers if b.scope is MemoryScope.GLOBAL}

    for s in walk_statements(stmt):
        note(read, (load.buffer for e in expressions(s) for load in loads_of(e)))
        note(read, s.buffers if isinstance(s, Operation) else ())
        note(written, globals_written(s))
    return read, written
