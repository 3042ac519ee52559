"""``cp.async`` in the interpreter of launches, and what all asynchronous copies to shared memory share.

Copies complete as late as they can: when a thread waits for them. Until then nothing may access their target, and
their source must not change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..buffer import Buffer
from ..expr import Expr
from ..gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ..gpu.bulk_copy import BulkCopy, Prefetch
from ..interpreter.memory import VECTOR_ROUNDING, Array
from .access import under
from .address import CheckedMemory, address_of, shared_flat
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .memory import GlobalMemory, SharedMemory
from .race_check import check_read, check_write, spread


@dataclass(frozen=True)
class CopiesInFlight:
    """Copies of one statement in flight.

    ``who`` is int64[copies]: the positions of the threads that started them. ``target`` and ``source`` are
    int64[copies, elements]: offsets in shared memory, and elements of global memory, -1 where a zero arrives. ``group``
    is int64[copies]: the group of copies that each belongs to.
    """

    memory: SharedMemory
    origin: GlobalMemory
    who: Array
    target: Array
    source: Array
    group: Array

    def subset(self, chosen: Array) -> "CopiesInFlight":
        fields = (self.who, self.target, self.source, self.group)
        return CopiesInFlight(self.memory, self.origin, *(f[chosen] for f in fields))

    def complete(self, state: LaunchState, completion: int | None = None) -> None:
        """The data is there: for the threads that started the copies, or for those that wait for a phase of an mbarrier
        (``completion`` is its number)."""
        values = self.origin.data[np.maximum(self.source, 0)]
        if self.memory.buffer.dtype != self.origin.buffer.dtype:
            values = VECTOR_ROUNDING[self.memory.buffer.dtype.name](values)
        target, history = self.target.ravel(), self.memory.history
        assert history is not None and self.memory.written is not None
        self.memory.data[target] = np.where(self.source >= 0, values, 0).ravel()
        self.memory.written[target] = True
        self.memory.count_writes(target, -1)
        self.origin.count_reads(self.source[self.source >= 0], -1)
        if completion is None:
            history.writer[target] = np.repeat(state.order.ids[self.who], self.target.shape[1])
        else:
            history.writer[target] = -2 - completion
        history.time[target] = state.order.now


def source_elements(
    stmt: CopyAsync | BulkCopy | Prefetch, memory: GlobalMemory, elements: int, size: int, context: LaunchContext
) -> Callable[[LaunchState], tuple[Array, Array]]:
    """Return a closure that gives the first element in global memory of each copy, and who starts it. It raises where
    ``elements`` elements from there on are out of bounds, or not aligned to ``size`` bytes."""
    address = address_of(stmt.source_indices, stmt.source, context, value_closure).flat
    return _first_elements(address, memory, elements, size, memory.buffer.elements, context)


def target_elements(
    indices: tuple[Expr, ...], memory: SharedMemory, elements: int, size: int, context: LaunchContext
) -> Callable[[LaunchState], tuple[Array, Array]]:
    """Return a closure that gives the first offset in shared memory of each copy, likewise."""
    address = shared_flat(indices, memory, context, value_closure)
    return _first_elements(address, memory, elements, size, memory.span, context)


def _first_elements(
    address: Callable[[LaunchState], Any],
    memory: CheckedMemory,
    elements: int,
    size: int,
    end: int,
    context: LaunchContext,
) -> Callable[[LaunchState], tuple[Array, Array]]:
    element = memory.buffer.dtype.bytes

    def first(state: LaunchState) -> tuple[Array, Array]:
        flat, who = spread(state, address(state), 1)
        local = flat % memory.span if isinstance(memory, SharedMemory) else flat
        wrong = local * element % size != 0
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a copy of {size} bytes at {memory.name(int(flat[at]))}, which is byte {int(local[at]) * element}"
            raise context.fault(f"{what}: not aligned", state, int(who[at]), memory.buffer.name)
        wrong = end - local < elements
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a copy of {elements} elements from {memory.name(int(flat[at]))} on is out of bounds"
            raise context.fault(what, state, int(who[at]), memory.buffer.name)
        return flat, who

    return first


def copy_memories(target: Buffer, source: Buffer, context: LaunchContext) -> tuple[SharedMemory, GlobalMemory]:
    """Return the shared memory and the global memory of a copy."""
    shared, origin = context.shared[target.name], context.shared[source.name]
    assert isinstance(shared, SharedMemory) and isinstance(origin, GlobalMemory)
    return shared, origin


def begin_copy(state: LaunchState, context: LaunchContext, memory: SharedMemory, target: Array, who: Array) -> None:
    """Copies to ``target`` start: from now on nothing may access it until they have completed."""
    flat = target.ravel()
    check_write(memory, state, context, flat, np.repeat(who, target.shape[1]))
    memory.count_writes(flat, 1)


def copy_async(stmt: CopyAsync, context: LaunchContext) -> LaunchAction:
    elements, size = stmt.elements, stmt.elements * stmt.target.dtype.bytes
    memory, origin = copy_memories(stmt.target, stmt.source, context)
    target_of = target_elements(stmt.target_indices, memory, elements, size, context)
    source_of = source_elements(stmt, origin, elements if stmt.present is None else 1, size, context)
    given = stmt.mask if stmt.present is None else stmt.present
    present_closure = None if given is None else value_closure(given, context)
    steps = np.arange(elements, dtype=np.int64)

    def run(state: LaunchState) -> None:
        begin, who = target_of(state)
        source = np.full((state.threads, elements), -1, dtype=np.int64)
        outer = state.active
        found = np.asarray(True if present_closure is None else present_closure(state))
        present = np.broadcast_to(found if stmt.present is not None else found * elements, (state.threads,))
        if under(state, present > 0):
            first, readers = source_of(state)
            read, there = first[:, None] + steps, steps < present[readers, None]
            beyond = (there & (read >= origin.buffer.elements)).any(axis=1)
            if beyond.any():
                who_reads = int(readers[beyond.argmax()])
                what = f"a copy of elements beyond the end of {origin.buffer.name}"
                raise context.fault(what, state, who_reads, origin.buffer.name)
            check_read(origin, state, context, read[there], np.repeat(readers, elements)[there.ravel()])
            origin.count_reads(read[there], 1)
            source[readers] = np.where(there, read, -1)
        state.active = outer
        target = begin[:, None] + steps
        begin_copy(state, context, memory, target, who)
        state.copies.append(CopiesInFlight(memory, origin, who, target, source[who], state.committed_copies[who]))

    return run


def copy_async_commit(stmt: CopyAsyncCommit, context: LaunchContext) -> LaunchAction:
    def run(state: LaunchState) -> None:
        state.committed_copies += 1 if state.active is None else state.active

    return run


def copy_async_wait(stmt: CopyAsyncWait, context: LaunchContext) -> LaunchAction:
    pending = stmt.pending

    def run(state: LaunchState) -> None:
        left: list[CopiesInFlight] = []
        for copies in state.copies:
            ready = copies.group < state.committed_copies[copies.who] - pending
            if state.active is not None:
                ready &= state.active[copies.who]
            if ready.any():
                copies.subset(ready).complete(state)
            if not ready.all():
                left.append(copies.subset(~ready))
        state.copies[:] = left

    return run
