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
from ..gpu import BulkCopy, MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait, TmaLoad, TmaPrefetch
from ..memory import Array
from .access import check_fenced, check_read, check_write, spread
from .address import shared_flat
from .async_copies import Action, Flight, memories, source_run, take_off, target_run
from .happens_before import Delivery
from .memory import SharedMemory
from .scope import Machine, Scope
from .tma_boxes import box_places, tile_places
from .values import value_code


@dataclass
class Told:
    """What those who arrived in one phase knew: ``clock`` as ``Order.clocks`` gives it, and deliveries."""

    clock: Array
    deliveries: set[int] = field(default_factory=set)


@dataclass
class Phases:
    """The arrival barriers of one buffer, by place: arrivals of the phase under way, bytes that it expects and that are
    on their way, and number of that phase."""

    memory: SharedMemory
    count: Array
    arrived: Array
    expected: Array
    bytes: Array
    phase: Array
    flights: dict[int, list[Flight]]
    last: dict[int, int]  # the delivery of the phase that ended last
    telling: dict[int, Told]  # of the phase under way
    told: dict[int, Told]  # of the phase that ended last


def _phases(m: Machine, memory: SharedMemory) -> Phases:
    found = m.phases.get(memory.buffer.name)
    if found is None:
        count, arrived, expected, there, phase = np.zeros((5, len(memory.data)), dtype=np.int64)
        found = Phases(memory, count, arrived, expected, there, phase, {}, {}, {}, {})
        m.phases[memory.buffer.name] = found
    return found


def _barrier_places(barriers: Buffer, index: Expr, scope: Scope) -> tuple[SharedMemory, Callable[[Machine], Any]]:
    memory = scope.shared[barriers.name]
    assert isinstance(memory, SharedMemory)
    return memory, shared_flat((index,), memory, scope, value_code)


def mbarrier_init(stmt: MbarrierInit, scope: Scope) -> Action:
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
        phases.expected[flat] = phases.bytes[flat] = 0
        for place in flat.tolist():
            phases.flights.pop(place, None)
            for known in (phases.last, phases.telling, phases.told):
                known.pop(place, None)

    return run


def _check_prepared(memory: SharedMemory, m: Machine, scope: Scope, flat: Array, who: Array) -> None:
    """Raise where an arrival barrier was not prepared, or its block has not met since (the cluster, for the barrier of
    another block)."""
    assert memory.written is not None and memory.touches is not None
    here = flat // memory.span == m.block[who]
    met = np.where(here, m.order.epochs[m.order.block_level][who], m.order.epochs[1][who])
    ready = memory.written[flat] & (memory.touches.time[flat] < met)
    if not ready.all():
        at = int(ready.argmin())
        name = memory.name(int(flat[at]))
        never = not memory.written[flat[at]]
        what = f"arrival barrier {name} is used " + (
            "before it is prepared" if never else "before all who use it have met"
        )
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
        _announce(_phases(m, barriers), places, who, size, m, scope)
        _fly(_phases(m, barriers), places, Flight(memory, origin, who, target, source, who), m, scope)

    return run


def tma_load(stmt: TmaLoad, scope: Scope) -> Action:
    memory, origin = memories(stmt.target, stmt.source, scope)
    tile_of, box_of = tile_places(stmt.target, stmt.target_indices, prod(stmt.box), scope), box_places(stmt, scope)
    barriers, barrier_address = _barrier_places(stmt.barriers, stmt.index, scope)
    blocks_of = None if stmt.multicast is None else value_code(stmt.multicast, scope)
    size = prod(stmt.box) * stmt.target.dtype.bytes

    def run(m: Machine) -> None:
        places, who = spread(m, barrier_address(m), 1)
        target, source = tile_of(m, who), box_of(m, who)
        inside = source >= 0
        check_read(origin, m, scope, source[inside], np.broadcast_to(who[:, None], source.shape)[inside])
        here = (np.arange(len(who)), np.zeros(len(who), dtype=np.int64))
        for chosen, away in [here] if blocks_of is None else _blocks(blocks_of(m), who, m, scope):
            at, by = places[chosen] + away * barriers.span, who[chosen]
            tile = target[chosen] + (away * memory.span)[:, None]
            _check_prepared(barriers, m, scope, at, by)
            origin.mark(source[chosen][inside[chosen]], 1)
            check_fenced(memory, m, scope, tile.ravel(), np.repeat(by, tile.shape[1]))
            take_off(m, scope, memory, tile, by)
            if not stmt.tx_expected:
                _announce(_phases(m, barriers), at, by, size, m, scope)
            _fly(_phases(m, barriers), at, Flight(memory, origin, by, tile, source[chosen], by), m, scope)

    return run


def _blocks(mask: Any, who: Array, m: Machine, scope: Scope) -> list[tuple[Array, Array]]:
    """To which blocks the threads ``who`` send: which of them to one, and how many blocks away each of those has it."""
    blocks, own = np.broadcast_to(mask, (m.threads,))[who], m.block[who] % m.cluster
    wrong = (blocks <= 0) | (blocks >= 1 << m.cluster)
    if wrong.any():
        at = int(wrong.argmax())
        raise scope.fault(f"a multicast to blocks {int(blocks[at]):#b} of a cluster of {m.cluster}", m, int(who[at]))
    m.peer_uses[who] = m.order.now
    sent = [np.flatnonzero(blocks >> rank & 1) for rank in range(m.cluster)]
    return [(chosen, rank - own[chosen]) for rank, chosen in enumerate(sent) if len(chosen)]


def tma_prefetch(stmt: TmaPrefetch, scope: Scope) -> Action:
    """Nothing is read; where the box begins is all there is to check."""
    box_of = box_places(stmt, scope)

    def run(m: Machine) -> None:
        box_of(m, spread(m, np.int64(0), 1)[1])

    return run


def arrive(stmt: MbarrierArrive, scope: Scope) -> Action:
    return _arriving(stmt.barriers, stmt.index, stmt.rank, 0, scope)


def mbarrier_arrive_expect_tx(stmt: MbarrierArriveExpectTx, scope: Scope) -> Action:
    return _arriving(stmt.barriers, stmt.index, None, stmt.bytes, scope)


def _arriving(barriers: Buffer, index: Expr, rank: Expr | None, bytes: int, scope: Scope) -> Action:
    memory, address = _barrier_places(barriers, index, scope)
    rank_of = None if rank is None else value_code(rank, scope)

    def run(m: Machine) -> None:
        places, who = spread(m, address(m), 1)
        if rank_of is not None:
            block, _ = spread(m, rank_of(m), 1)
            wrong = (block < 0) | (block >= m.cluster)
            if wrong.any():
                at = int(wrong.argmax())
                raise scope.fault(f"block {int(block[at])} is none of a cluster of {m.cluster}", m, int(who[at]))
            places = places + (block - m.block[who] % m.cluster) * memory.span
            m.peer_uses[who] = m.order.now
        _check_prepared(memory, m, scope, places, who)
        phases = _phases(m, memory)
        np.add.at(phases.expected, places, bytes)
        span = memory.span * m.cluster
        recent: dict[int, list[int]] = {}
        for known in m.phases.values():
            for place, delivery in known.last.items():
                recent.setdefault(place // (known.memory.span * m.cluster), []).append(delivery)
        clocks = m.order.clocks(who)
        if rank_of is not None:
            clocks[:, 0] = -1  # of writes it says nothing
        for place, thread, clock in zip(places.tolist(), who.tolist(), clocks, strict=True):
            _count(phases, place, thread, m, scope)
            told = phases.telling.setdefault(place, Told(clock))
            told.clock = np.maximum(told.clock, clock)
            deliveries = recent.get(place // span, ())
            told.deliveries.update(d for d in deliveries if m.order.deliveries[d].waited[thread])

    return run


def _fly(phases: Phases, places: Array, flight: Flight, m: Machine, scope: Scope) -> None:
    """Copies are on their way, each to count its bytes at the barrier at its place."""
    size = flight.target.shape[1] * flight.memory.buffer.dtype.bytes
    for i, place in enumerate(places.tolist()):
        if phases.arrived[place] == phases.count[place] and phases.bytes[place] == phases.expected[place]:
            what = f"a phase of arrival barrier {phases.memory.name(place)} gets bytes after its end"
            raise scope.fault(f"{what}, before anybody awaits it", m, int(flight.who[i]), phases.memory.buffer.name)
        phases.bytes[place] += size
        phases.flights.setdefault(place, []).append(flight.part(np.array([i])))


def _announce(phases: Phases, places: Array, who: Array, size: int, m: Machine, scope: Scope) -> None:
    """Copies arrive at the barriers at ``places``, which expect their bytes."""
    for place, thread in zip(places.tolist(), who.tolist(), strict=True):
        _count(phases, place, thread, m, scope)
        phases.expected[place] += size


def _count(phases: Phases, place: int, thread: int, m: Machine, scope: Scope) -> None:
    """One more arrival."""
    if phases.arrived[place] == phases.count[place]:
        name, count = phases.memory.name(place), int(phases.count[place])
        what = f"a phase of arrival barrier {name} gets more than its {count} arrivals before anybody awaits it"
        raise scope.fault(what, m, thread, phases.memory.buffer.name)
    phases.arrived[place] += 1


def mbarrier_wait(stmt: MbarrierWait, scope: Scope) -> Action:
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
    there, wanted = int(phases.bytes[place]), int(phases.expected[place])
    if there != wanted:
        name = phases.memory.name(place)
        what = f"a wait that never ends: phase {int(phases.phase[place])} of {name} gets {there} of {wanted} bytes"
        raise scope.fault(what, m, first, phases.memory.buffer.name)
    m.order.deliveries.append(Delivery(np.zeros(m.threads, dtype=np.bool_), place // phases.memory.span))
    phases.last[place] = len(m.order.deliveries) - 1
    phases.told.pop(place, None)
    if place in phases.telling:
        phases.told[place] = phases.telling.pop(place)
    for flight in phases.flights.pop(place, []):
        flight.land(m, phases.last[place])
    phases.arrived[place] = phases.expected[place] = phases.bytes[place] = 0
    phases.phase[place] += 1
