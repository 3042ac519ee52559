"""Launches that load pixels at the positions of a window, and that see a tensor in another shape."""

from collections.abc import Mapping

from tilewright.core.dtypes import INDEX, float16
from tilewright.ir.buffer import Buffer, Layout, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Compare, CompareOp, Expr, Load, index
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.fence import AsyncProxyFence
from tilewright.ir.gpu.mbarrier import MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from tilewright.ir.gpu.tma import Im2col, TmaLoad, TmaPrefetch, TmaStore, TmaStoreCommit, TmaStoreWait
from tilewright.ir.gpu.wgmma import SWIZZLE_128B
from tilewright.ir.stmt import HardwareAxis, Kernel

ZERO = index(0)
PIXELS, CHANNELS = 16, 64
LINE = Buffer("X", (3, 9, 72), float16)
IMAGE = Buffer("X", (2, 5, 7, 40), float16)
VOLUME = Buffer("X", (2, 3, 4, 5, 64), float16)
WINDOWS: Mapping[str, tuple[Buffer, Im2col, tuple[int, ...]]] = {
    "line": (LINE, Im2col((-2,), (5,), (2,)), (3,)),
    "image": (IMAGE, Im2col((-1, -1), (5, 7), (1, 1)), (2, 0)),
    "image, strided": (IMAGE, Im2col((-1, 0), (3, 2), (2, 3)), (1, 2)),
    "volume": (VOLUME, Im2col((-1, 0, -1), (3, 3, 5), (1, 1, 1)), (1, 0, 2)),
}
"""Images, how a window moves over them, and a place of the window."""


def loading(
    tensor: Buffer,
    window: Im2col,
    offsets: tuple[Expr, ...],
    corner: tuple[Expr, ...],
    *,
    pixels: int = PIXELS,
    prefetches: bool = False,
) -> Kernel:
    """One thread loads ``pixels`` positions of a window from ``corner`` on; Y gets all that arrives."""
    result, w = Buffer("Y", (pixels, CHANNELS), float16), Writer()
    with w.launch("f", [("u", 1, HardwareAxis.WARP), ("l", 32, HardwareAxis.LANE)]) as (_, lane):
        tile = w.allocate("x", (pixels, CHANNELS), float16, MemoryScope.SHARED, Layout((CHANNELS, 1), SWIZZLE_128B))
        full = w.allocate("full", (1,), INDEX, MemoryScope.SHARED)
        first = Compare(CompareOp.EQ, lane, ZERO)
        with w.when(first):
            w.emit(MbarrierInit(full, ZERO, 1))
            if prefetches:
                w.emit(TmaPrefetch(tensor, corner, (pixels, CHANNELS), window, offsets))
        w.barrier()
        with w.when(first):
            box = (pixels, CHANNELS)
            w.emit(TmaLoad(tile, (ZERO, ZERO), tensor, corner, box, full, ZERO, im2col=window, offsets=offsets))
        w.emit(MbarrierWait(full, ZERO, ZERO))
        with w.loop("r", pixels) as row, w.loop("h", CHANNELS // 32) as half:
            w.store(result, (row, half * 32 + lane), Load(tile, (row, half * 32 + lane)))
    return Kernel("k", (tensor,), (result,), (), w.finish())


def windowed(name: str) -> Kernel:
    """The first box of one of ``WINDOWS``."""
    tensor, window, offsets = WINDOWS[name]
    return loading(tensor, window, tuple(map(index, offsets)), (ZERO, *map(index, window.lower), ZERO))


def multicasting() -> Kernel:
    """Each of two CTAs loads half of the pixels, for both of them, and stores what it has to its own rows of Y."""
    tensor, window, offsets = WINDOWS["image"]
    result, w = Buffer("Y", (2 * PIXELS, CHANNELS), float16), Writer()
    axes = [("c", 2, HardwareAxis.CLUSTER), ("u", 1, HardwareAxis.WARP), ("l", 32, HardwareAxis.LANE)]
    with w.launch("f", [("b", 1, HardwareAxis.GRID_X), *axes]) as (_, cta, _u, lane):
        tile = w.allocate("x", (PIXELS, CHANNELS), float16, MemoryScope.SHARED, Layout((CHANNELS, 1), SWIZZLE_128B))
        full = w.allocate("full", (1,), INDEX, MemoryScope.SHARED)
        first = Compare(CompareOp.EQ, lane, ZERO)
        with w.when(first):
            w.emit(MbarrierInit(full, ZERO, 1))
        w.barrier(SyncScope.CLUSTER)
        with w.when(first):
            w.emit(MbarrierArriveExpectTx(full, ZERO, 2 * PIXELS * CHANNELS))
            position, half = cta * (PIXELS // 2), PIXELS // 2
            corner = (ZERO, position // 7 - 1, position % 7 - 1, ZERO)
            at = (cta * half, ZERO)
            w.emit(
                TmaLoad(
                    *(tile, at, tensor, corner, (half, CHANNELS), full, ZERO, True, index(3), window),
                    tuple(map(index, offsets)),
                )
            )
        w.emit(MbarrierWait(full, ZERO, ZERO))
        with w.loop("r", PIXELS) as row, w.loop("h", CHANNELS // 32) as part:
            w.store(result, (cta * PIXELS + row, part * 32 + lane), Load(tile, (row, part * 32 + lane)))
        w.barrier(SyncScope.CLUSTER)
    return Kernel("k", (tensor,), (result,), (), w.finish())


def storing(view: Buffer) -> Kernel:
    """Y, of shape (2, 4, 8), gets the numbers of its elements by one TMA store into ``view`` of it."""
    result, w = Buffer("Y", (2, 4, 8), float16), Writer()
    source = Buffer("X", (8, 8), float16)
    with w.launch("f", [("u", 1, HardwareAxis.WARP), ("l", 32, HardwareAxis.LANE)]) as (_, lane):
        tile = w.allocate("y", (8, 8), float16, MemoryScope.SHARED)
        with w.loop("r", 2) as row:
            at = (row * 4 + lane // 8, lane % 8)
            w.store(tile, at, Load(source, at))
        w.emit(AsyncProxyFence())
        w.barrier()
        with w.when(Compare(CompareOp.EQ, lane, ZERO)):
            corner = tuple(ZERO for _ in view.shape)
            w.emit(TmaStore(view, corner, tile, (ZERO, ZERO), view.shape))
            w.emit(TmaStoreCommit())
            w.emit(TmaStoreWait(0))
    return Kernel("k", (source,), (result,), (), w.finish())
