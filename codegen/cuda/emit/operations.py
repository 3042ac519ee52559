"""Writes operations of graphics processors: barriers, ``cp.async``, mbarriers. TMA and matrix instructions have files
of their own (``tma``, ``mma``)."""

from ....core.errors import CompileError
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import BinaryOp, Expr
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.atomic import AtomicReduce
from ....ir.gpu.barrier import Barrier, SyncScope
from ....ir.gpu.bulk_copy import BulkCopy, Prefetch
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.flagged import FlaggedLoad, FlaggedPeek, FlaggedStore
from ....ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from ....ir.gpu.ldmatrix import LoadMatrix, StoreMatrix
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ....ir.gpu.mma import Mma
from ....ir.gpu.ordered_sequence import OrderedSequenceArrive, OrderedSequenceStart, OrderedSequenceWait
from ....ir.gpu.setmaxnreg import SetMaxRegisters
from ....ir.gpu.tcgen05 import (
    BlockScaledMma,
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryCopy,
    TensorMemoryDeallocate,
    TensorMemoryLoad,
    TensorMemoryMma,
)
from ....ir.gpu.tma import TmaLoad, TmaPrefetch, TmaStore, TmaStoreCommit, TmaStoreWait
from ....ir.gpu.wgmma import WarpgroupMma, WarpgroupMmaWait
from ....ir.stmt import Operation
from . import mma, tcgen05, tma
from .access import WIDEST_BYTES, divisibility, strided_offset
from .expressions import ExpressionEmitter, interned, use_counts
from .function import EmittedFunction
from .memory import address, brings_lines, folded_address, is_linear, mbarrier_address, offset
from .text import CppText
from .types import storage_type

_ORDERED_SEQUENCE: dict[type[Operation], str] = {
    OrderedSequenceStart: "ordered_sequence_start",
    OrderedSequenceWait: "ordered_sequence_wait",
    OrderedSequenceArrive: "ordered_sequence_arrive",
}


def emit_operation(fn: EmittedFunction, text: CppText, stmt: Operation) -> None:
    """Write ``stmt``. Raises CompileError for what CUDA C++, or the architecture, cannot express."""
    is_last = stmt is fn.last
    stmt = stmt.with_expressions(interned(*stmt.expressions))
    emitter = ExpressionEmitter(fn, text, use_counts(*stmt.expressions))
    text.line(_operation(emitter, stmt, is_last))


def _operation(emitter: ExpressionEmitter, stmt: Operation, is_last: bool) -> str:
    """Return the C++ statement of ``stmt``."""
    match stmt:
        case Barrier(scope=scope):
            return _barrier(emitter.fn, scope, is_last)
        case GridBarrierArrive():
            return f"grid_barrier_phase = {emitter.fn.use('grid_barrier_arrive')}();"
        case GridBarrierWait():
            return f"{emitter.fn.use('grid_barrier_wait')}(grid_barrier_phase);"
        case FlaggedStore(value=value):
            store, words = emitter.fn.use("flagged_store"), _address_of(emitter, stmt.target, stmt.target_indices)
            return f"{store}<{storage_type(value.dtype)}>({words}, {emitter.value(value).text});"
        case FlaggedLoad():
            load, words = emitter.fn.use("flagged_load"), _address_of(emitter, stmt.source, stmt.source_indices)
            given = [mma.fragment_pointer(emitter, stmt.target, stmt.target_indices, 1), words]
            if stmt.peeked is not None:
                given.append(mma.fragment_pointer(emitter, stmt.peeked, stmt.peeked_indices, 1))
            return f"{load}({', '.join(given)});"
        case FlaggedPeek():
            peek, words = emitter.fn.use("flagged_peek"), _address_of(emitter, stmt.source, stmt.source_indices)
            target = mma.fragment_pointer(emitter, stmt.target, stmt.target_indices, 1)
            return f"{peek}<{stmt.words}>({target}, {words});"
        case ClusterLoadWait(value=value):
            return f"{emitter.fn.use_sm_90('cluster_load_wait')}({emitter.value(value).text});"
        case AsyncProxyFence():
            return f"{emitter.fn.use_sm_90('fence_proxy_async')}();"
        case SetMaxRegisters(count=count, increase=increase):
            return f"{emitter.fn.use_sm_90a('setmaxnreg_inc' if increase else 'setmaxnreg_dec')}<{count}>();"
        case OrderedSequenceStart() | OrderedSequenceWait() | OrderedSequenceArrive():
            return f"{emitter.fn.use_sm_90(_ORDERED_SEQUENCE[type(stmt)])}<{stmt.warpgroups}>();"
        case AtomicReduce(op=op, target=target, target_indices=indices, value=value):
            halves = op is BinaryOp.ADD and target.scope is MemoryScope.SHARED and target.dtype.bits == 64
            function = emitter.fn.use("atomic_add_halves" if halves else f"atomic_{op.value}")
            return f"{function}({_address_of(emitter, target, indices)}, {emitter.value(value).text});"
        case Prefetch() | CopyAsync() | CopyAsyncCommit() | CopyAsyncWait():
            return _copy(emitter, stmt)
        case MbarrierInit() | MbarrierArrive() | MbarrierArriveExpectTx() | MbarrierWait() | BulkCopy():
            return _mbarrier_operation(emitter, stmt)
        case TmaLoad() | TmaPrefetch() | TmaStore() | TmaStoreCommit() | TmaStoreWait():
            return tma.emit_tma(emitter, stmt)
        case TensorMemoryAllocate() | TensorMemoryDeallocate() | TensorMemoryMma() | TensorMemoryCommit():
            return tcgen05.emit_tcgen05(emitter, stmt)
        case TensorMemoryLoad():
            return tcgen05.emit_load(emitter, stmt)
        case TensorMemoryCopy():
            return tcgen05.emit_copy(emitter, stmt)
        case BlockScaledMma():
            return tcgen05.emit_block_scaled(emitter, stmt)
        case Mma() | LoadMatrix() | StoreMatrix() | WarpgroupMma() | WarpgroupMmaWait():
            return mma.emit_mma(emitter, stmt)
    raise CompileError(f"{type(stmt).__name__} cannot be expressed in CUDA C++")


def _barrier(fn: EmittedFunction, scope: SyncScope, is_last: bool) -> str:
    match scope:
        case SyncScope.WARP:
            return "__syncwarp();"
        case SyncScope.WARPGROUP:
            return f"{fn.use('warpgroup_sync')}();"
        case SyncScope.BLOCK:
            return "__syncthreads();"
    if is_last and fn.arrives_remotely:  # an arrival at a CTA that has ended is a fault
        return f"{fn.use_sm_90('cluster_sync')}();"
    if is_last and fn.awaits_cluster_loads:  # it only keeps the shared memory alive that other CTAs read
        return f"{fn.use_sm_90('cluster_sync_relaxed')}();"
    if fn.cluster_syncs_shared_only and fn.awaits_cluster_loads:
        return f"{fn.use_sm_90('cluster_sync_shared')}();"
    return f"{fn.use_sm_90('cluster_sync')}();"


def _copy(emitter: ExpressionEmitter, stmt: Prefetch | CopyAsync | CopyAsyncCommit | CopyAsyncWait) -> str:
    fn = emitter.fn
    match stmt:
        case Prefetch(source=buffer, source_indices=indices, elements=1):
            return f"{fn.use('prefetch_l2_line')}({_address_of(emitter, buffer, indices)});"
        case Prefetch(source=buffer, source_indices=indices, elements=elements):
            size, found = elements * buffer.dtype.bytes, strided_offset(indices, buffer.strides)
            aligned = found is not None and divisibility(found.base) * buffer.dtype.bytes % WIDEST_BYTES == 0
            function = "prefetch_l2" if aligned and size % WIDEST_BYTES == 0 else "prefetch_l2_unaligned"
            return f"{fn.use(function)}<{size}>({_address_of(emitter, buffer, indices)});"
        case CopyAsync():
            predicate = "" if stmt.mask is None else f", {emitter.value(stmt.mask).text}"
            target = _folded_address_of(emitter, stmt.target, stmt.target_indices)
            source = _folded_address_of(emitter, stmt.source, stmt.source_indices)
            size = stmt.elements * stmt.target.dtype.bytes
            if stmt.present is not None:
                present = f"({emitter.value(stmt.present).text}) * {stmt.target.dtype.bytes}"
                return f"{fn.use('cp_async_part')}<{size}>({target}, {source}, {present});"
            if size == WIDEST_BYTES and brings_lines(fn, stmt.source):
                return f"{fn.use('cp_async_line')}({target}, {source}{predicate});"
            return f"{fn.use('cp_async')}<{size}>({target}, {source}{predicate});"
        case CopyAsyncCommit():
            return f"{fn.use('cp_async_commit_group')}();"
        case CopyAsyncWait(pending=pending):
            return f"{fn.use('cp_async_wait_group')}<{pending}>();"


def _mbarrier_operation(
    emitter: ExpressionEmitter, stmt: MbarrierInit | MbarrierArrive | MbarrierArriveExpectTx | MbarrierWait | BulkCopy
) -> str:
    fn = emitter.fn
    if isinstance(stmt, BulkCopy):
        target = _address_of(emitter, stmt.target, stmt.target_indices)
        source = _address_of(emitter, stmt.source, stmt.source_indices)
        size, barrier = stmt.elements * stmt.target.dtype.bytes, mbarrier_address(emitter, stmt.barriers, stmt.index)
        return f"{fn.use_sm_90('cp_async_bulk')}({target}, {source}, {size}, {barrier});"
    barrier = mbarrier_address(emitter, stmt.barriers, stmt.index)
    match stmt:
        case MbarrierInit(count=count):
            return f"{fn.use_sm_90('mbarrier_init')}({barrier}, {count});"
        case MbarrierArrive(rank=rank):
            if rank is None:
                return f"{fn.use_sm_90('mbarrier_arrive')}({barrier});"
            return f"{fn.use_sm_90('mbarrier_arrive_cluster')}({barrier}, {emitter.value(rank).text});"
        case MbarrierArriveExpectTx(bytes=bytes):
            expected = emitter.value(bytes).text if isinstance(bytes, Expr) else str(bytes)
            return f"{fn.use_sm_90('mbarrier_arrive_expect_tx')}({barrier}, {expected});"
        case MbarrierWait(parity=parity):
            return f"{fn.use_sm_90('mbarrier_wait')}({barrier}, {emitter.value(parity).text});"


def _address_of(emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    return address(emitter, buffer, offset(emitter, buffer, indices))


def _folded_address_of(emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    found = strided_offset(indices, buffer.strides)
    if found is None or not is_linear(buffer):
        return _address_of(emitter, buffer, indices)
    return folded_address(emitter, buffer, found.base)
