"""Races: the access history of the interpreter agrees with comparing every two accesses."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tilewright.core.dtypes import INDEX, float32
from tilewright.core.errors import KernelFault
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import BinaryOp, ClusterLoad, Load, Var, const, index
from tilewright.ir.gpu.atomic import AtomicReduce
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import HardwareAxis, Kernel, Operation

BLOCKS, THREADS, ELEMENTS = 4, 64, 24
X, CLUSTER, THREAD = HardwareAxis.GRID_X, HardwareAxis.CLUSTER, HardwareAxis.THREAD
Z, TWO = index(0), const(2.0, float32)
GRID: dict[str, type[Operation]] = {"arrive": GridBarrierArrive, "wait": GridBarrierWait}


@dataclass(frozen=True)
class Step:
    """All threads of ``who`` access the element ``at`` (of the shared buffer of block ``peer`` where there are
    clusters), or they synchronise. ``kind`` is load, store, reduce, peer, global load, global store, global reduce, a
    SyncScope, or arrive or wait (at the barrier of the grid)."""

    kind: str
    who: np.ndarray  # bool[blocks, threads]
    at: np.ndarray  # int64[blocks, threads]
    peer: np.ndarray  # int64[blocks, threads]


def draw(seed: int, cluster: int, *, grid: bool, atomic: bool) -> list[Step]:
    """A few steps, most of which touch few elements in few threads, so that about half of all programs are right."""
    rng = stream(seed, "races")
    kinds = ["load", "store", "global load", "global store", SyncScope.WARP, SyncScope.BLOCK, SyncScope.BLOCK]
    kinds += ["peer", SyncScope.CLUSTER, SyncScope.CLUSTER] if cluster > 1 else []
    kinds = ["global load", "global store", "global store", SyncScope.BLOCK, "grid", "grid"] if grid else kinds
    kinds += (["global reduce"] if grid else ["reduce", "global reduce"]) * 3 if atomic else []
    steps, arrived = [], False
    for _ in range(int(rng.integers(3, 12))):
        kind = kinds[int(rng.integers(len(kinds)))]
        if kind == "grid":
            kind, arrived = "wait" if arrived else "arrive", not arrived
        shape = (BLOCKS, THREADS)
        who = np.zeros(shape, dtype=bool)
        base = int(rng.integers(THREADS))
        span = int(rng.integers(1, 6))
        who[:, base : base + span] = rng.random((BLOCKS, min(span, THREADS - base))) < 0.7
        own = np.arange(THREADS) % ELEMENTS + np.zeros((BLOCKS, 1), dtype=np.int64)
        at = own if rng.random() < 0.6 else (own + int(rng.integers(3))) % ELEMENTS
        if kind.startswith("global") and rng.random() < 0.7:
            at = at + np.arange(BLOCKS)[:, None] * ELEMENTS
        steps.append(Step(str(kind), who, at, rng.integers(0, cluster, shape)))
    if arrived:
        steps.append(Step("wait", np.zeros(shape, dtype=bool), at, at))
    return steps


def kernel_of(steps: list[Step], cluster: int) -> tuple[Kernel, dict[str, np.ndarray]]:
    shape = (max(len(steps), 1), BLOCKS, THREADS)
    who, at, peer = (Buffer(n, shape, INDEX) for n in ("who", "at", "peer"))
    out, kept = Buffer("O", (BLOCKS,), float32), Buffer("G", (BLOCKS * ELEMENTS,), float32)
    w = Writer()
    with w.launch("fill", [("f", BLOCKS * ELEMENTS, THREAD)]) as (f,):
        w.store(kept, (f,), const(0.0, float32))
        with w.when(f < index(BLOCKS)):
            w.store(out, (f,), const(0.0, float32))
    bounds = [("b", BLOCKS // cluster, X), ("t", THREADS, THREAD)]
    if cluster > 1:
        bounds.insert(1, ("c", cluster, CLUSTER))
    with w.launch("steps", bounds):
        t = Var("t")
        block = Var("b") * cluster + Var("c") if cluster > 1 else Var("b")
        shared = w.allocate("S", (ELEMENTS,), float32, MemoryScope.SHARED)
        held = w.allocate("R", (1,), float32, MemoryScope.REGISTER)
        with w.when(t < index(ELEMENTS)):
            w.store(shared, (t,), const(1.0, float32))
        w.barrier(SyncScope.CLUSTER if cluster > 1 else SyncScope.BLOCK)
        for n, step in enumerate(steps):
            place = (Load(at, (index(n), block, t)),)
            if step.kind in tuple(SyncScope):
                w.barrier(SyncScope(step.kind))
                continue
            if step.kind in GRID:
                w.emit(GRID[step.kind]())
                continue
            with w.when(Load(who, (index(n), block, t)) > index(0)):
                match step.kind:
                    case "load":
                        w.store(held, (Z,), Load(shared, place))
                    case "store":
                        w.store(shared, place, const(2.0, float32))
                    case "peer":
                        w.store(held, (Z,), ClusterLoad(shared, place, Load(peer, (index(n), block, t))))
                    case "global load":
                        w.store(held, (Z,), Load(kept, place))
                    case "reduce" | "global reduce":
                        w.emit(AtomicReduce(BinaryOp.MAX, shared if step.kind == "reduce" else kept, place, TWO))
                    case _:
                        w.store(kept, place, const(2.0, float32))
        if cluster > 1:
            w.barrier(SyncScope.CLUSTER)
    data = {
        name: np.array([getattr(s, name) for s in steps], dtype=np.int64).reshape(shape)
        for name in ("who", "at", "peer")
    }
    return Kernel("races", (who, at, peer), (out,), (kept,), w.finish()), data


def accesses(steps: list[Step], cluster: int) -> Iterator[tuple[int, tuple[int, int], tuple[str, int, int], str]]:
    """(number of the step, (block, thread), what it accesses, how: load, store, reduce or peer)."""
    for n, step in enumerate(steps):
        if step.kind in (*SyncScope, *GRID):
            continue
        for block, thread in np.argwhere(step.who).tolist():
            element = int(step.at[block, thread])
            if step.kind.startswith("global"):
                yield n, (block, thread), ("global", 0, element), step.kind.removeprefix("global ")
            else:
                owner = block // cluster * cluster + int(step.peer[block, thread]) if step.kind == "peer" else block
                yield n, (block, thread), ("shared", owner, element), step.kind


def races(steps: list[Step], cluster: int) -> bool:
    """Whether two threads access one element, not both loading it nor both reducing it, with nothing in between that
    synchronises both."""
    accesses_of: dict[tuple[str, int, int], list[tuple[int, tuple[int, int], str]]] = {}
    for n, thread, element, how in accesses(steps, cluster):
        accesses_of.setdefault(element, []).append((n, thread, "load" if how == "peer" else how))
    for several in accesses_of.values():
        for i, (n, one, first) in enumerate(several):
            for m, other, second in several[:i]:
                if (
                    one != other
                    and (first != second or first == "store")
                    and not any(meets(s.kind, one, other, cluster) for s in steps[m + 1 : n])
                    and not grid_meets([s.kind for s in steps[m + 1 : n]])
                ):
                    return True
    return False


def meets(kind: str, one: tuple[int, int], other: tuple[int, int], cluster: int) -> bool:
    match kind:
        case SyncScope.WARP:
            return one[0] == other[0] and one[1] // 32 == other[1] // 32
        case SyncScope.BLOCK | "arrive" | "wait":
            return one[0] == other[0]
        case SyncScope.CLUSTER:
            return one[0] // cluster == other[0] // cluster
    return False


def grid_meets(kinds: list[str]) -> bool:
    """Whether all blocks arrive at the barrier of the grid, and wait for that."""
    return "wait" in kinds[kinds.index("arrive") :] if "arrive" in kinds else False


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(("cluster", "grid"), [(1, False), (2, False), (1, True)])
def test_a_race_is_found_exactly_where_two_accesses_are_not_ordered(cluster: int, grid: bool, atomic: bool) -> None:
    found = 0
    for seed in range(200):
        steps = draw(seed, cluster, grid=grid, atomic=atomic)
        kernel, data = kernel_of(steps, cluster)
        expected = races(steps, cluster)
        found += expected
        try:
            interpret(kernel, data)
        except KernelFault as fault:
            assert expected and "race on" in str(fault), f"seed {seed}: {fault}"
        else:
            assert not expected, f"seed {seed}"
    assert 50 <= found <= 150
