"""The elements of boxes of tensors, and of their tiles in shared memory, in the interpreter of launches."""

from collections.abc import Callable

import numpy as np

from ..buffer import Buffer
from ..expr import Expr
from ..gpu.tma import SWIZZLE_ROW_BYTES, TmaLoad, TmaPrefetch, TmaStore
from ..interpreter.memory import Array
from .address import address_of
from .context import LaunchContext, LaunchState
from .expressions import value_closure
from .memory import SharedMemory


def box_elements(
    stmt: TmaLoad | TmaPrefetch | TmaStore, context: LaunchContext
) -> Callable[[LaunchState, Array], Array]:
    """Return a closure that gives the elements of the tensor in the box of each thread that starts a copy, row-major:
    int64[threads, elements]; -1 for what lies outside of the tensor."""
    tensor, indices = stmt.source, stmt.source_indices
    if isinstance(stmt, TmaStore):
        tensor, indices = stmt.target, stmt.target_indices
    corners = [value_closure(i, context) for i in indices]
    chunk = 16 // tensor.dtype.bytes
    steps = np.indices(stmt.box).reshape(len(stmt.box), -1)  # [dimensions, elements]

    def elements(state: LaunchState, who: Array) -> Array:
        first = np.broadcast_to(corners[-1](state), (state.threads,))[who]
        if (first % chunk).any():
            wrong = int((first % chunk != 0).argmax())
            what = f"a box of {tensor.name} begins at {int(first[wrong])} in a row, no multiple of 16 bytes"
            raise context.fault(what, state, int(who[wrong]), tensor.name)
        shape = (len(who), steps.shape[1])
        flat, inside = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.bool_)
        for corner, step, extent, stride in zip(corners, steps, tensor.shape, tensor.strides, strict=True):
            at = np.broadcast_to(corner(state), (state.threads,))[who][:, None] + step
            inside &= (at >= 0) & (at < extent)
            flat += at * stride
        flat[~inside] = -1
        return flat

    return elements


def tile_offsets(
    buffer: Buffer, indices: tuple[Expr, ...], elements: int, context: LaunchContext
) -> Callable[[LaunchState, Array], Array]:
    """Return a closure that gives the offsets of the box in shared memory, likewise."""
    memory = context.shared[buffer.name]
    assert isinstance(memory, SharedMemory)
    address = address_of(indices, buffer, context, value_closure)
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    alignment = SWIZZLE_ROW_BYTES // buffer.dtype.bytes
    if swizzle is not None:
        alignment = 1 << (swizzle.base + swizzle.shift + swizzle.bits)

    def offsets(state: LaunchState, who: Array) -> Array:
        start = np.broadcast_to(address.flat(state), (state.threads,))[who]
        wrong = (start % alignment != 0) | (start + elements > memory.span)
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a box of {elements} elements for {buffer.name} from offset {int(start[at])} on"
            what = f"{what}: not a multiple of {alignment}, or out of bounds"
            raise context.fault(what, state, int(who[at]), buffer.name)
        flat = start[:, None] + np.arange(elements, dtype=np.int64)
        if swizzle is not None:
            flat ^= ((flat >> (swizzle.base + swizzle.shift)) & ((1 << swizzle.bits) - 1)) << swizzle.base
        found: Array = flat + (state.block[who] * memory.span)[:, None]
        return found

    return offsets
