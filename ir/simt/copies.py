"""Asynchronous copies of the interpreter of launches. They arrive as late as they can: when somebody awaits them.

Until then their target must be left alone and their source must not change. What an arrival barrier is awaited for
must have been started earlier in program order: threads run in lockstep.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..buffer import Buffer
from ..expr import Expr
from ..gpu import AwaitArrivals, AwaitCopies, BulkCopy, CommitCopies, CopyAsync, InitArrivals
from ..memory import Array
from .access import check_read, check_write, spread, under
from .address import Watched, address_of, shared_flat
from .memory import GlobalMemory, SharedMemory
from .order import Delivery
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


@dataclass
class Phases:
    """The arrival barriers of one buffer, by place: arrivals of the phase under way, and number of that phase."""

    memory: SharedMemory
    count: Array
    arrived: Array
    phase: Array
    flights: dict[int, list[Flight]]
    last: dict[int, int]  # the delivery of the phase that ended last


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


def _source_run(indices: tuple[Expr, ...], memory: GlobalMemory, elements: int, size: int, scope: Scope) -> Any:
    address = address_of(indices, memory.buffer, scope, value_code).flat
    return _run(address, memory, elements, size, lambda flat: memory.buffer.elements - flat, scope)


def _target_run(indices: tuple[Expr, ...], memory: SharedMemory, elements: int, size: int, scope: Scope) -> Any:
    address = shared_flat(indices, memory, scope, value_code)
    return _run(address, memory, elements, size, lambda place: memory.span - place, scope)


def _memories(target: Buffer, source: Buffer, scope: Scope) -> tuple[SharedMemory, GlobalMemory]:
    shared, origin = scope.shared[target.name], scope.shared[source.name]
    assert isinstance(shared, SharedMemory) and isinstance(origin, GlobalMemory)
    return shared, origin


def _take_off(m: Machine, scope: Scope, memory: SharedMemory, target: Array, who: Array) -> None:
    """The target is given up: nobody may touch it before the copy has landed."""
    flat = target.ravel()
    check_write(memory, m, scope, flat, np.repeat(who, target.shape[1]))
    memory.mark(flat, 1)


def copy_async(stmt: CopyAsync, scope: Scope) -> Action:
    elements, size = stmt.elements, stmt.elements * stmt.target.dtype.bytes
    memory, origin = _memories(stmt.target, stmt.source, scope)
    target_run = _target_run(stmt.target_indices, memory, elements, size, scope)
    source_run = _source_run(stmt.source_indices, origin, elements, size, scope)
    mask_code = None if stmt.mask is None else value_code(stmt.mask, scope)
    steps = np.arange(elements, dtype=np.int64)

    def run(m: Machine) -> None:
        begin, who = target_run(m)
        source = np.full((m.threads, elements), -1, dtype=np.int64)
        outer = m.active
        mask = np.broadcast_to(np.asarray(True if mask_code is None else mask_code(m)), (m.threads,))
        if under(m, mask):
            first, readers = source_run(m)
            read = first[:, None] + steps
            check_read(origin, m, scope, read.ravel(), np.repeat(readers, elements))
            origin.mark(read.ravel(), 1)
            source[readers] = read
        m.active = outer
        target = begin[:, None] + steps
        _take_off(m, scope, memory, target, who)
        m.flights.append(Flight(memory, origin, who, target, source[who], m.committed[who]))

    return run


def commit_copies(stmt: CommitCopies, scope: Scope) -> Action:
    def run(m: Machine) -> None:
        m.committed += 1 if m.active is None else m.active

    return run


def await_copies(stmt: AwaitCopies, scope: Scope) -> Action:
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


# Arrival barriers ----------------------------------------------------------------------------------------------


def _phases(m: Machine, memory: SharedMemory) -> Phases:
    found = m.phases.get(memory.buffer.name)
    if found is None:
        count, arrived, phase = np.zeros((3, len(memory.data)), dtype=np.int64)
        found = m.phases[memory.buffer.name] = Phases(memory, count, arrived, phase, {}, {})
    return found


def _barrier_places(barriers: Buffer, index: Expr, scope: Scope) -> tuple[SharedMemory, Callable[[Machine], Any]]:
    memory = scope.shared[barriers.name]
    assert isinstance(memory, SharedMemory)
    return memory, shared_flat((index,), memory, scope, value_code)


def init_arrivals(stmt: InitArrivals, scope: Scope) -> Action:
    memory, address = _barrier_places(stmt.barriers, stmt.index, scope)

    def run(m: Machine) -> None:
        flat, who = spread(m, address(m), 1)
        assert memory.written is not None
        if memory.written[flat].any():
            at = int(memory.written[flat].argmax())
            what = f"arrival barrier {memory.name(int(flat[at]))} is prepared twice"
            raise scope.fault(what, m, int(who[at]), memory.buffer.name)
        check_write(memory, m, scope, flat, who)
        phases = _phases(m, memory)
        phases.count[flat], phases.arrived[flat], phases.phase[flat] = stmt.count, 0, 0
        for place in flat.tolist():
            phases.flights.pop(place, None)
            phases.last.pop(place, None)

    return run


def _check_prepared(memory: SharedMemory, m: Machine, scope: Scope, flat: Array, who: Array) -> None:
    """Raise where an arrival barrier was not prepared, or its block has not met since."""
    assert memory.written is not None and memory.touches is not None
    ready = memory.written[flat] & (memory.touches.time[flat] < m.order.epochs[m.order.block_level][who])
    if not ready.all():
        at = int(ready.argmin())
        name = memory.name(int(flat[at]))
        never = not memory.written[flat[at]]
        what = f"arrival barrier {name} is used " + ("before it is prepared" if never else "before its block has met")
        raise scope.fault(what, m, int(who[at]), memory.buffer.name)


def bulk_copy(stmt: BulkCopy, scope: Scope) -> Action:
    elements, size = stmt.elements, stmt.elements * stmt.target.dtype.bytes
    memory, origin = _memories(stmt.target, stmt.source, scope)
    target_run = _target_run(stmt.target_indices, memory, elements, min(size, 16), scope)
    source_run = _source_run(stmt.source_indices, origin, elements, min(size, 16), scope)
    barriers, barrier_address = _barrier_places(stmt.barriers, stmt.index, scope)
    steps = np.arange(elements, dtype=np.int64)

    def run(m: Machine) -> None:
        places, who = spread(m, barrier_address(m), 1)
        _check_prepared(barriers, m, scope, places, who)
        target, source = target_run(m)[0][:, None] + steps, source_run(m)[0][:, None] + steps
        check_read(origin, m, scope, source.ravel(), np.repeat(who, elements))
        origin.mark(source.ravel(), 1)
        _take_off(m, scope, memory, target, who)
        phases = _phases(m, barriers)
        for i, place in enumerate(places.tolist()):
            if phases.arrived[place] == phases.count[place]:
                name, count = barriers.name(place), int(phases.count[place])
                what = f"a phase of arrival barrier {name} gets more than its {count} arrivals before anybody awaits it"
                raise scope.fault(what, m, int(who[i]), barriers.buffer.name)
            phases.arrived[place] += 1
            one = slice(i, i + 1)
            flight = Flight(memory, origin, who[one], target[one], source[one], who[one])
            phases.flights.setdefault(place, []).append(flight)

    return run


def await_arrivals(stmt: AwaitArrivals, scope: Scope) -> Action:
    memory, address = _barrier_places(stmt.barriers, stmt.index, scope)
    parity_code = value_code(stmt.parity, scope)

    def run(m: Machine) -> None:
        places, who = spread(m, address(m), 1)
        _check_prepared(memory, m, scope, places, who)
        parity, _ = spread(m, parity_code(m), 1)
        wrong = (parity != 0) & (parity != 1)
        if wrong.any():
            at = int(wrong.argmax())
            raise scope.fault(f"a wait for parity {int(parity[at])}", m, int(who[at]), memory.buffer.name)
        phases = _phases(m, memory)
        for place in np.unique(places).tolist():
            here = places == place
            waiting = here & ((phases.phase[place] & 1) == parity)
            if waiting.any():
                _end_phase(phases, place, m, scope, int(who[waiting][0]))
            last = phases.last.get(place)
            if last is not None:
                m.order.deliveries[last].waited[who[here]] = True

    return run


def _end_phase(phases: Phases, place: int, m: Machine, scope: Scope, first: int) -> None:
    """Everything that the phase under way waits for arrives; raises KernelFault where that can never be."""
    arrived, count = int(phases.arrived[place]), int(phases.count[place])
    if arrived != count:
        name = phases.memory.name(place)
        what = f"a wait that never ends: phase {int(phases.phase[place])} of {name} has {arrived} of {count} arrivals"
        raise scope.fault(what, m, first, phases.memory.buffer.name)
    m.order.deliveries.append(Delivery(np.zeros(m.threads, dtype=np.bool_), place // phases.memory.span))
    phases.last[place] = len(m.order.deliveries) - 1
    for flight in phases.flights.pop(place, []):
        flight.land(m, phases.last[place])
    phases.arrived[place] = 0
    phases.phase[place] += 1
