"""Where the shared buffers of a launch lie in its dynamic shared memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.buffer import Buffer, Scope
from ...ir.gpu import BulkCopy
from ...ir.stmt import Allocate, Stmt, walk_statements

_PLAIN, _BULK = 16, 128


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """``offsets``: name -> first byte. ``bytes``: of all. ``alignment``: what the start must be a multiple of."""

    buffers: tuple[Buffer, ...]
    offsets: Mapping[str, int]
    bytes: int
    alignment: int


def plan_shared(body: Stmt) -> SharedPlan:
    """Buffers one behind the other, those with the strictest alignment first.

    A target of bulk copies starts at a multiple of 128 bytes, a swizzled buffer at a multiple of its swizzle's period
    (so that the exchange of places is one of banks), any other at one of 16.
    """
    bulk = {s.target.name for s in walk_statements(body) if isinstance(s, BulkCopy)}
    found = [s.buffer for s in walk_statements(body) if isinstance(s, Allocate) and s.buffer.scope is Scope.SHARED]
    aligned = {b.name: _alignment(b, b.name in bulk) for b in found}
    offsets: dict[str, int] = {}
    end = 0
    for buffer in sorted(found, key=lambda b: -aligned[b.name]):
        start = -(-end // aligned[buffer.name]) * aligned[buffer.name]
        offsets[buffer.name] = start
        end = start + buffer.bytes
    return SharedPlan(tuple(found), offsets, end, max(aligned.values(), default=_PLAIN))


def _alignment(buffer: Buffer, is_bulk: bool) -> int:
    least = _BULK if is_bulk else _PLAIN
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return least
    period = buffer.dtype.bytes << (swizzle.base + swizzle.shift + swizzle.bits)
    return max(least, min(period, 1024))
