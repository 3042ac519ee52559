"""``cp.async.bulk`` in the interpreter of launches: copies that complete on an mbarrier, and prefetches."""

import numpy as np

from ..gpu.bulk_copy import BulkCopy, Prefetch
from .async_copy import CopiesInFlight, begin_copy, copy_memories, source_elements, target_elements
from .context import LaunchAction, LaunchContext, LaunchState
from .mbarrier import check_initialised, mbarrier_offsets, mbarriers_of
from .memory import GlobalMemory
from .race_check import check_read, spread


def bulk_copy(stmt: BulkCopy, context: LaunchContext) -> LaunchAction:
    elements, size = stmt.elements, stmt.elements * stmt.target.dtype.bytes
    memory, origin = copy_memories(stmt.target, stmt.source, context)
    target_of = target_elements(stmt.target_indices, memory, elements, min(size, 16), context)
    source_of = source_elements(stmt, origin, elements, min(size, 16), context)
    barriers, barrier_offsets = mbarrier_offsets(stmt.barriers, stmt.index, context)
    steps = np.arange(elements, dtype=np.int64)

    def run(state: LaunchState) -> None:
        offsets, who = spread(state, barrier_offsets(state), 1)
        check_initialised(barriers, state, context, offsets, who)
        target, source = target_of(state)[0][:, None] + steps, source_of(state)[0][:, None] + steps
        check_read(origin, state, context, source.ravel(), np.repeat(who, elements))
        origin.count_reads(source.ravel(), 1)
        begin_copy(state, context, memory, target, who)
        mbarriers = mbarriers_of(state, barriers)
        mbarriers.arrive_expect(offsets, who, size, state, context)
        mbarriers.start(offsets, CopiesInFlight(memory, origin, who, target, source, who), state, context)

    return run


def prefetch(stmt: Prefetch, context: LaunchContext) -> LaunchAction:
    """Checks that the elements lie within the buffer. Nothing is read."""
    origin = context.shared[stmt.source.name]
    assert isinstance(origin, GlobalMemory)
    source_of = source_elements(stmt, origin, stmt.elements, 1, context)

    def run(state: LaunchState) -> None:
        source_of(state)

    return run
