"""``mbarrier`` in the interpreter of launches: phases, arrivals, expected bytes, and what waiting orders.

Copies that belong to a phase complete when a thread first waits for the phase. What a phase waits for must have been
started earlier in program order, because threads run in lockstep. Waiting orders what the threads that arrived did
before: they release their vector clocks, and those that wait acquire them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...core.dtypes import INDEX
from ..buffer import Buffer
from ..expr import Expr, const
from ..gpu.mbarrier import MAX_TX_BYTES, TX_BYTES, MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ..interpreter.memory import Array
from .address import shared_flat
from .async_copy import CopiesInFlight
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .happens_before import PhaseCompletion
from .memory import SharedMemory
from .race_check import check_write, spread


class PhaseContent(Protocol):
    """What a phase of an mbarrier waits for: asynchronous copies, or products of one thread."""

    def complete(self, state: LaunchState, completion: int) -> None:
        """The phase has ended, by the completion of some number."""


@dataclass
class ReleasedClock:
    """What the threads that arrived in one phase release: their joined vector clock (``HappensBefore.vector_clock``),
    and the numbers of the completions that they had waited for."""

    clock: Array
    completions: set[int] = field(default_factory=set)


@dataclass
class Mbarriers:
    """The mbarriers of one buffer, by offset.

    ``count`` is how many arrivals a phase needs, ``phase`` the number of the phase under way. ``arrived``, ``expected``
    and ``bytes`` are its arrivals, the bytes that it expects and the bytes that copies in flight bring; ``copies`` are
    those copies, and products that are committed to the phase. ``releasing`` is what its arrivals released.
    ``completed`` and ``released`` are the number of the completion, and the released clock, of the phase that ended
    last.
    """

    memory: SharedMemory
    count: Array
    arrived: Array
    expected: Array
    bytes: Array
    phase: Array
    copies: dict[int, list[PhaseContent]] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    releasing: dict[int, ReleasedClock] = field(default_factory=dict)
    released: dict[int, ReleasedClock] = field(default_factory=dict)

    def initialise(self, flat: Array, count: int) -> None:
        self.count[flat], self.arrived[flat], self.phase[flat] = count, 0, 0
        self.expected[flat] = self.bytes[flat] = 0
        for offset in flat.tolist():
            self.copies.pop(offset, None)
            self.completed.pop(offset, None)
            self.releasing.pop(offset, None)
            self.released.pop(offset, None)

    def arrive(self, offset: int, thread: int, state: LaunchState, context: LaunchContext) -> None:
        """Count an arrival of the thread at the position ``thread``."""
        if self.arrived[offset] == self.count[offset]:
            name, count = self.memory.name(offset), int(self.count[offset])
            what = f"a phase of mbarrier {name} gets more than its {count} arrivals before any thread waits for it"
            raise context.fault(what, state, thread, self.memory.buffer.name)
        self.arrived[offset] += 1

    def arrive_expect(self, offsets: Array, who: Array, size: int, state: LaunchState, context: LaunchContext) -> None:
        """Copies of ``size`` bytes that the threads ``who`` start arrive at the mbarriers, which expect their bytes."""
        for offset, thread in zip(offsets.tolist(), who.tolist(), strict=True):
            self.arrive(offset, thread, state, context)
            self.expected[offset] += size

    def start(self, offsets: Array, copies: CopiesInFlight, state: LaunchState, context: LaunchContext) -> None:
        """Copies are in flight. Each counts its bytes at the mbarrier at its offset."""
        size = copies.target.shape[1] * copies.memory.buffer.dtype.bytes
        for i, offset in enumerate(offsets.tolist()):
            if self.arrived[offset] == self.count[offset] and self.bytes[offset] == self.expected[offset]:
                what = f"a phase of mbarrier {self.memory.name(offset)} gets bytes after its end"
                thread = int(copies.who[i])
                raise context.fault(f"{what}, before any thread waits for it", state, thread, self.memory.buffer.name)
            self.bytes[offset] += size
            self.copies.setdefault(offset, []).append(copies.subset(np.array([i])))

    def end_phase(self, offset: int, state: LaunchState, context: LaunchContext, first: int) -> None:
        """All that the phase under way waits for arrives. Raises KernelFault where that can never be; ``first`` is a
        thread that waits."""
        phase, name = int(self.phase[offset]), self.memory.name(offset)
        arrived, count = int(self.arrived[offset]), int(self.count[offset])
        if arrived != count:
            what = f"a wait that never ends: phase {phase} of {name} has {arrived} of {count} arrivals"
            raise context.fault(what, state, first, self.memory.buffer.name)
        there, wanted = int(self.bytes[offset]), int(self.expected[offset])
        if there != wanted:
            what = f"a wait that never ends: phase {phase} of {name} gets {there} of {wanted} bytes"
            raise context.fault(what, state, first, self.memory.buffer.name)
        waited = np.zeros(state.threads, dtype=np.bool_)
        state.order.completions.append(PhaseCompletion(waited, offset // self.memory.span))
        self.completed[offset] = len(state.order.completions) - 1
        self.released.pop(offset, None)
        if offset in self.releasing:
            self.released[offset] = self.releasing.pop(offset)
        for copies in self.copies.pop(offset, []):
            copies.complete(state, self.completed[offset])
        self.arrived[offset] = self.expected[offset] = self.bytes[offset] = 0
        self.phase[offset] += 1


def mbarriers_of(state: LaunchState, memory: SharedMemory) -> Mbarriers:
    """Return the mbarriers in a buffer of shared memory."""
    found = state.mbarriers.get(memory.buffer.name)
    if found is None:
        found = Mbarriers(memory, *np.zeros((5, len(memory.data)), dtype=np.int64))
        state.mbarriers[memory.buffer.name] = found
    assert isinstance(found, Mbarriers)
    return found


def mbarrier_offsets(
    barriers: Buffer, index: Expr, context: LaunchContext
) -> tuple[SharedMemory, Callable[[LaunchState], Any]]:
    """Return the shared memory of an mbarrier, and a closure that gives its offset."""
    memory = context.shared[barriers.name]
    assert isinstance(memory, SharedMemory)
    return memory, shared_flat((index,), memory, context, value_closure)


def check_initialised(
    memory: SharedMemory, state: LaunchState, context: LaunchContext, flat: Array, who: Array
) -> None:
    """Raise where an mbarrier was not initialised, or the threads of its block have not synchronised since. For the
    mbarrier of another block those of the cluster must have."""
    assert memory.written is not None and memory.history is not None
    here = flat // memory.span == state.block[who]
    synchronised = np.where(here, state.order.epochs[state.order.block_level][who], state.order.epochs[1][who])
    ready = memory.written[flat] & (memory.history.time[flat] < synchronised)
    if not ready.all():
        at = int(ready.argmin())
        never = not memory.written[flat[at]]
        when = "before it is initialised" if never else "before all who use it have synchronised"
        what = f"mbarrier {memory.name(int(flat[at]))} is used {when}"
        raise context.fault(what, state, int(who[at]), memory.buffer.name)


def mbarrier_init(stmt: MbarrierInit, context: LaunchContext) -> LaunchAction:
    memory, offset = mbarrier_offsets(stmt.barriers, stmt.index, context)

    def run(state: LaunchState) -> None:
        flat, who = spread(state, offset(state), 1)
        assert memory.written is not None
        if memory.written[flat].any():
            at = int(memory.written[flat].argmax())
            what = f"mbarrier {memory.name(int(flat[at]))} is initialised twice"
            raise context.fault(what, state, int(who[at]), memory.buffer.name)
        check_write(memory, state, context, flat, who)
        mbarriers_of(state, memory).initialise(flat, stmt.count)

    return run


def mbarrier_arrive(stmt: MbarrierArrive, context: LaunchContext) -> LaunchAction:
    return _arrive(stmt.barriers, stmt.index, stmt.rank, const(0, INDEX), context)


def mbarrier_arrive_expect_tx(stmt: MbarrierArriveExpectTx, context: LaunchContext) -> LaunchAction:
    bytes = stmt.bytes if isinstance(stmt.bytes, Expr) else const(stmt.bytes, INDEX)
    return _arrive(stmt.barriers, stmt.index, None, bytes, context)


def _arrive(barriers: Buffer, index: Expr, rank: Expr | None, bytes: Expr, context: LaunchContext) -> LaunchAction:
    memory, offset_of = mbarrier_offsets(barriers, index, context)
    rank_of = None if rank is None else value_closure(rank, context)
    bytes_of = value_closure(bytes, context)

    def run(state: LaunchState) -> None:
        offsets, who = spread(state, offset_of(state), 1)
        if rank_of is not None:
            block, _ = spread(state, rank_of(state), 1)
            wrong = (block < 0) | (block >= state.cluster)
            if wrong.any():
                at = int(wrong.argmax())
                what = f"block {int(block[at])} is none of a cluster of {state.cluster}"
                raise context.fault(what, state, int(who[at]))
            offsets = offsets + (block - state.block[who] % state.cluster) * memory.span
            state.cluster_uses[who] = state.order.now
        check_initialised(memory, state, context, offsets, who)
        mbarriers = mbarriers_of(state, memory)
        expected, _ = spread(state, bytes_of(state), 1)
        wrong = (expected < 0) | (expected > MAX_TX_BYTES) | (expected % TX_BYTES != 0)
        if wrong.any():
            at = int(wrong.argmax())
            raise context.fault(f"{int(expected[at])} bytes are expected", state, int(who[at]), memory.buffer.name)
        np.add.at(mbarriers.expected, offsets, expected)
        span = memory.span * state.cluster
        completed = completed_by_cluster(state)
        for offset, thread in zip(offsets.tolist(), who.tolist(), strict=True):
            mbarriers.arrive(offset, thread, state, context)
        for offset in np.unique(offsets).tolist():
            arriving = who[offsets == offset]
            clock = state.order.vector_clock(arriving)
            if rank_of is not None:
                clock[0] = -1  # an arrival at another block says nothing of writes
            released = mbarriers.releasing.setdefault(offset, ReleasedClock(clock))
            released.clock = np.maximum(released.clock, clock)
            known = completed.get(offset // span, ())
            released.completions.update(c for c in known if state.order.completions[c].waited[arriving].any())

    return run


def completed_by_cluster(state: LaunchState) -> dict[int, list[int]]:
    """Return the completions of the phases that ended last, by the number of the cluster within the chunk."""
    found: dict[int, list[int]] = {}
    for mbarriers in state.mbarriers.values():
        for offset, completion in mbarriers.completed.items():
            found.setdefault(offset // (mbarriers.memory.span * state.cluster), []).append(completion)
    return found


def mbarrier_wait(stmt: MbarrierWait, context: LaunchContext) -> LaunchAction:
    memory, offset_of = mbarrier_offsets(stmt.barriers, stmt.index, context)
    parity_closure = value_closure(stmt.parity, context)

    def run(state: LaunchState) -> None:
        offsets, who = spread(state, offset_of(state), 1)
        check_initialised(memory, state, context, offsets, who)
        parity, _ = spread(state, parity_closure(state), 1)
        wrong = (parity != 0) & (parity != 1)
        if wrong.any():
            at = int(wrong.argmax())
            raise context.fault(f"a wait for parity {int(parity[at])}", state, int(who[at]), memory.buffer.name)
        mbarriers, order = mbarriers_of(state, memory), state.order
        for offset in np.unique(offsets).tolist():
            here = offsets == offset
            waiting = here & ((mbarriers.phase[offset] & 1) == parity)
            if waiting.any():
                mbarriers.end_phase(offset, state, context, int(who[waiting][0]))
            completed, released = mbarriers.completed.get(offset), mbarriers.released.get(offset)
            if completed is not None:
                order.completions[completed].waited[who[here]] = True
            if released is not None:
                order.acquire(who[here], released.clock)
                for completion in released.completions:
                    order.completions[completion].waited[who[here]] = True

    return run
