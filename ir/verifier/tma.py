"""The verifier's rules for TMA: loads, stores and prefetches of boxes of tensors."""

from collections.abc import Callable
from math import prod
from typing import Any

from ..buffer import Buffer, MemoryScope
from ..expr import Expr
from ..gpu.tma import MAX_BOX_EXTENT, SWIZZLE_ROW_BYTES, TmaLoad, TmaPrefetch, TmaStore, TmaStoreWait, tma_swizzle
from ..linear_form import affine_form
from ..stmt import Operation
from .mbarrier import check_cluster_operand
from .operands import check_aligned, check_element, check_mbarrier
from .types import BoundNames, RuleBroken

CHUNK_BYTES = 16
"""What rows of a box, strides of a tensor and the first index of a box along a row are multiples of, in bytes."""
MAX_BOX_DIMENSIONS = 5


def _load(stmt: TmaLoad, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.SHARED)
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.GLOBAL)
    check_mbarrier(stmt.barriers, stmt.index, names)
    _check_copy(stmt.box, stmt.source, stmt.source_indices, stmt.target, stmt.target_indices)
    if stmt.multicast is not None:
        check_cluster_operand("the block mask of a multicast", stmt.multicast, names)
        if not stmt.tx_expected:
            raise RuleBroken("operation", f"a multicast of {stmt.source.name} that is not tx_expected")


def _prefetch(stmt: TmaPrefetch, names: BoundNames) -> None:
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.GLOBAL)
    _check_box(stmt.box, stmt.source, stmt.source_indices)


def _store(stmt: TmaStore, names: BoundNames) -> None:
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.SHARED)
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.GLOBAL)
    _check_copy(stmt.box, stmt.target, stmt.target_indices, stmt.source, stmt.source_indices)


def _store_wait(stmt: TmaStoreWait, names: BoundNames) -> None:
    if stmt.pending < 0:
        raise RuleBroken("operation", f"a wait for all but {stmt.pending} groups of stores")


def _check_copy(
    box: tuple[int, ...], tensor: Buffer, corner: tuple[Expr, ...], tile: Buffer, tile_indices: tuple[Expr, ...]
) -> None:
    """Raise unless a box of ``tensor`` can begin at ``corner`` and lie in the shared buffer ``tile``."""
    if tensor.dtype != tile.dtype:
        raise RuleBroken("operation", f"{tensor.name} holds {tensor.dtype}, {tile.name} {tile.dtype}")
    _check_box(box, tensor, corner)
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
    row, size = box[-1] * tensor.dtype.bytes, tensor.dtype.bytes
    if row % CHUNK_BYTES or any(stride * size % CHUNK_BYTES for stride in tensor.strides[:-1]):
        raise RuleBroken("operation", f"rows of {tensor.name} or of its box {list(box)} are no multiples of 16 bytes")
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
