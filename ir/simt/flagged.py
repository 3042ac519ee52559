"""Values with flags in the interpreter of launches. Blocks run in lockstep, or one after the other, so that nobody
waits. It is checked that words were cleared ahead of a barrier of the grid or in an earlier launch, and that a value is
there for who loads it.

The access history has the clearing of a word, and not the store of its value: that is ordered by its flag.
"""

from collections.abc import Callable

import numpy as np

from ..buffer import Buffer
from ..expr import Expr
from ..gpu.flagged import FLAG, WORD_BITS, FlaggedLoad, FlaggedPeek, FlaggedStore, flagged_words
from ..interpreter.memory import Array
from .access import check_private, write_private
from .address import address_of
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .memory import GlobalMemory
from .mma import fragment_rows
from .race_check import check_read, spread


def flagged_store(stmt: FlaggedStore, context: LaunchContext) -> LaunchAction:
    dtype = stmt.value.dtype
    memory, words_of = _words(stmt.target, stmt.target_indices, flagged_words(dtype), context)
    value = value_closure(stmt.value, context)

    def run(state: LaunchState) -> None:
        words, who = words_of(state)
        twice = memory.data[words].any(axis=0)
        if twice.any():
            at = int(twice.argmax())
            what = f"{memory.name(int(words[0, at]))} is stored to where it has a value"
            raise context.fault(what, state, int(who[at]), memory.buffer.name)
        values = np.broadcast_to(np.asarray(value(state), dtype.numpy), (state.threads,))[who]
        bits = np.ascontiguousarray(values).view(np.uint32).reshape(len(who), -1).T
        memory.data[words] = bits.astype(np.int64) | FLAG

    return run


def flagged_load(stmt: FlaggedLoad, context: LaunchContext) -> LaunchAction:
    dtype = stmt.target.dtype
    memory, words_of = _words(stmt.source, stmt.source_indices, flagged_words(dtype), context)
    peeked, peeked_at = None, None
    if stmt.peeked is not None:
        peeked, peeked_at = fragment_rows(
            stmt.peeked, stmt.peeked_indices, flagged_words(dtype), stmt.peeked.elements, context
        )
    target, held_at = fragment_rows(stmt.target, stmt.target_indices, 1, stmt.target.elements, context)

    def run(state: LaunchState) -> None:
        words, who = words_of(state)
        if peeked is not None and peeked_at is not None:
            check_private(peeked, state, context, peeked_at(state), state.running((state.threads,)))
        found = memory.data[words]
        missing = (found >> WORD_BITS == 0).any(axis=0)
        if missing.any():
            at = int(missing.argmax())
            what = f"a wait that never ends: nobody has stored {memory.name(int(words[0, at]))}"
            raise context.fault(what, state, int(who[at]), memory.buffer.name)
        values = np.zeros(state.threads, dtype.numpy)
        values[who] = np.ascontiguousarray(found.T.astype(np.uint32)).view(dtype.numpy)[:, 0]
        write_private(target, state, held_at(state), values[None])

    return run


def flagged_peek(stmt: FlaggedPeek, context: LaunchContext) -> LaunchAction:
    memory, words_of = _words(stmt.source, stmt.source_indices, stmt.words, context)
    target, held_at = fragment_rows(stmt.target, stmt.target_indices, stmt.words, stmt.target.elements, context)

    def run(state: LaunchState) -> None:
        words, who = words_of(state)
        values = np.zeros((stmt.words, state.threads), np.int64)
        values[:, who] = memory.data[words]
        write_private(target, state, held_at(state), values)

    return run


def _words(
    buffer: Buffer, indices: tuple[Expr, ...], count: int, context: LaunchContext
) -> tuple[GlobalMemory, Callable[[LaunchState], tuple[Array, Array]]]:
    """Return the memory of ``count`` words, and a closure that gives them, int64[words, threads], and who accesses
    them. It raises where they were not cleared, or nothing orders that before this."""
    memory = context.shared[buffer.name]
    assert isinstance(memory, GlobalMemory)
    address, steps = address_of(indices, buffer, context, value_closure), np.arange(count)[:, None]

    def words(state: LaunchState) -> tuple[Array, Array]:
        flat, who = spread(state, address.flat(state), 1)
        found = flat + steps
        check_read(memory, state, context, found.ravel(), np.tile(who, len(steps)))
        return found, who

    return memory, words
