"""Large products by wgmma: which workloads match, what the kernels compute, what the compiler makes of them."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import (
    H200,
    WHOLE,
    assert_agrees,
    assert_schedule_agrees,
    compiled,
    legal_schedule_of,
    schedule_of,
    workload_of,
)
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.codegen.shared_memory import plan_shared_memory
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.expr import Const, Expr, index
from tilewright.ir.gpu.tma import TmaLoad, TmaPrefetch, TmaStore
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import free_variables, substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.stmt import Allocate, For, HardwareAxis, If, Seq, Stmt, walk_statements
from tilewright.schedule.gpu.gemm.sizes import shared_tiles
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM as SKETCH
from tilewright.schedule.gpu.gemm.stream_k import StreamK
from tilewright.schedule.gpu.peaks import gpu_peaks
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device with two multiprocessors: a CTA works through many tiles even of a small product."""
LARGE = workload_of("matmul", m=4096, n=4096, k=4096, dtype="float16", transpose_b=True)
FLAT = workload_of("matmul", m=4096, n=4096, k=1024, dtype="float16", transpose_b=True)
LONG = workload_of("matmul", m=2048, n=4096, k=14336, dtype="bfloat16", transpose_b=True)
SMALL = workload_of("matmul", m=512, n=512, k=512, dtype="float16", transpose_b=True)
GATED = workload_of("gated_linear", rows=2048, inputs=4096, outputs=14336, dtype="float16")
FUSED = workload_of("linear", rows=4096, inputs=4096, outputs=4096, dtype="float16", activation="gelu_tanh")


def _pointwise(height: int, width: int, filters: int) -> Workload:
    """A convolution of three images by 1x1 filters with a bias: a product with few columns."""
    image = {"batch": 3, "height": height, "width": width, "channels": 72, "layout": "NHWC", "dtype": "float16"}
    filter = {"filters": filters, "kernel_h": 1, "kernel_w": 1, "stride": 1, "padding": 0, "groups": 1}
    return workload_of("conv2d", **image, **filter, bias=True)


def _one_place(channels: int, height: int = 8, width: int = 12, **parameters: object) -> Workload:
    """A convolution of a window of one place, with channels first."""
    sides = {"batch": 2, "channels": channels, "height": height, "width": width, "filters": 72}
    return workload_of("conv2d", **sides, kernel_h=1, kernel_w=1, **parameters)


def _two_outputs() -> Workload:
    """The product itself, in float32, and a transposed function of it, with names that the kernel would have itself."""
    x = te.placeholder((80, 136), "bfloat16", "accumulators")
    w = te.placeholder((72, 136), "bfloat16", "tile_iteration")
    k = te.reduce_axis(136, "k_iter")
    total = te.compute(
        (80, 72), lambda n, m: te.sum(te.cast(x[n, k], "float32") * te.cast(w[m, k], "float32"), axis=k), "a"
    )
    transposed = te.compute((72, 80), lambda j, i: te.cast(total[i, j] * 0.5, "bfloat16"), "full")
    return te.workload([total, transposed])


def _two_products() -> Workload:
    """Two products of the same A, with B that lie along n. The second is returned, and the first gated by it. The
    second has its factors the other way round."""
    x = te.placeholder((136, 72), "float16", "X")
    u, v = te.placeholder((72, 144), "float16", "U"), te.placeholder((72, 144), "float16", "V")
    k, q = te.reduce_axis(72, "k"), te.reduce_axis(72, "q")
    first = te.compute(
        (136, 144), lambda i, j: te.sum(te.cast(x[i, k], "float32") * te.cast(u[k, j], "float32"), axis=k), "first"
    )
    second = te.compute(
        (136, 144), lambda i, j: te.sum(te.cast(v[q, j], "float32") * te.cast(x[i, q], "float32"), axis=q), "second"
    )
    both = te.compute((136, 144), lambda i, j: te.cast(first[i, j] * second[i, j], "float16"), "both")
    return te.workload([both, second])


CASES: dict[str, tuple[Target, Callable[[], Workload]]] = {
    "rows along k": (
        FEW,
        lambda: workload_of("matmul", m=200, n=136, k=328, dtype="float16", transpose_b=True),
    ),
    "rows along m and n": (
        FEW,
        lambda: workload_of("matmul", m=136, n=264, k=200, dtype="bfloat16", transpose_a=True),
    ),
    "rows along n": (FEW, lambda: workload_of("matmul", m=100, n=200, k=136, dtype="float16")),
    "rows along m": (
        H200,
        lambda: workload_of("matmul", m=136, n=81, k=72, dtype="float16", transpose_a=True, transpose_b=True),
    ),
    "epilogue": (
        FEW,
        lambda: workload_of(
            "linear", rows=150, inputs=136, outputs=208, dtype="float16", activation="gelu_tanh", residual=True
        ),
    ),
    "long k": (
        H200,
        lambda: workload_of("matmul", m=72, n=100, k=2056, dtype="bfloat16", transpose_b=True, bias=True),
    ),
    "one k iteration": (H200, lambda: workload_of("matmul", m=136, n=128, k=64, dtype="float16", transpose_b=True)),
    "batch": (
        H200,
        lambda: workload_of("batch_matmul", batch=3, m=72, n=80, k=72, dtype="bfloat16", transpose_b=True),
    ),
    "few filters": (FEW, lambda: _pointwise(8, 11, 24)),
    "few filters, no whole lines": (FEW, lambda: _pointwise(3, 23, 40)),
    "two outputs": (H200, _two_outputs),
    "odd rows": (H200, lambda: workload_of("linear", rows=70, inputs=77, outputs=111, dtype="float16")),
    "odd rows along n": (H200, lambda: workload_of("batch_matmul", batch=2, m=68, n=75, k=72, dtype="bfloat16")),
    "filters of one place": (H200, lambda: _one_place(72, dtype="float16", residual=True)),
    "filters of one place, of 8 bits": (H200, lambda: _one_place(80, dtype="int8")),
    "filters of one place, tf32": (H200, lambda: _one_place(72, precision="tf32")),
    "filters of one place, odd rows": (H200, lambda: _one_place(61, height=7, width=11, dtype="float16")),
    "two accumulators": (
        FEW,
        lambda: workload_of("gated_linear", rows=200, inputs=136, outputs=152, dtype="float16"),
    ),
    "two accumulators, rows along n": (H200, _two_products),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    target, workload = CASES[case]
    assert assert_agrees(SKETCH, workload(), 3, target) == 3


@pytest.mark.parametrize(("width", "filters", "box"), [(11, 24, (24, 64)), (8, 16, (16, 64)), (23, 24, (64, 24))])
def test_rows_shorter_than_lines_are_stored_as_lines(width: int, filters: int, box: tuple[int, ...]) -> None:
    """Where the result is no whole number of lines, its rows are stored."""
    workload = _pointwise(8 if width < 23 else 3, width, filters)
    kernel = SKETCH.lower(workload, FEW, schedule_of(SKETCH, workload, FEW, split_k=1, epilogue_stages=1))
    assert {s.box for s in walk_statements(kernel.body) if isinstance(s, TmaStore)} == {box}


def test_short_rows_are_promising_from_registers_too() -> None:
    """A result with rows of 64 bytes takes as long as A takes to load; one with longer rows is staged for TMA."""
    for filters in (32, 64):
        space = SKETCH.space(_pointwise(64, 32, filters), H200)
        stored_at_once = (space.column("epilogue_stages") == 0) & (space.column("split_k") == 1)
        assert stored_at_once.any() == (filters == 32)


@pytest.mark.parametrize(("cluster_m", "cluster_n"), [(1, 1), (2, 1), (2, 2)])
def test_of_tiles_that_are_filled_in_part_only_the_rows_arrive(cluster_m: int, cluster_n: int) -> None:
    """For an H100, zeros from outside of a tensor take longer to load. With clusters, whole tiles may lie outside."""
    workload = workload_of("linear", rows=150, inputs=136, outputs=216, dtype="bfloat16")
    chosen = {"consumer_warpgroups": 2, "atoms_m": 1, "mma_n": 96, "cluster_m": cluster_m, "cluster_n": cluster_n}
    schedule = legal_schedule_of(SKETCH, workload, **chosen, ping_pong=0, k_atoms=1, split_k=1, stream_k=0)
    kernel = SKETCH.lower(workload, H200, schedule)
    boxes = {(s.source.name, s.box[0]) for s in walk_statements(kernel.body) if isinstance(s, TmaLoad)}
    x, w = 128 // cluster_n, 96 // cluster_m
    assert boxes == {("X", x), ("X", 150 % x), ("W", w), ("W", 216 % w)}
    inputs = random_inputs(workload, 1)
    got, wanted = interpret(finish(kernel, H200), inputs)["Y"], reference(workload, inputs)["Y"]
    absolute, relative = tolerance(workload)["Y"]
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), relative, absolute)


@pytest.mark.parametrize(("cluster_m", "cluster_n", "split_k"), [(2, 2, 1), (1, 4, 1), (2, 1, 4), (2, 2, 2)])
def test_ctas_of_a_cluster_share_both_operands_and_k(cluster_m: int, cluster_n: int, split_k: int) -> None:
    workload = workload_of("matmul", m=136, n=136, k=264, dtype="float16", transpose_b=True)
    chosen = {
        "consumer_warpgroups": 1,
        "atoms_m": 1,
        "mma_n": 32,
        "cluster_m": cluster_m,
        "cluster_n": cluster_n,
        "split_k": split_k,
    }
    kernel = SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, **chosen))
    inputs = random_inputs(workload, 1)
    got, wanted = interpret(finish(kernel, H200), inputs)["C"], reference(workload, inputs)["C"]
    absolute, relative = tolerance(workload)["C"]
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), relative, absolute)


@pytest.mark.parametrize(
    ("operator", "parameters", "knobs"),
    [
        # several CTAs share a tile
        ("linear", {"rows": 136, "outputs": 72, "inputs": 1480}, {"mma_n": 80, "consumer_warpgroups": 1, "atoms_m": 1}),
        # some tiles are whole
        (
            "linear",
            {"rows": 200, "outputs": 200, "inputs": 1288, "residual": True, "activation": "relu"},
            {"mma_n": 64, "consumer_warpgroups": 1, "atoms_m": 1},
        ),
        # columns begin at odd elements
        (
            "linear",
            {"rows": 136, "outputs": 131, "inputs": 3080},
            {"mma_n": 48, "consumer_warpgroups": 2, "k_atoms": 2},
        ),
        (
            "linear",
            {"rows": 100, "outputs": 192, "inputs": 1288},
            {"mma_n": 96, "consumer_warpgroups": 1, "atoms_m": 2},
        ),
        (
            "batch_matmul",
            {"batch": 3, "m": 72, "n": 80, "k": 904, "transpose_b": True},
            {"mma_n": 80, "consumer_warpgroups": 1, "atoms_m": 1},
        ),
    ],
)
def test_stream_k_shares_out_all_k_iterations(
    operator: str, parameters: dict[str, object], knobs: dict[str, int]
) -> None:
    few = Target("cuda", "sm_90a", (), threads=5, vector_bytes=16)
    workload = workload_of(operator, dtype="float16", **parameters)
    kernel = SKETCH.lower(workload, few, legal_schedule_of(SKETCH, workload, few, stream_k=1, **knobs))
    assert len(kernel.launches) == 2
    inputs, (output,) = random_inputs(workload, 1), workload.outputs
    got, wanted = interpret(finish(kernel, few), inputs)[output], reference(workload, inputs)[output]
    absolute, relative = tolerance(workload)[output]
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), relative, absolute)


@pytest.mark.parametrize(("tiles", "k_iters"), [(3, 7), (5, 8), (7, 24), (8, 64), (12, 33), (29, 100)])
def test_units_of_stream_k_are_at_the_same_places_of_k(tiles: int, k_iters: int) -> None:
    """All iterations of all tiles are made once, and CTAs that are at work together begin at few places."""
    ctas = 5
    whole, unit_k_iters, units = (int(n[0]) for n in shared_tiles(*(np.array([n]) for n in (tiles, k_iters, ctas))))
    made = np.zeros((tiles, k_iters), np.int64)
    made[: whole * ctas] = 1
    if units:
        stream_k = StreamK(tiles, k_iters, ctas, whole, unit_k_iters)
        assert stream_k.units == units
        for number in range(stream_k.rounds):
            begins = set()
            for cta in range(min(ctas, units - number * ctas)):
                unit = stream_k.work_unit(index(cta), index(number))
                tile, first, count = (_value(e, {}) for e in (unit.tile, unit.first_k_iter, unit.k_iters))
                made[tile, first : first + count] += 1
                begins.add(first)
            assert len(begins) <= 2 + ctas // stream_k.split_tiles
    assert (made == 1).all()


def test_stream_k_keeps_wgmma_under_way() -> None:
    workload = workload_of("matmul", m=1536, n=4096, k=4096, dtype="float16", transpose_b=True)
    schedule = legal_schedule_of(
        SKETCH, workload, consumer_warpgroups=2, atoms_m=1, mma_n=256, producer_warpgroup=1, stream_k=1
    )
    source = backend_for(H200).emit(finish(SKETCH.lower(workload, H200, schedule), H200), H200)
    assert source.launches[0].blocks[0] == 132
    binary = backend_for(H200).compile(source, H200)  # refuses what the assembler warns of
    assert all(r.spill_bytes == 0 and r.stack_bytes == 0 for r in binary.resources.values())


@pytest.mark.parametrize("batch", [1, 6])
def test_products_of_a_batch_begin_at_other_places_of_k(batch: int) -> None:
    """Each CTA still goes through all of ``k``. The last block of k, which is shorter, may come in the middle."""
    workload = workload_of("batch_matmul", batch=batch, m=72, n=72, k=1096, dtype="float16", transpose_b=True)
    chosen = legal_schedule_of(
        SKETCH,
        workload,
        consumer_warpgroups=1,
        atoms_m=1,
        mma_n=80,
        k_atoms=1,
        cluster_m=1,
        cluster_n=1,
        split_k=1,
        stream_k=0,
    )
    kernel = SKETCH.lower(workload, H200, chosen)
    loads = [s for s in walk_statements(kernel.body) if isinstance(s, TmaLoad)]
    assert {"cluster" in free_variables(s.source_indices[-1]) for s in loads} == {batch > 1}
    inputs = random_inputs(workload, 1)
    got, wanted = interpret(finish(kernel, H200), inputs)["C"], reference(workload, inputs)["C"]
    absolute, relative = tolerance(workload)["C"]
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted, np.float64), relative, absolute)


def prefetched(stmt: Stmt, at: Mapping[str, Expr]) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """The boxes (tensor, corner, extents) that one thread prefetches, whose variables are ``at``."""
    match stmt:
        case Seq(statements=statements):
            for below in statements:
                yield from prefetched(below, at)
        case Allocate(body=body):
            yield from prefetched(body, at)
        case For(var=var, extent=extent, body=body):
            if any(isinstance(s, TmaPrefetch) for s in walk_statements(body)):
                for n in range(extent):
                    yield from prefetched(body, {**at, var: index(n)})
        case If(condition=condition, then=then):
            if any(isinstance(s, TmaPrefetch) for s in walk_statements(then)) and _value(condition, at):
                yield from prefetched(then, at)
        case TmaPrefetch(source=source, source_indices=corner, box=box):
            yield source.name, tuple(_value(i, at) for i in corner), box


def _value(expr: Expr, at: Mapping[str, Expr]) -> int:
    known = simplify(substitute(expr, at), {})
    assert isinstance(known, Const)
    return int(known.value)


def all_prefetched(workload: Workload, target: Target, **knobs: int) -> tuple[list[tuple[str, tuple[int, ...]]], int]:
    """What the CTAs of the last launch prefetch, in units of 64 of k at one place of the other axis; and how many such
    units along k fit into the stages."""
    kernel = SKETCH.lower(workload, target, legal_schedule_of(SKETCH, workload, target, **knobs))
    launch = kernel.launches[-1]
    found = []
    for numbers in product(*(range(b.extent if b.axis is not HardwareAxis.LANE else 2) for b in launch.axes)):
        at = {b.var: index(n) for b, n in zip(launch.axes, numbers, strict=True)}
        for name, corner, box in prefetched(launch.body, at):
            assert box[1] == 64
            found += [(name, (corner[0] + n, corner[1])) for n in range(box[0])]
    held = [s.buffer for s in walk_statements(launch.body) if isinstance(s, Allocate)]
    (stages,) = (b for b in held if b.name == "a")
    return sorted(found), stages.shape[0] * stages.shape[1]


@pytest.mark.parametrize(("cluster_m", "cluster_n", "k_atoms"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (2, 2, 1)])
def test_what_fills_the_stages_first_is_prefetched_once(cluster_m: int, cluster_n: int, k_atoms: int) -> None:
    workload = workload_of("matmul", m=256, n=256, k=1024, dtype="float16", transpose_b=True)
    knobs = {
        "consumer_warpgroups": 1,
        "atoms_m": 1,
        "mma_n": 64,
        "k_atoms": k_atoms,
        "cluster_m": cluster_m,
        "cluster_n": cluster_n,
        "split_k": 1,
    }
    boxes, staged = all_prefetched(workload, H200, **knobs)
    assert 4 * k_atoms <= staged <= 16
    assert boxes == sorted((name, (row, 64 * n)) for name in "AB" for row in range(256) for n in range(staged))


def test_nothing_is_prefetched_where_it_does_not_pay() -> None:
    tile = {"consumer_warpgroups": 1, "atoms_m": 1, "mma_n": 64, "k_atoms": 1, "cluster_m": 1, "cluster_n": 1}
    one_row = workload_of("linear", rows=65, outputs=512, inputs=1024, dtype="float16")
    batch = workload_of("batch_matmul", batch=3, m=128, n=128, k=512, dtype="float16", transpose_b=True)
    uneven = workload_of("matmul", m=128, n=128, k=515, dtype="float16", transpose_b=True)
    square = workload_of("matmul", m=256, n=256, k=1024, dtype="float16", transpose_b=True)
    assert {name for name, _ in all_prefetched(one_row, H200, **{**tile, "atoms_m": 2, "split_k": 1})[0]} == {"X"}
    assert not all_prefetched(batch, H200, split_k=1, **tile)[0]
    assert not all_prefetched(uneven, H200, split_k=1, **tile)[0]
    assert not all_prefetched(square, H200, split_k=2, **tile)[0]
    assert not all_prefetched(square, FEW, split_k=1, **tile)[0]


def test_what_it_leaves_to_others() -> None:
    def taken(**parameters: object) -> bool:
        return SKETCH.matches(
            workload_of("matmul", **{"m": 72, "n": 72, "k": 72, "dtype": "float16", **parameters}), H200
        )

    assert taken() and taken(dtype="bfloat16") and taken(m=1000, n=1112, k=776)
    assert not taken(dtype="float32") and not taken(accumulate="float64")
    assert not taken(m=64)  # a skinny product
    assert taken(k=60) and taken(n=65) and taken(n=65, transpose_b=True)  # rows between multiples of 16 bytes too
    assert not SKETCH.matches(LARGE, Target("cuda", "sm_80", (), threads=108, vector_bytes=16))


def test_rows_of_a_batch_that_overlap_are_no_dimension_for_tma() -> None:
    """Each product of the batch has ``rows`` lines of 16 rows of B, and begins two lines after the one before."""

    def batch(rows: int) -> Workload:
        text = "A: float16[32, 80, 128]\nB: float16[72, 16, 128]\nC[p, m, i < {}, j < 16] = "
        return parse_workload(
            text.format(rows) + "sum over k < 128 of float32(A[p, m, k]) * float32(B[2 * p + i, j, k])"
        )

    assert SKETCH.matches(batch(2), H200) and not SKETCH.matches(batch(10), H200)


@pytest.mark.parametrize(
    "workload", [LARGE, LONG, SMALL, FUSED, GATED], ids=["large", "long", "small", "fused", "gated"]
)
def test_spaces_are_small_and_every_setting_fits(workload: Workload) -> None:
    space = SKETCH.space(workload, H200)
    assert 5 <= len(space) <= 400
    assert (space.quantities["shared_bytes"] <= 227 * 1024).all() and (space.quantities["stages"] >= 2).all()
    assert (space.quantities["accumulator_registers"] < space.quantities["registers_estimate"]).all()
    peaks = gpu_peaks(H200, {})
    assert space.prior_seconds is not None and (space.quantities["wave_efficiency"] <= 1).all()
    for unit in ("mma_cycles", "shared_cycles", "l2_cycles"):
        assert (space.prior_seconds > space.quantities[unit] / peaks.clock_hz).all()
    rows = np.arange(0, len(space), 17)
    derived = SKETCH.derive(workload, H200, [space.schedule(int(r)) for r in rows])
    for name, column in space.quantities.items():
        np.testing.assert_array_equal(derived[name], column[rows])


@pytest.mark.parametrize(
    "workload", [LARGE, LONG, SMALL, FUSED, GATED], ids=["large", "long", "small", "fused", "gated"]
)
def test_all_that_can_be_built_is_legal_and_what_is_promising_is_part_of_it(workload: Workload) -> None:
    legal, promising = SKETCH.space(workload, H200, policy=WHOLE), SKETCH.space(workload, H200)
    assert len(legal) == legal.total == legal.low == legal.high > 5_000
    assert all(legal.row_of(promising.schedule(row)) is not None for row in range(0, len(promising), 20))
    assert legal.prior_seconds is not None and promising.prior_seconds is not None
    assert legal.prior_seconds.max() > 2 * legal.prior_seconds.min()
    assert promising.prior_seconds.min() < 1.1 * legal.prior_seconds.min()
    unranked = SKETCH.space(workload, H200, policy=SpacePolicy(prior=False))
    assert unranked.prior_seconds is None and np.array_equal(unranked.codes, legal.codes)


@pytest.mark.parametrize(
    "case", ["rows along k", "rows along m and n", "epilogue", "odd rows", "two accumulators", "batch"]
)
def test_legal_settings_that_are_not_promising_are_correct_too(case: str) -> None:
    target, workload = CASES[case]
    assert assert_agrees(SKETCH, workload(), 2, target, policy=WHOLE) == 2


def test_an_illegal_setting_is_refused_with_the_rules_that_it_breaks() -> None:
    schedule = legal_schedule_of(SKETCH, LARGE, consumer_warpgroups=1, ping_pong=0)
    broken = {**dict(schedule.knobs), "ping_pong": 1, "cluster_m": 4, "cluster_n": 4}
    with pytest.raises(IllegalSchedule, match="ping_pong has at least two consumer_warpgroups") as caught:
        SKETCH.lower(LARGE, H200, Schedule.of(schedule.sketch, schedule.version, broken))
    assert "at most 8 CTAs" in caught.value.message


def test_the_prior_comes_from_the_peaks_of_the_device() -> None:
    """An H100 has the same multiprocessors and less memory bandwidth: what memory bounds takes longer there."""
    h100 = {"copy_bytes_per_second": 2.9e12, "launch_seconds": 1.9e-6}
    few_rows = workload_of("linear", rows=65, inputs=8192, outputs=8192, dtype="float16")
    least = []
    for workload in (LARGE, few_rows):
        space = SKETCH.space(workload, H200, policy=WHOLE)
        schedules = [space.schedule(row) for row in range(0, len(space), 50)]
        here, there = (SKETCH.prior_seconds(workload, H200, schedules, peaks) for peaks in ({}, h100))
        assert (there > here).all()
        least.append(float(there.min() / here.min()))
    assert least[0] < 1.01 and least[1] > 1.1


@pytest.mark.parametrize("outputs", [72, 112, 200])
def test_shared_memory_is_counted_where_a_result_has_fewer_columns_than_its_tiles(outputs: int) -> None:
    """The last columns are staged in buffers of their own: a tile of 128 columns of 112 took more than there is."""
    workload = workload_of("linear", rows=300, inputs=512, outputs=outputs, dtype="float16")
    space = SKETCH.space(workload, H200, policy=WHOLE)
    columns = space.column("mma_n").astype(np.int64)
    wide = np.flatnonzero((columns > outputs) & (space.column("epilogue_stages") == 2))
    assert len(wide) > 50
    for row in wide[:: len(wide) // 10]:
        (launch,) = SKETCH.lower(workload, H200, space.schedule(int(row))).launches
        assert plan_shared_memory(launch.body).bytes <= space.quantities["shared_bytes"][row]


def test_rows_that_begin_amid_lines_are_estimated_to_take_longer() -> None:
    """A line of 128 bytes in shared memory comes from two lines of memory then. What CTAs of a cluster share, and a
    tile reads once, is read so less often."""
    unaligned, aligned = (
        workload_of("linear", rows=3000, inputs=k, outputs=3000, dtype="bfloat16", bias=False) for k in (3000, 3008)
    )
    alone = {"consumer_warpgroups": 2, "ping_pong": 0, "atoms_m": 1, "mma_n": 192, "cluster_m": 1, "cluster_n": 1}
    longer = []
    for cluster in (1, 2):
        schedule = [legal_schedule_of(SKETCH, unaligned, **{**alone, "cluster_m": cluster})]
        seconds = [float(SKETCH.prior_seconds(workload, H200, schedule)[0]) for workload in (unaligned, aligned)]
        longer.append(seconds[0] / seconds[1])
    assert longer[0] > longer[1] > 1.02
    assert len(SKETCH.space(unaligned, H200)) > len(SKETCH.space(aligned, H200))  # the prior is less sure


@pytest.mark.parametrize(
    ("workload", "split"), [(LARGE, 1), (SMALL, 2), (SMALL, 4)], ids=["large", "halves", "quarters"]
)
def test_shared_memory_is_what_the_sketch_says(workload: Workload, split: int) -> None:
    """With split-K, partial sums lie in the place of the stages."""
    space = SKETCH.space(workload, H200)
    rows = np.flatnonzero(np.asarray(space.column("split_k")) == split).tolist()
    assert rows
    for row in rows[:: max(1, len(rows) // 8)]:
        kernel = finish(SKETCH.lower(workload, H200, space.schedule(row)), H200)
        launch = backend_for(H200).emit(kernel, H200).launches[0]  # with stream-K another follows
        assert 0 <= int(space.quantities["shared_bytes"][row]) - launch.shared_bytes <= 64, space.schedule(row)
        assert launch.blocks[0] == int(space.quantities["blocks"][row])


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (
            LARGE,
            {
                "consumer_warpgroups": 2,
                "ping_pong": 0,
                "atoms_m": 1,
                "mma_n": 256,
                "cluster_m": 2,
                "producer_warpgroup": 0,
            },
        ),
        (FLAT, {"consumer_warpgroups": 2, "ping_pong": 1, "atoms_m": 2, "mma_n": 128}),
        (FLAT, {"consumer_warpgroups": 2, "ping_pong": 0, "atoms_m": 2, "mma_n": 192, "producer_warpgroup": 1}),
        (FUSED, {"consumer_warpgroups": 2, "ping_pong": 0, "atoms_m": 1, "mma_n": 256, "producer_warpgroup": 1}),
        (
            GATED,
            {
                "consumer_warpgroups": 2,
                "ping_pong": 0,
                "atoms_m": 1,
                "mma_n": 256,
                "producer_warpgroup": 1,
                "cluster_m": 2,
            },
        ),
        (SMALL, {"consumer_warpgroups": 1, "ping_pong": 0, "atoms_m": 1, "split_k": 1}),
    ],
    ids=["cooperative", "ping-pong", "producer warpgroup", "epilogue", "two accumulators", "small"],
)
def test_nothing_spills_and_wgmma_stays_under_way(workload: Workload, knobs: dict[str, int]) -> None:
    resources = compiled(SKETCH, workload, **knobs)  # refuses what the assembler warns of
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, **knobs)), H200)
    backend = backend_for(H200)
    code = backend.assembly(backend.emit(kernel, H200), H200)
    assert "HGMMA" in code and "UTMALDG" in code and "UTMASTG" in code


@pytest.mark.parametrize(
    ("parameters", "reused"),
    [
        ({}, True),
        ({"transpose_a": True, "dtype": "bfloat16"}, True),
        ({"bias": True, "activation": "relu"}, True),
        ({"n": 72}, False),  # columns that are no whole subtile have rows of other lengths
    ],
    ids=str,
)
def test_results_of_a_single_tile_are_staged_where_a_was(parameters: dict[str, Any], reused: bool) -> None:
    workload = workload_of("matmul", **{"m": 200, "n": 128, "k": 200, "dtype": "float16", **parameters})
    tile = {"consumer_warpgroups": 2, "ping_pong": 0, "atoms_m": 1, "mma_n": 128, "split_k": 1, "k_atoms": 1}
    schedule = legal_schedule_of(SKETCH, workload, epilogue_stages=2, **tile)
    kernel = SKETCH.lower(workload, H200, schedule)
    shared = {s.buffer.name for s in walk_statements(kernel.body) if isinstance(s, Allocate)}
    assert ("staged" not in shared) == reused
    assert_schedule_agrees(SKETCH, workload, schedule)


def test_few_rows_are_left_to_others_where_those_can_read_them() -> None:
    def taken(inputs: int) -> bool:
        return SKETCH.matches(workload_of("linear", rows=33, inputs=inputs, outputs=4096, dtype="float16"), H200)

    assert taken(5121) and not taken(5120)  # rows at multiples of 2 bytes, and of 16
