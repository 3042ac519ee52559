"""Arrival barriers of the interpreter of launches, and the copies that complete on them.

Such copies arrive when the phase they belong to is first awaited. What an arrival barrier is awaited for must have been
started earlier in program order: threads run in lockstep. Waiting orders what those who arrived did before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ..buffer import Buffer
from ..expr import Expr
from ..gpu import BOX_ROW_BYTES, Arrive, AwaitArrivals, BulkCopy, InitArrivals, TensorCopy
from ..memory import Array
from .access import check_read, check_write, spread
from .address import address_of, shared_flat
from .copies import Action, Flight, memories, source_run, take_off, target_run
from .memory import SharedMemory
from .order import Delivery
from .scope import Machine, Scope
from .values import value_code


@dataclass
class Told:
    """What those who arrived in one phase knew: ``clock`` as ``Order.clocks`` gives it, and deliveries."""

    clock: Array
    deliveries: set[int] = field(default_factory=set)


@dataclass
class Phases:
    """The arrival barriers of one buffer, by place: arrivals of the phase under way, and number of that phase."""

    memory: SharedMemory
    count: Array
    arrived: Array
    phase: Array
    flights: dict[int, list[Flight]]
    last: dict[int, int]  # the delivery of the phase that ended last
    telling: dict[int, Told]  # of the phase under way
    told: dict[int, Told]  # of the phase that ended last


def _phases(m: Machine, memory: SharedMemory) -> Phases:
    found = m.phases.get(memory.buffer.name)
    if found is None:
        count, arrived, phase = np.zeros((3, len(memory.data)), dtype=np.int64)
        found = m.phases[memory.buffer.name] = Phases(memory, count, arrived, phase, {}, {}, {}, {})
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
            for known in (phases.last, phases.telling, phases.told):
                known.pop(place, None)

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
    memory, origin = memories(stmt.target, stmt.source, scope)
    target_of = target_run(stmt.target_indices, memory, elements, min(size, 16), scope)
    source_of = source_run(stmt.source_indices, origin, elements, min(size, 16), scope)
    barriers, barrier_address = _barrier_places(stmt.barriers, stmt.index, scope)
    steps = np.arange(elements, dtype=np.int64)

    def run(m: Machine) -> None:
        places, who = spread(m, barrier_address(m), 1)
        _check_prepared(barriers, m, scope, places, who)
        target, source = target_of(m)[0][:, None] + steps, source_of(m)[0][:, None] + steps
        check_read(origin, m, scope, source.ravel(), np.repeat(who, elements))
        origin.mark(source.ravel(), 1)
        take_off(m, scope, memory, target, who)
        flight = Flight(memory, origin, who, target, source, who)
        _fly(_phases(m, barriers), places, flight, m, scope)

    return run


def tensor_copy(stmt: TensorCopy, scope: Scope) -> Action:
    memory, origin = memories(stmt.target, stmt.source, scope)
    places_of = _tile_places(stmt, memory, scope)
    corners = [value_code(i, scope) for i in stmt.source_indices]
    barriers, barrier_address = _barrier_places(stmt.barriers, stmt.index, scope)
    shape, strides = stmt.source.shape, stmt.source.strides
    steps = np.indices(stmt.box).reshape(len(stmt.box), -1)  # [dimensions, elements]

    def run(m: Machine) -> None:
        places, who = spread(m, barrier_address(m), 1)
        _check_prepared(barriers, m, scope, places, who)
        target = places_of(m, who)
        source, inside = np.zeros(target.shape, dtype=np.int64), np.ones(target.shape, dtype=np.bool_)
        for corner, step, extent, stride in zip(corners, steps, shape, strides, strict=True):
            at = np.broadcast_to(corner(m), (m.threads,))[who][:, None] + step
            inside &= (at >= 0) & (at < extent)
            source += at * stride
        source[~inside] = -1
        check_read(origin, m, scope, source[inside], np.broadcast_to(who[:, None], source.shape)[inside])
        origin.mark(source[inside], 1)
        take_off(m, scope, memory, target, who)
        _fly(_phases(m, barriers), places, Flight(memory, origin, who, target, source, who), m, scope)

    return run


def _tile_places(stmt: TensorCopy, memory: SharedMemory, scope: Scope) -> Callable[[Machine, Array], Array]:
    """Code that gives the places that the box of a tensor copy goes to, by the threads that start one."""
    buffer, elements = stmt.target, prod(stmt.box)
    address = address_of(stmt.target_indices, buffer, scope, value_code)
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    whole = BOX_ROW_BYTES // buffer.dtype.bytes
    if swizzle is not None:
        whole = 1 << (swizzle.base + swizzle.shift + swizzle.bits)

    def places(m: Machine, who: Array) -> Array:
        start = np.broadcast_to(address.flat(m), (m.threads,))[who]
        wrong = (start % whole != 0) | (start + elements > memory.span)
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a box of {elements} elements for {buffer.name} from place {int(start[at])} on"
            raise scope.fault(f"{what}: not a multiple of {whole}, or out of bounds", m, int(who[at]), buffer.name)
        flat = start[:, None] + np.arange(elements, dtype=np.int64)
        if swizzle is not None:
            flat ^= ((flat >> (swizzle.base + swizzle.shift)) & ((1 << swizzle.bits) - 1)) << swizzle.base
        found: Array = flat + (m.block[who] * memory.span)[:, None]
        return found

    return places


def arrive(stmt: Arrive, scope: Scope) -> Action:
    memory, address = _barrier_places(stmt.barriers, stmt.index, scope)

    def run(m: Machine) -> None:
        places, who = spread(m, address(m), 1)
        _check_prepared(memory, m, scope, places, who)
        phases = _phases(m, memory)
        recent: dict[int, list[int]] = {}
        for known in m.phases.values():
            for place, delivery in known.last.items():
                recent.setdefault(place // known.memory.span, []).append(delivery)
        for place, thread, clock in zip(places.tolist(), who.tolist(), m.order.clocks(who), strict=True):
            _count(phases, place, thread, m, scope)
            told = phases.telling.setdefault(place, Told(clock))
            told.clock = np.maximum(told.clock, clock)
            deliveries = recent.get(place // memory.span, ())
            told.deliveries.update(d for d in deliveries if m.order.deliveries[d].waited[thread])

    return run


def _fly(phases: Phases, places: Array, flight: Flight, m: Machine, scope: Scope) -> None:
    """Copies are on their way, each to arrive at the barrier at its place."""
    for i, place in enumerate(places.tolist()):
        _count(phases, place, int(flight.who[i]), m, scope)
        phases.flights.setdefault(place, []).append(flight.part(np.array([i])))


def _count(phases: Phases, place: int, thread: int, m: Machine, scope: Scope) -> None:
    """One more arrival."""
    if phases.arrived[place] == phases.count[place]:
        name, count = phases.memory.name(place), int(phases.count[place])
        what = f"a phase of arrival barrier {name} gets more than its {count} arrivals before anybody awaits it"
        raise scope.fault(what, m, thread, phases.memory.buffer.name)
    phases.arrived[place] += 1


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
            last, told = phases.last.get(place), phases.told.get(place)
            if last is not None:
                m.order.deliveries[last].waited[who[here]] = True
            if told is not None:
                m.order.learn(who[here], told.clock)
                for delivery in told.deliveries:
                    m.order.deliveries[delivery].waited[who[here]] = True

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
    phases.told.pop(place, None)
    if place in phases.telling:
        phases.told[place] = phases.telling.pop(place)
    for flight in phases.flights.pop(place, []):
        flight.land(m, phases.last[place])
    phases.arrived[place] = 0
    phases.phase[place] += 1
