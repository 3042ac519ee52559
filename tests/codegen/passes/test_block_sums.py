"""Long sums of float32 on a processor: they are added up in blocks, so that their errors stay small."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sketch_agreement import assert_kernel_agrees
from tilewright.codegen.lowering import build, lower
from tilewright.codegen.passes.pipeline import run_passes
from tilewright.runtime.devices import open_device
from tilewright.runtime.module import load_module
from tilewright.schedule.defaults import default_schedule
from tilewright.te.parse import parse_workload

DEVICE = open_device("llvm")
TARGET = DEVICE.info.target

SUMS = {
    "product": ((4, 20_000), (20_000, 32), "y[i<4, j<32] = sum over k<20000 of a[i,k] * b[k,j]"),
    "columns": ((9_973, 33), (1,), "y[j<33] = sum over k<9973 of a[k,j] * b[0]"),
    "rows": ((3, 33_333), (1,), "y[i<3] = sum over k<33333 of a[i,k] * b[0]"),
    "running rows": ((16, 5_000), (1,), "y[i<16, j<5000] = sum over k<5000 of select(k <= j, a[i,k] * b[0], 0.0)"),
    "running columns": ((5_000, 16), (1,), "y[j<5000, i<16] = sum over k<5000 of select(k <= j, a[k,i] * b[0], 0.0)"),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_error_of_a_long_sum_is_a_few_roundings(name: str) -> None:
    """All terms are positive. Without blocks the errors are 15 to 60 roundings."""
    first, second, stage = SUMS[name]
    shapes = [f"{n}: float32[{', '.join(map(str, s))}]" for n, s in (("a", first), ("b", second))]
    workload = parse_workload("\n".join((*shapes, stage)))
    kernel = DEVICE.load(build(workload, TARGET, default_schedule(workload, TARGET)))
    draw = np.random.default_rng(3)
    a, b = (draw.uniform(0, 1, shape).astype(np.float32) for shape in (first, second))
    result = workload.output_buffers[0]
    memories = [DEVICE.allocate(n) for n in (a.nbytes, b.nbytes, result.bytes)]
    for memory, array in zip(memories, (a, b), strict=False):
        memory.write(array.reshape(-1).view(np.uint8))
    kernel.launch(memories)
    found = memories[2].read().view(np.float32).reshape(result.shape)
    wide, scale = a.astype(np.float64), b.astype(np.float64)
    exact: Callable[[], NDArray[np.float64]] = {
        "product": lambda: wide @ scale,
        "columns": lambda: wide.sum(0) * scale,
        "rows": lambda: wide.sum(1) * scale,
        "running rows": lambda: wide.cumsum(1) * scale,
        "running columns": lambda: wide.cumsum(0) * scale,
    }[name]
    assert np.abs(found - exact()).max() <= 6 * np.finfo(np.float32).eps * np.abs(exact()).max()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["product", "columns", "rows"])
def test_what_is_not_finite_stays_what_it_is(name: str, value: float) -> None:
    """The rounding of an infinite total is no number, and must not be taken off what comes next."""
    first, second, stage = SUMS[name]
    shapes = [f"{n}: float32[{', '.join(map(str, s))}]" for n, s in (("a", first), ("b", second))]
    workload = parse_workload("\n".join((*shapes, stage)))
    a, b = (np.ones(shape, np.float32) for shape in (first, second))
    a[1, 2] = value
    (found,) = load_module(workload, default_schedule(workload, TARGET))(a, b)
    wanted = a @ b if name == "product" else a.sum(0 if name == "columns" else 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("extent", [512, 1_021, 2_500])
def test_blocks_and_what_is_left_of_them_add_up(extent: int) -> None:
    text = f"a: float32[3, {extent}]\nb: float32[{extent}, 8]\ny[i<3, j<8] = sum over k<{extent} of a[i,k] * b[k,j]"
    workload = parse_workload(text)
    assert_kernel_agrees(workload, lower(workload, TARGET, default_schedule(workload, TARGET)), TARGET)


def test_short_sums_and_other_reductions_stay_as_they_are() -> None:
    for text in (
        "a: float32[9, 200]\ny[i<9] = sum over k<200 of a[i,k]",
        "a: float32[9, 20000]\ny[i<9] = max over k<20000 of a[i,k]",
        "a: int32[9, 20000]\ny[i<9] = sum over k<20000 of a[i,k]",
    ):
        workload = parse_workload(text)
        after = dict(run_passes(lower(workload, TARGET, default_schedule(workload, TARGET))))
        assert after["block sums"] == after["narrow"]
