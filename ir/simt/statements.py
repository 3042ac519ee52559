"""Statements of the interpreter of launches: loops, conditions, allocations, barriers; the table of all."""

from collections.abc import Callable
from typing import Any

from ...core.errors import InvalidKernel
from ..bounds import loop_range
from ..buffer import Scope as Storage
from ..expr import WARP_LANES
from ..gpu import (
    AsyncProxyFence,
    Barrier,
    BulkCopy,
    ClusterLoadWait,
    CopyAsync,
    CopyAsyncCommit,
    CopyAsyncWait,
    Level,
    LoadMatrix,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    Mma,
    Prefetch,
    SetMaxRegisters,
    StoreMatrix,
    TmaLoad,
    TmaPrefetch,
    TmaStore,
    TmaStoreCommit,
    TmaStoreWait,
    WarpgroupMma,
    WarpgroupMmaWait,
)
from ..stmt import Allocate, For, If, Seq, Stmt, Store
from .access import store_code, under
from .address import is_uniform
from .async_copies import copy_async, copy_async_commit, copy_async_wait, prefetch
from .mbarrier import arrive, bulk_copy, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_wait, tma_load, tma_prefetch
from .memory import PrivateMemory, SharedMemory
from .scope import Machine, Scope
from .setmaxnreg import set_max_registers
from .tma_stores import async_proxy_fence, tma_store, tma_store_commit, tma_store_wait
from .values import value_code
from .warp_mma import load_matrix, mma, store_matrix
from .wgmma import warpgroup_mma, warpgroup_mma_wait

Action = Callable[[Machine], None]


def statement_code(stmt: Stmt, scope: Scope) -> Action:
    """``stmt`` as code; raises InvalidKernel for a statement that no launch holds."""
    handler = _STATEMENTS.get(type(stmt))
    if handler is None:
        raise InvalidKernel(f"{type(stmt).__name__} cannot be interpreted in a launch")
    return handler(stmt, scope)


def _for(stmt: For, scope: Scope) -> Action:
    inner = scope.with_variable(stmt.var, loop_range(stmt.extent))
    slot, extent = inner.slots[stmt.var], stmt.extent
    body = statement_code(stmt.body, inner)

    def run(m: Machine) -> None:
        for i in range(extent):
            m.env[slot] = i
            body(m)

    return run


def _if(stmt: If, scope: Scope) -> Action:
    condition, then = value_code(stmt.condition, scope), statement_code(stmt.then, scope)

    def run(m: Machine) -> None:
        holds = condition(m)
        if is_uniform(holds):
            if holds:
                then(m)
            return
        if m.active is None and holds.all():
            then(m)
            return
        outer = m.active
        if under(m, holds):
            then(m)
        m.active = outer

    return run


def _seq(stmt: Seq, scope: Scope) -> Action:
    steps = tuple(statement_code(s, scope) for s in stmt.statements)

    def run(m: Machine) -> None:
        for step in steps:
            step(m)

    return run


def _allocate(stmt: Allocate, scope: Scope) -> Action:
    buffer = stmt.buffer
    if buffer.scope is Storage.SHARED:
        return _allocate_shared(stmt, scope)
    memory = scope.private[buffer.name] = PrivateMemory(buffer)
    body = statement_code(stmt.body, scope)

    def run(m: Machine) -> None:
        if memory.data.shape[1] != m.threads:
            memory.begin(m.threads)
        memory.forget(m.active)
        body(m)
        if any(product.sums is memory for product in m.products):
            what = f"a product that adds to {buffer.name} is still under way where {buffer.name} ends"
            raise scope.fault(what, m, 0, buffer.name)

    return run


def _allocate_shared(stmt: Allocate, scope: Scope) -> Action:
    memory = SharedMemory(stmt.buffer)
    scope.shared[stmt.buffer.name] = memory
    body = statement_code(stmt.body, scope)

    def run(m: Machine) -> None:
        memory.begin(m.order, m.blocks)
        who = m.divided(m.launch.threads, f"the allocation of {stmt.buffer.name}", scope)
        memory.forget(None if who is None else who.reshape(m.blocks, -1)[:, 0])
        body(m)
        if memory.under_way:
            at = int((memory.landing > 0).argmax())
            what = f"an asynchronous copy to {memory.name(at)} is still under way where {stmt.buffer.name} ends"
            raise scope.fault(what, m, at // memory.span * m.launch.threads, stmt.buffer.name)
        if memory.being_read:
            at = int((memory.leaving > 0).argmax())
            what = f"{memory.name(at)} is still being read asynchronously where {stmt.buffer.name} ends"
            raise scope.fault(what, m, at // memory.span * m.launch.threads, stmt.buffer.name)

    return run


def _barrier(stmt: Barrier, scope: Scope) -> Action:
    what = f"a barrier of the {stmt.level.value}"

    def run(m: Machine) -> None:
        match stmt.level:
            case Level.WARP:
                group, level = min(WARP_LANES, m.launch.threads), m.order.warp_level
            case Level.WARPGROUP:
                m.warpgroups(what, scope)
                m.order.meet(m.order.block_level + 1, m.running((m.threads,)))
                return
            case Level.BLOCK:
                group, level = m.launch.threads, m.order.block_level
            case Level.CLUSTER:
                group, level = m.launch.threads * m.cluster, 1
        m.order.meet(level, m.divided(group, what, scope))

    return run


_STATEMENTS: dict[type[Stmt], Callable[[Any, Scope], Action]] = {
    For: _for,
    Store: lambda stmt, scope: store_code(stmt, scope, value_code),
    If: _if,
    Seq: _seq,
    Allocate: _allocate,
    Barrier: _barrier,
    CopyAsync: copy_async,
    Prefetch: prefetch,
    CopyAsyncCommit: copy_async_commit,
    CopyAsyncWait: copy_async_wait,
    MbarrierInit: mbarrier_init,
    BulkCopy: bulk_copy,
    MbarrierWait: mbarrier_wait,
    Mma: mma,
    WarpgroupMma: warpgroup_mma,
    LoadMatrix: load_matrix,
    TmaLoad: tma_load,
    TmaPrefetch: tma_prefetch,
    MbarrierArrive: arrive,
    MbarrierArriveExpectTx: mbarrier_arrive_expect_tx,
    WarpgroupMmaWait: warpgroup_mma_wait,
    ClusterLoadWait: lambda stmt, scope: lambda m: None,  # loads are done at once here
    StoreMatrix: store_matrix,
    TmaStore: tma_store,
    TmaStoreCommit: tma_store_commit,
    TmaStoreWait: tma_store_wait,
    AsyncProxyFence: async_proxy_fence,
    SetMaxRegisters: set_max_registers,
}
"""How each class of statement is run."""
