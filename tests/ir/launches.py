"""Kernels for graphics processors, written by hand: one for each kind of operation, each with faults to plant.

Every builder takes ``fault``: one of its entry in ``FAULTS``, or nothing for the right kernel.
"""

from collections.abc import Callable

import numpy as np

from tilewright.core.dtypes import INDEX, DType, float16, float32, int64
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from tilewright.ir.build import Writer
from tilewright.ir.expr import (
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    Shuffle,
    ShuffleMode,
    const,
    index,
    logical_and,
)
from tilewright.ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.bulk_copy import BulkCopy
from tilewright.ir.gpu.flagged import FlaggedLoad, FlaggedPeek, FlaggedStore, flagged_words
from tilewright.ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from tilewright.ir.gpu.ldmatrix import LoadMatrix
from tilewright.ir.gpu.mbarrier import MbarrierInit, MbarrierWait
from tilewright.ir.gpu.mma import WARP_MMA_ATOMS, Mma
from tilewright.ir.stmt import HardwareAxis, Kernel

Z = index(0)
X, CLUSTER = HardwareAxis.GRID_X, HardwareAxis.CLUSTER
THREAD, WARP, LANE = HardwareAxis.THREAD, HardwareAxis.WARP, HardwareAxis.LANE


def equal(a: Expr, b: int) -> Expr:
    return Compare(CompareOp.EQ, a, index(b))


def warp_sum(value: Expr, w: Writer, total: Buffer) -> None:
    """The sum of ``value`` over the lanes of every warp, in all of them, through ``total``."""
    w.store(total, (Z,), value)
    for lane in (16, 8, 4, 2, 1):
        w.store(total, (Z,), Load(total, (Z,)) + Shuffle(ShuffleMode.XOR, Load(total, (Z,)), index(lane)))


def row_sum(fault: str = "") -> Kernel:
    """O[b] = sum of A[b, :], a block per row: lanes by shuffles, warps through shared memory."""
    rows, columns, threads = 5, 1000, 128
    a, o = Buffer("A", (rows, columns), float32), Buffer("O", (rows,), float32)
    w = Writer()
    axes, hinted = [("b", rows, X), ("t", threads, THREAD)], ("A",)
    with w.launch("row_sum", axes, min_blocks=2, evict_first=hinted, prefetch_lines=hinted) as (b, t):
        total = w.allocate("total", (1,), float32, MemoryScope.REGISTER)
        parts = w.allocate("parts", (threads // 32,), float32, MemoryScope.SHARED)
        w.store(total, (Z,), const(0.0, float32))
        with w.loop("i", -(-columns // threads)) as i:
            place = i * threads + t
            with w.when(place <= index(columns) if fault == "off by one" else place < index(columns)):
                w.store(total, (Z,), Load(total, (Z,)) + Load(a, (b, place)))
        warp_sum(Load(total, (Z,)), w, total)
        first = equal(t % 32, 0)
        with w.when(logical_and(first, t >= index(32)) if fault == "unwritten" else first):
            w.store(parts, (t // 32,), Load(total, (Z,)))
        if fault == "divergent barrier":
            with w.when(t < index(64)):
                w.barrier()
        elif fault != "dropped barrier":
            w.barrier()
        with w.when(equal(t, 0)):
            w.store(total, (Z,), const(0.0, float32))
            with w.unrolled("p", threads // 32) as p:
                w.store(total, (Z,), Load(total, (Z,)) + Load(parts, (p,)))
            w.store(o, (b,), Load(total, (Z,)))
    return Kernel("row_sum", (a,), (o,), (), w.finish())


def two_launches(fault: str = "") -> Kernel:
    """O[j] = sum of the columns of A: one launch sums groups of rows into a workspace, another one sums those."""
    rows, columns, split = 12, 64, 3
    a, o = Buffer("A", (rows, columns), float32), Buffer("O", (columns,), float32)
    parts = Buffer("P", (split, columns), float32)
    w = Writer()

    def second(s: int) -> None:
        with w.launch("combine", [("t2", columns, THREAD)]) as (t,):
            whole = w.allocate("whole", (1,), float32, MemoryScope.REGISTER)
            w.store(whole, (Z,), const(0.0, float32))
            with w.loop("s2", s) as n:
                w.store(whole, (Z,), Load(whole, (Z,)) + Load(parts, (n, t)))
            w.store(o, (t,), Load(whole, (Z,)))

    with w.launch("partial", [("s", split, X), ("t", columns // 2, THREAD)]) as (s, t):
        columns_of = Ramp(t * 2, 1, 2)
        total = w.allocate("total", (2,), float32, MemoryScope.REGISTER)
        both = Ramp(Z, 1, 2)
        w.store(total, (both,), Broadcast(const(0.0, float32), 2))
        with w.loop("i", rows // split) as i:
            w.store(total, (both,), Load(total, (both,)) + Load(a, (s * (rows // split) + i, columns_of)))
        with w.when(s < index(split - 1) if fault == "unwritten workspace" else None):
            w.store(parts, (Z if fault == "blocks race" else s, columns_of), Load(total, (both,)))
    second(split)
    return Kernel("column_sum", (a,), (o,), (parts,), w.finish())


def pipelined(fault: str = "") -> Kernel:
    """O[b, i] = A[b, i] with every 128 elements reversed. Tiles are copied one stage ahead by ``cp.async``."""
    blocks, tiles, tile, threads = 3, 4, 128, 32
    a, o = Buffer("A", (blocks, tiles * tile), float32), Buffer("O", (blocks, tiles * tile), float32)
    w = Writer()
    with w.launch("reverse", [("b", blocks, X), ("u", 1, WARP), ("l", threads, LANE)]) as (b, _, t):
        stages = w.allocate("stages", (2, tile), float32, MemoryScope.SHARED)

        def fetch(number: Expr, stage: Expr, mask: Expr | None = None) -> None:
            at = t * 4 + (2 if fault == "misaligned" else 0)
            w.emit(CopyAsync(stages, (stage, t * 4), a, (b, number * tile + at), 4, mask))
            w.emit(CopyAsyncCommit())

        fetch(Z, Z)
        with w.loop("n", tiles) as n:
            fetch(n + 1, (n + 1) % 2, n < index(tiles - 1))
            if fault != "missing wait":
                w.emit(CopyAsyncWait(2 if fault == "wait too short" else 1))
            if fault != "dropped barrier":
                w.barrier()
            with w.loop("k", tile // threads) as k:
                place = k * threads + t
                w.store(o, (b, n * tile + place), Load(stages, (n % 2, index(tile - 1) - place)))
            if fault != "overwritten too early":
                w.barrier()
        if fault != "still in flight":
            w.emit(CopyAsyncWait(0))
    return Kernel("reverse", (a,), (o,), (), w.finish())


def bulk(fault: str = "") -> Kernel:
    """The same by bulk copies of whole tiles, which one thread starts and all await on mbarriers."""
    blocks, tiles, tile, threads = 3, 5, 128, 64
    a, o = Buffer("A", (blocks, tiles * tile), float32), Buffer("O", (blocks, tiles * tile), float32)
    w = Writer()
    with w.launch("reverse", [("b", blocks, X), ("t", threads, THREAD)]) as (b, t):
        stages = w.allocate("stages", (2, tile), float32, MemoryScope.SHARED)
        full = w.allocate("full", (2,), INDEX, MemoryScope.SHARED)

        def fetch(number: Expr, name: str) -> None:
            with w.when(logical_and(equal(t, 0), number < index(tiles))):
                w.emit(BulkCopy(stages, (number % 2, Z), a, (b, number * tile), tile, full, number % 2))

        with w.when(equal(t, 0)), w.loop("s", 1 if fault == "not initialised" else 2) as s:
            w.emit(MbarrierInit(full, s, 2 if fault == "too many expected" else 1))
        if fault != "not synchronised after preparing":
            w.barrier()
        fetch(Z, "first")
        with w.loop("n", tiles) as n:
            fetch(n + 1, "next")
            parity = n // 2 % 2
            if fault == "wrong parity":
                parity = index(1) - parity
            if fault == "one warp waits":
                with w.when(t < index(32)):
                    w.emit(MbarrierWait(full, n % 2, parity))
            elif fault != "missing wait":
                w.emit(MbarrierWait(full, n % 2, parity))
            with w.loop("k", tile // threads) as k:
                place = k * threads + t
                w.store(o, (b, n * tile + place), Load(stages, (n % 2, index(tile - 1) - place)))
            if fault != "overwritten too early":
                w.barrier()
    return Kernel("reverse", (a,), (o,), (), w.finish())


def cluster_sum(fault: str = "") -> Kernel:
    """O[g] = sum of A[g, :], a cluster of 4 blocks per row, each reading the others' sums."""
    rows, cluster, per_block = 3, 4, 64
    a, o = Buffer("A", (rows, cluster * per_block), float32), Buffer("O", (rows,), float32)
    w = Writer()
    with w.launch("cluster_sum", [("g", rows, X), ("c", cluster, CLUSTER), ("t", per_block, THREAD)]) as (g, c, t):
        total = w.allocate("total", (1,), float32, MemoryScope.REGISTER)
        parts = w.allocate("parts", (per_block // 32,), float32, MemoryScope.SHARED)
        warp_sum(Load(a, (g, c * per_block + t)), w, total)
        with w.when(equal(t % 32, 0)):
            w.store(parts, (t // 32,), Load(total, (Z,)))
        w.barrier(SyncScope.BLOCK if fault == "missing cluster barrier" else SyncScope.CLUSTER)
        with w.when(logical_and(equal(t, 0), equal(c, 0))):
            w.store(total, (Z,), const(0.0, float32))
            with w.loop("p", cluster + 1 if fault == "no such block" else cluster) as p, w.loop("q", 2) as q:
                w.store(total, (Z,), Load(total, (Z,)) + ClusterLoad(parts, (q,), p))
            w.store(o, (g,), Load(total, (Z,)))
        if fault != "ends too early":
            w.barrier(SyncScope.CLUSTER)
    return Kernel("cluster_sum", (a,), (o,), (), w.finish())


def grid_share(fault: str = "") -> Kernel:
    """O[i, :] = A[i, :] * sum of A, a block for each row, all of which meet at the barrier of the grid."""
    rows, columns = 5, 64
    a, o, sums = (
        Buffer("A", (rows, columns), float32),
        Buffer("O", (rows, columns), float32),
        Buffer("S", (rows,), float32),
    )
    w = Writer()
    with w.launch("grid_share", [("b", rows, X), ("t", columns, THREAD)]) as (b, t):
        total = w.allocate("total", (1,), float32, MemoryScope.REGISTER)
        w.store(total, (Z,), const(0.0, float32))
        with w.loop("i", columns) as i:
            w.store(total, (Z,), Load(total, (Z,)) + Load(a, (b, i)))

        def publish() -> None:
            with w.when(equal(t, 0)):
                w.store(sums, (b,), Load(total, (Z,)))

        if fault != "written after the arrival":
            publish()
        with w.when(equal(b, 0) if fault == "divergent barrier" else None):
            if fault not in ("no barrier", "wait without arrival"):
                w.emit(GridBarrierArrive())
            if fault == "arrives twice":
                w.emit(GridBarrierArrive())
        if fault == "written after the arrival":
            publish()
        if fault not in ("no barrier", "no wait"):
            w.emit(GridBarrierWait())
        w.store(total, (Z,), const(0.0, float32))
        with w.loop("j", rows) as j:
            w.store(total, (Z,), Load(total, (Z,)) + Load(sums, (j,)))
        w.store(o, (b, t), Load(a, (b, t)) * Load(total, (Z,)))
        if fault == "arrives at the end":
            w.emit(GridBarrierArrive())
        if fault == "a barrier of two statements":
            w.barrier(SyncScope.GRID)
    return Kernel("grid_share", (a,), (o,), (sums,), w.finish())


def look_back(fault: str = "", dtype: DType = float32) -> Kernel:
    """O[i, :] = A[i, :] + the sum of the first elements of rows up to i, a block for each row. A block hands its first
    element to those behind it, with a flag, and peeks at those of all rows before it waits for one."""
    rows, columns = 5, 64
    a, o = Buffer("A", (rows, columns), dtype), Buffer("O", (rows, columns), dtype)
    words = Buffer("W", (rows, flagged_words(dtype)), int64)
    w = Writer()
    with w.launch("look_back", [("b", rows, X), ("t", columns, THREAD)]) as (b, t):
        total, before = (w.allocate(name, (1,), dtype, MemoryScope.REGISTER) for name in ("total", "before"))
        if fault != "not cleared":
            with w.when(t < index(words.shape[1])):
                w.store(words, (b, t), const(0, int64))
        if fault != "no barrier":
            w.emit(GridBarrierArrive())
            w.emit(GridBarrierWait())
        with w.when(equal(t, 0), equal(b, 2) if fault == "one value" else None):
            w.emit(FlaggedStore(words, (b, Z), Load(a, (b, Z))))
            if fault == "two values":
                w.emit(FlaggedStore(words, (b, Z), Load(a, (b, Z))))
        w.store(total, (Z,), const(0, dtype))
        peeked = w.allocate("peeked", (rows, words.shape[1]), int64, MemoryScope.REGISTER)
        with w.unrolled("p", rows) as p, w.when(p <= b):
            if fault != "not peeked":
                w.emit(FlaggedPeek(peeked, (p, Z), words, (p, Z), words.shape[1]))
        with w.unrolled("i", rows) as i, w.when(i <= b):
            w.emit(FlaggedLoad(before, (Z,), words, (i, Z), peeked, (i, Z)))
            w.store(total, (Z,), Load(total, (Z,)) + Load(before, (Z,)))
        w.store(o, (b, t), Load(a, (b, t)) + Load(total, (Z,)))
    return Kernel("look_back", (a,), (o,), (words,), w.finish())


def transpose(fault: str = "") -> Kernel:
    """O[j, i] = A[i, j] of 64x96 through a swizzled tile of 32x32 (32 rows of 4 words, 32 columns of one)."""
    rows, columns, tile = 64, 96, 32
    a, o = Buffer("A", (rows, columns), float32), Buffer("O", (columns, rows), float32)
    swizzle = Swizzle(3, 2, 0) if fault == "wrong swizzle" else Swizzle(3, 2, 3)
    w = Writer()
    bounds = [("x", columns // tile, X), ("y", rows // tile, HardwareAxis.GRID_Y), ("t", 256, THREAD)]
    with w.launch("transpose", bounds) as (x, y, t):
        staged = w.allocate("staged", (tile, tile), float32, MemoryScope.SHARED, Layout((tile, 1), swizzle))
        four = Ramp(t % 8 * 4, 1, 4)
        w.store(staged, (t // 8, four), Load(a, (y * tile + t // 8, Ramp(x * tile + t % 8 * 4, 1, 4))))
        w.barrier()
        row = Ramp(t % 8 * 4 + (1 if fault == "off by one" else 0), 1, 4)
        out = (x * tile + t // 8, Ramp(y * tile + t % 8 * 4, 1, 4))
        mask = Compare(CompareOp.LT, four, Broadcast(index(31), 4)) if fault == "output unwritten" else None
        w.store(o, out, Load(staged, (row, t // 8)), mask)
    return Kernel("transpose", (a,), (o,), (), w.finish())


def product(fault: str = "") -> Kernel:
    """C[32, 16] = A[32, 64] @ B[16, 64].T (f16, accumulated in f32) by two warps of matrix instructions."""
    m, n, k = 32, 16, 64
    a, b = Buffer("A", (m, k), float16), Buffer("B", (n, k), float16)
    c = Buffer("C", (m, n), float32)
    rows = Layout((k, 1), Swizzle(3, 2 if fault == "wrong swizzle" else 3, 4 if fault == "wrong swizzle" else 3))
    w = Writer()
    with w.launch("product", [("warp", 2, WARP), ("lane", 32, LANE)]) as (warp, lane):
        left = w.allocate("left", (m, k), float16, MemoryScope.SHARED, rows)
        right = w.allocate("right", (n, k), float16, MemoryScope.SHARED, rows)
        _stage(w, a, left, warp * 32 + lane)
        _stage(w, b, right, warp * 32 + lane)
        w.emit(CopyAsyncCommit())
        w.emit(CopyAsyncWait(0))
        w.barrier()
        sums = w.allocate("sums", (2, 4), float32, MemoryScope.REGISTER)
        fa = w.allocate("fa", (8,), float16, MemoryScope.REGISTER)
        fb = w.allocate("fb", (2, 4), float16, MemoryScope.REGISTER)
        with w.unrolled("z", 2) as z:
            if fault != "not cleared":
                w.store(sums, (z, Ramp(Z, 1, 4)), Broadcast(const(0.0, float32), 4))
        with w.unrolled("step", k // 16) as step:
            column = step * 16 + (4 if fault == "misaligned" else 0)
            at = (warp * 16 + lane % 16, column + lane // 16 * 8)
            w.emit(LoadMatrix(fa, (Z,), left, at, 4))
            # rows 0-7 of B with both halves of k, then rows 8-15: the fragments of two mma
            w.emit(LoadMatrix(fb, (Z, Z), right, (lane % 8, step * 16 + lane // 8 % 2 * 8), 2))
            w.emit(LoadMatrix(fb, (index(1), Z), right, (lane % 8 + 8, step * 16 + lane // 8 % 2 * 8), 2))
            with w.unrolled("half", 2) as half:
                w.emit(Mma("m16n8k16_f16", sums, (half, Z), fa, (Z,), fb, (half, Z)))
        with w.unrolled("h", 2) as h, w.unrolled("e", 2) as e:
            place = (warp * 16 + e * 8 + lane // 4, Ramp(h * 8 + lane % 4 * 2, 1, 2))
            w.store(c, place, Load(sums, (h, Ramp(e * 2, 1, 2))))
    assert WARP_MMA_ATOMS["m16n8k16_f16"].elements("b") == 4
    return Kernel("product", (a, b), (c,), (), w.finish())


def _stage(w: Writer, source: Buffer, target: Buffer, thread: Expr) -> None:
    """All of a matrix of 64 columns to shared memory, 16 bytes a copy, by 64 threads."""
    with w.loop(f"{target.name}_row", source.shape[0] // 8) as r:
        at = (r * 8 + thread // 8, thread % 8 * 8)
        w.emit(CopyAsync(target, at, source, at, 8))


def exchange(fault: str = "") -> Kernel:
    """O[t] = A of the lane's neighbours, through shared memory with barriers of warps only, rounded to f16 between."""
    threads = 96
    a, o = Buffer("A", (threads,), float32), Buffer("O", (threads,), float32)
    w = Writer()
    with w.launch("exchange", [("t", threads, THREAD)]) as (t,):
        kept = w.allocate("kept", (threads,), float16, MemoryScope.SHARED)
        w.store(kept, (t,), Cast(Load(a, (t,)), float16))
        if fault != "dropped barrier":
            w.barrier(SyncScope.WARP)
        turned = (t + 1) % threads if fault == "another warp's" else t // 32 * 32 + (t + 1) % 32
        w.store(o, (t,), Cast(Load(kept, (turned,)), float32))
    return Kernel("exchange", (a,), (o,), (), w.finish())


Build = Callable[[str], Kernel]
FAULTS: dict[Build, dict[str, str]] = {
    row_sum: {
        "off by one": r"A\[0, 1000\] is out of bounds \[5, 1000\] at b=0, t=104, i=7",
        "unwritten": r"parts\[0\] is read before it is written at b=0, t=0, p=0",
        "divergent barrier": "a barrier of the block under `t < 64`, which differs within a block",
        "dropped barrier": r"race on parts\[1\]: read here, written by thread 32 of block 0",
    },
    two_launches: {
        "unwritten workspace": r"launch combine: P\[2, 0\] is read before it is written",
        "blocks race": r"race on P\[0, 0\]: written here and .*by thread",
    },
    pipelined: {
        "missing wait": r"stages\[0, .*\] is read while an asynchronous copy to it is in flight",
        "wait too short": r"stages\[0, .*\] is read while an asynchronous copy to it is in flight",
        "dropped barrier": r"race on stages\[0, .*\]: read here, written by thread",
        "overwritten too early": r"race on stages\[0, .*\]: written here, read by thread",
        "still in flight": r"copy to stages\[0, 0\] is still in flight where stages ends",
        "misaligned": r"A is accessed at bytes that are no multiple of 16",
    },
    bulk: {
        "not initialised": r"mbarrier full\[1\] is used before it is initialised",
        "not synchronised after preparing": r"mbarrier full\[0\] is used before all who use it have synchronised",
        "too many expected": r"a wait that never ends: phase 0 of full\[0\] has 1 of 2 arrivals",
        "wrong parity": r"stages\[0, .*\] is read while an asynchronous copy to it is in flight",
        "missing wait": r"stages\[0, .*\] is read while an asynchronous copy to it is in flight",
        "one warp waits": r"race on stages\[0, .*\]: read here, written by a bulk copy",
        "overwritten too early": r"race on stages\[0, .*\]: written here, read by thread",
    },
    cluster_sum: {
        "missing cluster barrier": r"race on parts\[0\]: read here, written by thread 0 of block 1",
        "ends too early": "there is no barrier of the cluster between a use of another block's memory and the end",
        "no such block": "block 4 is none of a cluster of 4",
    },
    grid_share: {
        "no barrier": r"race on S\[0\]: read here, written by thread 0 of block 0",
        "no wait": r"race on S\[0\]: read here, written by thread 0 of block 0",
        "written after the arrival": r"race on S\[0\]: read here, written by thread 0 of block 0",
        "wait without arrival": "a wait that never ends: nobody has arrived at the barrier of the grid",
        "arrives twice": "an arrival at the barrier of the grid that follows another one",
        "arrives at the end": "ends between an arrival at the barrier of the grid and its wait",
        "divergent barrier": "a barrier of the grid under `b == 0`, which differs within a grid",
        "a barrier of two statements": "it is a GridBarrierArrive and a GridBarrierWait",
    },
    look_back: {
        "not cleared": r"W\[0, 0\] is read before it is written",
        "no barrier": r"race on W\[0, 0\]: read here, written by thread 0 of block 0",
        "one value": r"a wait that never ends: nobody has stored W\[0, 0\]",
        "not peeked": r"peeked\[0, 0\] is read before it is written",
        "two values": r"W\[0, 0\] is stored to where it has a value",
    },
    transpose: {
        "wrong swizzle": "two elements of staged lie at one offset",
        "off by one": r"staged\[32, 0\] in lane 3 is out of bounds \[32, 32\]",
        "output unwritten": r"output O: 192 of 6144 elements left unwritten, first O\[0, 31\]",
    },
    product: {
        "wrong swizzle": "a copy of 16 bytes at left.*not aligned",
        "not cleared": r"sums\[0, 0\] is read before it is written",
        "misaligned": r"a matrix row at left.*not aligned to 8",
    },
    exchange: {
        "dropped barrier": r"race on kept\[1\]: read here, written by thread 1 of block 0",
        "another warp's": r"race on kept\[32\]: read here, written by thread 32 of block 0",
    },
}
"""Every kernel with the faults that can be planted, and the message that each must cause."""


def data_of(kernel: Kernel) -> dict[str, np.ndarray]:
    """Random inputs: small whole numbers, so that sums are exact in any order."""
    draw = stream(1, "launches", kernel.name)
    return {b.name: draw.integers(-8, 9, b.shape).astype(b.dtype.numpy) for b in kernel.inputs}


def expected(build: Build, data: dict[str, np.ndarray]) -> np.ndarray:
    """What the right kernel gives, in float32."""
    a = data["A"].astype(np.float32)
    if build in (row_sum, cluster_sum):
        return np.asarray(a.sum(axis=1))
    if build is grid_share:
        return np.asarray(a * a.sum())
    if build is look_back:
        return np.asarray(a + np.cumsum(a[:, :1], axis=0))
    if build is two_launches:
        return np.asarray(a.sum(axis=0))
    if build is transpose:
        return a.T
    if build is product:
        return np.asarray(a @ data["B"].astype(np.float32).T)
    if build is exchange:
        return np.roll(a.reshape(-1, 32), -1, axis=1).reshape(-1)
    return a.reshape(len(a), -1, 128)[..., ::-1].reshape(a.shape)
