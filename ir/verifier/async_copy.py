"""The verifier's rules for asynchronous and bulk copies (``cp.async``, ``cp.async.bulk``) and prefetches."""

from collections.abc import Callable
from typing import Any

from ...core.dtypes import boolean
from ..buffer import MemoryScope
from ..gpu.async_copy import CopyAsync, CopyAsyncWait
from ..gpu.bulk_copy import BulkCopy, Prefetch
from ..stmt import Operation
from .operands import check_aligned, check_contiguous, check_element, check_mbarrier
from .types import BoundNames, RuleBroken, type_of

COPY_BYTES = (4, 8, 16)
"""How many bytes a CopyAsync may have."""
BULK_BYTES = 16
"""What the size and the addresses of a BulkCopy are multiples of."""


def _copy_async(stmt: CopyAsync, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.SHARED)
    check_element(stmt.source, stmt.source_indices, names.as_accessed(stmt.source), MemoryScope.GLOBAL)
    size = stmt.elements * stmt.target.dtype.bytes
    if stmt.source.dtype != stmt.target.dtype:
        raise RuleBroken("operation", f"{stmt.source.dtype} is copied to {stmt.target.name} of {stmt.target.dtype}")
    if size not in COPY_BYTES:
        raise RuleBroken("operation", f"an asynchronous copy of {size} bytes, not 4, 8 or 16")
    if stmt.mask is not None and type_of(stmt.mask, names) != (boolean, 1):
        raise RuleBroken("mask", f"the mask of a copy to {stmt.target.name} is no scalar bool")
    if stmt.present is not None:
        if stmt.mask is not None:
            raise RuleBroken("mask", f"a copy to {stmt.target.name} has a mask and a number of present elements")
        dtype, lanes = type_of(stmt.present, names)
        if not dtype.is_integer or lanes != 1:
            raise RuleBroken("operation", f"a copy to {stmt.target.name} with {dtype} in {lanes} lanes present")
    for buffer, indices in ((stmt.target, stmt.target_indices), (stmt.source, stmt.source_indices)):
        check_contiguous(buffer, stmt.elements)
        check_aligned(buffer, indices, size)


def _copy_async_wait(stmt: CopyAsyncWait, names: BoundNames) -> None:
    if stmt.pending < 0:
        raise RuleBroken("operation", f"a wait for all but {stmt.pending} groups")


def _bulk_copy(stmt: BulkCopy, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.SHARED)
    check_element(stmt.source, stmt.source_indices, names.as_accessed(stmt.source), MemoryScope.GLOBAL)
    check_mbarrier(stmt.barriers, stmt.index, names)
    size = stmt.elements * stmt.target.dtype.bytes
    if stmt.source.dtype != stmt.target.dtype:
        raise RuleBroken("operation", f"{stmt.source.dtype} is copied to {stmt.target.name} of {stmt.target.dtype}")
    if size < BULK_BYTES or size % BULK_BYTES:
        raise RuleBroken("operation", f"a bulk copy of {size} bytes, no multiple of {BULK_BYTES}")
    if stmt.target.layout is not None and stmt.target.layout.swizzle is not None:
        raise RuleBroken("operation", f"a bulk copy to {stmt.target.name}, which is swizzled")
    for buffer, indices in ((stmt.target, stmt.target_indices), (stmt.source, stmt.source_indices)):
        check_contiguous(buffer, stmt.elements)
        check_aligned(buffer, indices, BULK_BYTES)


def _prefetch(stmt: Prefetch, names: BoundNames) -> None:
    check_element(stmt.source, stmt.source_indices, names.as_accessed(stmt.source), MemoryScope.GLOBAL)
    check_contiguous(stmt.source, stmt.elements)


COPY_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    CopyAsync: _copy_async,
    CopyAsyncWait: _copy_async_wait,
    BulkCopy: _bulk_copy,
    Prefetch: _prefetch,
}
"""What each copy takes."""
