"""The verifier's rules for launches, layouts and the operations of graphics processors."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..core.dtypes import INDEX, boolean, float32
from .affine import affine_of
from .buffer import Buffer, Scope
from .expr import WARP_LANES, Expr
from .gpu import (
    ATOMS,
    BOX_ROW_BYTES,
    GROUP_LANES,
    GROUP_ROWS,
    GROUP_RUN,
    GROUP_SWIZZLE,
    Arrive,
    AwaitArrivals,
    AwaitCopies,
    Barrier,
    BulkCopy,
    CommitCopies,
    CopyAsync,
    GroupMma,
    InitArrivals,
    LoadMatrix,
    Mma,
    TensorCopy,
    box_swizzle,
)
from .stmt import HardwareAxis, Kernel, Launch, Operation, walk_statements
from .typing_rules import Broken, Names, accessed, type_of

LARGEST_BLOCK = 1024
CLUSTERS = (2, 4, 8, 16)
LARGEST_GRID = (2**31 - 1, 65535, 65535)
COPY_BYTES = (4, 8, 16)
BULK_BYTES = 16
LARGEST_BOX = 256
MOST_BOX_DIMENSIONS = 5


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
        if isinstance(stmt, InitArrivals | BulkCopy | TensorCopy | Arrive | AwaitArrivals):
            found.add(stmt.barriers.name)
    return frozenset(found)


def check_operation(stmt: Operation, names: Names) -> None:
    """Raise Broken where an operation's operands are not what it takes."""
    check = _OPERATIONS.get(type(stmt))
    if check is None:
        raise Broken("types", f"{type(stmt).__name__} is no operation of kernels")
    check(stmt, names)


def _place(buffer: Buffer, indices: tuple[Expr, ...], names: Names, *scopes: Scope) -> None:
    lanes = accessed(buffer, indices, None, names)
    if lanes != 1:
        raise Broken("lanes", f"an operation on {buffer.name} at {lanes} places")
    if buffer.scope not in scopes:
        raise Broken("operation", f"{buffer.name} has scope {buffer.scope}, not {' or '.join(scopes)}")


def _run(buffer: Buffer, elements: int) -> None:
    """``elements`` neighbours along the last dimension."""
    if elements < 1 or not buffer.shape or (elements > 1 and buffer.strides[-1] != 1):
        raise Broken("operation", f"{buffer.name} has no {elements} neighbours along its last dimension")


def _aligned(buffer: Buffer, indices: tuple[Expr, ...], size: int) -> None:
    """Raise where a place surely is no multiple of ``size`` bytes."""
    total = 0
    for i, stride in zip(indices, buffer.strides, strict=True):
        form = affine_of(i)
        if form is None or any(c * stride * buffer.dtype.bytes % size for _, c in form.terms):
            return
        total += form.constant * stride
    if buffer.layout is not None and buffer.layout.swizzle is not None:
        if (1 << buffer.layout.swizzle.base) * buffer.dtype.bytes < size:
            raise Broken("operation", f"the swizzle of {buffer.name} tears runs of {size} bytes")
    if total * buffer.dtype.bytes % size:
        raise Broken("operation", f"{buffer.name} is accessed at bytes that are no multiple of {size}")


def _copy_async(stmt: CopyAsync, names: Names) -> None:
    _place(stmt.target, stmt.target_indices, names, Scope.SHARED)
    _place(stmt.source, stmt.source_indices, names, Scope.GLOBAL)
    size = stmt.elements * stmt.target.dtype.bytes
    if stmt.source.dtype != stmt.target.dtype:
        raise Broken("operation", f"{stmt.source.dtype} is copied to {stmt.target.name} of {stmt.target.dtype}")
    if size not in COPY_BYTES:
        raise Broken("operation", f"an asynchronous copy of {size} bytes, not 4, 8 or 16")
    if stmt.mask is not None and type_of(stmt.mask, names) != (boolean, 1):
        raise Broken("mask", f"the mask of a copy to {stmt.target.name} is no scalar bool")
    for buffer, indices in ((stmt.target, stmt.target_indices), (stmt.source, stmt.source_indices)):
        _run(buffer, stmt.elements)
        _aligned(buffer, indices, size)


def _bulk_copy(stmt: BulkCopy, names: Names) -> None:
    _place(stmt.target, stmt.target_indices, names, Scope.SHARED)
    _place(stmt.source, stmt.source_indices, names, Scope.GLOBAL)
    _barrier_place(stmt.barriers, stmt.index, names)
    size = stmt.elements * stmt.target.dtype.bytes
    if stmt.source.dtype != stmt.target.dtype:
        raise Broken("operation", f"{stmt.source.dtype} is copied to {stmt.target.name} of {stmt.target.dtype}")
    if size < BULK_BYTES or size % BULK_BYTES:
        raise Broken("operation", f"a bulk copy of {size} bytes, no multiple of {BULK_BYTES}")
    if stmt.target.layout is not None and stmt.target.layout.swizzle is not None:
        raise Broken("operation", f"a bulk copy to {stmt.target.name}, which is swizzled")
    for buffer, indices in ((stmt.target, stmt.target_indices), (stmt.source, stmt.source_indices)):
        _run(buffer, stmt.elements)
        _aligned(buffer, indices, BULK_BYTES)


def _tensor_copy(stmt: TensorCopy, names: Names) -> None:
    target, source, box = stmt.target, stmt.source, stmt.box
    _place(target, stmt.target_indices, names, Scope.SHARED)
    _place(source, stmt.source_indices, names, Scope.GLOBAL)
    _barrier_place(stmt.barriers, stmt.index, names)
    if source.dtype != target.dtype:
        raise Broken("operation", f"{source.dtype} is copied to {target.name} of {target.dtype}")
    if not 1 <= len(source.shape) <= MOST_BOX_DIMENSIONS or len(box) != len(source.shape):
        raise Broken(
            "operation", f"a box of {len(box)} dimensions of {source.name} {list(source.shape)}, 1 to 5 allowed"
        )
    if any(not 1 <= extent <= LARGEST_BOX for extent in box) or prod(box) > target.elements:
        raise Broken(
            "operation", f"a box of {list(box)} for {target.name} {list(target.shape)}, 256 a dimension at most"
        )
    row = box[-1] * source.dtype.bytes
    if row % BULK_BYTES or any(stride * source.dtype.bytes % BULK_BYTES for stride in source.strides[:-1]):
        raise Broken("operation", f"rows of {source.name} or of its box {list(box)} are no multiples of 16 bytes")
    swizzle = None if target.layout is None else target.layout.swizzle
    if swizzle is None:
        _aligned(target, stmt.target_indices, BOX_ROW_BYTES)
    elif swizzle != box_swizzle(target.dtype) or row != BOX_ROW_BYTES:
        raise Broken("operation", f"{target.name} with {swizzle} takes rows of {row} bytes; {BOX_ROW_BYTES} only")


def _arrive(stmt: Arrive, names: Names) -> None:
    _barrier_place(stmt.barriers, stmt.index, names)


def _barrier_place(barriers: Buffer, index: Expr, names: Names) -> None:
    _place(barriers, (index,), names, Scope.SHARED)
    if barriers.dtype != INDEX or barriers.layout is not None:
        raise Broken("operation", f"arrival barriers {barriers.name} of {barriers.dtype}; plain {INDEX} is needed")


def _init_arrivals(stmt: InitArrivals, names: Names) -> None:
    _barrier_place(stmt.barriers, stmt.index, names)
    if not 1 <= stmt.count < 1 << 20:
        raise Broken("operation", f"an arrival barrier for {stmt.count} arrivals")


def _await_arrivals(stmt: AwaitArrivals, names: Names) -> None:
    _barrier_place(stmt.barriers, stmt.index, names)
    if type_of(stmt.parity, names) != (INDEX, 1):
        raise Broken("operation", "the parity of a wait is no scalar of the index type")


def _await_copies(stmt: AwaitCopies, names: Names) -> None:
    if stmt.pending < 0:
        raise Broken("operation", f"a wait for all but {stmt.pending} groups")


def _mma(stmt: Mma, names: Names) -> None:
    atom = ATOMS.get(stmt.atom)
    if atom is None:
        raise Broken("operation", f"no matrix instruction {stmt.atom}; known: {', '.join(ATOMS)}")
    parts = (
        ("d", stmt.d, stmt.d_indices, atom.accumulator),
        ("a", stmt.a, stmt.a_indices, atom.operand),
        ("b", stmt.b, stmt.b_indices, atom.operand),
    )
    for part, buffer, indices, dtype in parts:
        _place(buffer, indices, names, Scope.REGISTER)
        if buffer.dtype != dtype:
            raise Broken("operation", f"{part} of {stmt.atom} is {buffer.dtype}, not {dtype}")
        _fits(buffer, indices, atom.elements(part))


def _fits(buffer: Buffer, indices: tuple[Expr, ...], elements: int) -> None:
    """A fragment lies within the last dimension, where that can be told."""
    _run(buffer, elements)
    form = affine_of(indices[-1])
    first = form.constant if form is not None and form.is_constant else 0
    if first + elements > buffer.shape[-1]:
        raise Broken("operation", f"{elements} elements of {buffer.name} do not fit {list(buffer.shape)}")


def _load_matrix(stmt: LoadMatrix, names: Names) -> None:
    _place(stmt.target, stmt.target_indices, names, Scope.REGISTER)
    _place(stmt.source, stmt.source_indices, names, Scope.SHARED)
    if stmt.count not in (1, 2, 4):
        raise Broken("operation", f"{stmt.count} matrices are loaded at once, not 1, 2 or 4")
    if stmt.source.dtype != stmt.target.dtype or stmt.source.dtype.bytes != 2:
        raise Broken("operation", f"matrices of {stmt.source.dtype} are loaded to {stmt.target.dtype}; 16 bits only")
    if 2 * stmt.count > stmt.target.elements:
        raise Broken("operation", f"{2 * stmt.count} elements do not fit {stmt.target.name} {list(stmt.target.shape)}")
    _run(stmt.source, 8)
    _aligned(stmt.source, stmt.source_indices, 16)


def _group_mma(stmt: GroupMma, names: Names) -> None:
    if stmt.columns % 8 or not 8 <= stmt.columns <= 256:
        raise Broken("operation", f"a warpgroup's product of {stmt.columns} columns; 8 to 256 in steps of 8")
    if stmt.depth % 16 or not 16 <= stmt.depth <= GROUP_RUN:
        raise Broken("operation", f"a warpgroup's product of depth {stmt.depth}; 16 to {GROUP_RUN} in steps of 16")
    if names.launch is not None and names.launch.threads < GROUP_LANES:
        raise Broken("operation", f"a warpgroup's product in a block of {names.launch.threads} threads")
    _place(stmt.d, stmt.d_indices, names, Scope.REGISTER)
    if stmt.d.dtype != float32:
        raise Broken("operation", f"d of a warpgroup's product is {stmt.d.dtype}, not float32")
    _fits(stmt.d, stmt.d_indices, stmt.columns // 2)
    for part, buffer, indices, rows in (
        ("a", stmt.a, stmt.a_indices, GROUP_ROWS),
        ("b", stmt.b, stmt.b_indices, stmt.columns),
    ):
        _place(buffer, indices, names, Scope.SHARED)
        if buffer.dtype not in {a.operand for a in ATOMS.values()} or buffer.dtype != stmt.a.dtype:
            raise Broken("operation", f"{part} of a warpgroup's product is {buffer.dtype}")
        if buffer.layout is None or buffer.layout.swizzle != GROUP_SWIZZLE or buffer.strides[-2:] != (GROUP_RUN, 1):
            raise Broken(
                "operation", f"{part} of a warpgroup's product does not lie as {GROUP_SWIZZLE} in 128 bytes a row"
            )
        if buffer.shape[-2] < rows or buffer.shape[-1] > GROUP_RUN or buffer.shape[-1] < stmt.depth:
            raise Broken("operation", f"{rows} rows of {stmt.depth} do not fit {buffer.name} {list(buffer.shape)}")


_OPERATIONS: dict[type[Operation], Callable[[Any, Names], None]] = {
    Barrier: lambda stmt, names: None,
    CopyAsync: _copy_async,
    CommitCopies: lambda stmt, names: None,
    AwaitCopies: _await_copies,
    InitArrivals: _init_arrivals,
    BulkCopy: _bulk_copy,
    AwaitArrivals: _await_arrivals,
    Mma: _mma,
    GroupMma: _group_mma,
    LoadMatrix: _load_matrix,
    TensorCopy: _tensor_copy,
    Arrive: _arrive,
}
"""What each operation takes."""
