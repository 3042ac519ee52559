"""The elements of boxes of tensors, and of their tiles in shared memory, in the interpreter of launches."""

from collections.abc import Callable

import numpy as np

from ..buffer import Buffer
from ..expr import Expr
from ..gpu.tma import SWIZZLE_ROW_BYTES, Im2col, TmaLoad, TmaPrefetch, TmaStore, largest_offset
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
    elif stmt.im2col is not None:
        return _im2col_elements(stmt, stmt.im2col, context)
    corners = [value_closure(i, context) for i in indices]
    steps = np.indices(stmt.box).reshape(len(stmt.box), -1)  # [dimensions, elements]

    def elements(state: LaunchState, who: Array) -> Array:
        _check_chunk(tensor, np.broadcast_to(corners[-1](state), (state.threads,))[who], state, who, context)
        shape = (len(who), steps.shape[1])
        flat, inside = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.bool_)
        for corner, step, extent, stride in zip(corners, steps, tensor.shape, tensor.strides, strict=True):
            at = np.broadcast_to(corner(state), (state.threads,))[who][:, None] + step
            inside &= (at >= 0) & (at < extent)
            flat += at * stride
        flat[~inside] = -1
        return flat

    return elements


def _im2col_elements(
    stmt: TmaLoad | TmaPrefetch, window: Im2col, context: LaunchContext
) -> Callable[[LaunchState, Array], Array]:
    """As ``box_elements``, for a box of positions of a window. It raises where the box does not begin at one."""
    tensor, (pixels, channels) = stmt.source, stmt.box
    corners = [value_closure(i, context) for i in stmt.source_indices]
    offsets = [value_closure(i, context) for i in stmt.offsets]
    most = largest_offset(len(offsets))

    def elements(state: LaunchState, who: Array) -> Array:
        image, *corner, first = (np.broadcast_to(c(state), (state.threads,))[who] for c in corners)
        offset = [np.broadcast_to(o(state), (state.threads,))[who] for o in offsets]
        _check_chunk(tensor, first, state, who, context)
        number, wrong = image, np.zeros(len(who), dtype=np.bool_)
        sides = list(zip(window.lower, window.positions, window.strides, strict=True))
        for at, by, (lower, count, stride) in zip(corner, offset, sides, strict=True):
            position, between = np.divmod(at - lower, stride)
            wrong |= (between != 0) | (position < 0) | (position >= count) | (by < 0) | (by > most)
            number = number * count + position
        if wrong.any():
            bad = int(wrong.argmax())
            where = f"pixel {[int(at[bad]) for at in corner]} offset by {[int(by[bad]) for by in offset]}"
            what = f"an im2col box of {tensor.name} begins at {where}, which is no position of the window"
            raise context.fault(what, state, int(who[bad]), tensor.name)
        numbers = number[:, None] + np.arange(pixels)
        flat, inside = np.zeros_like(numbers), np.ones(numbers.shape, dtype=np.bool_)
        for n in reversed(range(len(sides))):
            lower, count, stride = sides[n]
            numbers, position = np.divmod(numbers, count)
            pixel = lower + position * stride + offset[n][:, None]
            inside &= (pixel >= 0) & (pixel < tensor.shape[n + 1])
            flat += pixel * tensor.strides[n + 1]
        inside &= (numbers >= 0) & (numbers < tensor.shape[0])
        flat += numbers * tensor.strides[0]
        channel = first[:, None] + np.arange(channels)
        every = inside[:, :, None] & ((channel >= 0) & (channel < tensor.shape[-1]))[:, None, :]
        found: Array = np.where(every, flat[:, :, None] + channel[:, None, :], -1).reshape(len(who), -1)
        return found

    return elements


def _check_chunk(tensor: Buffer, first: Array, state: LaunchState, who: Array, context: LaunchContext) -> None:
    """Raise where the box of a thread begins between multiples of 16 bytes of a row."""
    chunk = 16 // tensor.dtype.bytes
    if (first % chunk).any():
        wrong = int((first % chunk != 0).argmax())
        what = f"a box of {tensor.name} begins at {int(first[wrong])} in a row, no multiple of 16 bytes"
        raise context.fault(what, state, int(who[wrong]), tensor.name)


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
