"""Grouped products by wgmma: groups of any sizes, masked rows at their ends, what is taken and what the compiler makes
of it."""

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.dtypes import bfloat16, int32
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Target
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program
from tilewright.ir.interpret import interpret
from tilewright.ir.verify import verify
from tilewright.schedule.defaults import has_class
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM as SKETCH
from tilewright.schedule.problems.gemm import GroupedRows
from tilewright.schedule.problems.grouped_gemm import grouped_gemm_of
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.operators.grouped_matmul import row_groups
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=5, vector_bytes=16)
"""A device with five multiprocessors: a CTA works through several tiles, of several groups."""
SMALL_TILE: dict[str, KnobValue] = {"consumer_warpgroups": 1, "atoms_m": 1, "mma_n": 64, "k_atoms": 1}
LARGE = workload_of("grouped_matmul", groups=32, m=16384, n=4096, k=7168, dtype="bfloat16", transpose_b=True, skew=1.0)


def assert_agrees_with(workload: Workload, schedule: Schedule, ends: list[int] | None = None) -> None:
    """The kernel of a schedule gives what the reference gives, for groups that end there."""
    kernel = SKETCH.lower(workload, FEW, schedule)
    verify(kernel)
    inputs = random_inputs(workload, 1)
    if ends is not None:
        inputs["ends"] = np.asarray(ends, np.int32)
    got, wanted = interpret(finish(kernel, FEW), inputs)["C"], reference(workload, inputs)["C"]
    absolute, relative = tolerance(workload)["C"]
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), relative, absolute)


def grouped(groups: int, m: int, n: int = 72, k: int = 72, **more: object) -> Workload:
    return workload_of("grouped_matmul", groups=groups, m=m, n=n, k=k, **{"dtype": "float16", **more})


@pytest.mark.parametrize(
    ("groups", "m", "ends"),
    [
        (4, 150, [0, 70, 70, 150]),
        (3, 150, [0, 0, 150]),
        (3, 150, [150, 150, 150]),
        (4, 131, [1, 2, 130, 131]),
        (3, 150, [40, 90, 100]),
        (3, 150, [-5, 400, 90]),
        (4, 150, [90, 20, 128, 64]),
        (2, 150, [0, 0]),
        (1, 150, [3]),
        (256, 90, sorted((n * 37 + 11) % 91 for n in range(256))),
    ],
    ids=[
        "empty",
        "last has all",
        "first has all",
        "one row",
        "rows behind",
        "beyond",
        "unsorted",
        "no rows",
        "one",
        "many groups",
    ],
)
def test_groups_end_anywhere(groups: int, m: int, ends: list[int]) -> None:
    workload = grouped(groups, m, transpose_b=True)
    assert_agrees_with(workload, legal_schedule_of(SKETCH, workload, FEW, **SMALL_TILE, epilogue_stages=1), ends)


def test_stages_of_the_epilogue_are_free_before_they_are_filled_again() -> None:
    """The second atom of a tile is stored without TMA, the first one with it."""
    workload = grouped(2, 100, n=192, transpose_b=True)
    knobs = {"consumer_warpgroups": 1, "atoms_m": 2, "mma_n": 192, "k_atoms": 1, "epilogue_stages": 2}
    assert_agrees_with(workload, legal_schedule_of(SKETCH, workload, FEW, **knobs), [100, 100])


@pytest.mark.parametrize("n", [72, 66])
def test_rows_behind_all_ends_have_the_epilogue_of_0(n: int) -> None:
    workload = grouped(3, 150, n=n, transpose_b=True, bias=True, residual=True, activation="sigmoid")
    assert_agrees_with(workload, legal_schedule_of(SKETCH, workload, FEW, **SMALL_TILE), [20, 60, 70])


@pytest.mark.parametrize(
    "knobs",
    [
        {"consumer_warpgroups": 2, "ping_pong": 1, "atoms_m": 1, "mma_n": 64, "epilogue_stages": 1},
        {"consumer_warpgroups": 2, "ping_pong": 0, "atoms_m": 2, "mma_n": 48, "epilogue_stages": 2},
        {"consumer_warpgroups": 1, "cluster_m": 2, "cluster_n": 2, "mma_n": 32, "epilogue_stages": 0},
        {"consumer_warpgroups": 2, "ping_pong": 1, "atoms_m": 1, "cluster_m": 2, "mma_n": 64, "epilogue_stages": 1},
    ],
    ids=["ping-pong", "two atoms", "cluster, from registers", "ping-pong cluster"],
)
def test_all_kinds_of_tiles_take_skewed_groups(knobs: dict[str, KnobValue]) -> None:
    workload = grouped(5, 300, n=104, skew=1.0, bias=True, activation="relu")
    assert_agrees_with(workload, legal_schedule_of(SKETCH, workload, FEW, k_atoms=1, **knobs))


@pytest.mark.parametrize("stages", [0, 1])
def test_results_that_tma_cannot_store_are_masked_too(stages: int) -> None:
    workload = grouped(3, 100, n=66, transpose_b=True, residual=True)
    assert_agrees_with(workload, legal_schedule_of(SKETCH, workload, FEW, **SMALL_TILE, epilogue_stages=stages))


def test_what_is_taken() -> None:
    found = grouped_gemm_of(grouped(4, 100, skew=0.5))
    assert found is not None and found.groups is not None
    assert (found.groups.count, found.groups.skew, found.groups.ends.name) == (4, 0.5, "ends")
    assert SKETCH.matches(grouped(4, 100), H200) and SKETCH.matches(grouped(4, 100, transpose_b=True), H200)
    assert not SKETCH.matches(grouped(4, 100, dtype="float32"), H200)
    assert not SKETCH.matches(grouped(4, 100, k=68), H200)  # rows that TMA cannot load
    assert grouped_gemm_of(_returns_groups()) is None


def _returns_groups() -> Workload:
    """A grouped product whose groups are an output too."""
    a, b = te.placeholder((100, 72), "float16", "A"), te.placeholder((4, 72, 72), "float16", "B")
    ends, k = te.placeholder((4,), "int32", "ends"), te.reduce_axis(72, "k")
    group = row_groups(ends, 100)
    total = te.compute(
        (100, 72),
        lambda i, j: te.sum(te.cast(a[i, k], "float32") * te.cast(b[te.within(group[i], 4), k, j], "float32"), axis=k),
        "C",
    )
    return te.workload([total, group])


def test_layers_of_experts_in_a_graph_have_a_kernel_each() -> None:
    """Weights that a model transposes are read as they lie, and the activation is part of the product."""
    x, ends = (Value(n, TensorType(s, d)) for n, s, d in (("x", (512, 128), bfloat16), ("e", (8,), int32)))
    up, down = (Value(n, TensorType(s, bfloat16)) for n, s in (("u", (8, 256, 128)), ("d", (8, 128, 256))))
    b = GraphBuilder(["x", "e", "u", "d"])
    hidden = b.node("silu", b.node("grouped_matmul", x, b.node("permute", up, order=(0, 2, 1)), ends))
    y = b.node("grouped_matmul", hidden, b.node("permute", down, order=(0, 2, 1)), ends)
    graph = check_graph(Graph((x, ends, up, down), (), b.nodes, (y.name,)))
    program = compile_program(graph, lambda w: has_class(w, H200), gpu=True)
    assert [len(call.nodes) for call in program.kernels] == [2, 1]
    assert all(SKETCH.matches(call.workload, H200) for call in program.kernels)


def test_how_many_tiles_there_are() -> None:
    rows = GroupedRows(grouped(5, 300).inputs[2], 1.0)
    tiles = np.asarray([64, 128, 256])
    most, likely = rows.most_tiles(300, tiles), rows.likely_tiles(300, tiles)
    assert most.tolist() == [295 // 64 + 5, 295 // 128 + 5, 295 // 256 + 5]
    assert (likely <= most).all() and (likely >= -(-300 // tiles)).all()
    assert GroupedRows(grouped(5, 3).inputs[2], 0.0).most_tiles(3, 64) == 3


def test_spaces_are_small_and_nothing_is_split() -> None:
    space = SKETCH.space(LARGE, H200)
    assert 20 <= len(space) <= 400
    assert set(space.column("split_k").tolist()) == {1} and set(space.column("stream_k").tolist()) == {0}
    assert (space.quantities["blocks"] <= 132).all() and (space.quantities["stages"] >= 2).all()
    seconds = space.prior_seconds
    assert seconds is not None
    assert 2 * 16384 * 4096 * 7168 / 1e15 < seconds.min() < 2 * 16384 * 4096 * 7168 / 4e14


def test_skewed_groups_of_few_rows_ask_for_small_tiles() -> None:
    workload = grouped(128, 4096, n=2048, k=768, transpose_b=True, skew=1.0)
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None
    best = dict(space.schedule(int(space.prior_seconds.argmin())).knobs)
    rows = 64 * int(best["atoms_m"]) * (1 if best["ping_pong"] else int(best["consumer_warpgroups"]))
    assert rows == 64


@pytest.mark.parametrize(
    "knobs",
    [
        {"consumer_warpgroups": 2, "ping_pong": 0, "atoms_m": 1, "mma_n": 256, "producer_warpgroup": 1},
        {"consumer_warpgroups": 2, "ping_pong": 1, "atoms_m": 2, "mma_n": 128, "producer_warpgroup": 1},
    ],
    ids=["cooperative", "ping-pong"],
)
def test_nothing_spills(knobs: dict[str, KnobValue]) -> None:
    schedule = legal_schedule_of(SKETCH, LARGE, H200, **knobs, k_atoms=1, cluster_m=1, cluster_n=1, epilogue_stages=2)
    backend = backend_for(H200)
    source = backend.emit(finish(SKETCH.lower(LARGE, H200, schedule), H200), H200).text
    producer = source.split("setmaxnreg_dec")[1]
    assert producer.index("warp == 8 && lane == 0") < producer.index("for (int tile_iteration")  # one thread loops
    binary = build_kernel(SKETCH.lower(LARGE, H200, schedule), H200)  # refuses what the assembler warns of
    assert all(r.spill_bytes == 0 and r.stack_bytes == 0 for r in binary.resources.values())
