"""Checks of every access to memory that threads share: that it was written, and that nothing races with it."""

from typing import Any

import numpy as np

from ..interpreter.memory import Array
from .address import CheckedMemory
from .context import LaunchContext, LaunchState, spread_to
from .happens_before import AccessHistory
from .memory import SharedMemory


def spread(state: LaunchState, flat: Any, lanes: int) -> tuple[Array, Array]:
    """Return (element numbers, positions of threads) of all who run an access, in one dimension."""
    shape = (state.threads,) if lanes == 1 else (lanes, state.threads)
    active = state.running(shape)
    flat, who = spread_to(flat, shape), spread_to(state.positions, shape)
    return (flat.ravel(), who.ravel()) if active is None else (flat[active], who[active])


def check_read(
    memory: CheckedMemory,
    state: LaunchState,
    context: LaunchContext,
    flat: Array,
    who: Array,
    *,
    record: bool = True,
    reduces: bool = False,
) -> None:
    """Raise where an element that is read was not written, is being copied to, or was written with nothing to order the
    write before the read. ``record`` says whether the read goes into the access history, and ``reduces`` that it is
    part of a reduction in place, which needs no order after others."""
    if memory.written is None:
        return
    name = memory.buffer.name
    written = memory.written[flat]
    forbidden = memory.forbidden(flat, writing=False)
    if forbidden is not None and np.count_nonzero(forbidden):  # a third of the time of ``any``, here as below
        at = int(forbidden.argmax())
        what = f"{memory.name(int(flat[at]))} is read while {memory.writers} is in flight"
        raise context.fault(what, state, int(who[at]), name)
    if np.count_nonzero(written) < len(written):
        at = int(written.argmin())
        raise context.fault(f"{memory.name(int(flat[at]))} is read before it is written", state, int(who[at]), name)
    history = memory.history
    assert history is not None
    race = history.racing_writer(state.order, flat, who)
    if race is not None:
        writer = context.thread_name(int(history.writer[flat[race]]), state)
        what = f"race on {memory.name(int(flat[race]))}: read here, written by {writer}, with nothing to order them"
        raise context.fault(what, state, int(who[race]), name)
    if not reduces:
        _check_reducer(memory, state, context, flat, who, "read")
    if record:
        history.record_read(state.order, flat, who)


def check_atomic(memory: CheckedMemory, state: LaunchState, context: LaunchContext, flat: Array, who: Array) -> None:
    """Raise where an element that is reduced in place was not written, or where nothing orders that after what other
    threads did to it, but for such reductions. These go into a history of their own."""
    check_read(memory, state, context, flat, who, record=False, reduces=True)
    history = memory.history
    assert history is not None
    found = history.racing_reader(state.order, flat, who)
    if found is not None:
        at, reader = found[0], context.thread_name(found[1], state)
        what = f"race on {memory.name(int(flat[at]))}: reduced here, read by {reader}, with nothing to order them"
        raise context.fault(what, state, int(who[at]), memory.buffer.name)
    if memory.atomics is None:
        memory.atomics = AccessHistory(len(memory.data), state.order, history.outer)
    memory.atomics.record_read(state.order, flat, who)


def _check_reducer(
    memory: CheckedMemory, state: LaunchState, context: LaunchContext, flat: Array, who: Array, done: str
) -> None:
    """Raise where nothing orders an access (``done``: read or written) after a reduction in place by another thread."""
    found = None if memory.atomics is None else memory.atomics.racing_reader(state.order, flat, who)
    if found is not None:
        at, other = found[0], context.thread_name(found[1], state)
        what = f"race on {memory.name(int(flat[at]))}: {done} here, reduced by {other}, with nothing to order them"
        raise context.fault(what, state, int(who[at]), memory.buffer.name)


def check_write(memory: CheckedMemory, state: LaunchState, context: LaunchContext, flat: Array, who: Array) -> None:
    """Raise where nothing orders a write after what other threads did to an element. The write goes into the access
    history."""
    history, name = memory.history, memory.buffer.name
    assert memory.written is not None and history is not None
    forbidden = memory.forbidden(flat, writing=True)
    if forbidden is not None and np.count_nonzero(forbidden):
        at = int(forbidden.argmax())
        copied = memory.is_copied(flat)[at]
        readers = "a wgmma, a tcgen05.mma or a TMA store"
        by = "an asynchronous copy of it is in flight" if copied else f"{readers} in flight reads it"
        raise context.fault(f"{memory.name(int(flat[at]))} is written while {by}", state, int(who[at]), name)
    race = history.racing_writer(state.order, flat, who)
    if race is not None:
        writer = context.thread_name(int(history.writer[flat[race]]), state)
        what = f"race on {memory.name(int(flat[race]))}: written here and by {writer}, with nothing to order them"
        raise context.fault(what, state, int(who[race]), name)
    found = history.racing_reader(state.order, flat, who)
    if found is not None:
        at, reader = found[0], context.thread_name(found[1], state)
        what = f"race on {memory.name(int(flat[at]))}: written here, read by {reader}, with nothing to order them"
        raise context.fault(what, state, int(who[at]), name)
    _check_reducer(memory, state, context, flat, who, "written")
    twice = history.record_write(state.order, flat, who)
    if twice is not None:
        other = context.thread_name(int(history.writer[flat[twice]]), state)
        what = f"race on {memory.name(int(flat[twice]))}: written here and at once by {other}"
        raise context.fault(what, state, int(who[twice]), name)
    memory.written[flat] = True


def check_fenced(memory: SharedMemory, state: LaunchState, context: LaunchContext, flat: Array, who: Array) -> None:
    """Raise where TMA or a wgmma, started by the threads at the positions ``who``, accesses what a thread wrote and did
    not fence, or what it fenced with nothing to order the fence before this."""
    history = memory.history
    assert history is not None
    at = np.flatnonzero(history.writer[flat] >= 0)
    if not len(at):
        return
    flat, who = flat[at], who[at]
    writer = history.writer[flat]
    fence = state.order.fenced(writer, history.time[flat])
    bad = fence < 0
    what = "with no async_proxy_fence after that"
    if not bad.any():
        bad, what = state.order.unordered(who, writer, fence), "and nothing orders its async_proxy_fence before this"
    if bad.any():
        first = int(bad.argmax())
        by = context.thread_name(int(writer[first]), state)
        said = f"{memory.name(int(flat[first]))} is accessed asynchronously, was written by {by}, {what}"
        raise context.fault(said, state, int(who[first]), memory.buffer.name)
