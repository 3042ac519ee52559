"""Pairwise reductions, and products of other types than float32, by ``cuda_gemm_simt``: distances, tropical products,
matches."""

import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, assert_schedule_agrees, legal_schedule_of
from tilewright.codegen.lowering import build_kernel
from tilewright.ir.stmt import If, walk_statements
from tilewright.schedule.gpu.gemm_simt.space import CUDA_GEMM_SIMT as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

ROWS = "A: {0}[{m}, {k}]\nB: {0}[{n}, {k}]\n"
DISTANCE = ROWS + "D[i, j] = sum over k < {k} of abs(A[i, k] - B[j, k])"
CASES = {
    "p = 1": DISTANCE,
    "p = 1 of columns": "A: {0}[{k}, {m}]\nB: {0}[{k}, {n}]\nD[i, j] = sum over k < {k} of abs(A[k, i] - B[k, j])",
    "p = 2": ROWS
    + "S[i, j] = sum over k < {k} of (A[i, k] - B[j, k]) * (A[i, k] - B[j, k])\nD[i, j] = sqrt(S[i, j]) + 1",
    "p = inf": ROWS + "D[i, j] = max over k < {k} of abs(A[i, k] - B[j, k])",
    "min-plus": "A: {0}[{m}, {k}]\nB: {0}[{k}, {n}]\nD[i, j] = min over k < {k} of A[i, k] + B[k, j]",
    "max-plus, transposed": "A: {0}[{m}, {k}]\nB: {0}[{k}, {n}]\nD[j, i] = max over k < {k} of A[i, k] + B[k, j]",
    "product of sums": ROWS + "D[i, j] = prod over k < {k} of 1 + (A[i, k] - B[j, k]) / 16",
    "batch": "A: {0}[3, {m}, {k}]\nB: {0}[3, {n}, {k}]\nBias: {0}[{n}]\n"
    "S[b, i, j] = sum over k < {k} of abs(A[b, i, k] - B[b, j, k])\nD[b, i, j] = max(S[b, i, j] + Bias[j], 0)",
    "weights": ROWS + "W: {0}[{k}]\nD[i, j] = sum over k < {k} of W[k] * max(A[i, k] + B[j, k], 0)",
    "weights of a batch": "A: {0}[3, {m}, {k}]\nB: {0}[3, {n}, {k}]\nW: {0}[{k}, 3]\n"
    "D[b, i, j] = max over k < {k} of W[k, b] - abs(A[b, i, k] - B[b, j, k])",
    "of one tensor": "X: {0}[{m}, {k}]\nD[i, j < {m}] = sum over k < {k} of abs(X[i, k] - X[j, k])",
    "product": "A: {0}[{m}, {k}]\nB: {0}[{k}, {n}]\nD[i, j] = sum over k < {k} of A[i, k] * B[k, j]",
}
INTEGERS = {
    "matches": ROWS + "D[i, j] = sum over k < {k} of select(A[i, k] == B[j, k], 1i32, 0i32)",
    "bits that differ": ROWS + "D[i, j] = sum over k < {k} of bitand(bitxor(A[i, k], B[j, k]), 1i32)",
    "in another type": ROWS + "D[i, j] = sum over k < {k} of int64(A[i, k]) * int64(B[j, k])",
}
SIZES = {"even": dict(m=40, n=68, k=32), "odd": dict(m=37, n=45, k=27)}


def case(name: str, dtype: str, **sizes: int) -> Workload:
    return parse_workload((CASES | INTEGERS)[name].format(dtype, **sizes))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for dtype in ("float32", "float64") for name in CASES),
        *((name, "int32") for name in ("p = 1", "p = inf", "min-plus", "product", "weights", *INTEGERS)),
        *((name, "int64") for name in ("p = 1", "min-plus", "product")),
    ],
)
def test_kernels_compute_their_expression(name: str, dtype: str, sizes: str) -> None:
    assert assert_agrees(SKETCH, case(name, dtype, **SIZES[sizes]), 1) == 1
    assert assert_agrees(SKETCH, case(name, dtype, **SIZES[sizes]), 1, policy=WHOLE) == 1


LARGE = dict(m=2048, n=2048, k=128)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("p = 1", "float32"), ("p = 2", "float32"), ("p = inf", "float32"), ("min-plus", "float32")),
        *(("weights", "float32"), ("batch", "float32")),
        *(
            ("product", "float64"),
            ("p = 1", "float64"),
            ("product", "int32"),
            ("product", "int64"),
            ("matches", "int32"),
        ),
    ],
)
def test_the_best_by_the_prior_compiles_without_spills(name: str, dtype: str) -> None:
    workload = case(name, dtype, **LARGE)
    others = ["cuda_gemm_mma"] if (name, dtype) == ("product", "float64") else []
    assert [s.name for s in sketches_for(workload, H200)] == [*others, "cuda_gemm_simt"]
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None and len(space) >= 30
    kernel = SKETCH.lower(workload, H200, space.schedule(int(space.prior_seconds.argmin())))
    (resources,) = build_kernel(kernel, H200).resources.values()  # refuses what spills
    assert resources.stack_bytes == 0


def test_the_prior_counts_instructions() -> None:
    """A multiprocessor of Hopper has 128 float32 results in a cycle, and 64 of float64, of integers and of minima."""
    least = {}
    for name, dtype in (("product", "float32"), ("p = 1", "float32"), ("product", "float64"), ("p = 1", "float64")):
        space = SKETCH.space(case(name, dtype, m=4096, n=4096, k=1024), H200)
        assert space.prior_seconds is not None
        least[name, dtype] = float(space.prior_seconds.min())
    product = least["product", "float32"]
    for key, ratio in ((("p = 1", "float32"), 2), (("product", "float64"), 2), (("p = 1", "float64"), 4)):
        assert least[key] / product == pytest.approx(ratio, rel=0.15)


def test_places_beyond_the_end_of_k_are_left_out_unless_they_change_nothing() -> None:
    """Zeros arrive there, whose distance is 0, but whose sum may be the least one."""

    def conditions(name: str) -> int:
        workload = case(name, "float32", m=64, n=64, k=27)
        knobs = dict(thread_m=4, thread_n=4, warps_m=2, warps_n=1, block_k=16)
        schedule = legal_schedule_of(SKETCH, workload, H200, **knobs, split_k=2)
        assert_schedule_agrees(SKETCH, workload, schedule)
        return sum(isinstance(s, If) for s in walk_statements(SKETCH.lower(workload, H200, schedule).body))

    assert conditions("p = 1") == conditions("product") < conditions("min-plus") == conditions("p = inf")


def test_what_it_leaves_to_others() -> None:
    def taken(text: str) -> bool:
        return SKETCH.matches(parse_workload(text), H200)

    rows = "A: float32[64, 32]\nB: float32[64, 32]\n"
    assert taken(rows + "D[i, j] = sum over k < 32 of abs(A[i, k] - B[j, k])")
    assert not taken(rows + "D[i, j] = argmin over k < 32 of abs(A[i, k] - B[j, k])")
    assert not taken(rows + "D[i, j] = sum over k < 32 of select(k < i, abs(A[i, k] - B[j, k]), 0)")
    assert not taken(rows + "W: float32[64]\nD[i, j] = sum over k < 32 of W[i] * abs(A[i, k] - B[j, k])")
    halves = rows.replace("float32", "float16")
    assert not taken(halves + "D[i, j] = sum over k < 32 of abs(float32(A[i, k]) - float32(B[j, k]))")
