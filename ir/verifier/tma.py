"""The verifier's rules for TMA: loads, stores and prefetches of boxes of tensors."""

from collections.abc import Callable
from math import prod
from typing import Any

from ...core.dtypes import INDEX, float32, tfloat32
from ..buffer import Buffer, MemoryScope
from ..expr import Expr
from ..gpu.tma import (
    MAX_BOX_EXTENT,
    MAX_IM2COL_CHANNELS,
    MAX_IM2COL_PIXELS,
    SWIZZLE_ROW_BYTES,
    Im2col,
    TmaLoad,
    TmaPrefetch,
    TmaStore,
    TmaStoreWait,
    corner_range,
    largest_offset,
    tma_swizzle,
)
from ..linear_form import affine_form
from ..stmt import Operation
from .mbarrier import check_cluster_operand
from .operands import check_aligned, check_element, check_mbarrier
from .types import BoundNames, RuleBroken, type_of

CHUNK_BYTES = 16
"""What rows of a box, strides of a tensor and the first index of a box along a row are multiples of, in bytes."""
MAX_BOX_DIMENSIONS = 5
MAX_ELEMENT_STRIDE = 8
"""How many pixels the positions of an im2col window are apart at most."""


def _load(stmt: TmaLoad, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.SHARED)
    _check_tensor(stmt.source, stmt.source_indices, names)
    check_mbarrier(stmt.barriers, stmt.index, names)
    _check_read(stmt, names)
    _check_tile(stmt.box, stmt.source, stmt.target, stmt.target_indices, loads=True)
    if stmt.multicast is not None:
        check_cluster_operand("the block mask of a multicast", stmt.multicast, names)
        if not stmt.tx_expected:
            raise RuleBroken("operation", f"a multicast of {stmt.source.name} that is not tx_expected")


def _prefetch(stmt: TmaPrefetch, names: BoundNames) -> None:
    _check_tensor(stmt.source, stmt.source_indices, names)
    _check_read(stmt, names)


def _store(stmt: TmaStore, names: BoundNames) -> None:
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.SHARED)
    _check_tensor(stmt.target, stmt.target_indices, names)
    _check_box(stmt.box, stmt.target, stmt.target_indices)
    _check_tile(stmt.box, stmt.target, stmt.source, stmt.source_indices)


def _store_wait(stmt: TmaStoreWait, names: BoundNames) -> None:
    if stmt.pending < 0:
        raise RuleBroken("operation", f"a wait for all but {stmt.pending} groups of stores")


def _check_tensor(tensor: Buffer, indices: tuple[Expr, ...], names: BoundNames) -> None:
    """Raise unless this is an element of a tensor in global memory, whatever shape the tensor is seen in."""
    bound = names.buffers.get(tensor.name)
    if bound is None or bound.scope is not MemoryScope.GLOBAL or bound == tensor:
        check_element(tensor, indices, names, MemoryScope.GLOBAL)
        return
    swizzled = tensor.layout is not None and tensor.layout.swizzle is not None
    whole = tensor.span <= bound.elements if tensor.layout is not None else tensor.elements == bound.elements
    if bound.dtype != tensor.dtype or swizzled or not whole or tensor.strides[-1] != 1:
        raise RuleBroken("scope", f"{tensor.name} is seen as {tensor}, which has other elements than {bound}")
    check_element(tensor, indices, names.with_buffer(tensor), MemoryScope.GLOBAL)


def _check_read(stmt: TmaLoad | TmaPrefetch, names: BoundNames) -> None:
    if stmt.im2col is None:
        if stmt.offsets:
            raise RuleBroken("operation", f"offsets of a box of {stmt.source.name} that is not im2col")
        _check_box(stmt.box, stmt.source, stmt.source_indices)
    else:
        _check_im2col(stmt, stmt.im2col, names)


def _check_im2col(stmt: TmaLoad | TmaPrefetch, window: Im2col, names: BoundNames) -> None:
    """Raise unless there is a tensor map for these boxes, and the offsets of this one fit the instruction."""
    tensor, sides = stmt.source, len(window.lower)
    if len(tensor.shape) != sides + 2 or not 1 <= sides <= 3:
        raise RuleBroken(
            "operation", f"a window over {sides} dimensions of {tensor.name} {list(tensor.shape)}: 1 to 3 are allowed"
        )
    if not len(window.positions) == len(window.strides) == len(stmt.offsets) == sides:
        raise RuleBroken("operation", f"a window over {sides} dimensions needs as many positions, strides and offsets")
    if len(stmt.box) != 2 or not 1 <= stmt.box[0] <= MAX_IM2COL_PIXELS or not 1 <= stmt.box[1] <= MAX_IM2COL_CHANNELS:
        raise RuleBroken(
            "operation",
            f"an im2col box of {list(stmt.box)}; up to {MAX_IM2COL_PIXELS} pixels of {MAX_IM2COL_CHANNELS} channels "
            "are allowed",
        )
    if any(count < 1 for count in window.positions) or any(
        not 1 <= stride <= MAX_ELEMENT_STRIDE for stride in window.strides
    ):
        raise RuleBroken("operation", f"{window}: strides of 1 to {MAX_ELEMENT_STRIDE} are allowed")
    corners = (*window.lower, *window.upper(tensor.shape[1:-1]))
    allowed = corner_range(sides)
    if any(corner not in allowed for corner in corners):
        raise RuleBroken(
            "operation", f"corners {list(corners)} of a window; {allowed.start} to {allowed.stop - 1} are allowed"
        )
    for offset in stmt.offsets:
        if type_of(offset, names) != (INDEX, 1):
            raise RuleBroken("types", "an offset of an im2col box is no scalar of the index type")
        form = affine_form(offset)
        if form is not None and form.is_constant and not 0 <= form.constant <= largest_offset(sides):
            raise RuleBroken(
                "operation", f"an im2col box offset by {form.constant}; 0 to {largest_offset(sides)} are allowed"
            )
    _check_rows(stmt.box[-1], tensor, stmt.source_indices)


def _check_tile(
    box: tuple[int, ...], tensor: Buffer, tile: Buffer, tile_indices: tuple[Expr, ...], *, loads: bool = False
) -> None:
    """Raise unless a box of ``tensor`` can lie in the shared buffer ``tile``. Only what is loaded may be rounded."""
    if tensor.dtype != tile.dtype and not (loads and (tensor.dtype, tile.dtype) == (float32, tfloat32)):
        raise RuleBroken("operation", f"{tensor.name} holds {tensor.dtype}, {tile.name} {tile.dtype}")
    if prod(box) > tile.elements:
        raise RuleBroken("operation", f"a box of {list(box)} for {tile.name} {list(tile.shape)}")
    row, swizzle = box[-1] * tensor.dtype.bytes, None if tile.layout is None else tile.layout.swizzle
    if swizzle is None:
        check_aligned(tile, tile_indices, SWIZZLE_ROW_BYTES)
    elif swizzle != tma_swizzle(tile.dtype) or row != SWIZZLE_ROW_BYTES:
        raise RuleBroken(
            "operation", f"{tile.name} with {swizzle} takes rows of {row} bytes; only {SWIZZLE_ROW_BYTES} are allowed"
        )


def _check_box(box: tuple[int, ...], tensor: Buffer, corner: tuple[Expr, ...]) -> None:
    """Raise unless ``tensor`` has such boxes, and one can begin at ``corner``."""
    if not 1 <= len(tensor.shape) <= MAX_BOX_DIMENSIONS or len(box) != len(tensor.shape):
        raise RuleBroken(
            "operation", f"a box of {len(box)} dimensions of {tensor.name} {list(tensor.shape)}, 1 to 5 allowed"
        )
    if any(not 1 <= extent <= MAX_BOX_EXTENT for extent in box):
        raise RuleBroken("operation", f"a box of {list(box)} of {tensor.name}, {MAX_BOX_EXTENT} a dimension at most")
    _check_rows(box[-1], tensor, corner)


def _check_rows(row: int, tensor: Buffer, corner: tuple[Expr, ...]) -> None:
    """Raise unless rows of a tensor, and rows of ``row`` elements of its boxes, begin at multiples of 16 bytes."""
    size = tensor.dtype.bytes
    if row * size % CHUNK_BYTES or any(stride * size % CHUNK_BYTES for stride in tensor.strides[:-1]):
        raise RuleBroken("operation", f"rows of {tensor.name} or of its boxes ({row}) are no multiples of 16 bytes")
    first = affine_form(corner[-1])
    if first is not None and first.constant * size % CHUNK_BYTES:
        if all(c * size % CHUNK_BYTES == 0 for c in first.terms.values()):
            raise RuleBroken("operation", f"a box of {tensor.name} begins between multiples of 16 bytes of a row")


TMA_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    TmaLoad: _load,
    TmaPrefetch: _prefetch,
    TmaStore: _store,
    TmaStoreWait: _store_wait,
}
"""What each TMA operation takes."""
