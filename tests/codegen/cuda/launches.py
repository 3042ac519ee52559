"""Kernels with launches, written by hand. Together they have every node that only graphics processors have."""

from dataclasses import replace

from tilewright.core.dtypes import DType, bfloat16, boolean, float16, float32, float64, int8, int32, int64
from tilewright.ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from tilewright.ir.build import Writer
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    ReduceLanes,
    Select,
    Shuffle,
    ShuffleMode,
    Unary,
    UnaryOp,
    const,
    index,
)
from tilewright.ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from tilewright.ir.gpu.atomic import AtomicReduce
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.bulk_copy import BulkCopy
from tilewright.ir.gpu.ldmatrix import LoadMatrix
from tilewright.ir.gpu.mbarrier import MbarrierInit, MbarrierWait
from tilewright.ir.gpu.mma import Mma
from tilewright.ir.rewrite import map_statements
from tilewright.ir.stmt import AxisBinding, For, HardwareAxis, Kernel, Launch, LoopKind, Stmt
from tilewright.tests.ir.launches import grid_share, look_back

X, THREAD, WARP, LANE = HardwareAxis.GRID_X, HardwareAxis.THREAD, HardwareAxis.WARP, HardwareAxis.LANE
ZERO = index(0)
EVERY = Ramp(ZERO, 1, 8)


def launched(kernel: Kernel) -> Kernel:
    """Turn a kernel of loops into one launch of one thread."""

    def serial(stmt: Stmt) -> Stmt:
        is_parallel = isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL
        return replace(stmt, kind=LoopKind.SERIAL) if is_parallel else stmt  # type: ignore[type-var]

    bounds = (AxisBinding("one_thread", 1, HardwareAxis.THREAD),)
    return replace(kernel, body=Launch(kernel.name, bounds, map_statements(kernel.body, serial)))


def softmax(rows: int, columns: int, dtype: DType) -> Kernel:
    """One block computes a row, which it keeps in registers. Shuffles, then shared memory, reduce over threads."""
    threads, vectors = columns // 32, 4
    source, result = Buffer("A", (rows, columns), dtype), Buffer("O", (rows, columns), dtype)
    w = Writer()
    with w.launch("softmax", [("row", rows, X), ("t", threads, THREAD)], evict_first=("A", "O")) as (row, t):
        x = w.allocate("x", (vectors, 8), float32, MemoryScope.REGISTER)
        value = w.allocate("value", (2,), float32, MemoryScope.REGISTER)
        partials = w.allocate("partials", (2, threads // 32), float32, MemoryScope.SHARED)
        with w.unrolled("i", vectors) as i:
            at = (row, Ramp((i * threads + t) * 8, 1, 8))
            w.store(x, (i, EVERY), Cast(Load(source, at), float32))
        for which, op, start in ((0, BinaryOp.MAX, float("-inf")), (1, BinaryOp.ADD, 0.0)):
            slot = (index(which),)
            w.store(value, slot, const(start, float32))
            with w.unrolled(f"j{which}", vectors) as j:
                lanes = Load(x, (j, EVERY))
                if op is BinaryOp.ADD:
                    largest = Broadcast(Load(value, (ZERO,)), 8)
                    w.store(x, (j, EVERY), Unary(UnaryOp.EXP, Binary(BinaryOp.SUB, lanes, largest)))
                    lanes = Load(x, (j, EVERY))
                w.store(value, slot, Binary(op, Load(value, slot), ReduceLanes(op, lanes)))
            for distance in (16, 8, 4, 2, 1):
                other = Shuffle(ShuffleMode.XOR, Load(value, slot), index(distance))
                w.store(value, slot, Binary(op, Load(value, slot), other))
            with w.when(Compare(CompareOp.EQ, t % 32, ZERO)):
                w.store(partials, (index(which), t // 32), Load(value, slot))
            w.barrier()
            w.store(value, slot, const(start, float32))
            with w.unrolled(f"k{which}", threads // 32) as k:
                w.store(value, slot, Binary(op, Load(value, slot), Load(partials, (index(which), k))))
        with w.unrolled("o", vectors) as o:
            total = Broadcast(Load(value, (index(1),)), 8)
            at = (row, Ramp((o * threads + t) * 8, 1, 8))
            w.store(result, at, Cast(Binary(BinaryOp.DIV, Load(x, (o, EVERY)), total), dtype))
    return Kernel("softmax", (source,), (result,), (), w.finish())


def transpose(rows: int, columns: int, dtype: DType, layout: Layout | None) -> Kernel:
    """Tiles of 64 by 64 go through shared memory, with vector accesses to global memory."""
    tile, lanes = 64, 16 // dtype.bytes
    wide = tile // lanes
    source, result = Buffer("A", (rows, columns), dtype), Buffer("O", (columns, rows), dtype)
    w = Writer()
    bounds = [("bx", columns // tile, X), ("by", rows // tile, HardwareAxis.GRID_Y), ("t", 256, THREAD)]
    steps = tile * wide // 256
    with w.launch("transpose", bounds) as (bx, by, t):
        block = w.allocate("tile", (tile, tile), dtype, MemoryScope.SHARED, layout)
        stage = w.allocate("stage", (lanes,), dtype, MemoryScope.REGISTER)
        every = Ramp(ZERO, 1, lanes)
        with w.unrolled("i", steps) as i:
            row, column = (i * 256 + t) // wide, (i * 256 + t) % wide * lanes
            w.store(stage, (every,), Load(source, (by * tile + row, Ramp(bx * tile + column, 1, lanes))))
            w.store(block, (row, Ramp(column, 1, lanes)), Load(stage, (every,)))
        w.barrier()
        with w.unrolled("j", steps) as j:
            row, column = (j * 256 + t) // wide, (j * 256 + t) % wide * lanes
            w.store(
                result,
                (bx * tile + row, Ramp(by * tile + column, 1, lanes)),
                Load(block, (Ramp(column, 1, lanes), Broadcast(row, lanes))),
            )
    return Kernel("transpose", (source,), (result,), (), w.finish())


def shuffles(dtype: DType) -> Kernel:
    """Shuffles of every mode, over whole warps and groups of 8."""
    source = Buffer("A", (2, 32), dtype)
    result = Buffer("O", (5, 2, 32), dtype)
    w = Writer()
    with w.launch("shuffles", [("warp", 2, WARP), ("lane", 32, LANE)]) as (warp, lane):
        mine = Load(source, (warp, lane))
        forms = [
            Shuffle(ShuffleMode.XOR, mine, index(5)),
            Shuffle(ShuffleMode.DOWN, mine, index(3)),
            Shuffle(ShuffleMode.INDEX, mine, index(7)),
            Shuffle(ShuffleMode.DOWN, mine, index(3), 8),
            Shuffle(ShuffleMode.INDEX, mine, (lane + 1) % 8, 8),
        ]
        for number, form in enumerate(forms):
            w.store(result, (index(number), warp, lane), form)
    return Kernel("shuffles", (source,), (result,), (), w.finish())


def cluster_sum(blocks: int) -> Kernel:
    """Each block of a cluster sums a slice of a row. All add up the partial sums in the shared memory of the others."""
    source, result = Buffer("A", (3, blocks, 64), float32), Buffer("O", (3, blocks, 4), float32)
    w = Writer()
    bounds = [("row", 3, X), ("rank", blocks, HardwareAxis.CLUSTER), ("t", 64, THREAD)]
    with w.launch("cluster_sum", bounds) as (row, rank, t):
        values = w.allocate("values", (64,), float32, MemoryScope.SHARED)
        partials = w.allocate("partials", (4,), float32, MemoryScope.SHARED)
        w.store(values, (t,), Load(source, (row, rank, t)))
        w.barrier()
        with w.when(t < 4):
            lanes = Load(values, (Ramp(t * 16, 1, 16),))
            w.store(partials, (t,), ReduceLanes(BinaryOp.ADD, lanes))
        w.barrier(SyncScope.CLUSTER)
        with w.when(t < 1):
            total = w.allocate("total", (4,), float32, MemoryScope.REGISTER)
            four = Ramp(ZERO, 1, 4)
            w.store(total, (four,), Broadcast(const(0.0, float32), 4))
            with w.loop("other", blocks) as other:
                w.store(total, (four,), Load(total, (four,)) + ClusterLoad(partials, (four,), other))
            first = ClusterLoad(partials, (index(1),), (rank + 1) % blocks)
            w.store(result, (row, rank, four), Load(total, (four,)) + Broadcast(first, 4))
        w.barrier(SyncScope.CLUSTER)
    return Kernel("cluster_sum", (source,), (result,), (), w.finish())


def copied(dtype: DType) -> Kernel:
    """Rows come by ``cp.async`` in two stages. The last rows are masked."""
    rows, width = 6, 64
    lanes = 16 // dtype.bytes
    threads = width // lanes
    source, result = Buffer("A", (rows, width), dtype), Buffer("O", (rows + 1, width), dtype)
    w = Writer()
    with w.launch("copied", [("t", threads, THREAD)]) as (t,):
        stages = w.allocate("stages", (2, width), dtype, MemoryScope.SHARED)

        def start(row: Expr) -> None:
            to, start = (row % 2, t * lanes), (row, t * lanes)
            w.emit(CopyAsync(stages, to, source, start, lanes, row < rows))
            w.emit(CopyAsyncCommit())

        start(ZERO)
        with w.loop("row", rows + 1) as row:
            start(row + 1)
            w.emit(CopyAsyncWait(1))
            w.barrier()
            at = Ramp(t * lanes, 1, lanes)
            twice = Load(stages, (row % 2, Ramp(((t + 1) % threads) * lanes, 1, lanes)))
            w.store(result, (row, at), twice)
            w.barrier()
        w.emit(CopyAsyncWait(0))
    return Kernel("copied", (source,), (result,), (), w.finish())


def bulk(dtype: DType) -> Kernel:
    """Rows come by bulk copies in two stages, which one thread starts and mbarriers announce."""
    rows, width = 5, 256
    source, result = Buffer("A", (rows, width), dtype), Buffer("O", (rows, width), dtype)
    w = Writer()
    with w.launch("bulk", [("t", 64, THREAD)]) as (t,):
        stages = w.allocate("stages", (2, width), dtype, MemoryScope.SHARED)
        ready = w.allocate("ready", (2,), int64, MemoryScope.SHARED)

        def start(row: Expr) -> None:
            w.emit(BulkCopy(stages, (row % 2, ZERO), source, (row, ZERO), width, ready, row % 2))

        first = Compare(CompareOp.EQ, t, ZERO)
        with w.when(first):
            w.emit(MbarrierInit(ready, ZERO, 1))
            w.emit(MbarrierInit(ready, index(1), 1))
        w.barrier()
        with w.when(first):
            start(ZERO)
            start(index(1))
        with w.loop("row", rows) as row:
            w.emit(MbarrierWait(ready, row % 2, row // 2 % 2))
            lanes = Ramp(t * 4, 1, 4)
            data = Load(stages, (row % 2, lanes))
            w.store(result, (row, lanes), data + data)
            w.barrier()
            with w.when(first), w.when(row < rows - 2):
                start(row + 2)
    return Kernel("bulk", (source,), (result,), (), w.finish())


def matrix(dtype: DType) -> Kernel:
    """One warp multiplies 16x32 by 32x8. ``ldmatrix`` loads fragments from swizzled shared memory and transposes B."""
    a, b = Buffer("A", (16, 32), dtype), Buffer("B", (32, 8), dtype)
    c = Buffer("C", (16, 8), float32)
    atom = "m16n8k16_f16" if dtype == float16 else "m16n8k16_bf16"
    w = Writer()
    with w.launch("matrix", [("warp", 1, WARP), ("lane", 32, LANE)]) as (_, lane):
        rows = w.allocate("a_tile", (16, 32), dtype, MemoryScope.SHARED, Layout((32, 1), Swizzle(2, 3, 3)))
        columns = w.allocate("b_tile", (32, 8), dtype, MemoryScope.SHARED, Layout((16, 1)))
        left = w.allocate("left", (8,), dtype, MemoryScope.REGISTER)
        right = w.allocate("right", (8,), dtype, MemoryScope.REGISTER)
        total = w.allocate("total", (4,), float32, MemoryScope.REGISTER)
        with w.unrolled("i", 2) as i:
            row, column = (i * 32 + lane) // 4, (i * 32 + lane) % 4 * 8
            w.store(rows, (row, Ramp(column, 1, 8)), Load(a, (row, Ramp(column, 1, 8))))
        w.store(columns, (lane, EVERY), Load(b, (lane, EVERY)))
        w.barrier()
        w.store(total, (Ramp(ZERO, 1, 4),), Broadcast(const(0.0, float32), 4))
        w.emit(LoadMatrix(right, (ZERO,), columns, (lane, ZERO), 4, transposed=True))
        with w.unrolled("k", 2) as k:
            w.emit(LoadMatrix(left, (ZERO,), rows, (lane % 16, k * 16 + lane // 16 * 8), 4))
            w.emit(Mma(atom, total, (ZERO,), left, (ZERO,), right, (k * 4,)))
        with w.unrolled("half", 2) as half:
            at = (lane // 4 + half * 8, Ramp(lane % 4 * 2, 1, 2))
            w.store(c, at, Load(total, (Ramp(half * 2, 1, 2),)))
    return Kernel("matrix", (a, b), (c,), (), w.finish())


def two_launches() -> Kernel:
    """Two launches sum columns through a workspace, in vectors of columns with masks at the end of a row."""
    rows, columns, blocks = 24, 100, 4
    source, partials = Buffer("A", (rows, columns), float32), Buffer("partials", (blocks, columns), float32)
    result = Buffer("O", (columns,), float32)
    w = Writer()
    with w.launch("partial_sums", [("b", blocks, X), ("t", 32, THREAD)], min_blocks=2) as (b, t):
        total = w.allocate("total", (4,), float32, MemoryScope.REGISTER)
        four, at = Ramp(ZERO, 1, 4), Ramp(t * 4, 1, 4)
        inside = Compare(CompareOp.LT, at, Broadcast(index(columns), 4))
        w.store(total, (four,), Broadcast(const(0.0, float32), 4))
        with w.loop("r", rows // blocks) as r:
            w.store(total, (four,), Load(total, (four,)) + Load(source, (b * (rows // blocks) + r, at), inside))
        w.store(partials, (b, at), Load(total, (four,)), inside)
    with w.launch("column_sums", [("t2", columns, THREAD)]) as (t2,):
        whole = w.allocate("sum", (1,), float32, MemoryScope.REGISTER)
        w.store(whole, (ZERO,), const(0.0, float32))
        with w.unrolled("p", blocks) as p:
            w.store(whole, (ZERO,), Load(whole, (ZERO,)) + Load(partials, (p, t2)))
        w.store(result, (t2,), Load(whole, (ZERO,)))
    return Kernel("two_launches", (source,), (result,), (partials,), w.finish())


def halves(dtype: DType) -> Kernel:
    """16-bit values in registers are moved as words, read and written one by one, selected, and masked."""
    count = 64
    source, result = Buffer("A", (count,), dtype), Buffer("O", (4, count), dtype)
    w = Writer()
    with w.launch("halves", [("t", 8, THREAD)]) as (t,):
        x = w.allocate("x", (8,), dtype, MemoryScope.REGISTER)
        y = w.allocate("y", (8,), dtype, MemoryScope.REGISTER)
        at = Ramp(t * 8, 1, 8)
        w.store(x, (EVERY,), Load(source, (at,)))
        with w.unrolled("i", 8) as i:
            w.store(y, (index(7) - i,), Load(x, (i,)))
        w.store(result, (ZERO, at), Load(y, (EVERY,)))
        one = Broadcast(const(1.0, dtype), 8)
        w.store(y, (EVERY,), Binary(BinaryOp.ADD, Load(x, (EVERY,)), one))
        w.store(result, (index(1), at), Load(y, (EVERY,)))
        even = Broadcast(Compare(CompareOp.EQ, t % 2, ZERO), 8)
        w.store(result, (index(2), at), Select(even, Load(source, (at,)), Broadcast(const(-2.0, dtype), 8)))
        following = Ramp(t * 8 + 8, 1, 8)
        inside = Compare(CompareOp.LT, following, Broadcast(index(count), 8))
        w.store(result, (index(3), at), Load(source, (following,), inside))
    return Kernel("halves", (source,), (result,), (), w.finish())


def strided(dtype: DType) -> Kernel:
    """Vectors that are not aligned, reversed or far apart, and a mask that differs from lane to lane."""
    count = 66
    source, result = Buffer("A", (count,), dtype), Buffer("O", (4, count), dtype)
    w = Writer()
    with w.launch("strided", [("t", 8, THREAD)]) as (t,):
        at = Ramp(t * 8 + 2, 1, 8)
        w.store(result, (ZERO, at), Load(source, (at,)))
        w.store(result, (index(1), at), Load(source, (Ramp(index(65) - t * 8, -1, 8),)))
        inside = Compare(CompareOp.LT, at, Broadcast(index(35), 8))
        w.store(result, (index(2), at), Load(source, (at,), inside))
        w.store(result, (index(3), at), Load(source, (at,)), inside)
        with w.when(Compare(CompareOp.EQ, t, ZERO)):
            with w.loop("n", 2) as n:
                with w.loop("k", 4) as k:
                    w.store(result, (k, n), Load(source, (n,)))
            with w.loop("m", 31) as m:
                w.store(result, (index(3), m + 35), Load(source, (m,)))
    return Kernel("strided", (source,), (result,), (), w.finish())


def unaligned_loads(dtype: DType) -> Kernel:
    """Rows of 13 go through registers. They begin in the middle of words, and the last one ends in one."""
    source, result = Buffer("A", (9, 13), dtype), Buffer("O", (9, 3, 4), dtype)
    w = Writer()
    with w.launch("unaligned_loads", [("t", 27, THREAD)]) as (t,):
        held = w.allocate("held", (4,), dtype, MemoryScope.REGISTER)
        every = Ramp(ZERO, 1, 4)
        w.store(held, (every,), Load(source, (t // 3, Ramp(t % 3 * 4 + 1, 1, 4))))
        w.store(result, (t // 3, t % 3, every), Load(held, (every,)))
    return Kernel("unaligned_loads", (source,), (result,), (), w.finish())


def unaligned_copies(dtype: DType) -> Kernel:
    """Vectors of 8 in rows of 29 begin at any element, and are copied to multiples of 16 bytes."""
    source, result = Buffer("A", (9, 29), dtype), Buffer("O", (9, 3, 8), dtype)
    w = Writer()
    with w.launch("unaligned_copies", [("t", 27, THREAD)]) as (t,):
        columns = Ramp(t % 3 * 8 + 2, 1, 8)
        w.store(result, (t // 3, t % 3, Ramp(ZERO, 1, 8)), Load(source, (t // 3, columns)))
    return Kernel("unaligned_copies", (source,), (result,), (), w.finish())


PADDED = Layout((66, 1))
SPREAD = Layout((64, 1), Swizzle(3, 3, 3))


def reduced_in_memory(dtype: DType) -> Kernel:
    """Blocks reduce columns of a matrix, each in shared memory first, and then all in global memory."""
    ops = [op for op in (BinaryOp.ADD, BinaryOp.MIN, BinaryOp.MAX) if op is not BinaryOp.ADD or not dtype.is_float]
    source, result = Buffer("A", (64, 48), dtype), Buffer("O", (len(ops), 16), dtype)
    w = Writer()
    with w.launch("start", [("row", len(ops), THREAD)]) as (row,), w.loop("c", 16) as c:
        w.store(result, (row, c), const(3, dtype))
    with w.launch("reduce", [("b", 4, X), ("t", 16 * 48, THREAD)]) as (b, t):
        own = w.allocate("own", (len(ops), 16), dtype, MemoryScope.SHARED)
        value = Load(source, (b * 16 + t // 48, t % 48))
        with w.when(t < 16):
            for n in range(len(ops)):
                w.store(own, (index(n), t), const(3, dtype))
        w.barrier()
        for n, op in enumerate(ops):
            w.emit(AtomicReduce(op, own, (index(n), t % 16), value * const(1 << 30 if dtype == int64 else 1, dtype)))
        w.barrier()
        with w.when(t < 16):
            for n, op in enumerate(ops):
                w.emit(AtomicReduce(op, result, (index(n), t), Load(own, (index(n), t))))
    return Kernel("reduced_in_memory", (source,), (result,), (), w.finish())


LAUNCHES: dict[str, Kernel] = {
    "softmax_float16": softmax(3, 1024, float16),
    "softmax_bfloat16": softmax(2, 2048, bfloat16),
    "softmax_float32": softmax(2, 1024, float32),
    "transpose_float16": transpose(128, 64, float16, SPREAD),
    "transpose_bfloat16": transpose(64, 128, bfloat16, PADDED),
    "transpose_float32": transpose(128, 128, float32, Layout((65, 1))),
    "transpose_int8": transpose(64, 64, int8, None),
    **{f"shuffles_{d}": shuffles(d) for d in (float32, float16, float64, int32, int64, int8, boolean)},
    "cluster_sum_2": cluster_sum(2),
    "cluster_sum_8": cluster_sum(8),
    **{f"copied_{d}": copied(d) for d in (float16, float32)},
    **{f"bulk_{d}": bulk(d) for d in (float32, float16)},
    **{f"matrix_{d}": matrix(d) for d in (float16, bfloat16)},
    "grid_share": grid_share(),
    **{f"grid_look_back_{d}": look_back(dtype=d) for d in (float64, int32)},
    "two_launches": two_launches(),
    **{f"halves_{d}": halves(d) for d in (float16, bfloat16)},
    **{f"unaligned_loads_{d}": unaligned_loads(d) for d in (float16, float32)},
    **{f"unaligned_copies_{d}": unaligned_copies(d) for d in (float16, float32)},
    **{f"strided_{d}": strided(d) for d in (float16, float32, int8)},
    **{f"reduced_in_memory_{d}": reduced_in_memory(d) for d in (int32, int64, float32)},
}
"""It maps names to kernels of launches, all of which are final."""
