"""The prologue of a kernel: what it computes of constant inputs alone, such as a copy of weights in another order. Done
once, it serves for all calls on the same workspace."""

from .buffer import Buffer, MemoryScope
from .cpu import PROCESSOR_OPERATIONS, written_by
from .rewrite import loads_of
from .stmt import Kernel, Operation, Seq, Stmt, Store, expressions, seq, walk_statements


def split_prologue(kernel: Kernel) -> tuple[Stmt | None, Stmt]:
    """Return the prologue and the rest of a kernel for a processor. The prologue is None where there is none.

    Both are statements of the top level. The prologue reads only constant inputs and what it has written itself. What
    it writes is workspace that the rest only reads.
    """
    top = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    accesses = [_accesses(s) for s in top]
    workspace = {b.name for b in kernel.workspace}
    first = {n for n, (_, written) in enumerate(accesses) if kernel.constants and written and written <= workspace}
    while True:
        later: set[str] = set().union(*(written for n, (_, written) in enumerate(accesses) if n not in first))
        kept = {n for n in first if accesses[n][0] <= kernel.constants | (workspace - later)}
        kept = {n for n in kept if not accesses[n][1] & later}
        if kept == first:
            break
        first = kept
    if not first:
        return None, kernel.body
    return seq(*(top[n] for n in sorted(first))), seq(*(s for n, s in enumerate(top) if n not in first))


def _accesses(stmt: Stmt) -> tuple[set[str], set[str]]:
    """Return the global buffers that ``stmt`` reads, and those that it writes."""
    read: set[str] = set()
    written: set[str] = set()

    def note(names: set[str], *buffers: Buffer) -> None:
        names |= {b.name for b in buffers if b.scope is MemoryScope.GLOBAL}

    for s in walk_statements(stmt):
        note(read, *(load.buffer for e in expressions(s) for load in loads_of(e)))
        match s:
            case Store(buffer=buffer):
                note(written, buffer)
            case Operation(buffers=buffers):
                note(written, *(written_by(s) if isinstance(s, PROCESSOR_OPERATIONS) else buffers))
                note(read, *buffers)
    return read, written
