"""TMA stores in the interpreter of launches, and the fence that makes writes visible to the asynchronous proxy.

What a store writes is there at once, but may not be accessed until the launch has ended. What it reads may not change
until the store has been awaited.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from ..gpu.fence import AsyncProxyFence
from ..gpu.tma import TmaStore, TmaStoreCommit, TmaStoreWait
from ..interpreter.memory import Array
from .async_copy import copy_memories
from .context import LaunchAction, LaunchContext, LaunchState
from .memory import SharedMemory
from .race_check import check_fenced, check_read, check_write
from .tma_box import box_elements, tile_offsets


@dataclass(frozen=True)
class StoresInFlight:
    """TMA stores of one statement that still read.

    ``who`` is int64[stores]: the positions of the threads that started them. ``offsets`` is int64[stores, elements]:
    what they read. ``group`` is int64[stores]: the group of stores that each belongs to.
    """

    memory: SharedMemory
    who: Array
    offsets: Array
    group: Array

    def subset(self, chosen: Array) -> "StoresInFlight":
        return StoresInFlight(self.memory, self.who[chosen], self.offsets[chosen], self.group[chosen])

    def complete(self, state: LaunchState) -> None:
        """The stores have read their sources."""
        flat = self.offsets.ravel()
        self.memory.count_reads(flat, -1)
        assert self.memory.history is not None
        self.memory.history.record_read(state.order, flat, np.repeat(self.who, self.offsets.shape[1]))


def tma_store(stmt: TmaStore, context: LaunchContext) -> LaunchAction:
    source, target = copy_memories(stmt.source, stmt.target, context)
    tile_of = tile_offsets(stmt.source, stmt.source_indices, prod(stmt.box), context)
    box_of = box_elements(stmt, context)

    def run(state: LaunchState) -> None:
        active = state.running((state.threads,))
        who = state.positions if active is None else state.positions[active]
        tile, box = tile_of(state, who), box_of(state, who)
        by = np.repeat(who, tile.shape[1])
        check_read(source, state, context, tile.ravel(), by, record=False)
        check_fenced(source, state, context, tile.ravel(), by)
        inside = box.ravel() >= 0
        flat = box.ravel()[inside]
        check_write(target, state, context, flat, by[inside])
        target.data[flat] = source.data[tile.ravel()[inside]]
        target.store_async(flat)
        source.count_reads(tile.ravel(), 1)
        state.tma_stores.append(StoresInFlight(source, who, tile, state.committed_stores[who]))

    return run


def tma_store_commit(stmt: TmaStoreCommit, context: LaunchContext) -> LaunchAction:
    def run(state: LaunchState) -> None:
        state.committed_stores += 1 if state.active is None else state.active

    return run


def tma_store_wait(stmt: TmaStoreWait, context: LaunchContext) -> LaunchAction:
    def run(state: LaunchState) -> None:
        left: list[StoresInFlight] = []
        for stores in state.tma_stores:
            ready = stores.group < state.committed_stores[stores.who] - stmt.pending
            if state.active is not None:
                ready &= state.active[stores.who]
            stores.subset(ready).complete(state)
            if not ready.all():
                left.append(stores.subset(~ready))
        state.tma_stores[:] = left

    return run


def async_proxy_fence(stmt: AsyncProxyFence, context: LaunchContext) -> LaunchAction:
    def run(state: LaunchState) -> None:
        active = state.running((state.threads,))
        state.order.fence(None if active is None else active.copy())

    return run
