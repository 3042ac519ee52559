"""Products with few rows on wgmma: what the sketch takes, what kernels compute, what the compiler makes of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.schedule.gpu.tiles import (
    EVERY_LEGAL,
    H200,
    assert_agrees,
    assert_schedule_agrees,
    compiled,
    schedule_of,
    workload_of,
)
from tilewright.codegen.backends import backend_for
from tilewright.codegen.export import exported
from tilewright.codegen.lowering import finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.renamed import current
from tilewright.core.schedule import Schedule
from tilewright.schedule.gpu.skinny.tma_space import CUDA_SKINNY_TMA as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.workload import Workload

SIXTY_FOUR = workload_of("linear", rows=64, inputs=4096, outputs=4096, dtype="float16", bias=False)
ALONG_N = workload_of("matmul", m=64, k=4096, n=4096, dtype="float16")
LARGE = workload_of("linear", rows=32, inputs=4096, outputs=28672, dtype="bfloat16", bias=False)


def _two_outputs() -> Workload:
    """The accumulator and a transposed function of it. The tensors have names that the kernel would use itself."""
    x, w = te.placeholder((18, 136), "bfloat16", "partials"), te.placeholder((52, 136), "bfloat16", "full")
    k = te.reduce_axis(136, "lane")
    total = te.compute(
        (18, 52), lambda n, m: te.sum(te.cast(x[n, k], "float32") * te.cast(w[m, k], "float32"), axis=k), "accumulators"
    )
    transposed = te.compute((52, 18), lambda j, i: te.cast(total[i, j] * 0.5, "bfloat16"), "b_stages")
    return te.workload([total, transposed])


CASES: dict[str, Callable[[], Workload]] = {
    "epilogue": lambda: workload_of(
        "linear", rows=20, inputs=648, outputs=100, dtype="float16", activation="gelu_tanh", residual=True
    ),
    "n of no multiple": lambda: workload_of("linear", rows=17, inputs=520, outputs=77, dtype="bfloat16"),
    "all rows": lambda: workload_of("matmul", m=64, k=384, n=136, dtype="bfloat16", transpose_b=True),
    "along n": lambda: workload_of("matmul", m=20, k=200, n=136, dtype="float16", bias=True),
    "two outputs": _two_outputs,
    "one row": lambda: workload_of("linear", rows=1, inputs=520, outputs=264, dtype="float16", bias=True),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 4) == 4


@pytest.mark.parametrize("case", ["epilogue", "n of no multiple", "along n"])
def test_every_legal_setting_computes_the_expression(case: str) -> None:
    workload = CASES[case]()
    assert len(SKETCH.space(workload, H200, policy=EVERY_LEGAL)) > len(SKETCH.space(workload, H200))
    assert assert_agrees(SKETCH, workload, 6, H200, EVERY_LEGAL) == 6


def test_what_it_leaves_to_others() -> None:
    def taken(arch: str = "sm_90a", **parameters: object) -> bool:
        workload = workload_of("linear", **{"rows": 32, "inputs": 64, "outputs": 96, "dtype": "float16", **parameters})
        return SKETCH.matches(workload, replace(H200, arch=arch))

    assert taken() and taken(dtype="bfloat16", rows=64) and taken(rows=1)
    assert not taken("sm_89") and not taken("sm_100a")
    assert not taken(rows=65)
    assert not taken(dtype="float32") and not taken(accumulate="float64")
    assert not taken(inputs=60)  # rows that do not begin at multiples of 16 bytes
    assert SKETCH.matches(workload_of("matmul", m=32, n=96, k=64, dtype="float16"), H200)
    assert not SKETCH.matches(workload_of("matmul", m=32, n=100, k=64, dtype="float16"), H200)
    assert not SKETCH.matches(workload_of("matmul", m=32, n=96, k=64, dtype="float16", transpose_a=True), H200)


def test_many_results_beside_each_other_are_left_to_other_products() -> None:
    """Of few outputs of many rows, lanes would store places that are rows apart: 100000 x 64 took an H200 105 us."""

    def sketches(rows: int, outputs: int) -> set[str]:
        workload = workload_of("linear", rows=rows, inputs=64, outputs=outputs, dtype="float16", bias=False)
        return {sketch.name for sketch in sketches_for(workload, H200)}

    for outputs in (16, 32, 64):
        assert "cuda_gemm" in sketches(100_000, outputs) and SKETCH.name not in sketches(100_000, outputs)
        assert SKETCH.name in sketches(outputs, 100_000)
    assert SKETCH.name in sketches(100_000, 8) and SKETCH.name in sketches(4096, 64)


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (SIXTY_FOUR, {"swap_ab": 1, "split_k": 2, "k_atoms": 2}),
        (LARGE, {"swap_ab": 0, "mma_n": 112, "consumer_warpgroups": 2}),
        (ALONG_N, {"swap_ab": 0}),
    ],
    ids=["B as left operand", "A as left operand", "B along n"],
)
def test_accumulators_stay_in_registers(workload: Workload, knobs: dict[str, int]) -> None:
    taken = compiled(SKETCH, workload, **knobs)
    schedule = schedule_of(SKETCH, workload, **knobs)
    estimate = SKETCH.derive(workload, H200, [schedule])["registers_estimate"][0]
    assert taken.spill_bytes == taken.stack_bytes == 0
    assert taken.registers <= estimate <= taken.registers + 16
    backend = backend_for(H200)
    text = backend.assembly(backend.emit(finish(SKETCH.lower(workload, H200, schedule), H200), H200), H200)
    assert "UTMALDG.2D" in text and "HGMMA.64x" in text and "LDGSTS" not in text


@pytest.mark.parametrize(("rows", "outputs", "mma_n", "blocks"), [(32, 4096, 32, 128), (64, 28672, 224, 128)])
def test_spaces_are_small_and_hold_what_measured_best(rows: int, outputs: int, mma_n: int, blocks: int) -> None:
    workload = workload_of("linear", rows=rows, inputs=4096, outputs=outputs, dtype="float16", bias=False)
    space = SKETCH.space(workload, H200)
    assert 10 <= len(space) <= 40
    best = schedule_of(SKETCH, workload, swap_ab=0, mma_n=mma_n, consumer_warpgroups=1, split_k=1)
    assert SKETCH.derive(workload, H200, [best])["blocks"][0] == blocks
    assert (space.quantities["shared_bytes"] <= 227 * 1024).all()


@pytest.mark.parametrize(("rows", "outputs", "split_k"), [(48, 1000, 8), (64, 256, 4), (32, 4096, 2)])
def test_blocks_share_long_sums_where_outputs_are_few(rows: int, outputs: int, split_k: int) -> None:
    workload = workload_of("linear", rows=rows, inputs=4096, outputs=outputs, dtype="float16", bias=False)
    space = SKETCH.space(workload, H200)
    assert int(space.column("split_k").max()) >= split_k
    assert space.prior_seconds is not None
    best = dict(space.schedule(int(space.prior_seconds.argmin())).knobs)
    assert best["split_k"] == split_k


@pytest.mark.parametrize("split_k", [4, 8])
def test_many_blocks_add_up_their_parts_of_a_sum(split_k: int) -> None:
    """Some of eight blocks have no place of k: there are six tiles."""
    workload = workload_of("linear", rows=20, inputs=360, outputs=77, dtype="bfloat16", activation="relu")
    schedule = schedule_of(SKETCH, workload, split_k=split_k, k_atoms=1, stages=3)
    assert_schedule_agrees(SKETCH, workload, schedule)


def test_an_illegal_setting_is_refused_by_what_must_hold() -> None:
    legal = SKETCH.space(ALONG_N, H200).schedule(0)
    knobs = {**dict(legal.knobs), "swap_ab": 1, "mma_n": 32}
    with pytest.raises(
        IllegalSchedule, match="with swap_ab, mma_n is 64, the rows of wgmma; mma_n is a multiple of 64"
    ):
        SKETCH.lower(ALONG_N, H200, Schedule.of(legal.sketch, legal.version, knobs))


def test_schedules_recorded_under_old_names_are_in_the_space() -> None:
    """The old knob said which operand has 64 rows the other way round."""
    old = {"swapped": 0, "wide": 64, "groups": 1, "slabs": 2, "stages": 4, "split": 2, "resident": 1}
    schedule = Schedule(*current("cuda_skinny_streams", 4, old))
    assert schedule["swap_ab"] == 1 and SKETCH.space(SIXTY_FOUR, H200).row_of(schedule) is not None


def test_an_export_fills_the_tensor_maps_itself() -> None:
    text = exported(SIXTY_FOUR, H200, schedule_of(SKETCH, SIXTY_FOUR, swap_ab=1, k_atoms=2))["kernel.cu"].decode()
    assert "tensor_map(p[1], 2, {4096, 4096}, {64, 64}, true, 128)" in text
    assert text.index("struct __align__(64) TensorMap") < text.index("static TensorMap tensor_map(")
