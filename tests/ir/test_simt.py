"""The interpreter of launches, node by node: values against NumPy, and faults that need no whole kernel."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.cuda.launches import reduced_in_memory
from tests.ir.launches import data_of
from tilewright.core.dtypes import INDEX, DType, bfloat16, boolean, float16, float32, int8, int32, int64
from tilewright.core.errors import KernelFault
from tilewright.core.streams import stream
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
from tilewright.ir.gpu.bulk_copy import BulkCopy, Prefetch
from tilewright.ir.gpu.ldmatrix import LoadMatrix
from tilewright.ir.gpu.mbarrier import MbarrierInit
from tilewright.ir.gpu.mma import Mma
from tilewright.ir.interpret import interpret
from tilewright.ir.simt.run import LaunchInterpreter
from tilewright.ir.stmt import HardwareAxis, Kernel, Launch
from tilewright.ir.verify import verify

X, Y, AXIS_Z = HardwareAxis.GRID_X, HardwareAxis.GRID_Y, HardwareAxis.GRID_Z
CLUSTER, THREAD = HardwareAxis.CLUSTER, HardwareAxis.THREAD
Z = index(0)
THREADS = 64
DATA = stream(1, "simt").integers(-50, 50, (4, THREADS)).astype(np.float32)


def each(write: Callable[[Writer, Buffer, Buffer, Expr], None], lanes: int = 1) -> np.ndarray:
    """What ``write`` stores to O[lanes, thread], given A[4, thread], by one block."""
    a, o = Buffer("A", DATA.shape, float32), Buffer("O", (lanes, THREADS), float32)
    w = Writer()
    with w.launch("one", [("t", THREADS, THREAD)]) as (t,):
        write(w, a, o, t)
    kernel = Kernel("each", (a,), (o,), (), w.finish())
    verify(kernel)
    result: np.ndarray = interpret(kernel, {"A": DATA})["O"]
    return result


def value(expr: Callable[[Buffer, Expr], Expr]) -> np.ndarray:
    result: np.ndarray = each(lambda w, a, o, t: w.store(o, (Z, t), expr(a, t)))[0]
    return result


T = np.arange(THREADS)


def eq(a: Expr, b: int) -> Expr:
    return Compare(CompareOp.EQ, a, index(b))


def given(a: Buffer, t: Expr) -> Expr:
    return Load(a, (Z, t))


# Values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "lane", "width", "source"),
    [
        (ShuffleMode.XOR, index(5), 32, T ^ 5),
        (ShuffleMode.XOR, index(3), 4, T ^ 3),
        (ShuffleMode.DOWN, index(7), 32, np.where(T % 32 + 7 < 32, T + 7, T)),
        (ShuffleMode.DOWN, index(3), 8, np.where(T % 8 + 3 < 8, T + 3, T)),
        (ShuffleMode.INDEX, index(9), 32, T // 32 * 32 + 9),
        (ShuffleMode.INDEX, index(2), 16, T // 16 * 16 + 2),
        (ShuffleMode.INDEX, None, 32, T // 32 * 32 + (T * 3 + 1) % 32),
    ],
)
def test_shuffles(mode: ShuffleMode, lane: Expr | None, width: int, source: np.ndarray) -> None:
    result = value(lambda a, t: Shuffle(mode, given(a, t), (t * 3 + 1) % 32 if lane is None else lane, width))
    np.testing.assert_array_equal(result, DATA[0][source])


def test_values_of_threads_and_of_all_threads_mix() -> None:
    half = Cast(const(2049, int32), float16)  # rounds to 2048
    wraps = Cast(Cast(const(100, int8) + 100, int8), float32)
    np.testing.assert_array_equal(value(lambda a, t: given(a, t) + Cast(half, float32)), DATA[0] + 2048)
    np.testing.assert_array_equal(value(lambda a, t: given(a, t) * wraps), DATA[0] * -56)
    erf = value(lambda a, t: Unary(UnaryOp.ERF, given(a, t)))
    np.testing.assert_array_equal(erf[np.abs(DATA[0]) > 10], np.sign(DATA[0])[np.abs(DATA[0]) > 10])
    saturated = value(lambda a, t: Cast(Cast(given(a, t) * 10.0, int8), float32))
    np.testing.assert_array_equal(saturated, np.clip(DATA[0] * 10, -128, 127))
    large = value(lambda a, t: Cast(Cast(const(1e9, float32), int8), float32) + given(a, t))
    np.testing.assert_array_equal(large, DATA[0] + 127)


def test_selects_guard_loads_thread_by_thread_and_lane_by_lane() -> None:
    result = value(lambda a, t: Select(t < index(60), Load(a, (Z, t + 4)), const(-1.0, float32)))
    np.testing.assert_array_equal(result, [*DATA[0][4:], -1, -1, -1, -1])

    def vectors(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        rows = Ramp(Z, 1, 4)
        inside = Compare(CompareOp.LT, Ramp(t, 20, 4), Broadcast(index(THREADS), 4))
        w.store(o, (rows, t), Select(inside, Load(a, (rows, Ramp(t, 20, 4))), Broadcast(const(-1.0, float32), 4)))

    expected = [[DATA[i, t + 20 * i] if t + 20 * i < THREADS else -1 for t in T] for i in range(4)]
    np.testing.assert_array_equal(each(vectors, 4), expected)


def test_masks_and_lane_reductions() -> None:
    def write(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        rows = Ramp(Z, 1, 4)
        mask = Compare(CompareOp.NE, Ramp(t, 1, 4) % Broadcast(index(4), 4), Broadcast(Z, 4))
        total = ReduceLanes(BinaryOp.ADD, Load(a, (rows, t), mask))
        w.store(o, (Z, t), total + ReduceLanes(BinaryOp.MAX, Load(a, (rows, t))))
        w.store(o, (Z, t), Shuffle(ShuffleMode.XOR, Load(o, (Z, t)), index(1)), eq(t % 2, 0))

    kept = np.array([[DATA[i, t] if (t + i) % 4 else 0 for t in T] for i in range(4)])
    expected = kept.sum(axis=0) + DATA.max(axis=0)
    expected[::2] = expected[1::2]
    np.testing.assert_array_equal(each(write)[0], expected)


def test_conditions_within_conditions() -> None:
    def write(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        w.store(o, (Z, t), const(0.0, float32))
        with w.when(t < index(40)):
            with w.when(eq(t % 2, 0)):
                w.store(o, (Z, t), const(1.0, float32))
                w.store(o, (Z, t), const(2.0, float32), eq(t % 4, 0))
            with w.when(t >= index(30)):
                inner = Select(eq(t % 3, 0), Load(a, (Z, t)), Load(a, (t - 30, t)))
                w.store(o, (Z, t), Select(t < index(34), inner, const(3.0, float32)))

    expected = np.where(T < 40, np.where(T % 4 == 0, 2, np.where(T % 2 == 0, 1, 0)), 0).astype(np.float32)
    expected[30:40] = 3
    expected[30:34] = [DATA[0 if t % 3 == 0 else t - 30, t] for t in range(30, 34)]
    np.testing.assert_array_equal(each(write)[0], expected)


def test_private_buffers_take_any_index() -> None:
    def write(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        local = w.allocate("L", (4, 3), float32, MemoryScope.LOCAL)
        rows = Ramp(Z, 1, 4)
        with w.loop("i", 3) as i:
            w.store(local, (rows, i), Load(a, (rows, t)) + Broadcast(Cast(i, float32) * 100.0, 4))
        with w.when(eq(t % 3, 1)):
            w.store(local, (t % 4, t % 3), const(7.0, float32))
        w.store(o, (Z, t), Load(local, (t % 4, t % 3)) + Load(local, (index(1), index(2))))
        w.store(o, (rows, t), Load(local, (rows, t % 3)) - Broadcast(Load(o, (Z, t)), 4))

    local = np.stack([DATA + 100 * i for i in range(3)], axis=1)  # [4, 3, threads]
    odd = T % 3 == 1
    local[T[odd] % 4, 1, T[odd]] = 7
    first = local[T % 4, T % 3, T] + local[1, 2]
    np.testing.assert_array_equal(each(write, 4), local[:, T % 3, T] - first)


def test_indices_of_loops_are_those_of_every_iteration() -> None:
    def write(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        local = w.allocate("L", (5,), float32, MemoryScope.LOCAL)
        with w.loop("k", 3) as k:
            with w.loop("i", 5) as i:
                w.store(local, ((i + k * k) % 5,), Load(a, (i % 4, t)) * Cast(k + 1, float32))
            with w.loop("j", 2) as j:  # from 4 to 0: nothing but the values tells that all are within bounds
                w.store(o, (k, t), Load(local, (j * j * 2 - j * 6 + 4,)) + Cast(j * 100, float32))
        w.store(o, (index(3), t), Load(local, (Z,)))

    wanted = np.empty((4, THREADS), np.float32)
    for k in range(3):
        local = {(i + k * k) % 5: DATA[i % 4] * (k + 1) for i in range(5)}
        wanted[k] = local[0] + 100
    wanted[3] = local[0]
    np.testing.assert_array_equal(each(write, 4), wanted)


def test_a_lane_out_of_bounds_is_found_where_it_runs_at_last() -> None:
    def write(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        local = w.allocate("L", (2,), float32, MemoryScope.LOCAL)
        w.store(local, (Ramp(Z, 1, 2),), Broadcast(const(1.0, float32), 2))
        with w.loop("j", 2) as j:  # the last lane runs in the second iteration alone
            with w.loop("i", 2) as i:
                runs = Compare(CompareOp.LT, Ramp(Z, 1, 2), Broadcast(j + 1, 2))
                zeros = Broadcast(const(0.0, float32), 2)
                w.store(o, (Ramp(Z, 1, 2), t), Select(runs, Load(local, (Ramp(i * i, 1, 2),)), zeros))

    with pytest.raises(KernelFault, match=r"L\[2\] in lane 1 is out of bounds \[2\] at t=0, j=1, i=1"):
        each(write, 2)


def test_axes_count_blocks_as_the_hardware_does() -> None:
    extents = {"x": 3, "c": 2, "y": 4, "z": 5}
    o = Buffer("O", (3, 2, 4, 5, 8), INDEX)
    w = Writer()
    bounds = [("x", 3, X), ("c", 2, CLUSTER), ("y", 4, Y), ("z", 5, AXIS_Z), ("t", 8, THREAD)]
    with w.launch("axes", bounds) as (x, c, y, z, t):
        w.store(o, (x, c, y, z, t), ((x * 10 + c) * 10 + y) * 100 + z * 10 + t)
    result = interpret(Kernel("axes", (), (o,), (), w.finish()), {})["O"]
    x_, c_, y_, z_, t_ = np.indices((*extents.values(), 8))
    np.testing.assert_array_equal(result, ((x_ * 10 + c_) * 10 + y_) * 100 + z_ * 10 + t_)


def test_more_threads_than_run_side_by_side() -> None:
    blocks, threads = 301, 96
    a, o = Buffer("A", (blocks * threads,), float32), Buffer("O", (blocks * threads,), float32)
    data = np.arange(blocks * threads, dtype=np.float32)
    w = Writer()
    with w.launch("many", [("b", blocks, X), ("t", threads, THREAD)]) as (b, t):
        kept = w.allocate("S", (threads,), float32, MemoryScope.SHARED)
        w.store(kept, (t,), Load(a, (b * threads + t,)))
        w.barrier()
        w.store(o, (b * threads + t,), Load(kept, (index(threads - 1) - t,)))
    kernel = Kernel("many", (a,), (o,), (), w.finish())
    result = interpret(kernel, {"A": data})["O"]
    np.testing.assert_array_equal(result, data.reshape(blocks, threads)[:, ::-1].ravel())


def test_another_blocks_memory_is_loaded_in_vectors_through_a_swizzle() -> None:
    o = Buffer("O", (4, 4, 32), INDEX)
    w = Writer()
    with w.launch("peers", [("g", 2, X), ("c", 2, CLUSTER), ("t", 32, THREAD)]) as (g, c, t):
        kept = w.allocate("S", (8, 16), INDEX, MemoryScope.SHARED, Layout((16, 1), Swizzle(2, 1, 3)))
        w.store(kept, (t // 4, Ramp(t % 4 * 4, 1, 4)), Ramp((g * 2 + c) * 1000 + t * 4, 1, 4))
        w.barrier(SyncScope.CLUSTER)
        other = ClusterLoad(kept, (t // 4, Ramp(t % 4 * 4, 1, 4)), index(1) - c)
        w.store(o, (g * 2 + c, Ramp(Z, 1, 4), t), other)
        w.barrier(SyncScope.CLUSTER)
    result = interpret(Kernel("peers", (), (o,), (), w.finish()), {})["O"]
    block, lane, thread = np.indices((4, 4, 32))
    np.testing.assert_array_equal(result, (block ^ 1) * 1000 + thread * 4 + lane)


def test_matrices_are_loaded_transposed_and_multiplied_in_bfloat16() -> None:
    draw = stream(2, "matrices")
    a, b = (draw.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((16, 16), (16, 8)))
    left, right, out = Buffer("A", (16, 16), bfloat16), Buffer("B", (16, 8), bfloat16), Buffer("C", (16, 8), float32)
    w = Writer()
    with w.launch("mma", [("t", 32, THREAD)]) as (t,):
        sa = w.allocate("sa", (16, 16), bfloat16, MemoryScope.SHARED)
        sb = w.allocate("sb", (16, 8), bfloat16, MemoryScope.SHARED)
        w.store(sa, (t // 2, Ramp(t % 2 * 8, 1, 8)), Load(left, (t // 2, Ramp(t % 2 * 8, 1, 8))))
        w.store(sb, (t // 2, Ramp(t % 2 * 4, 1, 4)), Load(right, (t // 2, Ramp(t % 2 * 4, 1, 4))))
        w.barrier(SyncScope.WARP)
        fa = w.allocate("fa", (8,), bfloat16, MemoryScope.REGISTER)
        fb = w.allocate("fb", (4,), bfloat16, MemoryScope.REGISTER)
        d = w.allocate("d", (4,), float32, MemoryScope.REGISTER)
        w.store(d, (Ramp(Z, 1, 4),), Broadcast(const(1.0, float32), 4))
        w.emit(LoadMatrix(fa, (Z,), sa, (t % 16, t // 16 * 8), 4))
        w.emit(LoadMatrix(fb, (Z,), sb, (t % 16, Z), 2, transposed=True))
        w.emit(Mma("m16n8k16_bf16", d, (Z,), fa, (Z,), fb, (Z,)))
        with w.unrolled("h", 2) as h:
            w.store(out, (t // 4 + h * 8, Ramp(t % 4 * 2, 1, 2)), Load(d, (Ramp(h * 2, 1, 2),)))
    kernel = Kernel("mma", (left, right), (out,), (), w.finish())
    verify(kernel, final=True)
    result = interpret(kernel, {"A": a, "B": b})["C"]
    np.testing.assert_allclose(result, 1 + a.astype(np.float32) @ b.astype(np.float32), rtol=1e-5, atol=1e-5)


def test_masked_copies_bring_zeros() -> None:
    def write(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        kept = w.allocate("S", (THREADS,), float32, MemoryScope.SHARED)
        w.emit(CopyAsync(kept, (t,), a, (t % 5, t), 1, t % 5 < index(4)))
        w.emit(CopyAsyncCommit())
        w.emit(CopyAsyncWait(0))
        w.store(o, (Z, t), Load(kept, (t,)))

    expected = np.where(T % 5 < 4, DATA[np.minimum(T % 5, 3), T], 0)
    np.testing.assert_array_equal(each(write)[0], expected)


def test_copies_of_a_part_bring_zeros_behind_it() -> None:
    def write(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        kept = w.allocate("S", (THREADS, 4), float32, MemoryScope.SHARED)
        w.emit(CopyAsync(kept, (t, Z), a, (index(3), t // 4 * 4), 4, present=t % 5))
        w.emit(CopyAsyncCommit())
        w.emit(CopyAsyncWait(0))
        w.store(o, (Z, t), Load(kept, (t, t % 4)))

    expected = np.where(T % 4 < T % 5, DATA[3, T // 4 * 4 + T % 4], 0)
    np.testing.assert_array_equal(each(write)[0], expected)


@pytest.mark.parametrize("present", [2, 3])
def test_copies_of_a_part_may_reach_the_end_of_a_tensor_and_not_beyond(present: int) -> None:
    a, o, w = Buffer("A", (6,), float32), Buffer("O", (8,), float32), Writer()
    with w.launch("end", [("t", 2, THREAD)]) as (t,):
        kept = w.allocate("S", (8,), float32, MemoryScope.SHARED)
        w.emit(CopyAsync(kept, (t * 4,), a, (t * 4,), 4, present=Select(t < 1, index(4), index(present))))
        w.emit(CopyAsyncCommit())
        w.emit(CopyAsyncWait(0))
        w.store(o, (Ramp(t * 4, 1, 4),), Load(kept, (Ramp(t * 4, 1, 4),)))
    kernel = Kernel("end", (a,), (o,), (), w.finish())
    data = np.arange(6, dtype=np.float32)
    if present == 2:
        np.testing.assert_array_equal(interpret(kernel, {"A": data})["O"], [*data, 0, 0])
    else:
        with pytest.raises(KernelFault, match="a copy of elements beyond the end of A at t=1"):
            interpret(kernel, {"A": data})


# Faults --------------------------------------------------------------------------------------------------------

Write = Callable[[Writer, Buffer, Buffer, Expr], None]


def unwritten_lane(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    r = w.allocate("R", (4,), float32, MemoryScope.REGISTER)
    with w.when(t < index(40)):
        w.store(r, (index(1),), given(a, t))
    w.store(o, (Z, t), Load(r, (index(1),)))


def forgotten(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    with w.loop("i", 2) as i:
        s = w.allocate("S", (THREADS,), float32, MemoryScope.SHARED)
        with w.when(eq(i, 0)):
            w.store(s, (t,), given(a, t))
        w.store(o, (Z, t), Load(s, (t,)))


def forgotten_register(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    with w.loop("i", 2) as i:
        r = w.allocate("R", (2,), float32, MemoryScope.REGISTER)
        with w.when(eq(i, 0)):
            w.store(r, (Z,), given(a, t))
        w.store(o, (Z, t), Load(r, (Z,)))


def next_round(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    with w.loop("i", 2):
        s = w.allocate("S", (THREADS,), float32, MemoryScope.SHARED)
        w.store(s, (t,), given(a, t))
        w.barrier()
        w.store(o, (Z, t), Load(s, (index(THREADS - 1) - t,)))


def divided(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    w.store(o, (Z, t), Cast(index(7) // (t - 9), float32))


def uneven_copy(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    s = w.allocate("S", (THREADS, 5), float32, MemoryScope.SHARED)
    w.emit(CopyAsync(s, (t, Z), a, (Z, t // 4 * 4), 4))


def long_copy(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    s = w.allocate("S", (THREADS, 4), float32, MemoryScope.SHARED)
    w.emit(CopyAsync(s, (t, Z), a, (index(3), (t + 1) // 4 * 4), 4))


def uncommitted(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    s = w.allocate("S", (THREADS,), float32, MemoryScope.SHARED)
    w.emit(CopyAsync(s, (t,), a, (Z, t), 1))
    w.emit(CopyAsyncWait(0))
    w.store(o, (Z, t), Load(s, (t,)))


def overwritten(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    s = w.allocate("S", (THREADS,), float32, MemoryScope.SHARED)
    w.emit(CopyAsync(s, (t,), a, (Z, t), 1))
    w.store(s, (t,), const(0.0, float32))


def asked_beyond(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    w.emit(Prefetch(a, (index(3), t // 4 * 4), 8))


def same_place(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    w.store(o, (Z, t // 2), given(a, t))


def lane_away(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    w.store(o, (Z, t), Shuffle(ShuffleMode.INDEX, given(a, t), t % 32 + 1))


def prepared_twice(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    full = w.allocate("full", (1,), INDEX, MemoryScope.SHARED)
    with w.when(eq(t, 0)), w.loop("i", 2):
        w.emit(MbarrierInit(full, Z, 1))


def too_many_arrive(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    full = w.allocate("full", (1,), INDEX, MemoryScope.SHARED)
    s = w.allocate("S", (THREADS, 4), float32, MemoryScope.SHARED)
    with w.when(eq(t, 0)):
        w.emit(MbarrierInit(full, Z, 1))
    w.barrier()
    w.emit(BulkCopy(s, (t, Z), a, (Z, Z), 4, full, Z))


def different_fragments(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
    r = w.allocate("R", (8,), float16, MemoryScope.REGISTER)
    s = w.allocate("S", (8, 8), float16, MemoryScope.SHARED)
    with w.loop("i", 8) as i:
        w.store(s, (i, t % 8), const(0.0, float16), t < index(8))
    w.barrier()
    w.emit(LoadMatrix(r, (t // 32 * 2,), s, (t % 8, Z), 1))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (unwritten_lane, r"R\[1\] is read before it is written at t=40"),
        (forgotten, r"S\[0\] is read before it is written at t=0, i=1"),
        (forgotten_register, r"R\[0\] is read before it is written at t=0, i=1"),
        (next_round, r"race on S\[0\]: written here, read by thread 63 of block 0.* at t=0, i=1"),
        (divided, r"7 floordiv 0 at t=9"),
        (uneven_copy, r"a copy of 16 bytes at S\[1, 0\], which is byte 20: not aligned at t=1"),
        (long_copy, r"A\[3, 64\] is out of bounds \[4, 64\] at t=63"),
        (uncommitted, r"S\[0\] is read while an asynchronous copy to it is in flight"),
        (overwritten, r"S\[0\] is written while an asynchronous copy of it is in flight"),
        (asked_beyond, r"a copy of 8 elements from A\[3, 60\] on is out of bounds at t=60"),
        (same_place, r"race on O\[0, 0\]: written here and at once by thread 1 of block 0"),
        (lane_away, r"a shuffle asks for lane 32 at t=31"),
        (prepared_twice, r"mbarrier full\[0\] is initialised twice at t=0, i=1"),
        (too_many_arrive, r"mbarrier full\[0\] gets more than its 1 arrivals before any thread waits for it at t=1"),
        (different_fragments, r"a fragment of R begins elsewhere in other threads"),
    ],
)
def test_faults_are_found(write: Write, message: str) -> None:
    def and_then_store(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        write(w, a, o, t)
        w.store(o, (Z, t), const(0.0, float32))

    with pytest.raises(KernelFault, match=message):
        each(and_then_store)


def test_barriers_stand_under_conditions_on_data_that_all_threads_share() -> None:

    def write(w: Writer, a: Buffer, o: Buffer, t: Expr) -> None:
        flag = w.allocate("F", (2,), boolean, MemoryScope.SHARED)
        with w.when(t < index(2)):
            w.store(flag, (t,), eq(t, 0))
        w.barrier()
        w.store(o, (Z, t), given(a, t))
        with w.when(Load(flag, (Z,))):
            w.barrier()
            w.store(o, (Z, t), Load(o, (Z, t)) + 1.0)

    np.testing.assert_array_equal(each(write)[0], DATA[0] + 1)


@pytest.mark.parametrize("level", [SyncScope.WARP, SyncScope.BLOCK, SyncScope.CLUSTER])
def test_a_barrier_that_only_some_reach_is_found(level: SyncScope) -> None:
    """The verifier refuses such kernels; should it ever miss one, the interpreter does not."""
    w = Writer()
    with w.launch("f", [("b", 2, X), ("c", 2, CLUSTER), ("t", THREADS, THREAD)]) as (b, c, t):
        whole = index({SyncScope.WARP: 32, SyncScope.BLOCK: THREADS, SyncScope.CLUSTER: 2 * THREADS}[level])
        number = c * THREADS + t
        with w.when(number < whole):
            w.barrier(level)
        with w.when(number + b < whole):
            w.barrier(level)
    launch = w.finish()
    assert isinstance(launch, Launch)
    with pytest.raises(KernelFault, match=f"a barrier of the {level} is reached by .* of .* threads .* at b=1"):
        LaunchInterpreter("k", {}).run(launch)


def test_a_source_must_not_change_under_a_copy() -> None:
    o, work = Buffer("O", (THREADS,), float32), Buffer("W", (THREADS,), float32)
    w = Writer()
    with w.launch("source", [("t", THREADS, THREAD)]) as (t,):
        s = w.allocate("S", (THREADS,), float32, MemoryScope.SHARED)
        w.store(work, (t,), const(1.0, float32))
        w.emit(CopyAsync(s, (t,), work, (t,), 1))
        w.store(work, (t,), const(2.0, float32))
        w.store(o, (t,), const(0.0, float32))
    with pytest.raises(KernelFault, match=r"W\[0\] is written while an asynchronous copy of it is in flight"):
        interpret(Kernel("source", (), (o,), (work,), w.finish()), {})


def test_division_is_exact_where_launch_variables_are_negative() -> None:
    result = value(lambda a, t: Cast(Binary(BinaryOp.FLOORDIV, t - 10, index(4)) * 100 + (t - 10) % 4, float32))
    np.testing.assert_array_equal(result, (T - 10) // 4 * 100 + (T - 10) % 4)


@pytest.mark.parametrize("dtype", [int32, int64, float32])
def test_threads_reduce_elements_in_memory(dtype: DType) -> None:
    kernel = reduced_in_memory(dtype)
    verify(kernel)
    (a,) = data_of(kernel).values()
    columns = a.reshape(64, 3, 16) * (1 << 30 if dtype == int64 else 1)
    wanted = [columns.min((0, 1), initial=3), columns.max((0, 1), initial=3)]
    wanted = wanted if dtype.is_float else [columns.sum((0, 1)) + 3 * 5, *wanted]
    np.testing.assert_array_equal(interpret(kernel, {"A": a})["O"], wanted)


def test_elements_are_written_before_they_are_reduced_in_memory() -> None:
    w, o = Writer(), Buffer("O", (8,), int32)
    with w.launch("reduce", [("t", 32, THREAD)]) as (t,):
        with w.when(t < 7):
            w.store(o, (t,), const(0, int32))
        w.barrier()
        w.emit(AtomicReduce(BinaryOp.ADD, o, (t % 8,), const(1, int32)))
    with pytest.raises(KernelFault, match=r"O\[7\] is read before it is written"):
        interpret(Kernel("reduce", (), (o,), (), w.finish()), {})
