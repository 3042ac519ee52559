"""Where boxes of tensors lie, in the interpreter of launches."""

from collections.abc import Callable

import numpy as np

from ..buffer import Buffer
from ..expr import Expr
from ..gpu import SWIZZLE_ROW_BYTES, TmaLoad, TmaPrefetch, TmaStore
from ..memory import Array
from .address import address_of
from .memory import SharedMemory
from .scope import Machine, Scope
from .values import value_code


def box_places(stmt: TmaLoad | TmaPrefetch | TmaStore, scope: Scope) -> Callable[[Machine, Array], Array]:
    """Code that gives the elements of the tensor in the box, row-major, by the threads that start a copy:
    int64[threads, elements]; -1 for what lies outside."""
    tensor, indices = stmt.source, stmt.source_indices
    if isinstance(stmt, TmaStore):
        tensor, indices = stmt.target, stmt.target_indices
    corners = [value_code(i, scope) for i in indices]
    piece = 16 // tensor.dtype.bytes
    steps = np.indices(stmt.box).reshape(len(stmt.box), -1)  # [dimensions, elements]

    def places(m: Machine, who: Array) -> Array:
        first = np.broadcast_to(corners[-1](m), (m.threads,))[who]
        if (first % piece).any():
            wrong = int((first % piece != 0).argmax())
            what = f"a box of {tensor.name} begins at {int(first[wrong])} in a row, no multiple of 16 bytes"
            raise scope.fault(what, m, int(who[wrong]), tensor.name)
        shape = (len(who), steps.shape[1])
        flat, inside = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.bool_)
        for corner, step, extent, stride in zip(corners, steps, tensor.shape, tensor.strides, strict=True):
            at = np.broadcast_to(corner(m), (m.threads,))[who][:, None] + step
            inside &= (at >= 0) & (at < extent)
            flat += at * stride
        flat[~inside] = -1
        return flat

    return places


def tile_places(
    buffer: Buffer, indices: tuple[Expr, ...], elements: int, scope: Scope
) -> Callable[[Machine, Array], Array]:
    """Code that gives the places of a box in shared memory, likewise."""
    memory = scope.shared[buffer.name]
    assert isinstance(memory, SharedMemory)
    address = address_of(indices, buffer, scope, value_code)
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    whole = SWIZZLE_ROW_BYTES // buffer.dtype.bytes
    if swizzle is not None:
        whole = 1 << (swizzle.base + swizzle.shift + swizzle.bits)

    def places(m: Machine, who: Array) -> Array:
        start = np.broadcast_to(address.flat(m), (m.threads,))[who]
        wrong = (start % whole != 0) | (start + elements > memory.span)
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a box of {elements} elements for {buffer.name} from place {int(start[at])} on"
            raise scope.fault(f"{what}: not a multiple of {whole}, or out of bounds", m, int(who[at]), buffer.name)
        flat = start[:, None] + np.arange(elements, dtype=np.int64)
        if swizzle is not None:
            flat ^= ((flat >> (swizzle.base + swizzle.shift)) & ((1 << swizzle.bits) - 1)) << swizzle.base
        found: Array = flat + (m.block[who] * memory.span)[:, None]
        return found

    return places
