"""Windows that see all their places in a row of pixels at once, where pixels have few channels.

On its own, a place of 8 channels of float32 fills a quarter of each row of 128 bytes that TMA loads. The channels of
neighbouring pixels are side by side in memory, so that three places in a row are 24 channels of one. From one position
to the next they move by the channels of as many pixels as the stride. TMA sees pixels that overlap:

    A[m, (tap row, taps x channels)] = image[number, y + tap row, x * stride, ...]

Nothing is copied. So nothing may be missing either: windows with a border before or behind a row stay as they are.
"""

from dataclasses import replace

from ....ir.buffer import Layout
from ....ir.expr import Expr, Load, Var
from ....ir.verifier.tma import CHUNK_BYTES
from ...problems.gemm import Gemm, Operand
from ...problems.image_window import TAP, ImageWindow
from ...tile.delinearize import delinearize
from ..gemm.mainloop import can_use_wgmma
from ..gemm.mma_atom import is_packed, wgmma_atom


def join_row_taps(gemm: Gemm) -> Gemm | None:
    """Return the product whose windows have one place along the last dimension, with the channels of all that there
    were. None where windows have a border or gaps there, where that saves no rows of 128 bytes, or where TMA cannot
    load them."""
    window, image, filters = gemm.window, gemm.a.load, gemm.b.load
    if window is None or image is None or filters is None or gemm.batch or window.halo == len(window.taps) - 1:
        return None
    tensor, taps, step = image.buffer, window.taps[-1], window.strides[-1] * window.channels
    inside = window.lower[-1] == 0 and _reach(window) <= tensor.shape[-2]
    atom = wgmma_atom(gemm)
    lines = [-(-channels // atom.line) for channels in (taps * window.channels, window.channels)]
    if taps == 1 or window.dilations[-1] != 1 or not inside or lines[0] >= taps * lines[1]:
        return None
    joined = _joined_filters(filters, window)
    if joined is None or any(n * tensor.dtype.bytes % CHUNK_BYTES for n in (step, joined.buffer.shape[-1])):
        return None  # TMA loads rows at multiples of 16 bytes, and nothing is repacked
    wider = replace(
        window,
        taps=(*window.taps[:-1], 1),
        dilations=(*window.dilations[:-1], 1),
        strides=(*window.strides[:-1], 1),
        channels=taps * window.channels,
    )
    shape = (*tensor.shape[:-2], window.positions[-1], wider.channels)
    seen = replace(tensor, shape=shape, layout=Layout((*tensor.strides[:-2], step, 1)))
    load = Load(seen, (*wider.corner(Var("m")), Var("k")))
    product = replace(gemm, a=Operand(load, load, 0, 1), b=Operand(joined, joined, 0, 0), window=wider)
    return product if can_use_wgmma(product) and not is_packed(product, product.b) else None


def _reach(window: ImageWindow) -> int:
    """Return how many pixels of a row windows see from the first to the last."""
    return (window.positions[-1] - 1) * window.strides[-1] + window.taps[-1]


def _joined_filters(filters: Load, window: ImageWindow) -> Load | None:
    """Return the filters with places in a row and their channels as one dimension; None where these are not side by
    side."""
    tensor, indices, taps = filters.buffer, filters.indices, window.taps
    places, fewer = delinearize(Var(TAP), taps), delinearize(Var(TAP), (*taps[:-1], 1))
    d = indices.index(Var("k")) if Var("k") in indices else 0
    if not d or indices[d - 1] != places[-1] or tensor.shape[d - 1 : d + 1] != (taps[-1], window.channels):
        return None
    at: dict[Expr, Expr] = dict(zip(places[:-1], fewer[:-1], strict=True))
    shape = (*tensor.shape[: d - 1], taps[-1] * window.channels, *tensor.shape[d + 1 :])
    moved = (*(at.get(i, i) for i in indices[: d - 1]), Var("k"), *(at.get(i, i) for i in indices[d + 1 :]))
    return Load(replace(tensor, shape=shape), moved)
