"""Float32 products by fused multiply-adds: what matches, what kernels compute, what the compiler makes of them."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, assert_schedule_agrees, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.ir.verify import verify
from tilewright.schedule.gpu.gemm_simt.space import CUDA_GEMM_SIMT as SKETCH
from tilewright.schedule.gpu.occupancy import limits_of
from tilewright.schedule.gpu.peaks import gpu_peaks
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

DEVICES = {arch: Target("cuda", arch, (), threads=108, vector_bytes=16) for arch in ("sm_80", "sm_89", "sm_100a")}
DEVICES["sm_90a"] = H200
LARGE = workload_of("matmul", m=4096, n=4096, k=4096, transpose_b=True)
ODD = workload_of("matmul", m=1000, n=1111, k=777)
FUSED = workload_of("linear", rows=1024, inputs=1024, outputs=4096, activation="gelu_tanh")
BATCH = workload_of("batch_matmul", batch=64, m=256, n=512, k=128)


def _two_outputs() -> Workload:
    """The product itself and a transposed function of it, with names that the kernel would have itself."""
    x, w = te.placeholder((50, 36), "float32", "accumulators"), te.placeholder((36, 36), "float32", "tile")
    k = te.reduce_axis(36, "k_iter")
    total = te.compute((50, 36), lambda n, m: te.sum(x[n, k] * w[m, k], axis=k), "staged_a")
    return te.workload([total, te.compute((36, 50), lambda j, i: total[i, j] * 0.5, "staged_b")])


CASES: dict[str, Callable[[], Workload]] = {
    "rows along k": lambda: workload_of("matmul", m=68, n=72, k=36, transpose_b=True),
    "rows along k and n": lambda: workload_of("matmul", m=36, n=72, k=40),
    "rows along m and n": lambda: workload_of("matmul", m=72, n=36, k=36, transpose_a=True),
    "rows along m and k": lambda: workload_of("matmul", m=36, n=40, k=36, transpose_a=True, transpose_b=True),
    "rows at odd elements": lambda: workload_of("matmul", m=35, n=69, k=43),
    "rows at odd elements along k": lambda: workload_of("matmul", m=33, n=65, k=51, transpose_b=True),
    "copies of 8 bytes": lambda: workload_of("matmul", m=34, n=42, k=50, transpose_a=True),
    "epilogue": lambda: workload_of("linear", rows=35, inputs=50, outputs=44, activation="relu", residual=True),
    "batch": lambda: workload_of("batch_matmul", batch=3, m=20, n=37, k=20, transpose_b=True),
    "few rows of a batch": lambda: workload_of("batch_matmul", batch=3, m=3, n=37, k=20),
    "three of k": lambda: workload_of("matmul", m=37, n=44, k=3),
    "two outputs": _two_outputs,
}


@pytest.mark.parametrize(
    ("rows", "n", "along_k", "first"),
    [
        (64, 7168, True, "cuda_skinny_tma"),
        (64, 7168, False, "cuda_skinny_tma"),
        (64, 7170, False, "cuda_gemm_simt"),
        (4096, 7168, True, "cuda_gemm"),
    ],
)
@pytest.mark.parametrize("precision", ["tf32x3", "bf16x6"])
def test_a_matrix_is_not_split_in_memory_for_few_rows(
    precision: str, rows: int, n: int, along_k: bool, first: str
) -> None:
    """With few rows the split matrix costs more to write and to read than the product in IEEE arithmetic, which every
    precision allows. It is split in registers where TMA loads its rows. With many rows matrix units win."""
    workload = workload_of("matmul", m=rows, n=n, k=16384, transpose_b=along_k, precision=precision)
    least = {}
    for sketch in sketches_for(workload, H200):
        prior = sketch.space(workload, H200).prior_seconds
        assert prior is not None
        least[sketch.name] = float(prior.min())
    assert set(least) == {"cuda_gemm", "cuda_gemm_simt", first} and min(least, key=lambda name: least[name]) == first


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 2) == 2


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_odd_rows_are_repacked_as_they_are_whatever_the_precision_allows(precision: str) -> None:
    workload = workload_of("matmul", m=36, n=72, k=61, precision=precision)
    schedule = legal_schedule_of(SKETCH, workload, DEVICES["sm_80"], repacked=1)
    assert_schedule_agrees(SKETCH, workload, schedule, DEVICES["sm_80"])


@pytest.mark.parametrize("case", ["rows along k", "rows at odd elements", "epilogue", "batch"])
def test_legal_settings_that_are_not_promising_are_correct_too(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 4, policy=WHOLE) == 4


def test_what_it_leaves_to_others() -> None:
    def taken(target: Target = H200, **parameters: object) -> bool:
        return SKETCH.matches(workload_of("matmul", **{"m": 72, "n": 72, "k": 72, **parameters}), target)

    assert taken() and taken(m=73, n=75, k=77) and taken(m=9) and taken(DEVICES["sm_80"])
    assert taken(dtype="float64") and taken(dtype="int32") and not taken(dtype="float16") and not taken(k=1)
    assert not taken(m=8) and not taken(n=8)  # a product of a matrix and hardly more than a vector
    few = {"batch": 3, "m": 3, "n": 4, "k": 5}
    assert SKETCH.matches(workload_of("batch_matmul", **few), H200)  # nothing else takes several of them
    # on Hopper wgmma is faster where factors may be rounded; elsewhere nothing else takes them
    assert not taken(precision="tf32") and taken(DEVICES["sm_80"], precision="tf32")


@pytest.mark.parametrize("arch", DEVICES)
def test_float32_products_are_no_loops(arch: str) -> None:
    for workload in (LARGE, ODD, FUSED, BATCH):
        assert [s.name for s in sketches_for(workload, DEVICES[arch])] == ["cuda_gemm_simt"]


@pytest.mark.parametrize("workload", [LARGE, ODD, FUSED, BATCH], ids=["large", "odd", "fused", "batch"])
@pytest.mark.parametrize("arch", DEVICES)
def test_spaces_are_small_and_every_setting_fits(arch: str, workload: Workload) -> None:
    target = DEVICES[arch]
    space = SKETCH.space(workload, target)
    assert 30 <= len(space) <= 300
    columns = space.quantities
    assert (columns["registers_estimate"] <= 255).all() and (columns["wave_efficiency"] <= 1).all()
    assert space.prior_seconds is not None
    for unit in ("fma_cycles", "shared_cycles", "l2_cycles"):
        assert (space.prior_seconds > columns[unit] / gpu_peaks(target, {}).clock_hz).all()
    legal = SKETCH.space(workload, target, policy=WHOLE)
    assert len(legal) > len(space) and legal.row_of(space.schedule(0)) is not None
    for row in (0, len(space) - 1):
        kernel = finish(SKETCH.lower(workload, target, space.schedule(row)), target)
        *_, launch = backend_for(target).emit(kernel, target).launches
        assert launch.shared_bytes == int(columns["shared_bytes"][row])
        assert launch.blocks[0] == int(columns["blocks"][row])


@pytest.mark.parametrize("workload", [LARGE, FUSED, BATCH], ids=["large", "fused", "batch"])
def test_the_best_by_the_prior_compiles_without_spills(workload: Workload) -> None:
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None
    kernel = SKETCH.lower(workload, H200, space.schedule(int(space.prior_seconds.argmin())))
    (resources,) = build_kernel(kernel, H200).resources.values()  # refuses what spills
    assert resources.stack_bytes == 0


def test_the_main_loop_is_fused_multiply_adds() -> None:
    tile = dict(thread_m=8, thread_n=8, warps_m=4, warps_n=2, block_k=16, split_k=1, ctas_per_sm=1)
    kernel = SKETCH.lower(LARGE, H200, legal_schedule_of(SKETCH, LARGE, H200, **tile))
    (resources,) = build_kernel(kernel, H200).resources.values()
    assert resources.registers <= 168 and resources.stack_bytes == 0
    backend = backend_for(H200)
    loop = _innermost_loop(backend.assembly(backend.emit(finish(kernel, H200), H200), H200))
    # rows along k are turned by copies of single elements, so that each load has 4 neighbours along m or n
    assert sum("LDS.128" in line for line in loop) == 64 and sum("LDGSTS.E.LTC128B" in line for line in loop) == 16
    assert sum("FFMA" in line for line in loop) == 1024 >= 0.87 * len(loop)


def test_multiply_adds_find_their_operands_in_different_banks() -> None:
    """Without a function of the sum, results are stored as vectors. The order in which those lie in registers must not
    be that of the accumulators."""
    workload = workload_of("matmul", m=2048, n=2048, k=2048)
    tile = dict(thread_m=8, thread_n=8, warps_m=2, warps_n=4, block_k=16, split_k=1, ctas_per_sm=2)
    kernel = SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, H200, **tile))
    backend = backend_for(H200)
    loop = _innermost_loop(backend.assembly(backend.emit(finish(kernel, H200), H200), H200))
    held, conflicts, multiply_adds = set[tuple[int, str]](), 0, 0
    for line in loop:
        sources = re.findall(r"R(\d+|Z)(\.reuse)?", line)[1:] if "FFMA" in line else []
        read = [int(name) % 2 for slot, (name, _) in enumerate(sources) if (slot, name) not in held]
        held = {(slot, name) for slot, (name, reused) in enumerate(sources) if reused}
        multiply_adds += bool(sources)
        conflicts += len(read) > len(set(read))
    assert multiply_adds == 1024 and conflicts < 0.3 * multiply_adds  # 0.9 where both orders are the same


@pytest.mark.parametrize("repacked", [0, 1])
def test_rows_at_odd_elements_may_be_repacked(repacked: int) -> None:
    workload = CASES["rows at odd elements"]()
    schedule = legal_schedule_of(SKETCH, workload, H200, thread_n=16, block_k=16, split_k=2, repacked=repacked)
    inputs = random_inputs(workload, 1)
    kernel = finish(SKETCH.lower(workload, H200, schedule), H200)
    verify(kernel)
    np.testing.assert_allclose(interpret(kernel, inputs)["C"], reference(workload, inputs)["C"], 1e-5, 1e-5)
    copies = [b for b in kernel.workspace if b.shape[-1] % 4 == 0]
    assert len(copies) == 2 * repacked
    assert SKETCH.space(BATCH, H200, policy=WHOLE).column("repacked").max() == 0  # all rows are even


def test_a_schedule_of_the_version_before_repacked_nothing() -> None:
    knobs = dict(thread_m=8, thread_n=8, warps_m=4, warps_n=2, block_k=16, split_k=1, ctas_per_sm=1)
    old = Schedule.from_json({"sketch": "cuda_gemm_simt", "version": 2, "knobs": knobs})
    assert old == legal_schedule_of(SKETCH, ODD, H200, **knobs, repacked=0)


@pytest.mark.parametrize("workload", [LARGE, ODD, FUSED], ids=["large", "odd", "fused"])
def test_no_more_ctas_fit_than_the_schedule_wants(workload: Workload) -> None:
    """CTAs of a launch that starts early would gather on the multiprocessors that have room first."""
    space = SKETCH.space(workload, H200)
    assert (space.quantities["stages"] > 1).all()
    fit = limits_of(H200).resident_blocks(1, 1, space.quantities["shared_bytes"].astype(int))
    assert (fit == space.column("ctas_per_sm")).all()


def test_the_prior_leaves_room_for_clusters_of_four_and_more() -> None:
    """Clusters of 8 for each of 4 x 12 tiles took 97 % of an H200, and a third of the time again for those that did not
    fit; those for 7 x 6 tiles all ran at once."""
    workload = workload_of("linear", rows=200, outputs=768, inputs=3072)
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None
    row = int(space.prior_seconds.argmin())
    ctas, at_once, split_k = (
        space.quantities["blocks"][row],
        space.column("ctas_per_sm")[row],
        space.column("split_k")[row],
    )
    assert split_k > 2 and ctas <= 0.9 * H200.threads * at_once


def _innermost_loop(assembly: str) -> list[str]:
    """The instructions between a label and a branch back to it."""
    lines = assembly.splitlines()
    labels = {found[1]: n for n, line in enumerate(lines) if (found := re.match(r"\s*(\.L_x_\d+):", line))}
    for n, line in enumerate(lines):
        to = re.search(r"BRA `\((\.L_x_\d+)\)", line)
        if to and labels[to[1]] < n and any("FFMA" in own for own in lines[labels[to[1]] : n]):
            return [own for own in lines[labels[to[1]] : n + 1] if ";" in own]
    raise AssertionError("no loop has FFMA")
