"""How the products take k apart: into atoms of 64 places, the elements of a swizzled row.

Where A is images seen through a window, an atom is 64 channels of one tap. The last atom of a tap may have fewer; TMA
brings zeros for the rest.
"""

from ....ir.expr import Compare, CompareOp, Expr, Load, Select, index
from ....ir.gpu.tma import Im2col, corner_range, largest_offset
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS
from ....ir.verifier.tma import MAX_ELEMENT_STRIDE
from ...problems.gemm import Gemm
from ...problems.image_window import TAP, ImageWindow

WGMMA_K = 16
"""An instruction takes so many places of k."""


def k_atom_count(gemm: Gemm) -> int:
    """How many atoms there are."""
    if gemm.window is None:
        return -(-gemm.k.extent // SWIZZLE_128B_ELEMENTS)
    return gemm.window.tap_count * _channel_atoms(gemm)


def multiplied_k(gemm: Gemm) -> int:
    """How many places of an atom are multiplied: not the rest of a row where there are few channels, which may be those
    of another group."""
    if gemm.window is None:
        return SWIZZLE_128B_ELEMENTS
    return min(-(-gemm.window.channels // WGMMA_K) * WGMMA_K, SWIZZLE_128B_ELEMENTS)


def k_atom_place(gemm: Gemm, k_atom: Expr, *, may_exceed: bool) -> dict[str, Expr]:
    """Where an atom begins (axis -> index), by its number. ``may_exceed``: whether there may be none of that number.
    Then it begins outside of the tensors, so that it is zero."""
    window = gemm.window
    if window is None:
        return {"k": k_atom * SWIZZLE_128B_ELEMENTS}
    taps, blocks = window.tap_count, _channel_atoms(gemm)
    if window.taps_innermost:
        tap, block = k_atom % taps, k_atom // taps
    else:
        tap, block = k_atom // blocks, k_atom % blocks
    tap = index(0) if taps == 1 else tap
    channel = index(0) if blocks == 1 else block * SWIZZLE_128B_ELEMENTS
    if may_exceed:
        assert gemm.a.load is not None
        exists = Compare(CompareOp.LT, k_atom, index(taps * blocks))
        tap = Select(exists, tap, index(0))
        channel = Select(exists, channel, index(gemm.a.load.buffer.shape[-1]))
    return {TAP: tap, "k": channel}


def _channel_atoms(gemm: Gemm) -> int:
    assert gemm.window is not None
    return -(-gemm.window.channels // SWIZZLE_128B_ELEMENTS)


def can_load_im2col(load: Load, window: ImageWindow) -> bool:
    """Whether there is an im2col tensor map for these images, and groups share no atom that is multiplied whole."""
    sides = len(window.taps)
    extents, grouped = load.buffer.shape[1:-1], load.buffer.shape[-1] != window.channels
    corners = (*window.lower, *Im2col(window.lower, window.positions, window.strides).upper(extents))
    reach = [(taps - 1) * dilation for taps, dilation in zip(window.taps, window.dilations, strict=True)]
    return (
        all(corner in corner_range(sides) for corner in corners)
        and max(reach) + window.most_shifted <= largest_offset(sides)
        and max(window.strides) <= MAX_ELEMENT_STRIDE
        and (not grouped or window.channels in (16, 32, 48) or window.channels % SWIZZLE_128B_ELEMENTS == 0)
    )
