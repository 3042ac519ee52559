"""What the verifier's rules for operations have in common: places, runs, alignment. All raise Broken."""

from ..core.dtypes import INDEX
from .buffer import Buffer, Scope
from .expr import Expr
from .linear_form import affine_form
from .typing_rules import Broken, Names, accessed


def place(buffer: Buffer, indices: tuple[Expr, ...], names: Names, *scopes: Scope) -> None:
    """One place of a buffer of one of ``scopes``."""
    lanes = accessed(buffer, indices, None, names)
    if lanes != 1:
        raise Broken("lanes", f"an operation on {buffer.name} at {lanes} places")
    if buffer.scope not in scopes:
        raise Broken("operation", f"{buffer.name} has scope {buffer.scope}, not {' or '.join(scopes)}")


def run(buffer: Buffer, elements: int) -> None:
    """``elements`` neighbours along the last dimension."""
    if elements < 1 or not buffer.shape or (elements > 1 and buffer.strides[-1] != 1):
        raise Broken("operation", f"{buffer.name} has no {elements} neighbours along its last dimension")


def aligned(buffer: Buffer, indices: tuple[Expr, ...], size: int) -> None:
    """Raise where a place surely is no multiple of ``size`` bytes."""
    total = 0
    for i, stride in zip(indices, buffer.strides, strict=True):
        form = affine_form(i)
        if form is None or any(c * stride * buffer.dtype.bytes % size for c in form.terms.values()):
            return
        total += form.constant * stride
    if buffer.layout is not None and buffer.layout.swizzle is not None:
        if (1 << buffer.layout.swizzle.base) * buffer.dtype.bytes < size:
            raise Broken("operation", f"the swizzle of {buffer.name} tears runs of {size} bytes")
    if total * buffer.dtype.bytes % size:
        raise Broken("operation", f"{buffer.name} is accessed at bytes that are no multiple of {size}")


def barrier_place(barriers: Buffer, index: Expr, names: Names) -> None:
    """An arrival barrier."""
    place(barriers, (index,), names, Scope.SHARED)
    if barriers.dtype != INDEX or barriers.layout is not None:
        raise Broken("operation", f"arrival barriers {barriers.name} of {barriers.dtype}; plain {INDEX} is needed")


def fits(buffer: Buffer, indices: tuple[Expr, ...], elements: int) -> None:
    """A fragment lies within the last dimension, where that can be told."""
    run(buffer, elements)
    form = affine_form(indices[-1])
    first = form.constant if form is not None and form.is_constant else 0
    if first + elements > buffer.shape[-1]:
        raise Broken("operation", f"{elements} elements of {buffer.name} do not fit {list(buffer.shape)}")
