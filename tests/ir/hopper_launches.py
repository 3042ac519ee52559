"""Small kernels, each with one operation that came with Hopper: ``stmatrix``, barriers of warpgroups, TMA stores,
multicast loads, arrivals at the mbarriers of other blocks. Faults can be planted in each, as in ``launches``."""

from collections.abc import Callable

import numpy as np

from tilewright.core.dtypes import INDEX, float16, float32
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Cast, ClusterLoad, Compare, CompareOp, Expr, Load, Ramp, const, index, logical_and
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.fence import AsyncProxyFence
from tilewright.ir.gpu.ldmatrix import LoadMatrix, StoreMatrix
from tilewright.ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from tilewright.ir.gpu.ordered_sequence import OrderedSequenceArrive, OrderedSequenceStart, OrderedSequenceWait
from tilewright.ir.gpu.tma import TmaLoad, TmaStore, TmaStoreCommit, TmaStoreWait
from tilewright.ir.stmt import HardwareAxis, Kernel

Z = index(0)
X, CLUSTER, THREAD = HardwareAxis.GRID_X, HardwareAxis.CLUSTER, HardwareAxis.THREAD
MATRICES = tuple((count, transposed) for count in (1, 2, 4) for transposed in (False, True))


def equal(a: Expr, b: int) -> Expr:
    return Compare(CompareOp.EQ, a, index(b))


def matrices(fault: str = "") -> Kernel:
    """O[v, i] = A[v, i] of 8x8, transposed for every other v. Matrices are loaded and stored 1, 2 and 4 at once."""
    shape = (len(MATRICES), 4, 8, 8)
    a, o = Buffer("A", shape, float16), Buffer("O", shape, float16)
    w = Writer()
    with w.launch("matrices", [("t", 64, THREAD)]) as (t,):
        kept = w.allocate("kept", (2, *shape), float16, MemoryScope.SHARED)
        back = w.allocate("back", (2, *shape), float16, MemoryScope.SHARED)
        held = w.allocate("held", (8,), float16, MemoryScope.REGISTER)
        warp, lane = t // 32, t % 32
        at = (lane // 8, lane % 8, Ramp(Z, 1, 8))
        for v, (count, transposed) in enumerate(MATRICES):
            w.store(kept, (warp, index(v), *at), Load(a, (index(v), *at)))
            w.barrier(SyncScope.WARP)
            row = (warp, index(v), lane // 8, lane % 8, index(4) if fault == "misaligned" and v == 3 else Z)
            for first in range(0, 4, count):
                place = (*row[:2], (lane // 8 + first) % 4, *row[3:])
                w.emit(LoadMatrix(held, (Z,), kept, place, count))
                if fault != "never loaded" or v:
                    w.emit(StoreMatrix(back, place, held, (index(6 if fault == "too few" else 0),), count, transposed))
            if fault != "dropped barrier":
                w.barrier(SyncScope.WARP)
            with w.when(equal(warp, 1)):
                turned = (lane // 8, (lane + 1) % 8, Ramp(Z, 1, 8))
                w.store(o, (index(v), *turned), Load(back, (warp, index(v), *turned)))
    return Kernel("matrices", (a,), (o,), (), w.finish())


def exchange(fault: str = "") -> Kernel:
    """O[t] = A of the next thread of the warpgroup, three warpgroups in a block, of which the last does not take
    part."""
    threads = 384
    a, o = Buffer("A", (threads,), float32), Buffer("O", (threads,), float32)
    w = Writer()
    with w.launch("exchange", [("t", threads, THREAD)]) as (t,):
        kept = w.allocate("kept", (threads,), float32, MemoryScope.SHARED)
        w.store(kept, (t,), Load(a, (t,)))
        with w.when(t < index(160 if fault == "torn" else 256)):
            if fault != "dropped barrier":
                w.barrier(SyncScope.WARP if fault == "warps alone" else SyncScope.WARPGROUP)
            turned = (t + 1) % 256 if fault == "another group's" else t // 128 * 128 + (t + 1) % 128
            w.store(o, (t,), Load(kept, (turned,)))
        with w.when(t >= index(256)):
            w.store(o, (t,), Load(kept, (t,)))
    return Kernel("exchange", (a,), (o,), (), w.finish())


def stored(fault: str = "") -> Kernel:
    """O = A + 1 of 3x37x20, in boxes of 2x8x8, through two stages in shared memory, of which one is always being
    stored."""
    shape, tile = (3, 37, 20), (2, 8, 8)
    a, o = Buffer("A", shape, float32), Buffer("O", shape, float32)
    w = Writer()
    with w.launch("stored", [("p", 2, X), ("t", 128, THREAD)]) as (p, t):
        stages = w.allocate("stages", (2, *tile), float32, MemoryScope.SHARED)
        with w.loop("i", 5) as i, w.loop("j", 3) as j:
            corner = (p * 2, i * 8, j * 8)
            stage = (i * 3 + j) % 2
            within = (t // 64, t // 8 % 8, t % 8)
            place = [c + x for c, x in zip(corner, within, strict=True)]
            inside = logical_and(*[x < index(n) for x, n in zip(place, shape, strict=True)])
            w.store(stages, (stage, *within), Load(a, tuple(place), inside) + 1.0)
            if fault != "no fence":
                w.emit(AsyncProxyFence())
            if fault != "no barrier":
                w.barrier()
            with w.when(equal(t, 0)):
                w.emit(
                    TmaStore(o, (Z, *corner[1:]) if fault == "blocks race" else corner, stages, (stage, Z, Z, Z), tile)
                )
                w.emit(TmaStoreCommit())
                w.emit(TmaStoreWait(2 if fault == "wait too short" else 1))
            if fault != "no second barrier":
                w.barrier()
        with w.when(equal(t, 0)):
            if fault != "never awaited":
                w.emit(TmaStoreWait(0))
            if fault == "read back":
                w.store(o, (Z, Z, Z), Load(o, (Z, Z, Z)) + 1.0)
    return Kernel("stored", (a,), (o,), (), w.finish())


def passed_on(fault: str = "") -> Kernel:
    """O[g, c, i] = A[g, 0, i] + A[g, 1, i] + ...: each of 4 blocks of a cluster multicasts its quarter to all of them,
    in turn."""
    clusters, cluster, turns, part = 2, 4, 3, 32
    a = Buffer("A", (clusters, turns, cluster * part), float32)
    o = Buffer("O", (clusters, turns, cluster, part), float32)
    w = Writer()
    with w.launch("passed_on", [("g", clusters, X), ("c", cluster, CLUSTER), ("t", part, THREAD)]) as (g, c, t):
        parts = w.allocate("parts", (cluster, part), float32, MemoryScope.SHARED)
        full, free = (w.allocate(name, (1,), INDEX, MemoryScope.SHARED) for name in ("full", "free"))
        total = w.allocate("total", (1,), float32, MemoryScope.REGISTER)
        with w.when(equal(t, 0)):
            w.emit(MbarrierInit(full, Z, 1))
            w.emit(MbarrierInit(free, Z, 1 if fault == "one is enough" else cluster))
        w.barrier(SyncScope.BLOCK if fault == "not synchronised before" else SyncScope.CLUSTER)
        with w.loop("n", turns) as n:
            with w.when(equal(t, 0)):
                if fault != "room not awaited":
                    w.emit(MbarrierWait(free, Z, index(1) - n % 2))
                size = {"too many bytes": n * 16 + 4 * part * cluster, "a part of 16 bytes": n + 8}
                w.emit(MbarrierArriveExpectTx(full, Z, size.get(fault, 4 * part * cluster)))
                mask = index({"too many": 31, "one left out": 7}.get(fault, 15))
                at = (g, n, c * part)
                w.emit(TmaLoad(parts, (c, Z), a, at, (1, 1, part), full, Z, True, mask))
            w.emit(MbarrierWait(full, Z, n % 2))
            w.store(total, (Z,), const(0.0, float32))
            with w.unrolled("p", cluster) as p:
                w.store(total, (Z,), Load(total, (Z,)) + Load(parts, (p, t)))
            w.store(o, (g, n, c, t), Load(total, (Z,)))
            w.barrier(SyncScope.WARP)
            with w.when(t < index(cluster)):
                w.emit(MbarrierArrive(free, Z, t + 1 if fault == "no such block" else t))
        if fault != "ends too early":
            w.barrier(SyncScope.CLUSTER)
    return Kernel("passed_on", (a,), (o,), (), w.finish())


def published(fault: str = "") -> Kernel:
    """O[c, t] = A of the other block of a cluster, after a barrier of the cluster. An arrival there alone orders no
    writes."""
    a, o = Buffer("A", (2, 32), float32), Buffer("O", (2, 32), float32)
    w = Writer()
    with w.launch("published", [("c", 2, CLUSTER), ("t", 32, THREAD)]) as (c, t):
        kept, seen = (w.allocate(name, (32,), float32, MemoryScope.SHARED) for name in ("kept", "seen"))
        there = w.allocate("there", (1,), INDEX, MemoryScope.SHARED)
        with w.when(equal(t, 0)):
            w.emit(MbarrierInit(there, Z, 32))
        w.barrier(SyncScope.CLUSTER)
        w.store(kept, (t,), Load(a, (c, t)))
        w.emit(MbarrierArrive(there, Z, index(1) - c))
        w.emit(MbarrierWait(there, Z, Z))
        if fault != "arrivals alone":
            w.barrier(SyncScope.CLUSTER)
        w.store(seen, (t,), ClusterLoad(kept, (t,), index(1) - c))
        w.store(o, (c, t), Load(seen, (t,)))
        w.barrier(SyncScope.CLUSTER)
    return Kernel("published", (a,), (o,), (), w.finish())


def turns(fault: str = "") -> Kernel:
    """O[t] = A + 1 + 2 + 3, added by two warpgroups in turns; a third one takes none."""
    threads = 384
    a, o = Buffer("A", (threads,), float32), Buffer("O", (threads,), float32)
    w = Writer()
    with w.launch("turns", [("t", threads, THREAD)]) as (t,):
        total = w.allocate("total", (1,), float32, MemoryScope.REGISTER)
        w.store(total, (Z,), Load(a, (t,)))
        with w.when(t < index(384 if fault == "a third one" else 256)):
            if fault != "never started":
                w.emit(OrderedSequenceStart(2))
            with w.loop("n", 3) as n:
                if fault != "never begun":
                    w.emit(OrderedSequenceWait(2))
                w.store(total, (Z,), Load(total, (Z,)) + Cast(n + 1, float32))
                w.emit(OrderedSequenceArrive(2))
        if fault == "uneven":
            with w.when(t < index(128)):
                w.emit(OrderedSequenceWait(2))
        if fault == "torn":
            with w.when(t < index(32)):
                w.emit(OrderedSequenceWait(2))
        with w.when(t >= index(256)):
            w.store(total, (Z,), Load(total, (Z,)) + 6.0)
        w.store(o, (t,), Load(total, (Z,)))
    return Kernel("turns", (a,), (o,), (), w.finish())


Build = Callable[[str], Kernel]
FAULTS: dict[Build, dict[str, str]] = {
    matrices: {
        "misaligned": "a matrix row at kept.*not aligned to 8",
        "too few": r"held\[6\] is read before it is written|out of bounds",
        "never loaded": r"back\[.*\] is read before it is written",
        "dropped barrier": r"race on back\[.*\]: read here, written by thread",
    },
    exchange: {
        "dropped barrier": r"race on kept\[1\]: read here, written by thread 1 of block 0",
        "warps alone": r"race on kept\[32\]: read here, written by thread 32 of block 0",
        "another group's": r"race on kept\[128\]: read here, written by thread 128 of block 0",
        "torn": "a barrier of the warpgroup under `t < 160`, which differs within a warpgroup",
    },
    stored: {
        "no fence": r"stages\[0, 0, 0, 0\] is accessed asynchronously, was written by thread 0 .* no async_proxy_fence",
        "no barrier": r"race on stages\[0, 0, 0, 1\]: read here, written by thread 1 of block 0",
        "blocks race": r"race on O\[0, 0, 0\]: written here and at once by thread 0 of block 1",
        "wait too short": r"stages\[0, .*\] is written while a wgmma, a tcgen05.mma or a TMA store in flight reads it",
        "no second barrier": r"stages\[0, .*\] is written while|race on stages\[0, .*\]: written here, read by",
        "never awaited": r"stages\[.*\] is still being read asynchronously where stages ends",
        "read back": r"O\[0, 0, 0\] is read while an asynchronous copy to it is in flight",
    },
    passed_on: {
        "one is enough": r"gets more than its 1 arrivals|race on parts",
        "too many bytes": r"phase 1 of full\[0\] gets 512 of 528 bytes",
        "a part of 16 bytes": "8 bytes are expected",
        "not synchronised before": "mbarrier .* is used before all who use it have synchronised",
        "room not awaited": r"race on parts\[.*, 0\]: written here",
        "too many": "a multicast to blocks 0b11111 of a cluster of 4",
        "one left out": r"a wait that never ends: phase 0 of full\[0\] gets 0 of 512 bytes",
        "no such block": "block 4 is none of a cluster of 4",
        "ends too early": "there is no barrier of the cluster between a use of another block's memory and the end",
    },
    turns: {
        "a third one": "a warpgroup that takes no turns",
        "never started": "a turn begins before turns do, or within a turn",
        "never begun": "a turn ends that has not begun",
        "uneven": "a wait that never ends: warpgroups begin and end turns 7, 6, -1 times",
        "torn": "a turn of warpgroups under `t < 32`, which differs within a warpgroup",
    },
    published: {"arrivals alone": r"race on kept\[0\]: read here, written by thread 0 of block 1"},
}
"""Every kernel with the faults that can be planted, and the message that each must cause."""


def data_of(kernel: Kernel) -> dict[str, np.ndarray]:
    """Random inputs: small whole numbers."""
    draw = stream(3, "tensor launches", kernel.name)
    return {b.name: draw.integers(-8, 9, b.shape).astype(b.dtype.numpy) for b in kernel.inputs}


def expected(build: Build, data: dict[str, np.ndarray]) -> np.ndarray:
    """What the right kernel gives."""
    a = data["A"]
    if build is matrices:
        return np.stack([x.transpose(0, 2, 1) if t else x for x, (_, t) in zip(a, MATRICES, strict=True)])
    if build is exchange:
        turned = np.roll(a[:256].reshape(2, 128), -1, axis=1).reshape(-1)
        return np.concatenate([turned, a[256:]])
    if build is stored:
        return a + 1
    if build is turns:
        return a + 6
    if build is published:
        return a[::-1]
    sums = a.reshape(*a.shape[:2], 4, 32).sum(axis=2)
    return np.broadcast_to(sums[:, :, None], (*sums.shape[:2], 4, 32))
