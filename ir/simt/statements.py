"""Statements in the interpreter of launches: loops, conditions, allocations, barriers; and the table of all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.errors import InvalidKernel
from ..bounds import loop_range
from ..buffer import MemoryScope
from ..expr import WARP_LANES
from ..gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ..gpu.atomic import AtomicReduce
from ..gpu.barrier import Barrier, SyncScope
from ..gpu.bulk_copy import BulkCopy, Prefetch
from ..gpu.cluster import ClusterLoadWait
from ..gpu.fence import AsyncProxyFence
from ..gpu.flagged import FlaggedLoad, FlaggedPeek, FlaggedStore
from ..gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from ..gpu.ldmatrix import LoadMatrix, StoreMatrix
from ..gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ..gpu.mma import Mma
from ..gpu.ordered_sequence import OrderedSequenceArrive, OrderedSequenceStart, OrderedSequenceWait
from ..gpu.setmaxnreg import SetMaxRegisters
from ..gpu.tcgen05 import (
    BlockScaledMma,
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryCopy,
    TensorMemoryDeallocate,
    TensorMemoryLoad,
    TensorMemoryMma,
)
from ..gpu.tma import TmaLoad, TmaPrefetch, TmaStore, TmaStoreCommit, TmaStoreWait
from ..gpu.wgmma import WarpgroupMma, WarpgroupMmaWait
from ..stmt import Allocate, For, If, Seq, Stmt, Store
from .access import store_closure, under
from .address import is_uniform
from .async_copy import copy_async, copy_async_commit, copy_async_wait
from .atomic import atomic_reduce
from .bulk_copy import bulk_copy, prefetch
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .flagged import flagged_load, flagged_peek, flagged_store
from .grid_barrier import grid_barrier_arrive, grid_barrier_wait
from .ldmatrix import load_matrix, store_matrix
from .mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_wait
from .memory import PrivateMemory, SharedMemory, TensorMemory
from .mma import mma
from .ordered_sequence import ordered_sequence
from .setmaxnreg import set_max_registers
from .tcgen05 import (
    block_scaled_mma,
    tensor_memory_allocate,
    tensor_memory_commit,
    tensor_memory_copy,
    tensor_memory_deallocate,
    tensor_memory_load,
    tensor_memory_mma,
)
from .tma_load import tma_load, tma_prefetch
from .tma_store import async_proxy_fence, tma_store, tma_store_commit, tma_store_wait
from .wgmma import warpgroup_mma, warpgroup_mma_wait


def statement_closure(stmt: Stmt, context: LaunchContext) -> LaunchAction:
    """Return ``stmt`` as a closure. Raises InvalidKernel for a statement that no launch holds."""
    handler = _STATEMENTS.get(type(stmt))
    if handler is None:
        raise InvalidKernel(f"{type(stmt).__name__} cannot be interpreted in a launch")
    return handler(stmt, context)


def _for(stmt: For, context: LaunchContext) -> LaunchAction:
    inner = context.with_variable(stmt.var, loop_range(stmt.extent))
    slot, extent = inner.slots[stmt.var], stmt.extent
    body = statement_closure(stmt.body, inner)

    def run(state: LaunchState) -> None:
        for i in range(extent):
            state.env[slot] = i
            body(state)

    return run


def _if(stmt: If, context: LaunchContext) -> LaunchAction:
    condition, then = value_closure(stmt.condition, context), statement_closure(stmt.then, context)

    def run(state: LaunchState) -> None:
        holds = condition(state)
        if is_uniform(holds):
            if holds:
                then(state)
            return
        if state.active is None and np.count_nonzero(holds) == holds.size:
            then(state)
            return
        outer = state.active
        if under(state, holds):
            then(state)
        state.active = outer

    return run


def _seq(stmt: Seq, context: LaunchContext) -> LaunchAction:
    steps = tuple(statement_closure(s, context) for s in stmt.statements)

    def run(state: LaunchState) -> None:
        for step in steps:
            step(state)

    return run


def _allocate(stmt: Allocate, context: LaunchContext) -> LaunchAction:
    buffer = stmt.buffer
    if buffer.scope is MemoryScope.SHARED:
        return _allocate_shared(stmt, context)
    if buffer.scope is MemoryScope.TENSOR:
        return _allocate_tensor(stmt, context)
    memory = context.private[buffer.name] = PrivateMemory(buffer)
    body = statement_closure(stmt.body, context)

    def run(state: LaunchState) -> None:
        if memory.data.shape[1] != state.threads:
            memory.enter(state.threads)
        memory.forget(state.active)
        body(state)
        if any(wgmma.accumulators is memory for wgmma in state.wgmmas):
            what = f"a wgmma that accumulates in {buffer.name} is still in flight where {buffer.name} ends"
            raise context.fault(what, state, 0, buffer.name)

    return run


def _allocate_shared(stmt: Allocate, context: LaunchContext) -> LaunchAction:
    name = stmt.buffer.name
    memory = context.shared[name] = SharedMemory(stmt.buffer)
    body = statement_closure(stmt.body, context)

    def run(state: LaunchState) -> None:
        memory.enter(state.order, state.blocks)
        who = state.converged(state.launch.threads, f"the allocation of {name}", context)
        memory.forget(None if who is None else who.reshape(state.blocks, -1)[:, 0])
        body(state)
        if memory.total_writes_in_flight:
            at = int((memory.writes_in_flight > 0).argmax())
            what = f"an asynchronous copy to {memory.name(at)} is still in flight where {name} ends"
            raise context.fault(what, state, at // memory.span * state.launch.threads, name)
        if memory.total_reads_in_flight:
            at = int((memory.reads_in_flight > 0).argmax())
            what = f"{memory.name(at)} is still being read asynchronously where {name} ends"
            raise context.fault(what, state, at // memory.span * state.launch.threads, name)

    return run


def _allocate_tensor(stmt: Allocate, context: LaunchContext) -> LaunchAction:
    name = stmt.buffer.name
    memory = context.shared[name] = TensorMemory(stmt.buffer)
    body = statement_closure(stmt.body, context)

    def run(state: LaunchState) -> None:
        memory.enter(state.order, state.blocks)
        body(state)
        if memory.allocated.any():
            first = int(memory.allocated.argmax()) * state.launch.threads
            raise context.fault(f"tensor memory {name} is not deallocated where it ends", state, first, name)

    return run


def _barrier(stmt: Barrier, context: LaunchContext) -> LaunchAction:
    what = f"a barrier of the {stmt.scope.value}"

    def run(state: LaunchState) -> None:
        order, threads = state.order, state.launch.threads
        match stmt.scope:
            case SyncScope.WARP:
                group, level = min(WARP_LANES, threads), order.warp_level
            case SyncScope.WARPGROUP:
                state.warpgroups(what, context)
                order.synchronise(order.block_level + 1, state.running((state.threads,)))
                return
            case SyncScope.BLOCK:
                group, level = threads, order.block_level
            case _:
                group, level = threads * state.cluster, 1
        order.synchronise(level, state.converged(group, what, context))

    return run


_STATEMENTS: dict[type[Stmt], Callable[[Any, LaunchContext], LaunchAction]] = {
    For: _for,
    Store: lambda stmt, context: store_closure(stmt, context, value_closure),
    If: _if,
    Seq: _seq,
    Allocate: _allocate,
    Barrier: _barrier,
    AtomicReduce: atomic_reduce,
    GridBarrierArrive: grid_barrier_arrive,
    GridBarrierWait: grid_barrier_wait,
    FlaggedStore: flagged_store,
    FlaggedLoad: flagged_load,
    FlaggedPeek: flagged_peek,
    ClusterLoadWait: lambda stmt, context: lambda state: None,  # loads are done at once here
    CopyAsync: copy_async,
    CopyAsyncCommit: copy_async_commit,
    CopyAsyncWait: copy_async_wait,
    BulkCopy: bulk_copy,
    Prefetch: prefetch,
    MbarrierInit: mbarrier_init,
    MbarrierArrive: mbarrier_arrive,
    MbarrierArriveExpectTx: mbarrier_arrive_expect_tx,
    MbarrierWait: mbarrier_wait,
    TmaLoad: tma_load,
    TmaPrefetch: tma_prefetch,
    TmaStore: tma_store,
    TmaStoreCommit: tma_store_commit,
    TmaStoreWait: tma_store_wait,
    AsyncProxyFence: async_proxy_fence,
    Mma: mma,
    LoadMatrix: load_matrix,
    StoreMatrix: store_matrix,
    WarpgroupMma: warpgroup_mma,
    WarpgroupMmaWait: warpgroup_mma_wait,
    TensorMemoryAllocate: tensor_memory_allocate,
    TensorMemoryDeallocate: tensor_memory_deallocate,
    TensorMemoryMma: tensor_memory_mma,
    BlockScaledMma: block_scaled_mma,
    TensorMemoryCopy: tensor_memory_copy,
    TensorMemoryCommit: tensor_memory_commit,
    TensorMemoryLoad: tensor_memory_load,
    SetMaxRegisters: set_max_registers,
    OrderedSequenceStart: ordered_sequence,
    OrderedSequenceWait: ordered_sequence,
    OrderedSequenceArrive: ordered_sequence,
}
"""The closure of each class of statement."""
