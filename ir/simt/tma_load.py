"""TMA loads in the interpreter of launches, to the block that starts them or by multicast, and TMA prefetches."""

from math import prod
from typing import Any

import numpy as np

from ..gpu.tma import TmaLoad, TmaPrefetch
from ..interpreter.memory import Array
from .async_copy import CopiesInFlight, begin_copy, copy_memories
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .mbarrier import check_initialised, mbarrier_offsets, mbarriers_of
from .race_check import check_fenced, check_read, spread
from .tma_box import box_elements, tile_offsets


def tma_load(stmt: TmaLoad, context: LaunchContext) -> LaunchAction:
    memory, origin = copy_memories(stmt.target, stmt.source, context)
    tile_of = tile_offsets(stmt.target, stmt.target_indices, prod(stmt.box), context)
    box_of = box_elements(stmt, context)
    barriers, barrier_offsets = mbarrier_offsets(stmt.barriers, stmt.index, context)
    blocks_of = None if stmt.multicast is None else value_closure(stmt.multicast, context)
    size = prod(stmt.box) * stmt.target.dtype.bytes

    def run(state: LaunchState) -> None:
        offsets, who = spread(state, barrier_offsets(state), 1)
        target, source = tile_of(state, who), box_of(state, who)
        inside = source >= 0
        check_read(origin, state, context, source[inside], np.broadcast_to(who[:, None], source.shape)[inside])
        own = (np.arange(len(who)), np.zeros(len(who), dtype=np.int64))
        for chosen, away in [own] if blocks_of is None else _receivers(blocks_of(state), who, state, context):
            at, by = offsets[chosen] + away * barriers.span, who[chosen]
            tile = target[chosen] + (away * memory.span)[:, None]
            check_initialised(barriers, state, context, at, by)
            origin.count_reads(source[chosen][inside[chosen]], 1)
            check_fenced(memory, state, context, tile.ravel(), np.repeat(by, tile.shape[1]))
            begin_copy(state, context, memory, tile, by)
            mbarriers = mbarriers_of(state, barriers)
            if not stmt.tx_expected:
                mbarriers.arrive_expect(at, by, size, state, context)
            mbarriers.start(at, CopiesInFlight(memory, origin, by, tile, source[chosen], by), state, context)

    return run


def _receivers(mask: Any, who: Array, state: LaunchState, context: LaunchContext) -> list[tuple[Array, Array]]:
    """Return the blocks that receive a multicast, by rank: which of the threads ``who`` send to that block, and how
    many blocks away from each of them it is."""
    blocks, own = np.broadcast_to(mask, (state.threads,))[who], state.block[who] % state.cluster
    wrong = (blocks <= 0) | (blocks >= 1 << state.cluster)
    if wrong.any():
        at = int(wrong.argmax())
        what = f"a multicast to blocks {int(blocks[at]):#b} of a cluster of {state.cluster}"
        raise context.fault(what, state, int(who[at]))
    state.cluster_uses[who] = state.order.now
    sent = [np.flatnonzero(blocks >> rank & 1) for rank in range(state.cluster)]
    return [(chosen, rank - own[chosen]) for rank, chosen in enumerate(sent) if len(chosen)]


def tma_prefetch(stmt: TmaPrefetch, context: LaunchContext) -> LaunchAction:
    """Checks where the box begins. Nothing is read."""
    box_of = box_elements(stmt, context)

    def run(state: LaunchState) -> None:
        box_of(state, spread(state, np.int64(0), 1)[1])

    return run
