"""The simplifier below launches: what it must find there, and what it must leave."""

import pytest

from tests.golden import check_golden
from tests.ir.launches import FAULTS, Build
from tilewright.core.dtypes import float16, float32
from tilewright.ir.bounds import Interval, interval_of
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import ClusterLoad, Expr, Load, Select, Shuffle, ShuffleMode, Var, const, index
from tilewright.ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.ldmatrix import LoadMatrix
from tilewright.ir.simplify import prove, simplify, simplify_kernel
from tilewright.ir.stmt import HardwareAxis, Kernel, walk_statements
from tilewright.ir.text import kernel_text
from tilewright.ir.verify import verify

X, CLUSTER, THREAD = HardwareAxis.GRID_X, HardwareAxis.CLUSTER, HardwareAxis.THREAD
A, OUT = Buffer("A", (4, 256), float32), Buffer("O", (4, 256), float32)
Z = index(0)


def body_of(w: Writer) -> str:
    """The text below the launch, after simplifying."""
    kernel = Kernel("k", (A,), (OUT,), (), w.finish())
    verify(kernel)
    simple = simplify_kernel(kernel)
    verify(simple)
    assert simplify_kernel(simple) == simple
    lines = kernel_text(simple).splitlines()[1:]
    return "\n".join(line[2:] for line in lines)


@pytest.mark.parametrize("build", FAULTS, ids=lambda b: b.__name__)
def test_golden_texts(build: Build) -> None:
    kernel = build("")
    check_golden(f"ir/golden/{build.__name__}.txt", kernel_text(kernel) + "\n" + kernel_text(simplify_kernel(kernel)))


def test_launch_variables_have_ranges() -> None:
    w = Writer()
    with w.launch("f", [("b", 4, X), ("y", 1, HardwareAxis.GRID_Y), ("t", 256, THREAD)]) as (b, y, t):
        place = b * 256 + t
        with w.when(place < index(1024)):
            w.store(OUT, (place // 256 + y, place % 256), Load(A, (b, t)))
    text = "launch f(grid_x b in 4, grid_y y in 1, thread t in 256):\n  O[b, t] = A[b, t]"
    assert body_of(w) == text


def test_operations_are_simplified() -> None:
    w = Writer()
    with w.launch("f", [("b", 4, X), ("t", 64, THREAD)]) as (b, t):
        s = w.allocate("S", (2, 256), float32, MemoryScope.SHARED)
        kept = w.allocate("unread", (64,), float32, MemoryScope.SHARED)
        for stage in range(2):
            mask = [t < index(64), t < index(60)][stage]
            w.emit(CopyAsync(s, (index(stage) + t // 64, t * 4 + 0), A, (b, t % 64 * 4), 4, mask))
        w.emit(CopyAsyncCommit())
        w.emit(CopyAsyncWait(0))
        w.store(kept, (t,), const(1.0, float32))
        with w.loop("i", 1) as i:
            w.barrier()
            w.store(OUT, (b, t), Load(s, (i, t)))
    assert body_of(w) == "\n".join(
        [
            "launch f(grid_x b in 4, thread t in 64):",
            "  shared S: float32[2, 256]:",
            "    copy_async(S[0, t*4], A[b, t*4], 4)",
            "    copy_async(S[1, t*4], A[b, t*4], 4, mask t < 60)",
            "    copy_async_commit()",
            "    copy_async_wait(0)",
            "    barrier block",
            "    O[b, t] = S[0, t]",
        ]
    )


def test_what_operations_and_other_blocks_read_is_kept() -> None:
    w = Writer()
    with w.launch("f", [("b", 2, X), ("c", 2, CLUSTER), ("t", 32, THREAD)]) as (b, c, t):
        r = w.allocate("R", (2,), float16, MemoryScope.REGISTER)
        s = w.allocate("S", (8, 8), float16, MemoryScope.SHARED)
        p = w.allocate("P", (32,), float32, MemoryScope.SHARED)
        w.store(s, (t // 4, t % 4), const(0.0, float16))
        w.store(p, (t,), const(0.0, float32))
        w.barrier(SyncScope.CLUSTER)
        w.emit(LoadMatrix(r, (Z,), s, (t % 8, Z), 1))
        w.store(OUT, (b * 2 + c, t), ClusterLoad(p, (t,), index(1) - c))
    text = body_of(w)
    assert "S[t//4, t%4] = 0.0f16" in text and "P[t] = 0.0" in text and "load_matrix(R[0], S[t%8, 0], 1)" in text


def test_exchanges_between_lanes() -> None:
    t = Var("t")
    ranges = {"t": Interval(0, 63)}

    def shuffled(value: Expr) -> Expr:
        return Shuffle(ShuffleMode.XOR, value, index(1) + index(0))

    assert simplify(shuffled(const(2.0, float32)), ranges) == const(2.0, float32)
    assert simplify(shuffled(t * 2 - t), ranges) == Shuffle(ShuffleMode.XOR, t, index(1))
    assert interval_of(shuffled(t % 8), ranges) == Interval(0, 7)
    assert prove(shuffled(t) < index(64), ranges) is True
    assert prove(shuffled(t) < t + 64, ranges) is True
    assert prove(shuffled(t) < t + 63, ranges) is None
    whole = Buffer("N", (4,), float32, MemoryScope.SHARED)
    peer = ClusterLoad(whole, (t // 64,), t // 64)
    assert simplify(Select(t < index(64), peer, peer + peer), ranges) == ClusterLoad(whole, (Z,), Z)


def test_no_barrier_is_lost() -> None:
    for build in FAULTS:
        kernel = build("")
        kinds = [[type(s) for s in walk_statements(k.body)] for k in (kernel, simplify_kernel(kernel))]
        for kind in {k for k in kinds[0] if k.__module__.endswith("ir.gpu")}:
            assert kinds[0].count(kind) == kinds[1].count(kind)
