"""Warpgroups that take turns, in the interpreter of launches. All threads run in lockstep, so that nobody waits; it is
checked that nobody would wait for ever."""

import numpy as np

from ..gpu.barrier import WARPGROUP_THREADS
from ..gpu.ordered_sequence import OrderedSequenceArrive, OrderedSequenceStart, OrderedSequenceWait
from .context import LaunchAction, LaunchContext, LaunchState

_NOT_STARTED = -1


def ordered_sequence(
    stmt: OrderedSequenceStart | OrderedSequenceWait | OrderedSequenceArrive, context: LaunchContext
) -> LaunchAction:
    """``LaunchState.turns`` counts the begins and the ends of the turns of each warpgroup."""

    def run(state: LaunchState) -> None:
        leaders = state.warpgroups("a turn of warpgroups", context)
        if state.turns is None:
            state.turns = np.full(state.threads, _NOT_STARTED, dtype=np.int64)
        outside = state.thread[leaders] >= stmt.warpgroups * WARPGROUP_THREADS
        turns = state.turns[leaders]
        match stmt:
            case OrderedSequenceStart():
                wrong, what = turns != _NOT_STARTED, "turns of warpgroups begin twice"
            case OrderedSequenceWait():
                wrong, what = turns % 2 != 0, "a turn begins before turns do, or within a turn"
            case _:
                wrong, what = turns % 2 != 1, "a turn ends that has not begun"
        if (wrong | outside).any():
            at = int((wrong | outside).argmax())
            raise context.fault(what if wrong[at] else "a warpgroup that takes no turns", state, int(leaders[at]))
        state.turns[leaders] += 1

    return run


def check_turns(state: LaunchState, context: LaunchContext) -> None:
    """Raise where the warpgroups of a block that take turns did not have equally many."""
    if state.turns is None:
        return
    groups = state.turns.reshape(state.blocks, -1)[:, ::WARPGROUP_THREADS]
    taken = np.where(groups == _NOT_STARTED, groups.max(axis=1, keepdims=True), groups)
    wrong = (taken != taken[:, :1]).any(axis=1)
    if wrong.any():
        at = int(wrong.argmax())
        each = ", ".join(map(str, groups[at].tolist()))
        what = f"a wait that never ends: warpgroups begin and end turns {each} times"
        raise context.fault(what, state, at * state.launch.threads)
