"""Blocked products: every way to copy operands, every edge, with what comes before and after the sum."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.schedule.gpu.tiles import workload_of
from tests.sketch_agreement import assert_kernel_agrees
from tilewright.core.target import Target
from tilewright.ir.text import kernel_text
from tilewright.schedule.cpu.gemm.kernel import CpuGemmSetting, lower_fma
from tilewright.schedule.cpu.gemm.packing import NEVER, TASK, WHOLE
from tilewright.schedule.problems.gemm import gemm_of
from tilewright.te import build as te
from tilewright.te.workload import Workload

TARGET = Target("llvm", "x86-64", ("avx2", "fma"), threads=2, vector_bytes=32)
SETTING = CpuGemmSetting(mr=3, vectors=2, lanes=8, tiles=2, panels=1, kc=10, pack_a=TASK, pack_b=TASK)
EVEN = replace(SETTING, kc=12)  # divides 24


def _two_outputs() -> Workload:
    """The sum, and a transposed function of it that has no room for sums; factors that are more than loads."""
    x, w = te.placeholder((11, 24), "float32", "task"), te.placeholder((19, 24), "float16", "accumulators")
    k = te.reduce_axis(24, "k")
    total = te.compute((11, 19), lambda i, j: te.sum((x[i, k] + 1.0) * te.cast(w[j, k], "float32"), axis=k), "total")
    transposed = te.compute((19, 11), lambda j, i: te.cast(total[i, j] * 0.5, "float16"), "transposed")
    return te.workload([transposed, total])


def _transposed() -> Workload:
    """An output that lies along the axis of the left operand."""
    a, b = te.placeholder((21, 24), "float32", "a"), te.placeholder((24, 13), "float32", "b")
    k = te.reduce_axis(24, "k")
    return te.workload(te.compute((13, 21), lambda j, i: te.sum(a[i, k] * b[k, j], axis=k), "c"))


PIXEL = {"kernel_h": 1, "kernel_w": 1}

CASES: dict[str, Callable[[], Workload]] = {
    "plain": lambda: workload_of("matmul", m=11, n=37, k=24),
    "whole tiles": lambda: workload_of("matmul", m=12, n=32, k=24),
    "A transposed": lambda: workload_of("matmul", m=11, n=37, k=24, transpose_a=True),
    "B transposed": lambda: workload_of("matmul", m=11, n=37, k=24, transpose_b=True),
    "batch": lambda: workload_of("batch_matmul", batch=3, m=5, n=21, k=24),
    "epilogue": lambda: workload_of("linear", rows=7, outputs=21, inputs=24, activation="gelu_tanh", residual=True),
    "half": lambda: workload_of("linear", rows=7, outputs=21, inputs=24, dtype="bfloat16", activation="relu"),
    "double": lambda: workload_of("matmul", m=4, n=9, k=24, dtype="float64"),
    "two outputs": _two_outputs,
    "transposed": _transposed,
    "one pixel": lambda: workload_of(
        "conv2d", batch=1, channels=24, height=5, width=7, filters=11, activation="relu", **PIXEL
    ),
    "one pixel of several": lambda: workload_of("conv2d", batch=3, channels=24, height=3, width=5, filters=11, **PIXEL),
    "one pixel, last": lambda: workload_of(
        "conv2d", batch=2, channels=24, height=3, width=3, filters=11, layout="NHWC", **PIXEL
    ),
}


def _agrees(workload: Workload, setting: CpuGemmSetting) -> None:
    product = gemm_of(workload)
    assert product is not None
    kernel = lower_fma(
        product, "kernel", replace(setting, lanes=TARGET.vector_bytes // product.accumulator.dtype.bytes)
    )
    assert_kernel_agrees(workload, kernel, TARGET)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("a", "b"), [(TASK, TASK), (WHOLE, WHOLE), (NEVER, TASK)])
def test_products_are_what_they_say(case: str, a: str, b: str) -> None:
    setting = EVEN if NEVER in (a, b) else SETTING
    _agrees(CASES[case](), replace(setting, pack_a=a, pack_b=b))


@pytest.mark.parametrize("case", ["plain", "whole tiles", "batch", "double"])
def test_operands_may_be_read_where_they_are(case: str) -> None:
    _agrees(CASES[case](), replace(EVEN, pack_a=NEVER, pack_b=NEVER, panels=2))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("b", "panels"), [(TASK, 2), (WHOLE, 2), (WHOLE, 3), (NEVER, 2)])
def test_the_last_panel_of_a_task_may_be_narrower(case: str, b: str, panels: int) -> None:
    """Tasks have 24 and 40 columns, of which 37 are one and a half, or less than one."""
    product = gemm_of(CASES[case]()) or pytest.fail("no product")
    if b == NEVER and product.b.row != 1:
        pytest.skip("B cannot be read in place")
    _agrees(CASES[case](), replace(EVEN, pack_b=b, panels=panels, last_vectors=1))


@pytest.mark.parametrize("kc", [5, 8, 24, 30])
def test_any_number_of_steps_in_a_block_will_do(kc: int) -> None:
    for case in ("B transposed", "epilogue", "A transposed"):
        _agrees(CASES[case](), replace(SETTING, kc=kc, mr=4, vectors=1, tiles=3, panels=3))


def test_batches_keep_their_axes_and_outputs_choose_the_side() -> None:
    batched = gemm_of(CASES["batch"]())
    assert batched is not None and [a.extent for a in batched.batch] == [3]
    transposed = gemm_of(_transposed())
    assert transposed is not None and (transposed.m.extent, transposed.n.extent) == (13, 21)
    pixels = gemm_of(workload_of("conv2d", batch=1, channels=6, height=5, width=7, filters=11, **PIXEL))
    assert pixels is not None and (pixels.m.extent, pixels.n.extent, pixels.k.extent) == (11, 35, 6)
    assert (pixels.b.row, pixels.b.k, pixels.results[0].step("n")) == (1, 35, 1)
    windows = workload_of("conv2d", batch=1, channels=6, height=5, width=7, filters=11, kernel_h=3, kernel_w=3)
    assert gemm_of(windows) is None  # its height and width go along in uneven steps
    assert gemm_of(workload_of("softmax", rows=4, columns=8)) is None
    assert gemm_of(workload_of("layer_norm", rows=4, columns=8)) is None


@pytest.mark.parametrize(("tiles", "earlier"), [(4, True), (3, False)])
def test_the_last_register_tile_begins_earlier_where_its_task_has_the_one_before(tiles: int, earlier: bool) -> None:
    """Rows that both have are computed twice, by one task. Else rows beyond the end are tested for."""
    workload = workload_of("linear", rows=11, outputs=21, inputs=24, activation="relu")
    product = gemm_of(workload) or pytest.fail("no product")
    setting = replace(EVEN, tiles=tiles, kc=24, pack_a=NEVER)
    kernel = lower_fma(product, "k", setting)
    text = kernel_text(kernel)
    assert ("tile)*3, 8)" in text, ", 11) != 11" in text) == (earlier, not earlier)
    assert_kernel_agrees(workload, kernel, TARGET)
