"""The verifier's rules for launches: every one has kernels that break it and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tilewright.core.dtypes import INDEX, float16, float32
from tilewright.core.errors import InvalidKernel
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
    Select,
    Shuffle,
    ShuffleMode,
    Var,
    const,
    index,
)
from tilewright.ir.gpu.async_copy import CopyAsync, CopyAsyncWait
from tilewright.ir.gpu.atomic import AtomicReduce
from tilewright.ir.gpu.barrier import Barrier, SyncScope
from tilewright.ir.gpu.bulk_copy import BulkCopy, Prefetch
from tilewright.ir.gpu.flagged import FlaggedLoad, FlaggedPeek, FlaggedStore
from tilewright.ir.gpu.ldmatrix import LoadMatrix, StoreMatrix
from tilewright.ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from tilewright.ir.gpu.mma import Mma
from tilewright.ir.gpu.setmaxnreg import SetMaxRegisters
from tilewright.ir.gpu.tma import TmaLoad, TmaStore, TmaStoreWait
from tilewright.ir.gpu.wgmma import WarpgroupMma, WarpgroupMmaWait
from tilewright.ir.stmt import (
    Allocate,
    DynamicExtent,
    For,
    HardwareAxis,
    If,
    Kernel,
    LoopKind,
    Operation,
    Stmt,
    Store,
    seq,
)
from tilewright.ir.verify import verify

IN, OUT = Buffer("I", (64, 64), float16), Buffer("O", (8,), float32)
B, T, C = Var("b"), Var("t"), Var("c")
ONE = const(1.0, float32)
PUT = Store(OUT, (index(0),), ONE)
Z = index(0)
Axes = tuple[tuple[str, int, HardwareAxis], ...]
GRID = ("b", 4, HardwareAxis.GRID_X)
THREADS: Axes = (GRID, ("t", 128, HardwareAxis.THREAD))
CLUSTERS: Axes = (GRID, ("c", 2, HardwareAxis.CLUSTER), ("t", 128, HardwareAxis.THREAD))


def shared(name: str, *shape: int, layout: Layout | None = None, scope: MemoryScope = MemoryScope.SHARED) -> Buffer:
    return Buffer(name, shape, float16, scope, layout)


S, R = shared("S", 64, 64), shared("R", 16, scope=MemoryScope.REGISTER)
D = Buffer("D", (4,), float32, MemoryScope.REGISTER)
SUMS = Buffer("SUMS", (64,), float32, MemoryScope.REGISTER)
TILE = shared("tile", 64, 64, layout=Layout((64, 1), Swizzle(3, 3, 3)))
SMALL: Axes = (("t", 64, HardwareAxis.THREAD),)
HELD = Buffer("HELD", (2,), INDEX, MemoryScope.REGISTER)
FULL = Buffer("full", (2,), INDEX, MemoryScope.SHARED)


def kernel(body: Stmt, *buffers: Buffer, axes: Axes = THREADS, **hints: tuple[str, ...]) -> Kernel:
    for buffer in buffers:
        body = Allocate(buffer, body)
    w = Writer()
    with w.launch("f", axes, evict_first=hints.get("evict_first", ()), prefetch_lines=hints.get("prefetch_lines", ())):
        w.emit(PUT)
        w.emit(body)
    return Kernel("k", (IN,), (OUT,), (), w.finish())


def under(condition: Expr, body: Stmt = Barrier()) -> Stmt:  # noqa: B008
    return If(condition, body)


def shuffled(value: Expr, width: int = 32, lane: Expr = Z) -> Stmt:
    return Store(OUT, (Z,), Shuffle(ShuffleMode.XOR, value, lane, width))


def copy(target: Buffer, at: tuple[Expr, ...], source: tuple[Expr, ...], elements: int) -> CopyAsync:
    return CopyAsync(target, at, IN, source, elements)


def bulk(target: Buffer, at: tuple[Expr, ...], source: tuple[Expr, ...], elements: int) -> BulkCopy:
    return BulkCopy(target, at, IN, source, elements, FULL, Z)


def mma(atom: str = "m16n8k16_f16", d: Buffer = D, a: Buffer = R, at: Expr = Z) -> Mma:
    return Mma(atom, d, (Z,), a, (at,), R, (Z,))


def warpgroup_mma(d: Buffer = D, columns: int = 8, across: bool = False, adds: Expr | bool = True) -> WarpgroupMma:
    return WarpgroupMma(d, (Z,), TILE, (Z, Z), TILE, (Z, Z), columns, 16, adds, False, across)


def boxed(tx_expected: bool = True, multicast: Expr | None = None) -> TmaLoad:
    return TmaLoad(TILE, (Z, Z), IN, (Z, Z), (64, 64), FULL, Z, tx_expected, multicast)


def reduced_weights() -> Kernel:
    weights = Buffer("W", (8,), float32)
    return replace(kernel(AtomicReduce(BinaryOp.MAX, weights, (Z,), ONE)), inputs=(IN, weights))


def eq(a: Expr, b: int) -> Expr:
    return Compare(CompareOp.EQ, a, index(b))


def beside() -> Kernel:
    good = kernel(PUT)
    return Kernel("k", (IN,), (OUT,), (), seq(good.body, PUT))


def inside_loop() -> Kernel:
    good = kernel(PUT)
    return Kernel("k", (IN,), (OUT,), (), For("i", 2, LoopKind.SERIAL, good.body))


def axes(*bounds: tuple[str, int, HardwareAxis]) -> Kernel:
    return kernel(PUT, axes=bounds)


H = HardwareAxis
LOAD = Load(S, (Z, Z))


def dynamic(extent: DynamicExtent, count: Expr | None = None) -> Kernel:
    w = Writer()
    with w.launch("f", THREADS, count=count):
        w.emit(PUT)
    return Kernel("k", (IN,), (OUT,), (), w.finish(), dynamic=(extent,))


BROKEN: list[tuple[str, str, Callable[[], Kernel]]] = [
    ("dynamic", r"O has shape \[8\]", lambda: dynamic(DynamicExtent("m", 64, frozenset({("O", 0)})))),
    ("dynamic", "no parameter has it", lambda: dynamic(DynamicExtent("m", 64, frozenset()))),
    ("dynamic", "grid_x b counts t", lambda: dynamic(DynamicExtent("m", 64, frozenset({("I", 0)})), T)),
    ("names", "b is bound twice", lambda: dynamic(DynamicExtent("b", 64, frozenset({("I", 0)})))),
    ("scope", "variable m is not bound", lambda: kernel(under(Var("m") < index(3), PUT))),
    ("launch", "stands next to launches", beside),
    ("launch", "launch f is not at the top level", inside_loop),
    ("launch", "binds an axis twice", lambda: axes(("t", 2, H.THREAD), ("u", 2, H.THREAD))),
    ("launch", "binds thread, warp, lane", lambda: axes(("t", 2, H.THREAD), ("u", 2, H.WARP), ("v", 32, H.LANE))),
    ("launch", "binds warp: thread alone, or", lambda: axes(("u", 2, H.WARP))),
    ("launch", "has 16 lanes, not 32", lambda: axes(("u", 2, H.WARP), ("v", 16, H.LANE))),
    ("launch", "has 1056 threads a block, 1024", lambda: axes(("u", 33, H.WARP), ("v", 32, H.LANE))),
    ("launch", "has clusters of 3", lambda: axes(GRID, ("c", 3, H.CLUSTER), ("t", 32, H.THREAD))),
    ("launch", "has 65536 blocks along y", lambda: axes(("y", 65536, H.GRID_Y))),
    ("launch", "evicts X first, which is no parameter", lambda: kernel(PUT, evict_first=("I", "X"))),
    ("launch", "prefetches lines of X, which is no", lambda: kernel(PUT, prefetch_lines=("I", "X"))),
    ("launch", "Barrier outside of a launch", lambda: Kernel("k", (IN,), (OUT,), (), seq(PUT, Barrier()))),
    ("launch", "a barrier of the cluster where there are no clusters", lambda: kernel(Barrier(SyncScope.CLUSTER))),
    (
        "launch",
        "S of another block is loaded where there are no clusters",
        lambda: kernel(Store(OUT, (Z,), Cast(ClusterLoad(S, (Z, Z), Z), float32)), S),
    ),
    ("extent", "thread t has extent 0", lambda: axes(("t", 0, H.THREAD))),
    ("names", "t is bound twice", lambda: axes(("t", 2, H.THREAD), ("t", 2, H.GRID_X))),
    ("nesting", "parallel loop i is inside a launch", lambda: kernel(For("i", 2, LoopKind.PARALLEL, PUT))),
    ("allocation", "S has scope shared", lambda: Kernel("k", (IN,), (OUT,), (), Allocate(S, PUT))),
    ("uniformity", "the allocation of S under `t < 32`", lambda: kernel(under(T < index(32), Allocate(S, PUT)))),
    (
        "layout",
        "R has a layout and scope register",
        lambda: kernel(PUT, shared("R", 4, layout=Layout((1,)), scope=MemoryScope.REGISTER)),
    ),
    ("layout", "S of 2 dimensions has strides", lambda: kernel(PUT, shared("S", 4, 4, layout=Layout((1,))))),
    ("layout", "two elements of S lie at one offset", lambda: kernel(PUT, shared("S", 4, 4, layout=Layout((3, 1))))),
    (
        "layout",
        "two elements of S lie at one offset",
        lambda: kernel(PUT, shared("S", 4, 8, layout=Layout((8, 1), Swizzle(2, 0, 0)))),
    ),
    (
        "warps",
        "a shuffle where there are no whole warps",
        lambda: kernel(shuffled(ONE), axes=(GRID, ("t", 48, H.THREAD))),
    ),
    ("warps", "a matrix operation in blocks of 48", lambda: kernel(mma(), D, R, axes=(("t", 48, H.THREAD),))),
    (
        "tensor memory",
        "d is allocated by 0 statements, not by one",
        lambda: kernel(Barrier(), Buffer("d", (128, 64), float32, MemoryScope.TENSOR)),
    ),
    ("types", "a shuffle within groups of 12", lambda: kernel(shuffled(ONE, 12))),
    ("types", "from a lane numbered by float32", lambda: kernel(shuffled(ONE, lane=ONE))),
    ("uniformity", "a barrier of the block under `t < 32`, which", lambda: kernel(under(T < index(32)))),
    ("uniformity", "a barrier of the block under `t%32 == 0`", lambda: kernel(under(eq(T % 32, 0)))),
    (
        "uniformity",
        "a barrier of the warp under `t < 33`",
        lambda: kernel(under(T < index(33), Barrier(SyncScope.WARP))),
    ),
    (
        "uniformity",
        "a barrier of the cluster under `c == 0`",
        lambda: kernel(under(eq(C, 0), Barrier(SyncScope.CLUSTER)), axes=CLUSTERS),
    ),
    ("uniformity", "a shuffle under `t == 0`", lambda: kernel(under(eq(T, 0), shuffled(ONE)))),
    (
        "uniformity",
        "a shuffle under `t < 8`",
        lambda: kernel(Store(OUT, (Z,), Select(T < index(8), Shuffle(ShuffleMode.XOR, ONE, Z), ONE))),
    ),
    ("uniformity", "a matrix operation under `R.0. < ", lambda: kernel(under(Load(R, (Z,)) < 0.0, mma()), D, R)),
    ("operation", "an asynchronous copy of 6 bytes", lambda: kernel(copy(S, (Z, Z), (Z, Z), 3), S)),
    (
        "operation",
        "S is accessed at bytes that are no multiple of 16",
        lambda: kernel(copy(S, (Z, T * 8 + 4), (Z, Z), 8), S),
    ),
    (
        "operation",
        "I is accessed at bytes that are no multiple of 8",
        lambda: kernel(copy(S, (Z, Z), (Z, index(2)), 4), S),
    ),
    (
        "mask",
        "a copy to S has a mask and a number of present elements",
        lambda: kernel(replace(copy(S, (Z, Z), (Z, Z), 8), mask=T < 4, present=T), S),
    ),
    (
        "operation",
        "a copy to S with float32 in 1 lanes present",
        lambda: kernel(replace(copy(S, (Z, Z), (Z, Z), 8), present=ONE), S),
    ),
    ("operation", "R has scope register, not shared", lambda: kernel(copy(R, (Z,), (Z, Z), 8), R)),
    (
        "operation",
        "the swizzle of S splits 16 contiguous bytes",
        lambda: kernel(
            copy(shared("S", 8, 64, layout=Layout((64, 1), Swizzle(3, 2, 4))), (Z, Z), (Z, Z), 8),
            shared("S", 8, 64, layout=Layout((64, 1), Swizzle(3, 2, 4))),
        ),
    ),
    ("operation", "I has no 0 contiguous", lambda: kernel(Prefetch(IN, (Z, Z), 0))),
    ("operation", "S has scope shared, not global", lambda: kernel(Prefetch(S, (Z, Z), 8), S)),
    ("operation", "a bulk copy of 24 bytes", lambda: kernel(bulk(S, (Z, Z), (Z, Z), 12), S, FULL)),
    (
        "operation",
        "which is swizzled",
        lambda: kernel(
            bulk(shared("S", 8, 64, layout=Layout((64, 1), Swizzle(3, 3, 3))), (Z, Z), (Z, Z), 8),
            shared("S", 8, 64, layout=Layout((64, 1), Swizzle(3, 3, 3))),
            FULL,
        ),
    ),
    ("operation", "mbarriers S of float16", lambda: kernel(MbarrierInit(shared("S", 2), Z, 1), shared("S", 2))),
    (
        "operation",
        "an mbarrier for 0 arrivals",
        lambda: kernel(MbarrierInit(FULL, Z, 0), FULL),
    ),
    ("operation", "the parity of a wait", lambda: kernel(MbarrierWait(FULL, Z, ONE), FULL)),
    (
        "operation",
        "mbarriers full are accessed as data",
        lambda: kernel(seq(MbarrierInit(FULL, Z, 1), Store(FULL, (Z,), index(1))), FULL),
    ),
    ("operation", "values with flags in O of float32", lambda: kernel(FlaggedLoad(D, (Z,), OUT, (Z,)), D)),
    ("operation", "words in registers D of float32", lambda: kernel(FlaggedPeek(D, (Z,), OUT, (Z,), 1), D)),
    ("operation", "words of O of float32", lambda: kernel(FlaggedPeek(HELD, (Z,), OUT, (Z,), 1), HELD)),
    ("operation", "R has scope register, not global", lambda: kernel(FlaggedStore(R, (Z,), ONE), R)),
    ("operation", "a float16 with a flag", lambda: kernel(FlaggedLoad(R, (Z,), OUT, (Z,)), R)),
    ("lanes", "4 values are stored with one flag", lambda: kernel(FlaggedStore(OUT, (Z,), Broadcast(ONE, 4)))),
    ("operation", "a wait for all but -1", lambda: kernel(CopyAsyncWait(-1))),
    ("operation", "no matrix instruction m8", lambda: kernel(mma("m8"), D, R)),
    ("operation", "a of m16n8k16_bf16 is float16, not bfloat16", lambda: kernel(mma("m16n8k16_bf16"), D, R)),
    ("operation", "8 elements of R do not fit", lambda: kernel(mma(at=index(9)), D, R)),
    ("operation", "3 matrices are moved at once", lambda: kernel(StoreMatrix(S, (Z, Z), R, (Z,), 3), R, S)),
    ("operation", "16 elements of D do not fit", lambda: kernel(warpgroup_mma(columns=32), D, TILE)),
    ("operation", "d of a wgmma is float16", lambda: kernel(warpgroup_mma(d=R), R, TILE)),
    (
        "operation",
        "16 lines of 128 rows do not fit tile",
        lambda: kernel(warpgroup_mma(SUMS, 128, True), SUMS, TILE),
    ),
    ("operation", "whether a wgmma accumulates is", lambda: kernel(warpgroup_mma(adds=T), D, TILE)),
    (
        "uniformity",
        "whether a wgmma accumulates under `t < 64`",
        lambda: kernel(warpgroup_mma(adds=T < index(64)), D, TILE),
    ),
    ("operation", "a wait for all but 8 wgmmas", lambda: kernel(WarpgroupMmaWait(8))),
    ("uniformity", "a wgmma under `t < 64`", lambda: kernel(under(T < index(64), WarpgroupMmaWait(0)))),
    (
        "warps",
        "a setmaxnreg in blocks of 64 threads, not whole",
        lambda: kernel(SetMaxRegisters(40, False), axes=SMALL),
    ),
    ("operation", "44 registers; 24 to 240", lambda: kernel(SetMaxRegisters(44, True))),
    (
        "uniformity",
        "a barrier of the warpgroup under `t < 64`",
        lambda: kernel(under(T < index(64), Barrier(SyncScope.WARPGROUP))),
    ),
    (
        "operation",
        "the block of an arrival is no scalar",
        lambda: kernel(MbarrierArrive(FULL, Z, ONE), FULL, axes=CLUSTERS),
    ),
    ("launch", "the block of an arrival where there are no", lambda: kernel(MbarrierArrive(FULL, Z, Z), FULL)),
    ("operation", "24 bytes are expected", lambda: kernel(MbarrierArriveExpectTx(FULL, Z, 24), FULL)),
    ("operation", "how many bytes are expected is no", lambda: kernel(MbarrierArriveExpectTx(FULL, Z, ONE), FULL)),
    ("launch", "the block mask of a multicast where there are no", lambda: kernel(boxed(multicast=Z), TILE, FULL)),
    (
        "operation",
        "a multicast of I that is not tx_expected",
        lambda: kernel(boxed(tx_expected=False, multicast=Z), TILE, FULL, axes=CLUSTERS),
    ),
    ("inputs", "I is an input", lambda: kernel(TmaStore(IN, (Z, Z), TILE, (Z, Z), (64, 64)), TILE)),
    ("operation", "a wait for all but -1 groups of stores", lambda: kernel(TmaStoreWait(-1))),
    ("operation", "3 matrices are moved at once", lambda: kernel(LoadMatrix(R, (Z,), S, (Z, Z), 3), R, S)),
    ("operation", "S is accessed at bytes", lambda: kernel(LoadMatrix(R, (Z,), S, (Z, index(4)), 4), R, S)),
    ("operation", "result would depend on the order", lambda: kernel(AtomicReduce(BinaryOp.ADD, OUT, (Z,), ONE))),
    ("operation", "result would depend on the order", lambda: kernel(AtomicReduce(BinaryOp.MUL, FULL, (Z,), Z), FULL)),
    (
        "operation",
        "full of int64 is reduced with what",
        lambda: kernel(AtomicReduce(BinaryOp.ADD, FULL, (Z,), ONE), FULL),
    ),
    ("operation", "D has scope register", lambda: kernel(AtomicReduce(BinaryOp.MAX, D, (Z,), ONE), D)),
    ("inputs", "W is an input", reduced_weights),
    ("types", "Operation is no operation", lambda: kernel(Operation())),
]


@pytest.mark.parametrize(("rule", "detail", "build"), BROKEN, ids=[f"{r}: {d}" for r, d, _ in BROKEN])
def test_a_broken_rule_is_named(rule: str, detail: str, build: Callable[[], Kernel]) -> None:
    with pytest.raises(InvalidKernel, match=f"kernel k: .*{detail}.*; rule {rule}: "):
        verify(build())


def test_uniform_conditions_are_known() -> None:
    for condition, body, axes in (
        (T < index(64), Barrier(SyncScope.WARP), THREADS),
        (eq(T // 32, 1), shuffled(ONE), THREADS),
        (T % 64 < index(32), shuffled(ONE), THREADS),
        ((B * 128 + T) // 32 < index(9), shuffled(ONE), THREADS),
        (B * 128 + T < index(320), mma(), THREADS),
        (B * 128 + T < index(256), Barrier(), THREADS),
        (Select(B < index(3), T < index(64), T < index(96)), Barrier(SyncScope.WARP), THREADS),
        (T >= index(96), mma(), THREADS),
        (T < index(128), Barrier(), THREADS),
        (eq(B, 1), Barrier(), THREADS),
        (eq(C, 1), Barrier(), CLUSTERS),
        (Load(S, (Z, B)) < 1.0, Barrier(), THREADS),
        (Load(IN, (Z, B)) < 1.0, Barrier(SyncScope.CLUSTER), CLUSTERS),
    ):
        verify(kernel(under(condition, body), D, R, S, axes=axes))


def test_registers_are_uniform_where_all_threads_store_the_same() -> None:
    half, read = const(0.5, float16), Load(R, (Z,)) < 1.0

    def barrier_behind(*stores: Stmt) -> Kernel:
        return kernel(seq(*stores, under(read)), R)

    same = Store(R, (Z,), Load(IN, (Z, B)))
    verify(barrier_behind(same))
    verify(barrier_behind(same, under(T < index(128), Store(R, (Z,), half))))
    for wrong in (
        (),
        (Store(R, (Z,), Load(IN, (Z, T % 64))),),
        (same, under(T < index(64), Store(R, (Z,), half))),
        (same, Store(R, (T % 16,), half)),
        (same, Store(R, (Z,), Load(R, (Z,)) + half)),
    ):
        with pytest.raises(InvalidKernel, match=r"a barrier of the block under `R.0. < "):
            verify(barrier_behind(*wrong))
    with pytest.raises(InvalidKernel, match="rule uniformity"):
        verify(kernel(seq(same, mma(), under(read)), D, R))


def test_outputs_may_be_stored_to_as_a_single_dimension_or_without_dimensions_of_one_element() -> None:
    def stored(shape: tuple[int, ...]) -> Kernel:
        w = Writer()
        with w.launch("f", THREADS):
            w.store(Buffer("O", shape, float32), (Z,) * len(shape), ONE)
        return Kernel("k", (IN,), (Buffer("O", (2, 1, 4), float32),), (), w.finish())

    verify(stored((8,)))
    verify(stored((2, 4)))
    for other in ((4,), (1, 2, 4), (4, 2), (2, 4, 1)):
        with pytest.raises(InvalidKernel, match=r"buffer O is accessed as .*; rule scope: "):
            verify(stored(other))


def test_unrolled_loops_stay_in_final_kernels() -> None:
    registers = For("i", 8, LoopKind.UNROLLED, Store(R, (Var("i"),), const(0.0, float16)))
    verify(kernel(registers, R), final=True)
    eight = Ramp(Z, 1, 8)
    turned = Binary(BinaryOp.MOD, eight + Broadcast(Z, 8), Broadcast(index(4), 8))
    verify(kernel(Store(R, (eight,), Load(R, (turned,))), R), final=True)
    looped = For("i", 8, LoopKind.SERIAL, Store(R, (Var("i"),), const(0.0, float16)))
    verify(kernel(looped, R))
    with pytest.raises(InvalidKernel, match=r"register buffer R is accessed.*; rule final: "):
        verify(kernel(looped, R), final=True)
