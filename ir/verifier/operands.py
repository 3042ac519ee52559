"""What the verifier's rules for operations share: elements, contiguous elements, alignment. All raise RuleBroken."""

from ...core.dtypes import INDEX
from ..buffer import Buffer, MemoryScope
from ..expr import Expr
from ..gpu.tma import tma_swizzle
from ..gpu.wgmma import SWIZZLE_128B_ELEMENTS
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


def check_matrix_operand(
    what: str,
    buffer: Buffer,
    indices: tuple[Expr, ...],
    rows: int,
    k: int,
    line: int,
    transposed: bool,
    names: BoundNames,
    leading_lines: int | None = None,
) -> None:
    """Raise unless ``rows`` rows of ``k`` elements can be read by a wgmma or a tcgen05.mma: they lie in shared memory,
    in swizzled lines of 128 bytes, which are ``line`` elements. ``what`` is the operand's name in messages.
    ``leading_lines``: how many lines further the next 64 rows begin, if they are not one further along a dimension."""
    check_element(buffer, indices, names, MemoryScope.SHARED)
    swizzle = tma_swizzle(buffer.dtype)
    if buffer.layout is None or buffer.layout.swizzle != swizzle or buffer.strides[-2:] != (line, 1):
        raise RuleBroken("operation", f"{what} does not lie as {swizzle} in lines of 128 bytes")
    if transposed and leading_lines is not None:
        needed = (-(-rows // SWIZZLE_128B_ELEMENTS) - 1) * leading_lines + k
        if leading_lines % 8 or leading_lines < 1 or buffer.shape[-2] < needed:
            raise RuleBroken("operation", f"{rows} rows, 64 of them {leading_lines} lines apart, in {buffer.name}")
    elif transposed:
        _check_transposed(buffer, rows, k)
    elif buffer.shape[-2] < rows or not k <= buffer.shape[-1] <= line:
        raise RuleBroken("operation", f"{rows} rows of {k} do not fit {buffer.name} {list(buffer.shape)}")


def _check_transposed(buffer: Buffer, rows: int, k: int) -> None:
    tiles = -(-rows // SWIZZLE_128B_ELEMENTS)
    there = buffer.shape[-3] if len(buffer.shape) > 2 else 1
    if there < tiles or buffer.shape[-2] < k or buffer.shape[-1] != SWIZZLE_128B_ELEMENTS:
        raise RuleBroken(
            "operation",
            f"{k} lines of {rows} rows do not fit {buffer.name} {list(buffer.shape)}: "
            f"{tiles} times {k} of {SWIZZLE_128B_ELEMENTS} are needed",
        )
    if tiles > 1 and buffer.strides[-3] % (8 * SWIZZLE_128B_ELEMENTS):
        raise RuleBroken("operation", f"the {SWIZZLE_128B_ELEMENTS} next rows of {buffer.name} begin amid 8 lines")
