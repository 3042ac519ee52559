"""Where the shared buffers of a launch lie in the shared memory of a block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.buffer import Buffer, MemoryScope
from ..ir.gpu.barrier import Barrier, SyncScope
from ..ir.gpu.bulk_copy import BulkCopy
from ..ir.gpu.tma import TmaLoad, TmaStore
from ..ir.stmt import Allocate, For, Seq, Stmt, substatements, walk_statements

_PLAIN, _BULK = 16, 128


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """``offsets``: name -> first byte. ``bytes``: of all. ``alignment``: what the start must be a multiple of."""

    buffers: tuple[Buffer, ...]
    offsets: Mapping[str, int]
    bytes: int
    alignment: int


def plan_shared(body: Stmt) -> SharedPlan:
    """Where every shared buffer lies. Those that may live at once lie one behind the other; two in a row of statements
    of a launch, with a barrier of the block (or cluster) between them, take the same place.

    What bulk copies touch starts at a multiple of 128 bytes, a swizzled buffer at a multiple of its swizzle's period
    (so that the exchange of places is one of banks), any other at one of 16.
    """
    bulk = {s.target.name for s in walk_statements(body) if isinstance(s, BulkCopy | TmaLoad)}
    bulk |= {s.source.name for s in walk_statements(body) if isinstance(s, TmaStore)}
    found = _shared_within(body)
    planner = _Planner({b.name: _alignment(b, b.name in bulk) for b in found})
    end = planner.place(body, 0, once=True)
    return SharedPlan(found, planner.offsets, end, max(planner.aligned.values(), default=_PLAIN))


class _Planner:
    """Gives places from the outermost statement inwards. ``aligned``: name -> what its place is a multiple of."""

    def __init__(self, aligned: Mapping[str, int]) -> None:
        self.aligned = aligned
        self.offsets: dict[str, int] = {}

    def place(self, stmt: Stmt, start: int, *, once: bool) -> int:
        """Place what ``stmt`` allocates from ``start`` on; gives the end. ``once``: it does not run again and again."""
        match stmt:
            case Allocate(buffer=buffer, body=body) if buffer.scope is MemoryScope.SHARED:
                run = [buffer]
                while isinstance(body, Allocate):
                    if body.buffer.scope is MemoryScope.SHARED:
                        run.append(body.buffer)
                    body = body.body
                # the strictest alignment first, of those within too, leaves no gaps
                within = max((self.aligned[b.name] for b in _shared_within(body)), default=0)
                start = self._put([b for b in run if self.aligned[b.name] >= within], start)
                end = self.place(body, start, once=once)
                return self._put([b for b in run if self.aligned[b.name] < within], end)
            case Seq(statements=statements):
                return self._row(statements, start, once)
            case For():
                return self.place(stmt.body, start, once=False)
        return max([start, *(self.place(below, start, once=once) for below in substatements(stmt))])

    def _put(self, buffers: Sequence[Buffer], start: int) -> int:
        for b in sorted(buffers, key=lambda b: -self.aligned[b.name]):
            self.offsets[b.name] = -(-start // self.aligned[b.name]) * self.aligned[b.name]
            start = self.offsets[b.name] + b.bytes
        return start

    def _row(self, statements: Sequence[Stmt], start: int, once: bool) -> int:
        free = end = start
        for stmt in statements:
            if any(isinstance(s, TmaLoad) for s in walk_statements(stmt)):
                free = end  # nothing orders these copies after ordinary accesses to the same place
            end = max(end, self.place(stmt, free, once=once))
            free = start if once and _ends_in_barrier(stmt) else end
        return end


def _shared_within(body: Stmt) -> tuple[Buffer, ...]:
    return tuple(
        s.buffer for s in walk_statements(body) if isinstance(s, Allocate) and s.buffer.scope is MemoryScope.SHARED
    )


def _ends_in_barrier(stmt: Stmt) -> bool:
    """Whether all threads of a block have met when ``stmt`` is done."""
    match stmt:
        case Barrier(scope=level):
            return level in (SyncScope.BLOCK, SyncScope.CLUSTER)
        case Allocate(body=body):
            return _ends_in_barrier(body)
        case Seq(statements=statements):
            return bool(statements) and _ends_in_barrier(statements[-1])
    return False


def _alignment(buffer: Buffer, is_bulk: bool) -> int:
    least = _BULK if is_bulk else _PLAIN
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return least
    period = buffer.dtype.bytes << (swizzle.base + swizzle.shift + swizzle.bits)
    return max(least, min(period, 1024))
