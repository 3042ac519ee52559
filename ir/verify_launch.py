"""The verifier's rules for launches, layouts and the operations of graphics processors."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.dtypes import INDEX, boolean
from .buffer import Buffer, Scope
from .expr import WARP_LANES
from .gpu import (
    AsyncProxyFence,
    Barrier,
    BulkCopy,
    ClusterLoadWait,
    CopyAsync,
    CopyAsyncCommit,
    CopyAsyncWait,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    Prefetch,
    TmaLoad,
    TmaStoreCommit,
)
from .stmt import HardwareAxis, Kernel, Launch, Operation, walk_statements
from .typing_rules import Broken, Names, type_of
from .verify_operands import aligned, barrier_place, place, run
from .verify_tma_mma import TENSOR_RULES

LARGEST_BLOCK = 1024
CLUSTERS = (2, 4, 8, 16)
LARGEST_GRID = (2**31 - 1, 65535, 65535)
COPY_BYTES = (4, 8, 16)
BULK_BYTES = 16


def check_launch(launch: Launch, kernel: Kernel) -> None:
    """Raise Broken where the axes of a launch are none that a device has."""
    extents = {b.axis: b.extent for b in launch.bounds}
    if len(extents) != len(launch.bounds):
        raise Broken("launch", f"launch {launch.name} binds an axis twice")
    for bound in launch.bounds:
        if bound.extent < 1:
            raise Broken("extent", f"{bound.axis} {bound.var} has extent {bound.extent}")
    warps = {HardwareAxis.WARP, HardwareAxis.LANE} & extents.keys()
    if warps and (HardwareAxis.THREAD in extents or len(warps) == 1):
        raise Broken("launch", f"launch {launch.name} binds {', '.join(extents)}: thread alone, or warp and lane")
    if warps and extents[HardwareAxis.LANE] != WARP_LANES:
        raise Broken("launch", f"launch {launch.name} has {extents[HardwareAxis.LANE]} lanes, not {WARP_LANES}")
    if launch.threads > LARGEST_BLOCK:
        raise Broken("launch", f"launch {launch.name} has {launch.threads} threads a block, {LARGEST_BLOCK} at most")
    cluster = extents.get(HardwareAxis.CLUSTER)
    if cluster is not None and cluster not in CLUSTERS:
        raise Broken(
            "launch", f"launch {launch.name} has clusters of {cluster}, not of {', '.join(map(str, CLUSTERS))}"
        )
    for extent, most, axis in zip(launch.blocks, LARGEST_GRID, "xyz", strict=True):
        if extent > most:
            raise Broken("launch", f"launch {launch.name} has {extent} blocks along {axis}, {most} at most")
    if launch.min_blocks < 0:
        raise Broken("launch", f"launch {launch.name} wishes for {launch.min_blocks} blocks")
    unknown = set(launch.streamed) - {b.name for b in kernel.parameters}
    if unknown:
        raise Broken("launch", f"launch {launch.name} streams {', '.join(sorted(unknown))}, no parameter of the kernel")


def check_layout(buffer: Buffer) -> None:
    """Raise Broken unless a buffer's layout gives every element a place of its own."""
    layout = buffer.layout
    if layout is None:
        return
    if buffer.scope is not Scope.SHARED:
        raise Broken("layout", f"{buffer.name} has a layout and scope {buffer.scope}")
    if len(layout.strides) != len(buffer.shape) or any(stride < 1 for stride in layout.strides):
        raise Broken("layout", f"{buffer.name} of {len(buffer.shape)} dimensions has strides {layout.strides}")
    if layout.swizzle is not None and min(layout.swizzle.bits, layout.swizzle.base, layout.swizzle.shift) < 0:
        raise Broken("layout", f"the swizzle of {buffer.name} is {layout.swizzle}")
    if len(np.unique(places(buffer))) != buffer.elements:
        raise Broken("layout", f"two elements of {buffer.name} lie at one place")


def places(buffer: Buffer) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """int64[shape]: where every element of a buffer lies, in elements from its start."""
    total = np.zeros(buffer.shape, dtype=np.int64)
    for dimension, stride in enumerate(buffer.strides):
        along = np.arange(buffer.shape[dimension], dtype=np.int64) * stride
        total += along.reshape([-1 if d == dimension else 1 for d in range(len(buffer.shape))])
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return total
    mask = (1 << swizzle.bits) - 1
    swizzled: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = total ^ (
        ((total >> (swizzle.base + swizzle.shift)) & mask) << swizzle.base
    )
    return swizzled


def arrival_barriers(kernel: Kernel) -> frozenset[str]:
    """The buffers that hold arrival barriers."""
    found: set[str] = set()
    for stmt in walk_statements(kernel.body):
        if isinstance(stmt, MbarrierInit | BulkCopy | TmaLoad | MbarrierArrive | MbarrierArriveExpectTx | MbarrierWait):
            found.add(stmt.barriers.name)
    return frozenset(found)


def check_operation(stmt: Operation, names: Names) -> None:
    """Raise Broken where an operation's operands are not what it takes."""
    check = _OPERATIONS.get(type(stmt))
    if check is None:
        raise Broken("types", f"{type(stmt).__name__} is no operation of kernels")
    check(stmt, names)


def _copy_async(stmt: CopyAsync, names: Names) -> None:
    place(stmt.target, stmt.target_indices, names, Scope.SHARED)
    place(stmt.source, stmt.source_indices, names, Scope.GLOBAL)
    size = stmt.elements * stmt.target.dtype.bytes
    if stmt.source.dtype != stmt.target.dtype:
        raise Broken("operation", f"{stmt.source.dtype} is copied to {stmt.target.name} of {stmt.target.dtype}")
    if size not in COPY_BYTES:
        raise Broken("operation", f"an asynchronous copy of {size} bytes, not 4, 8 or 16")
    if stmt.mask is not None and type_of(stmt.mask, names) != (boolean, 1):
        raise Broken("mask", f"the mask of a copy to {stmt.target.name} is no scalar bool")
    for buffer, indices in ((stmt.target, stmt.target_indices), (stmt.source, stmt.source_indices)):
        run(buffer, stmt.elements)
        aligned(buffer, indices, size)


def _bulk_copy(stmt: BulkCopy, names: Names) -> None:
    place(stmt.target, stmt.target_indices, names, Scope.SHARED)
    place(stmt.source, stmt.source_indices, names, Scope.GLOBAL)
    barrier_place(stmt.barriers, stmt.index, names)
    size = stmt.elements * stmt.target.dtype.bytes
    if stmt.source.dtype != stmt.target.dtype:
        raise Broken("operation", f"{stmt.source.dtype} is copied to {stmt.target.name} of {stmt.target.dtype}")
    if size < BULK_BYTES or size % BULK_BYTES:
        raise Broken("operation", f"a bulk copy of {size} bytes, no multiple of {BULK_BYTES}")
    if stmt.target.layout is not None and stmt.target.layout.swizzle is not None:
        raise Broken("operation", f"a bulk copy to {stmt.target.name}, which is swizzled")
    for buffer, indices in ((stmt.target, stmt.target_indices), (stmt.source, stmt.source_indices)):
        run(buffer, stmt.elements)
        aligned(buffer, indices, BULK_BYTES)


def _prefetch(stmt: Prefetch, names: Names) -> None:
    place(stmt.source, stmt.source_indices, names, Scope.GLOBAL)
    run(stmt.source, stmt.elements)


def _init_arrivals(stmt: MbarrierInit, names: Names) -> None:
    barrier_place(stmt.barriers, stmt.index, names)
    if not 1 <= stmt.count < 1 << 20:
        raise Broken("operation", f"an arrival barrier for {stmt.count} arrivals")


def _await_arrivals(stmt: MbarrierWait, names: Names) -> None:
    barrier_place(stmt.barriers, stmt.index, names)
    if type_of(stmt.parity, names) != (INDEX, 1):
        raise Broken("operation", "the parity of a wait is no scalar of the index type")


def _await_copies(stmt: CopyAsyncWait, names: Names) -> None:
    if stmt.pending < 0:
        raise Broken("operation", f"a wait for all but {stmt.pending} groups")


def _await_peers(stmt: ClusterLoadWait, names: Names) -> None:
    if type_of(stmt.value, names)[1] != 1:
        raise Broken("operation", "a wait for the loads behind a vector; a scalar of it is enough")


def _nothing(stmt: Operation, names: Names) -> None:
    """The operation has no operands."""


_OPERATIONS: dict[type[Operation], Callable[[Any, Names], None]] = {
    Barrier: _nothing,
    AsyncProxyFence: _nothing,
    CopyAsync: _copy_async,
    Prefetch: _prefetch,
    CopyAsyncCommit: _nothing,
    CopyAsyncWait: _await_copies,
    TmaStoreCommit: _nothing,
    MbarrierInit: _init_arrivals,
    BulkCopy: _bulk_copy,
    MbarrierWait: _await_arrivals,
    ClusterLoadWait: _await_peers,
    **TENSOR_RULES,
}
"""What each operation takes."""
