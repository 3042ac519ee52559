"""Products in TF32 whose left operand of wgmma comes from registers: its rows do not lie along ``k``."""

from collections.abc import Mapping

import pytest

from tests.golden import check_golden
from tests.schedule.agreement import assert_computes
from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, compiled, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.buffer import MemoryScope
from tilewright.ir.gpu.wgmma import WarpgroupMma
from tilewright.ir.stmt import Launch, walk_statements
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.schedule.gpu.gemm.swap_ab_space import CUDA_GEMM_SWAP_AB
from tilewright.schedule.sketch import Sketch
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device with two multiprocessors: a CTA works through many tiles even of a small product."""
TF32 = {"precision": "tf32"}


def _linear_along_n(rows: int, n: int, k: int) -> Workload:
    """A layer whose weights lie as (inputs, outputs), with a bias, a residual and an activation."""
    text = f"precision: tf32\nX: float32[{rows}, {k}]\nW: float32[{k}, {n}]\nB: float32[{n}]\nR: float32[{rows}, {n}]\n"
    text += f"S[i < {rows}, j < {n}] = sum over k < {k} of X[i, k] * W[k, j]\n"
    return parse_workload(text + "Y[i, j] = max(S[i, j] + B[j], 0) + R[i, j]")


def _slices_of_k() -> Workload:
    """Partial sums of slices of ``k``, which stand on an axis of their own."""
    text = "precision: tf32\nX: float32[40, 320]\nW: float32[320, 72]\n"
    return parse_workload(text + "P[s < 4, i < 40, j < 72] = sum over k < 80 of X[i, 80*s + k] * W[80*s + k, j]")


def _two_outputs() -> Workload:
    text = "precision: tf32\nX: float32[40, 72]\nW: float32[72, 136]\n"
    text += "S[i < 40, j < 136] = sum over k < 72 of X[i, k] * W[k, j]\n"
    return parse_workload(text + "Y[i, j] = 2 * S[i, j]\nZ[i, j] = exp(S[i, j])")


SWAPPED: Mapping[str, Workload] = {
    "B along n": workload_of("matmul", m=200, n=136, k=136, **TF32),
    "few rows": workload_of("matmul", m=5, n=264, k=200, **TF32),
    "no operand along k": workload_of("matmul", m=136, n=200, k=72, transpose_a=True, **TF32),
    "an odd number of columns": workload_of("matmul", m=72, n=133, k=40, **TF32),
    "an odd number of everything": workload_of("matmul", m=77, n=131, k=21, **TF32),
    "one step of k": workload_of("matmul", m=64, n=72, k=8, **TF32),
    "one step more than a part of k": workload_of("matmul", m=64, n=72, k=24, **TF32),
    "batch": workload_of("batch_matmul", batch=3, m=40, n=72, k=104, transpose_b=False, **TF32),
    "pixels of images": workload_of(
        "conv2d", batch=2, height=9, width=12, channels=40, filters=72, kernel_h=1, kernel_w=1, padding=0, **TF32
    ),
    "slices of k": _slices_of_k(),
    "epilogue": _linear_along_n(75, 136, 72),
    "two outputs": _two_outputs(),
}
PLAIN: Mapping[str, Workload] = {
    "A along m": workload_of("matmul", m=136, n=200, k=72, transpose_a=True, transpose_b=True, **TF32),
    "A along m, an odd number of columns": workload_of(
        "matmul", m=100, n=75, k=40, transpose_a=True, transpose_b=True, **TF32
    ),
    "no operand along k": workload_of("matmul", m=200, n=136, k=136, transpose_a=True, **TF32),
}


@pytest.mark.parametrize("case", SWAPPED)
def test_swapped_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(CUDA_GEMM_SWAP_AB, SWAPPED[case], 2, FEW, EVERY_LEGAL) == 2
    assert assert_agrees(CUDA_GEMM_SWAP_AB, SWAPPED[case], 1, H200, EVERY_LEGAL) == 1


@pytest.mark.parametrize("case", PLAIN)
def test_plain_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(CUDA_GEMM, PLAIN[case], 2, FEW, EVERY_LEGAL) == 2
    assert assert_agrees(CUDA_GEMM, PLAIN[case], 1, H200, EVERY_LEGAL) == 1


@pytest.mark.parametrize(
    "knobs",
    [
        {"atoms_m": 2, "mma_n": 80, "k_atoms": 2},
        {"mma_n": 64, "consumer_warpgroups": 2, "ping_pong": 1},
        {"split_k": 4, "mma_n": 48},
        {"stream_k": 1},
        {"cluster_m": 2, "cluster_n": 2},
        {"resident_b": 1},
    ],
    ids=str,
)
def test_all_ways_to_share_work_are_correct(knobs: Mapping[str, int]) -> None:
    shape = {"m": 72, "n": 264} if "resident_b" in knobs else {"m": 200, "n": 264}
    workload = workload_of("matmul", **shape, k=328, **TF32)
    target = H200 if "split_k" in knobs else FEW
    schedule = legal_schedule_of(CUDA_GEMM_SWAP_AB, workload, target, **knobs)
    assert_computes(finish(CUDA_GEMM_SWAP_AB.lower(workload, target, schedule), target), workload)


def _launches(sketch: Sketch, workload: Workload, schedule: Schedule | None = None) -> list[str]:
    kernel = sketch.lower(workload, H200, schedule or legal_schedule_of(sketch, workload))
    return [s.name for s in walk_statements(kernel.body) if isinstance(s, Launch)]


def test_nothing_is_packed() -> None:
    """By default either; of two such operands one is."""
    for workload, launches in (
        (workload_of("matmul", m=1024, n=1024, k=1024, **TF32), 1),
        (workload_of("matmul", m=64, n=4096, k=4096, **TF32), 1),
        (workload_of("matmul", m=1024, n=1024, k=1024, transpose_a=True, transpose_b=True, **TF32), 1),
        (workload_of("matmul", m=1024, n=1024, k=1024, transpose_a=True, **TF32), 2),
    ):
        schedule = default_schedule(workload, H200)
        assert len(_launches(SKETCHES[schedule.sketch], workload, schedule)) == launches


def test_constant_weights_are_packed_once_instead() -> None:
    workload = workload_of("matmul", m=256, n=512, k=512, constant_weights=True, **TF32)
    assert [s.name for s in sketches_for(workload, H200)] == ["cuda_gemm"]
    assert _launches(CUDA_GEMM, workload)[0] == "pack_n"


def test_results_of_16_bits_are_left_to_packed_operands() -> None:
    text = "precision: tf32\nX: float32[200, 72]\nW: float32[72, 136]\n"
    text += "S[i < 200, j < 136] = sum over k < 72 of X[i, k] * W[k, j]\nY[i, j] = float16(S[i, j])"
    assert not CUDA_GEMM_SWAP_AB.matches(parse_workload(text), H200)


def test_fragments_are_loaded_while_others_are_multiplied_and_nothing_spills() -> None:
    workload = workload_of("matmul", m=4096, n=4096, k=4096, **TF32)
    knobs = {"consumer_warpgroups": 2, "atoms_m": 1, "mma_n": 256, "cluster_m": 1, "cluster_n": 1, "stream_k": 0}
    kernel = CUDA_GEMM_SWAP_AB.lower(workload, H200, legal_schedule_of(CUDA_GEMM_SWAP_AB, workload, **knobs))
    fragments = [s.a for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)]
    assert fragments and all(a.scope is MemoryScope.REGISTER and a.shape[0] == 2 for a in fragments)
    resources = compiled(CUDA_GEMM_SWAP_AB, workload, **knobs, producer_warpgroup=1, group_m=16)
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0


def test_the_kernel_of_one() -> None:
    workload = workload_of("matmul", m=72, n=128, k=64, **TF32)
    knobs = {"consumer_warpgroups": 1, "atoms_m": 1, "mma_n": 48, "k_atoms": 1, "split_k": 1, "cluster_m": 1}
    schedule = legal_schedule_of(CUDA_GEMM_SWAP_AB, workload, **knobs, cluster_n=1, stream_k=0)
    kernel = CUDA_GEMM_SWAP_AB.lower(workload, H200, schedule)
    check_golden("schedule/golden/cuda_gemm_fragments.cu", backend_for(H200).emit(finish(kernel, H200), H200).text)
