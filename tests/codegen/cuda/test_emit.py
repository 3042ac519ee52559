"""CUDA C++ from kernel IR compiles without headers, to the accesses that the IR promises."""

import pytest

from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile.compiler import compiled
from tilewright.codegen.cuda.compile.resources import parse_log
from tilewright.codegen.lowering import finish, lower
from tilewright.core.dtypes import INDEX, DType, float16, float32, int32
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import ClusterLoad, Compare, CompareOp, Load, const, index
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.bulk_copy import Prefetch
from tilewright.ir.gpu.cluster import ClusterLoadWait
from tilewright.ir.gpu.mbarrier import MbarrierArrive, MbarrierInit
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.operators import OPERATORS
from tilewright.tests.codegen.cuda.launches import LAUNCHES, launched
from tilewright.tests.codegen.kernels import KERNELS

SM90A = Target("cuda", "sm_90a", (), 132, 16)


ALL = {**{name: launched(kernel) for name, kernel in KERNELS.items()}, **LAUNCHES}


@pytest.mark.parametrize("name", ALL)
def test_every_node_of_the_ir_compiles_without_a_header(name: str) -> None:
    backend = backend_for(SM90A)
    final = backend.passes(ALL[name])[-1][1]
    source = backend.emit(final, SM90A)
    assert "#include" not in source.text
    result = compiled(source, SM90A)  # some of these kernels hold more than a setting of a sketch may
    assert result.cubin.startswith(b"\x7fELF")
    assert set(parse_log(result.log)) == {g.function for g in source.launches}


@pytest.mark.parametrize("how", ["through memory", "not awaited", "awaited"])
def test_clusters_wait_for_stores_to_global_memory_only_where_they_must(how: str) -> None:
    """They must where others read those stores, or where a load from a CTA's shared memory could be in flight at its
    end."""
    source, result = Buffer("A", (2, 64), float32), Buffer("O", (2, 2, 64), float32)
    w = Writer()
    with w.launch("turned", [("rank", 2, HardwareAxis.CLUSTER), ("t", 64, HardwareAxis.THREAD)]) as (rank, t):
        values = w.allocate("values", (64,), float32, MemoryScope.SHARED)
        held = w.allocate("held", (), float32, MemoryScope.REGISTER)
        w.store(values, (t,), Load(source, (rank, t)))
        w.store(result, (index(0), rank, t), Load(source, (rank, t)))
        w.barrier(SyncScope.CLUSTER)
        other = (
            Load(result, (index(0), 1 - rank, t)) if how == "through memory" else ClusterLoad(values, (t,), 1 - rank)
        )
        w.store(held, (), other)
        if how == "awaited":
            w.emit(ClusterLoadWait(Load(held, ())))
        w.barrier(SyncScope.CLUSTER)
        w.store(result, (index(1), rank, t), Load(held, ()))
        w.barrier(SyncScope.CLUSTER)
    kernel = Kernel("turned", (source,), (result,), (), w.finish())
    backend = backend_for(SM90A)
    emitted = backend.emit(kernel, SM90A)
    assert emitted.text.count("  cluster_sync_shared();") == (2 if how == "awaited" else 0)
    assert emitted.text.count("  cluster_sync_relaxed();") == (0 if how == "not awaited" else 1)
    assert backend.compile(emitted, SM90A).code.startswith(b"\x7fELF")


def test_no_cta_ends_before_others_have_arrived_at_its_mbarriers() -> None:
    """An arrival at a CTA that has ended is a fault: convolutions whose last stores were quick met it on an H200."""
    w, result = Writer(), Buffer("O", (2, 32), float32)
    with w.launch("turned", [("rank", 2, HardwareAxis.CLUSTER), ("t", 32, HardwareAxis.THREAD)]) as (rank, t):
        barriers = w.allocate("barriers", (1,), INDEX, MemoryScope.SHARED)
        with w.when(Compare(CompareOp.EQ, t, index(0))):
            w.emit(MbarrierInit(barriers, index(0), 32))
        w.barrier(SyncScope.CLUSTER)
        w.emit(MbarrierArrive(barriers, index(0), 1 - rank))
        w.store(result, (rank, t), const(1.0, float32))
        w.barrier(SyncScope.CLUSTER)
    text = backend_for(SM90A).emit(Kernel("turned", (), (result,), (), w.finish()), SM90A).text
    assert text.count("  cluster_sync();") == 1 and "cluster_sync_relaxed" not in text


def test_cluster_loads_arrive_before_the_next_cluster_barrier() -> None:
    """The assembler waits at the first use of what was loaded, which must not move behind the barrier."""
    workload = OPERATORS["reduce"].workload({"shape": [64, 8192], "axes": [1], "kind": "sum", "dtype": "float32"})
    space = SKETCHES["cuda_rowwise"].space(workload, SM90A, seed=0, limit=10_000)
    backend, found = backend_for(SM90A), 0
    for schedule in (space.schedule(n) for n in range(len(space))):
        if dict(schedule.knobs)["cluster_size"] == 1:
            continue
        emitted = backend.emit(finish(lower(workload, SM90A, schedule), SM90A), SM90A)
        lines = backend.assembly(emitted, SM90A).splitlines()
        for n in (n for n, line in enumerate(lines) if " LD.E " in line):
            register = lines[n].split(" LD.E ")[1].split(",")[0]
            barrier = next(i for i in range(n, len(lines)) if "UCGABAR_ARV" in lines[i])
            assert any(f" {register}," in line for line in lines[n + 1 : barrier]), lines[n : barrier + 1]
            found += 1
    assert found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_first_prefetch_is_ahead_of_griddepcontrol_wait(arch: str) -> None:
    target = Target("cuda", arch, (), 132, 16)
    source, result = Buffer("A", (4, 64), float32), Buffer("O", (4, 64), float32)
    w = Writer()
    with w.launch("near", [("b", 4, HardwareAxis.GRID_X), ("t", 64, HardwareAxis.THREAD)]) as (b, t):
        with w.when(t < 2):
            w.emit(Prefetch(source, (b, t * 32), 32))
        w.store(result, (b, t), Load(source, (b, t)))
        w.emit(Prefetch(source, (index(3) - b, index(0)), 64))
        w.emit(Prefetch(source, (b, t % 3), 5))
    backend = backend_for(target)
    emitted = backend.emit(Kernel("near", (source,), (result,), (), w.finish()), target)
    before, wait, after = emitted.text.partition("  griddepcontrol_wait();")
    assert bool(wait) == (arch == "sm_90a")
    assert "prefetch_l2<128>(&A[" in before and "prefetch_l2<256>(&A[" in emitted.text
    assert not wait or "prefetch_l2<256>(&A[" in after
    assert "prefetch_l2_unaligned<20>(&A[" in emitted.text
    assert backend.compile(emitted, target).code.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("dtype", "vector", "hinted"),
    [(float16, 1, True), (float32, 1, True), (float32, 2, True), (int32, 1, True), (float32, 4, False)],
)
def test_loads_of_less_than_16_bytes_bring_whole_lines_into_l2(dtype: DType, vector: int, hinted: bool) -> None:
    source, result = Buffer("A", (4, 64 * vector), dtype), Buffer("O", (4, 64 * vector), dtype)
    w = Writer()
    bounds = [("b", 4, HardwareAxis.GRID_X), ("t", 64, HardwareAxis.THREAD)]
    with w.launch("copied", bounds, prefetch_lines=("A", "O")) as (b, t):
        with w.vectorized("v", vector) as v:
            w.store(result, (b, t * vector + v), Load(source, (b, t * vector + v)))
    backend = backend_for(SM90A)
    final = backend.passes(Kernel("copied", (source,), (result,), (), w.finish()))[-1][1]
    loads = [line for line in backend.assembly(backend.emit(final, SM90A), SM90A).splitlines() if " LDG" in line]
    assert loads and all((".LTC128B" in line) == hinted for line in loads), loads


@pytest.mark.parametrize(("bound", "held"), [("known", False), ("in a register", False), ("changes inside", True)])
def test_a_guarded_loop_ends_where_its_guard_does(bound: str, held: bool) -> None:
    """It does where the guard is loop-invariant. One that reads what the loop writes is tested in each iteration."""
    source, result = Buffer("A", (32,), float32), Buffer("O", (32,), float32)
    w = Writer()
    with w.launch("guarded", [("b", 5, HardwareAxis.GRID_X), ("t", 32, HardwareAxis.THREAD)]) as (b, t):
        total = w.allocate("total", (), float32, MemoryScope.REGISTER)
        most = w.allocate("most", (), INDEX, MemoryScope.REGISTER)
        w.store(total, (), const(0.0, float32))
        w.store(most, (), b)
        with w.loop("step", 7) as step, w.when(step + 1 < (b * 2 if bound == "known" else Load(most, ()))):
            w.store(total, (), Load(total, ()) + Load(source, (t,)))
            if bound != "in a register":
                w.store(most, (), Load(most, ()) - 1)
        with w.when(b < 1):
            w.store(result, (t,), Load(total, ()))
    text = backend_for(SM90A).emit(Kernel("guarded", (source,), (result,), (), w.finish()), SM90A).text
    assert ("step < 7 && step < step_end" in text) != held
    assert ("if (step + 1 <" in text) == held
