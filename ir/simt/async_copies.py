"""Asynchronous copies of the interpreter of launches. They arrive as late as they can: when somebody awaits them.

Until then their target must be left alone and their source must not change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..buffer import Buffer
from ..expr import Expr
from ..gpu import CopyAsync, CopyAsyncCommit, CopyAsyncWait, Prefetch
from ..memory import Array
from .access import check_read, check_write, spread, under
from .address import Watched, address_of, shared_flat
from .memory import GlobalMemory, SharedMemory
from .scope import Machine, Scope
from .values import value_code

Action = Callable[[Machine], None]


@dataclass(frozen=True)
class Flight:
    """Copies of one statement under way. ``who``: int64[copies], the threads that started them (places in the chunk);
    ``target``: int64[copies, elements]; ``source`` likewise, -1 where a zero arrives; ``group``: int64[copies]."""

    memory: SharedMemory
    origin: GlobalMemory
    who: Array
    target: Array
    source: Array
    group: Array

    def part(self, chosen: Array) -> "Flight":
        fields = (self.who, self.target, self.source, self.group)
        return Flight(self.memory, self.origin, *(f[chosen] for f in fields))

    def land(self, m: Machine, delivery: int | None = None) -> None:
        """The data is there: for the threads that started the copies, or for those of a delivery."""
        values = self.origin.data[np.maximum(self.source, 0)]
        target, touches = self.target.ravel(), self.memory.touches
        assert touches is not None and self.memory.written is not None
        self.memory.data[target] = np.where(self.source >= 0, values, 0).ravel()
        self.memory.written[target] = True
        self.memory.mark(target, -1)
        self.origin.mark(self.source[self.source >= 0], -1)
        ids = np.repeat(m.order.ids[self.who], self.target.shape[1])
        touches.writer[target] = ids if delivery is None else -2 - delivery
        touches.time[target] = m.order.now


def _run(
    address: Callable[[Machine], Any],
    memory: Watched,
    elements: int,
    size: int,
    end: Callable[[Array], Array],
    scope: Scope,
) -> Callable[[Machine], tuple[Array, Array]]:
    """Code that gives where the copies of all who run begin, checked for alignment and end: (places, who)."""
    element = memory.buffer.dtype.bytes

    def run(m: Machine) -> tuple[Array, Array]:
        flat, who = spread(m, address(m), 1)
        local = flat % memory.span if isinstance(memory, SharedMemory) else flat
        wrong = local * element % size != 0
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a copy of {size} bytes at {memory.name(int(flat[at]))}, which is byte {int(local[at]) * element}"
            raise scope.fault(f"{what}: not aligned", m, int(who[at]), memory.buffer.name)
        wrong = end(local) < elements
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a copy of {elements} elements from {memory.name(int(flat[at]))} on is out of bounds"
            raise scope.fault(what, m, int(who[at]), memory.buffer.name)
        return flat, who

    return run


def source_run(indices: tuple[Expr, ...], memory: GlobalMemory, elements: int, size: int, scope: Scope) -> Any:
    address = address_of(indices, memory.buffer, scope, value_code).flat
    return _run(address, memory, elements, size, lambda flat: memory.buffer.elements - flat, scope)


def target_run(indices: tuple[Expr, ...], memory: SharedMemory, elements: int, size: int, scope: Scope) -> Any:
    address = shared_flat(indices, memory, scope, value_code)
    return _run(address, memory, elements, size, lambda place: memory.span - place, scope)


def memories(target: Buffer, source: Buffer, scope: Scope) -> tuple[SharedMemory, GlobalMemory]:
    shared, origin = scope.shared[target.name], scope.shared[source.name]
    assert isinstance(shared, SharedMemory) and isinstance(origin, GlobalMemory)
    return shared, origin


def take_off(m: Machine, scope: Scope, memory: SharedMemory, target: Array, who: Array) -> None:
    """The target is given up: nobody may touch it before the copy has landed."""
    flat = target.ravel()
    check_write(memory, m, scope, flat, np.repeat(who, target.shape[1]))
    memory.mark(flat, 1)


def copy_async(stmt: CopyAsync, scope: Scope) -> Action:
    elements, size = stmt.elements, stmt.elements * stmt.target.dtype.bytes
    memory, origin = memories(stmt.target, stmt.source, scope)
    target_of = target_run(stmt.target_indices, memory, elements, size, scope)
    source_of = source_run(stmt.source_indices, origin, elements, size, scope)
    mask_code = None if stmt.mask is None else value_code(stmt.mask, scope)
    steps = np.arange(elements, dtype=np.int64)

    def run(m: Machine) -> None:
        begin, who = target_of(m)
        source = np.full((m.threads, elements), -1, dtype=np.int64)
        outer = m.active
        mask = np.broadcast_to(np.asarray(True if mask_code is None else mask_code(m)), (m.threads,))
        if under(m, mask):
            first, readers = source_of(m)
            read = first[:, None] + steps
            check_read(origin, m, scope, read.ravel(), np.repeat(readers, elements))
            origin.mark(read.ravel(), 1)
            source[readers] = read
        m.active = outer
        target = begin[:, None] + steps
        take_off(m, scope, memory, target, who)
        m.flights.append(Flight(memory, origin, who, target, source[who], m.committed[who]))

    return run


def prefetch(stmt: Prefetch, scope: Scope) -> Action:
    """Nothing is read; that it lies within the buffer is all there is to check."""
    origin = scope.shared[stmt.source.name]
    assert isinstance(origin, GlobalMemory)
    source_of = source_run(stmt.source_indices, origin, stmt.elements, 1, scope)

    def run(m: Machine) -> None:
        source_of(m)

    return run


def copy_async_commit(stmt: CopyAsyncCommit, scope: Scope) -> Action:
    def run(m: Machine) -> None:
        m.committed += 1 if m.active is None else m.active

    return run


def copy_async_wait(stmt: CopyAsyncWait, scope: Scope) -> Action:
    pending = stmt.pending

    def run(m: Machine) -> None:
        under_way: list[Flight] = []
        for flight in m.flights:
            ready = flight.group < m.committed[flight.who] - pending
            if m.active is not None:
                ready &= m.active[flight.who]
            if ready.any():
                flight.part(ready).land(m)
            if not ready.all():
                under_way.append(flight.part(~ready))
        m.flights[:] = under_way

    return run
