"""What the verifier's rules for operations share: elements, contiguous elements, alignment. All raise RuleBroken."""

from ...core.dtypes import INDEX
from ..buffer import Buffer, MemoryScope
from ..expr import Expr
from ..linear_form import affine_form
from .types import BoundNames, RuleBroken, access_lanes


def check_element(buffer: Buffer, indices: tuple[Expr, ...], names: BoundNames, *scopes: MemoryScope) -> None:
    """Raise unless the access is one element of a buffer in one of ``scopes``."""
    lanes = access_lanes(buffer, indices, None, names)
    if lanes != 1:
        raise RuleBroken("lanes", f"an operation on {buffer.name} at {lanes} elements")
    if buffer.scope not in scopes:
        raise RuleBroken("operation", f"{buffer.name} has scope {buffer.scope}, not {' or '.join(scopes)}")


def check_contiguous(buffer: Buffer, elements: int) -> None:
    """Raise unless ``elements`` along the last dimension of a buffer are contiguous."""
    if elements < 1 or not buffer.shape or (elements > 1 and buffer.strides[-1] != 1):
        raise RuleBroken("operation", f"{buffer.name} has no {elements} contiguous elements along its last dimension")


def check_aligned(buffer: Buffer, indices: tuple[Expr, ...], size: int) -> None:
    """Raise where an element surely does not lie at a multiple of ``size`` bytes."""
    total = 0
    for i, stride in zip(indices, buffer.strides, strict=True):
        form = affine_form(i)
        if form is None or any(c * stride * buffer.dtype.bytes % size for c in form.terms.values()):
            return
        total += form.constant * stride
    if buffer.layout is not None and buffer.layout.swizzle is not None:
        if (1 << buffer.layout.swizzle.base) * buffer.dtype.bytes < size:
            raise RuleBroken("operation", f"the swizzle of {buffer.name} splits {size} contiguous bytes")
    if total * buffer.dtype.bytes % size:
        raise RuleBroken("operation", f"{buffer.name} is accessed at bytes that are no multiple of {size}")


def check_mbarrier(barriers: Buffer, index: Expr, names: BoundNames) -> None:
    """Raise unless the element can be an mbarrier."""
    check_element(barriers, (index,), names, MemoryScope.SHARED)
    if barriers.dtype != INDEX or barriers.layout is not None:
        raise RuleBroken("operation", f"mbarriers {barriers.name} of {barriers.dtype}; plain {INDEX} is needed")


def check_fragment(buffer: Buffer, indices: tuple[Expr, ...], elements: int) -> None:
    """Raise where a fragment surely does not fit the last dimension."""
    check_contiguous(buffer, elements)
    form = affine_form(indices[-1])
    first = form.constant if form is not None and form.is_constant else 0
    if first + elements > buffer.shape[-1]:
        raise RuleBroken("operation", f"{elements} elements of {buffer.name} do not fit {list(buffer.shape)}")
