"""Products of a few rows by plain arithmetic: what they take, what they compute, what the compiler makes of them."""

from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, compiled, schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.schedule.gpu.gemv.space import CUDA_GEMV as SKETCH
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te import build as te
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

ONE = workload_of("linear", rows=1, inputs=4096, outputs=4096, dtype="bfloat16", bias=False)
FOUR = workload_of("linear", rows=4, inputs=4096, outputs=4096, dtype="float32", bias=False)
UNEVEN = workload_of("linear", rows=3, inputs=129, outputs=5000, dtype="float16", bias=False)
LONG_UNEVEN = workload_of("linear", rows=1, inputs=4093, outputs=4096, dtype="float16", bias=False)
ALONG_N = workload_of("matmul", m=1, n=4096, k=4096, dtype="float16")


def _with_producers() -> Workload:
    """An A that is scaled, a B that is shifted, and two outputs."""
    x, w, scale = (
        te.placeholder((3, 90), "float16", "X"),
        te.placeholder((21, 90), "int8", "W"),
        te.placeholder((90,), "float32", "S"),
    )
    k = te.reduce_axis(90, "k")
    total = te.compute(
        (3, 21),
        lambda i, j: te.sum((te.cast(x[i, k], "float32") * scale[k]) * (te.cast(w[j, k], "float32") + 1.0), axis=k),
        "total",
    )
    high = te.compute((3, 21), lambda i, j: te.maximum(total[i, j], 0.0), "high")
    transposed = te.compute((21, 3), lambda j, i: te.cast(total[i, j] * 0.5, "float16"), "transposed")
    return te.workload([high, transposed])


def _block() -> Workload:
    """The tensors have names that the kernel would use itself."""
    block, lane = te.placeholder((2, 40), "float32", "block"), te.placeholder((40, 12), "float32", "lane")
    step = te.reduce_axis(40, "step")
    return te.workload(te.compute((2, 12), lambda m, n: te.sum(block[m, step] * lane[step, n], axis=step), "partials"))


CASES: dict[str, Any] = {
    "odd": lambda: workload_of("linear", rows=3, inputs=301, outputs=37, dtype="float16", activation="gelu_tanh"),
    "odd, rows left over": lambda: workload_of("linear", rows=5, inputs=129, outputs=41, dtype="float32", bias=True),
    "odd, in steps": lambda: workload_of("linear", rows=2, inputs=2051, outputs=7, dtype="bfloat16", residual=True),
    "in pairs": lambda: workload_of("linear", rows=3, inputs=342, outputs=29, dtype="float32"),
    "float32": lambda: workload_of("linear", rows=1, inputs=700, outputs=19, dtype="float32", residual=True),
    "along n": lambda: workload_of("matmul", m=5, n=136, k=77, dtype="bfloat16"),
    "along n, odd": lambda: workload_of("matmul", m=2, n=71, k=131, dtype="float32", bias=True),
    "n short": lambda: workload_of("matmul", m=90, n=2, k=33, dtype="float16", transpose_a=True),
    "integers": lambda: workload_of("matmul", m=8, n=50, k=100, dtype="int8", transpose_b=True),
    "batch of one": lambda: workload_of("batch_matmul", batch=1, m=4, n=40, k=64, dtype="float64"),
    "with producers": _with_producers,
    "names": _block,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 3) == 3


@pytest.mark.parametrize("case", ["odd", "in pairs", "along n", "along n, odd", "integers"])
def test_every_legal_setting_computes_the_expression(case: str) -> None:
    workload = CASES[case]()
    assert len(SKETCH.space(workload, H200, policy=EVERY_LEGAL)) > len(SKETCH.space(workload, H200))
    assert assert_agrees(SKETCH, workload, 6, H200, EVERY_LEGAL) == 6


def test_what_it_leaves_to_others() -> None:
    assert not SKETCH.matches(workload_of("matmul", m=9, n=64, k=64), H200)
    assert not SKETCH.matches(workload_of("matmul", m=4, n=64, k=64, dtype="float16"), H200)
    assert not SKETCH.matches(workload_of("batch_matmul", batch=2, m=4, n=64, k=64), H200)
    assert not SKETCH.matches(workload_of("softmax", rows=4, columns=64), H200)
    x = te.placeholder((4, 64), "float32", "X")
    assert not SKETCH.matches(te.workload(te.compute((4, 64), lambda i, j: x[i, j] * 2.0, "Y")), H200)


@pytest.mark.parametrize("workload", [ONE, FOUR, ALONG_N, LONG_UNEVEN], ids=["one", "four", "along n", "long uneven"])
def test_spaces_are_small_and_keep_the_memory_busy(workload: Workload) -> None:
    space = SKETCH.space(workload, H200)
    assert 15 <= len(space) <= 250
    assert (space.quantities["bytes_in_flight"] >= (8 if workload is LONG_UNEVEN else 16) * 1024).all()
    assert (space.quantities["blocks"] >= 96).all()
    rows = np.arange(0, len(space), 7)
    derived = SKETCH.derive(workload, H200, [space.schedule(int(r)) for r in rows])
    for name, column in space.quantities.items():
        np.testing.assert_array_equal(derived[name], column[rows])


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (ONE, {"rows_per_warp": 2, "warps_n": 2, "warps_k": 8, "unroll": 2}),
        (FOUR, {"rows_per_warp": 4, "warps_n": 1, "warps_k": 8, "unroll": 2}),
        (UNEVEN, {"rows_per_warp": 8, "warps_n": 4, "warps_k": 1, "unroll": 8}),
        (ALONG_N, {"lanes_n": 4, "warps_n": 1, "warps_k": 16, "unroll": 8}),
    ],
    ids=["one", "four", "uneven", "along n"],
)
def test_nothing_spills(workload: Workload, knobs: dict[str, int]) -> None:
    resources = compiled(SKETCH, workload, **knobs)
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0 and resources.registers <= 96


def test_lanes_read_neighbours_of_rows_that_begin_anywhere_all_ahead_of_the_first_product() -> None:
    """5 loads of each of 4 rows of B and 3 of A; 12 accumulators, of which a lane gives away half, and half again."""
    schedule = schedule_of(SKETCH, UNEVEN, rows_per_warp=4, warps_n=4, warps_k=1, unroll=8)
    backend = backend_for(H200)
    emitted = backend.emit(finish(SKETCH.lower(UNEVEN, H200, schedule), H200), H200)
    asked, _, after = emitted.text.partition("griddepcontrol_wait();")
    assert f"prefetch_l2_unaligned<{4 * 129 * 2}>(&W[" in asked and "prefetch_l2_unaligned<774>(&X[0])" in asked
    assert after.count("__shfl_xor_sync") == 16
    lines = backend.assembly(emitted, H200).splitlines()
    loads = [n for n, line in enumerate(lines) if " LDG." in line]
    assert len(loads) == 5 * (4 + 3) and max(loads) < next(n for n, line in enumerate(lines) if " FFMA " in line)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(8, 129, 9000), (5, 301, 5000), (8, 1111, 1000), (8, 33, 50257), (1, 4093, 100), (3, 16001, 100)]
)
def test_no_shape_of_uneven_rows_is_left_with_the_plainest_setting(m: int, k: int, n: int) -> None:
    workload = workload_of("matmul", m=m, n=n, k=k, transpose_b=True, dtype="float16")
    space = SKETCH.space(workload, H200)
    assert len(space) >= 5 and space.quantities["bytes_in_flight"].max() >= 4096


def test_steps_are_of_even_lengths_and_no_longer_than_they_must_be() -> None:
    space = SKETCH.space(UNEVEN, H200)
    assert {int(s) for s in space.quantities["thread_loads"]} <= {
        r * u for r in (1, 2, 3, 4, 5, 6, 8) for u in (1, 2, 3, 4, 5)
    }
    assert space.quantities["blocks"].min() <= 160 and (space.quantities["steps"] == 1).mean() > 0.5


@pytest.mark.parametrize(
    ("factor", "sketch"),
    [
        ("B[b, j, k]", "cuda_rowwise"),
        ("B[b, 0, j, k]", "cuda_rowwise"),
        ("B[b, k, j]", "cuda_columnwise"),
        ("B[k, b, j]", "cuda_columnwise"),
    ],
)
def test_batches_of_products_of_one_row_are_reductions_of_rows_or_columns(factor: str, sketch: str) -> None:
    """Nothing is read twice, so that tensor cores would gain nothing. Tensors keep their dimension of one element."""
    extents = {"b": 3, "j": 48, "k": 200, "0": 1}
    shape = [extents[i] for i in factor.removeprefix("B[").removesuffix("]").split(", ")]
    workload = parse_workload(
        f"A: float16[3, 1, 200]\nB: float16{shape}\n"
        f"S[b, i < 1, j < 48] = sum over k < 200 of float32(A[b, i, k]) * float32({factor})\n"
        "C[b, i, j] = float16(S[b, i, j])"
    )
    assert [s.name for s in sketches_for(workload, H200)] == [sketch]
    assert assert_agrees(SKETCHES[sketch], workload, 3) == 3
    compiled(SKETCHES[sketch], workload)
