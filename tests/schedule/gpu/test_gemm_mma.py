"""Products by mma.sync: which workloads match, what the kernels compute, what the compiler makes of them."""

from collections.abc import Callable

import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, legal_schedule_of, workload_of
from tests.sketch_agreement import assert_kernel_agrees
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.errors import CompileError
from tilewright.core.target import Target
from tilewright.schedule.gpu.gemm_mma.space import CUDA_GEMM_MMA as SKETCH
from tilewright.schedule.gpu.peaks import gpu_peaks
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.workload import Workload

DEVICES = {arch: Target("cuda", arch, (), threads=108, vector_bytes=16) for arch in ("sm_80", "sm_89", "sm_100a")}
DEVICES["sm_90a"] = H200
A100 = DEVICES["sm_80"]
LARGE = workload_of("matmul", m=4096, n=4096, k=4096, dtype="float16")
ODD = workload_of("matmul", m=200, n=311, k=177, dtype="float16")
MANY = workload_of("batch_matmul", batch=512, m=64, n=64, k=64, dtype="float16")
FUSED = workload_of("linear", rows=200, inputs=330, outputs=200, dtype="bfloat16", activation="gelu_tanh")


def _two_outputs() -> Workload:
    """The product itself, in float32, and a transposed function of it, with names that the kernel would have itself."""
    x, w = te.placeholder((50, 68), "bfloat16", "accumulators"), te.placeholder((36, 68), "bfloat16", "tile")
    k = te.reduce_axis(68, "k_iter")
    total = te.compute(
        (50, 36), lambda n, m: te.sum(te.cast(x[n, k], "float32") * te.cast(w[m, k], "float32"), axis=k), "staged_a"
    )
    transposed = te.compute((36, 50), lambda j, i: te.cast(total[i, j] * 0.5, "bfloat16"), "staged_b")
    return te.workload([total, transposed])


CASES: dict[str, Callable[[], Workload]] = {
    "TF32": lambda: workload_of("matmul", m=20, n=136, k=96, precision="tf32"),
    "TF32, odd": lambda: workload_of("linear", rows=9, inputs=77, outputs=50, precision="tf32", activation="relu"),
    "rows along k": lambda: workload_of("matmul", m=136, n=72, k=328, dtype="float16", transpose_b=True),
    "rows along n": lambda: workload_of("matmul", m=136, n=72, k=200, dtype="bfloat16"),
    "rows along m and n": lambda: workload_of("matmul", m=72, n=136, k=136, dtype="float16", transpose_a=True),
    "rows along m": lambda: workload_of(
        "matmul", m=72, n=80, k=72, dtype="float16", transpose_a=True, transpose_b=True
    ),
    "rows at odd elements": lambda: workload_of("matmul", m=75, n=69, k=203, dtype="float16"),
    "rows at odd elements along k": lambda: workload_of(
        "matmul", m=33, n=129, k=131, dtype="bfloat16", transpose_b=True
    ),
    "copies of 8 bytes": lambda: workload_of("matmul", m=68, n=84, k=100, dtype="float16", transpose_a=True),
    "copies of 4 bytes": lambda: workload_of("matmul", m=66, n=90, k=98, dtype="bfloat16", transpose_b=True),
    "few rows": lambda: workload_of("linear", rows=16, inputs=513, outputs=72, dtype="float16"),
    "epilogue": lambda: workload_of(
        "linear", rows=70, inputs=130, outputs=104, dtype="float16", activation="gelu_tanh", residual=True
    ),
    "batch": lambda: workload_of("batch_matmul", batch=3, m=24, n=40, k=40, dtype="bfloat16", transpose_b=True),
    "two outputs": _two_outputs,
}


FLOAT64: dict[str, Callable[[], Workload]] = {
    "rows along k": lambda: workload_of("matmul", m=72, n=40, k=52, dtype="float64", transpose_b=True),
    "rows along m and n": lambda: workload_of("matmul", m=40, n=72, k=36, dtype="float64", transpose_a=True),
    "odd": lambda: workload_of("matmul", m=37, n=51, k=43, dtype="float64"),
    "epilogue": lambda: workload_of(
        "linear", rows=35, inputs=50, outputs=44, dtype="float64", activation="relu", residual=True
    ),
    "batch": lambda: workload_of("batch_matmul", batch=3, m=20, n=37, k=20, dtype="float64", transpose_b=True),
}


@pytest.mark.parametrize("case", FLOAT64)
def test_kernels_of_float64_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, FLOAT64[case](), 2) == 2
    assert assert_agrees(SKETCH, FLOAT64[case](), 3, policy=WHOLE) == 3


@pytest.mark.parametrize("transpose_b", [False, True])
def test_float64_is_multiplied_by_tensor_cores_on_hopper(transpose_b: bool) -> None:
    workload = workload_of("matmul", m=2048, n=2048, k=2048, dtype="float64", transpose_b=transpose_b)
    assert [s.name for s in sketches_for(workload, H200)] == ["cuda_gemm_mma", "cuda_gemm_simt"]
    assert [s.name for s in sketches_for(workload, A100)] == ["cuda_gemm_simt"]
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None and 30 <= len(space) <= 300
    kernel = SKETCH.lower(workload, H200, space.schedule(int(space.prior_seconds.argmin())))
    (resources,) = build_kernel(kernel, H200).resources.values()  # refuses what spills
    assert resources.stack_bytes == 0
    backend = backend_for(H200)
    assert "DMMA.16x8x8" in backend.assembly(backend.emit(finish(kernel, H200), H200), H200)
    with pytest.raises(CompileError):
        backend.emit(finish(kernel, A100), A100)


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 2, DEVICES["sm_100a"]) == 2


@pytest.mark.parametrize("case", ["rows along k", "rows at odd elements", "copies of 4 bytes", "epilogue"])
def test_legal_settings_that_are_not_promising_are_correct_too(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 3, DEVICES["sm_100a"], policy=WHOLE) == 3


def test_what_it_leaves_to_others() -> None:
    def taken(target: Target = A100, **parameters: object) -> bool:
        return SKETCH.matches(
            workload_of("matmul", **{"m": 72, "n": 72, "k": 72, "dtype": "float16", **parameters}), target
        )

    assert taken() and taken(dtype="bfloat16") and taken(m=73, n=75, k=77) and taken(n=4096, k=4096, m=4096)
    assert not taken(dtype="float32") and not taken(accumulate="float64") and not taken(k=8)
    assert not taken(m=8, k=77)  # a product of a matrix and hardly more than a vector
    assert not taken(m=64) and taken(m=64, k=77)  # rows of whole copies: a skinny product
    # on Hopper wgmma is better, but for small products
    assert not SKETCH.matches(LARGE, H200) and not taken(H200, m=1000, n=1111, k=777)
    assert SKETCH.matches(ODD, H200) and SKETCH.matches(MANY, H200) and not taken(H200)


def test_few_rows_may_do_without_repacking_the_other_operand_for_tf32() -> None:
    for parameters, takes in (
        ({"m": 16, "n": 4098, "k": 4096}, True),
        ({"m": 16, "n": 4096, "k": 4097, "transpose_b": True}, True),
        ({"m": 16, "n": 4096, "k": 4096, "transpose_b": True}, False),
        ({"m": 16, "n": 4096, "k": 4096}, False),
        ({"m": 512, "n": 4096, "k": 4097}, False),
    ):
        assert SKETCH.matches(workload_of("matmul", **parameters, precision="tf32"), H200) == takes


def test_many_small_products_of_uneven_rows_may_do_without_a_copy() -> None:
    def products(k: int) -> Workload:
        return workload_of("batch_matmul", batch=1000, m=50, n=60, k=k, dtype="float16")

    assert SKETCH.matches(products(70), H200) and not SKETCH.matches(products(270), H200)
    spaces = {s.name: s.space(products(70), H200, policy=WHOLE) for s in sketches_for(products(70), H200)}
    best = {}
    for name, space in spaces.items():
        assert space.prior_seconds is not None
        copied = space.column("repacked") == (name == "cuda_gemm")
        best[name] = space.prior_seconds[copied].min()
    assert best["cuda_gemm_mma"] < best["cuda_gemm"]  # a copy takes longer than what wgmma saves


def test_on_hopper_it_takes_pixels_of_a_sector_or_two() -> None:
    def taken(filters: int, height: int = 64) -> bool:
        image: dict[str, object] = {"batch": 1, "channels": 32, "height": height, "width": 64}
        one = {"filters": filters, "kernel_h": 1, "kernel_w": 1, "layout": "NHWC", "dtype": "float16"}
        return SKETCH.matches(workload_of("conv2d", **image, **one), H200)

    assert taken(16) and taken(32)
    assert not taken(24) and not taken(48) and not taken(32, height=32)


@pytest.mark.parametrize("rows", [9, 16, 33, 64])
def test_few_rows_that_begin_at_odd_elements_are_no_loops(rows: int) -> None:
    workload = workload_of("linear", rows=rows, inputs=4095, outputs=28672, dtype="float16")
    assert "cuda_loops" not in [s.name for s in sketches_for(workload, H200)]


@pytest.mark.parametrize("workload", [LARGE, ODD, MANY, FUSED], ids=["large", "odd", "many", "fused"])
@pytest.mark.parametrize("arch", DEVICES)
def test_spaces_are_small_and_every_setting_fits(arch: str, workload: Workload) -> None:
    target = DEVICES[arch]
    if not SKETCH.matches(workload, target):
        assert workload is LARGE and arch == "sm_90a"
        return
    space = SKETCH.space(workload, target)
    assert 30 <= len(space) <= 300
    columns = space.quantities
    assert (columns["registers_estimate"] <= 255).all() and (columns["wave_efficiency"] <= 1).all()
    assert space.prior_seconds is not None
    for unit in ("mma_cycles", "l2_cycles"):
        assert (space.prior_seconds > columns[unit] / gpu_peaks(target, {}).clock_hz).all()
    legal = SKETCH.space(workload, target, policy=WHOLE)
    assert len(legal) > 2 * len(space) and legal.row_of(space.schedule(0)) is not None
    for row in (0, len(space) // 2, len(space) - 1):
        kernel = finish(SKETCH.lower(workload, target, space.schedule(row)), target)
        launch = backend_for(target).emit(kernel, target).launches[-1]  # others copy what it multiplies
        assert launch.shared_bytes == int(columns["shared_bytes"][row])
        assert launch.blocks[0] == int(columns["blocks"][row])


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("repacked", [0, 1])
def test_the_best_by_the_prior_compiles_without_spills(arch: str, repacked: int) -> None:
    target, workload = DEVICES[arch], FUSED if repacked else ODD
    space = SKETCH.space(workload, target)
    assert space.prior_seconds is not None
    best = (space.schedule(int(r)) for r in space.prior_seconds.argsort())
    kernel = SKETCH.lower(workload, target, next(s for s in best if s["repacked"] == repacked))
    resources = build_kernel(kernel, target).resources.values()  # refuses what spills
    assert len(resources) == 1 + repacked and all(r.stack_bytes == 0 for r in resources)
    backend = backend_for(target)
    code = backend.assembly(backend.emit(finish(kernel, target), target), target)
    assert "HMMA" in code and "LDSM" in code and ("LDGSTS" in code) == bool(repacked)


def test_images_of_odd_rows_may_be_repacked() -> None:
    """Rows of a copy are those of seven pixels, though neighbours of a product are all pixels of an image."""
    sizes = {"batch": 2, "channels": 32, "height": 7, "width": 7, "filters": 32, "kernel_h": 1, "kernel_w": 1}
    workload = workload_of("conv2d", **sizes, dtype="float16")
    schedule = legal_schedule_of(SKETCH, workload, repacked=1)
    assert_kernel_agrees(workload, SKETCH.lower(workload, H200, schedule), H200)
