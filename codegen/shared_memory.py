"""Allocates the shared buffers of a launch in the shared memory of a block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.buffer import Buffer, MemoryScope
from ..ir.gpu.barrier import Barrier, SyncScope
from ..ir.gpu.bulk_copy import BulkCopy
from ..ir.gpu.tma import TmaLoad, TmaStore
from ..ir.stmt import Allocate, For, Seq, Stmt, substatements, walk_statements

_VECTOR_ALIGNMENT, _BULK_ALIGNMENT = 16, 128
"""Every buffer begins at a multiple of the first, and one that bulk copies or TMA access at a multiple of the second;
both are bytes."""
_LARGEST_ALIGNMENT = 1024
"""No buffer needs to begin at a multiple of more bytes."""


@dataclass(frozen=True, slots=True)
class SharedMemoryPlan:
    """It says where the shared buffers of a launch lie.

    offsets: At which byte each buffer begins.
    bytes: How many bytes all buffers take together.
    alignment: What the start of shared memory must be a multiple of.
    """

    buffers: tuple[Buffer, ...]
    offsets: Mapping[str, int]
    bytes: int
    alignment: int


def plan_shared_memory(body: Stmt) -> SharedMemoryPlan:
    """Give an offset to every shared buffer of a launch.

    Buffers that may be live at once lie one after the other. Two consecutive statements of a launch with a barrier of
    the block (or cluster) between them use the same memory.

    What bulk copies or TMA access begins at a multiple of 128 bytes. A swizzled buffer begins at a multiple of the
    swizzle's period, so that the swizzle permutes banks. Any other begins at a multiple of 16 bytes.
    """
    bulk = {s.target.name for s in walk_statements(body) if isinstance(s, BulkCopy | TmaLoad)}
    bulk |= {s.source.name for s in walk_statements(body) if isinstance(s, TmaStore)}
    found = _shared_within(body)
    allocator = _SharedAllocator({b.name: _alignment(b, b.name in bulk) for b in found})
    end = allocator.allocate(body, 0, once=True)
    alignment = max(allocator.alignments.values(), default=_VECTOR_ALIGNMENT)
    return SharedMemoryPlan(found, allocator.offsets, end, alignment)


class _SharedAllocator:
    """Allocates from the outermost statement inwards. ``alignments`` says what the offset of each buffer is a multiple
    of."""

    def __init__(self, alignments: Mapping[str, int]) -> None:
        self.alignments = alignments
        self.offsets: dict[str, int] = {}

    def allocate(self, stmt: Stmt, start: int, *, once: bool) -> int:
        """Allocate the buffers of ``stmt`` from ``start`` on; return the end. ``once`` says that no loop repeats it."""
        match stmt:
            case Allocate(buffer=buffer, body=body) if buffer.scope is MemoryScope.SHARED:
                together = [buffer]
                while isinstance(body, Allocate):
                    if body.buffer.scope is MemoryScope.SHARED:
                        together.append(body.buffer)
                    body = body.body
                # The strictest alignment comes first, counting the buffers below too. That leaves no gaps.
                below = max((self.alignments[b.name] for b in _shared_within(body)), default=0)
                start = self._append([b for b in together if self.alignments[b.name] >= below], start)
                end = self.allocate(body, start, once=once)
                return self._append([b for b in together if self.alignments[b.name] < below], end)
            case Seq(statements=statements):
                return self._sequence(statements, start, once)
            case For():
                return self.allocate(stmt.body, start, once=False)
        return max([start, *(self.allocate(below, start, once=once) for below in substatements(stmt))])

    def _append(self, buffers: Sequence[Buffer], start: int) -> int:
        for b in sorted(buffers, key=lambda b: -self.alignments[b.name]):
            self.offsets[b.name] = -(-start // self.alignments[b.name]) * self.alignments[b.name]
            start = self.offsets[b.name] + b.bytes
        return start

    def _sequence(self, statements: Sequence[Stmt], start: int, once: bool) -> int:
        free = end = start
        for stmt in statements:
            if any(isinstance(s, TmaLoad) for s in walk_statements(stmt)):
                free = end  # nothing orders TMA loads after ordinary accesses to the same memory
            end = max(end, self.allocate(stmt, free, once=once))
            free = start if once and _ends_in_barrier(stmt) else end
        return end


def _shared_within(body: Stmt) -> tuple[Buffer, ...]:
    return tuple(
        s.buffer for s in walk_statements(body) if isinstance(s, Allocate) and s.buffer.scope is MemoryScope.SHARED
    )


def _ends_in_barrier(stmt: Stmt) -> bool:
    """Return whether ``stmt`` ends in a barrier of the block or the cluster."""
    match stmt:
        case Barrier(scope=scope):
            return scope in (SyncScope.BLOCK, SyncScope.CLUSTER)
        case Allocate(body=body):
            return _ends_in_barrier(body)
        case Seq(statements=statements):
            return bool(statements) and _ends_in_barrier(statements[-1])
    return False


def _alignment(buffer: Buffer, is_bulk: bool) -> int:
    least = _BULK_ALIGNMENT if is_bulk else _VECTOR_ALIGNMENT
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return least
    period = buffer.dtype.bytes << (swizzle.base + swizzle.shift + swizzle.bits)
    return max(least, min(period, _LARGEST_ALIGNMENT))
