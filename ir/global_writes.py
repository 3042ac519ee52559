"""Which global buffers a statement writes to."""

from .buffer import Buffer, MemoryScope
from .cpu import PROCESSOR_OPERATIONS, written_by
from .gpu.atomic import AtomicReduce
from .gpu.flagged import FlaggedStore
from .gpu.tma import TmaStore
from .stmt import Stmt, Store


def globals_written(stmt: Stmt) -> tuple[Buffer, ...]:
    """Return the global buffers that ``stmt`` writes to itself, without the statements inside it."""
    found: tuple[Buffer, ...] = ()
    if isinstance(stmt, Store):
        found = (stmt.buffer,)
    elif isinstance(stmt, TmaStore | FlaggedStore | AtomicReduce):
        found = (stmt.target,)
    elif isinstance(stmt, PROCESSOR_OPERATIONS):
        found = written_by(stmt)
    return tuple(b for b in found if b.scope is MemoryScope.GLOBAL)
