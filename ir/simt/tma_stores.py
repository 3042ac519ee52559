"""Stores by the copy engine in the interpreter of launches, and what makes writes visible to it.

What they store is in its place at once, but may not be touched until the launch has ended; what they read may not
change until that has been awaited.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from ..gpu import AsyncProxyFence, TmaStore, TmaStoreCommit, TmaStoreWait
from ..memory import Array
from .access import check_fenced, check_read, check_write
from .async_copies import memories
from .memory import SharedMemory
from .scope import Machine, Scope
from .tma_boxes import box_places, tile_places

Action = Callable[[Machine], None]


@dataclass(frozen=True)
class _Reading:
    """Stores of one statement that still read. ``who``: int64[stores], the threads that started them; ``places``:
    int64[stores, elements]; ``group``: int64[stores]."""

    memory: SharedMemory
    who: Array
    places: Array
    group: Array

    def part(self, chosen: Array) -> "_Reading":
        return _Reading(self.memory, self.who[chosen], self.places[chosen], self.group[chosen])

    def end(self, m: Machine) -> None:
        flat = self.places.ravel()
        self.memory.mark_read(flat, -1)
        assert self.memory.touches is not None
        self.memory.touches.note_read(m.order, flat, np.repeat(self.who, self.places.shape[1]))


def tma_store(stmt: TmaStore, scope: Scope) -> Action:
    source, target = memories(stmt.source, stmt.target, scope)
    tile_of, box_of = tile_places(stmt.source, stmt.source_indices, prod(stmt.box), scope), box_places(stmt, scope)

    def run(m: Machine) -> None:
        active = m.running((m.threads,))
        who = m.places if active is None else m.places[active]
        tile, box = tile_of(m, who), box_of(m, who)
        by = np.repeat(who, tile.shape[1])
        check_read(source, m, scope, tile.ravel(), by, note=False)
        check_fenced(source, m, scope, tile.ravel(), by)
        inside = box.ravel() >= 0
        flat = box.ravel()[inside]
        check_write(target, m, scope, flat, by[inside])
        target.data[flat] = source.data[tile.ravel()[inside]]
        target.land(flat)
        source.mark_read(tile.ravel(), 1)
        m.stores.append(_Reading(source, who, tile, m.stored[who]))

    return run


def tma_store_commit(stmt: TmaStoreCommit, scope: Scope) -> Action:
    def run(m: Machine) -> None:
        m.stored += 1 if m.active is None else m.active

    return run


def tma_store_wait(stmt: TmaStoreWait, scope: Scope) -> Action:
    def run(m: Machine) -> None:
        under_way: list[_Reading] = []
        for store in m.stores:
            ready = store.group < m.stored[store.who] - stmt.pending
            if m.active is not None:
                ready &= m.active[store.who]
            store.part(ready).end(m)
            if not ready.all():
                under_way.append(store.part(~ready))
        m.stores[:] = under_way

    return run


def async_proxy_fence(stmt: AsyncProxyFence, scope: Scope) -> Action:
    def run(m: Machine) -> None:
        active = m.running((m.threads,))
        m.order.fence(None if active is None else active.copy())

    return run
