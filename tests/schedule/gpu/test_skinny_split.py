"""Products of few rows of float32 that is split into planes: values, errors, and what is refused."""

from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, legal_schedule_of, workload_of
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.schedule.gpu.skinny.tma_space import CUDA_SKINNY_TMA as SKETCH
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        ("matmul", {"m": 13, "n": 200, "k": 420, "transpose_b": True, "precision": "tf32x3"}),
        ("matmul", {"m": 64, "n": 72, "k": 264, "transpose_b": True, "precision": "bf16x6"}),
        ("matmul", {"m": 5, "n": 72, "k": 340, "transpose_a": True, "transpose_b": True, "precision": "bf16x9"}),
        ("matmul", {"m": 13, "n": 200, "k": 420, "precision": "tf32x3"}),
        ("matmul", {"m": 64, "n": 72, "k": 264, "precision": "bf16x6"}),
        ("matmul", {"m": 7, "n": 132, "k": 340, "transpose_a": True, "precision": "bf16x9"}),
        ("matmul", {"m": 136, "n": 9, "k": 96, "transpose_b": True, "precision": "tf32x3", "activation": "gelu_erf"}),
    ],
    ids=[
        *("tf32x3", "bf16x6", "A along m", "tf32x3, B along n", "bf16x6, B along n", "nothing along k"),
        "few columns, with an epilogue",
    ],
)
def test_kernels_compute_their_expression(operator: str, parameters: dict[str, Any]) -> None:
    assert assert_agrees(SKETCH, workload_of(operator, **parameters), 2, FEW) == 2


@pytest.mark.parametrize("knobs", [{"split_k": 4}, {"consumer_warpgroups": 3, "k_atoms": 2}, {"stages": 2}], ids=str)
def test_every_way_to_share_out_the_work(knobs: dict[str, int]) -> None:
    workload = workload_of("matmul", m=24, n=200, k=520, transpose_b=True, precision="bf16x6")
    inputs = random_inputs(workload, 3)
    kernel = SKETCH.lower(workload, FEW, legal_schedule_of(SKETCH, workload, FEW, **knobs))
    got = interpret(finish(kernel, FEW), inputs)
    for name, wanted in reference(workload, inputs).items():
        absolute, relative = tolerance(workload)[name]
        np.testing.assert_allclose(np.asarray(got[name], np.float64), wanted, relative, absolute)


@pytest.mark.parametrize("precision", ["tf32x3", "bf16x6"])
def test_sums_are_as_exact_as_float32(precision: str) -> None:
    """On normal inputs, by root mean square, against what float32 itself makes of them."""
    workload = workload_of("matmul", m=16, n=64, k=512, transpose_b=True, precision=precision)
    draw = np.random.default_rng(1)
    inputs = {t.name: draw.standard_normal(t.shape).astype(np.float32) for t in workload.inputs}
    exact = inputs["A"].astype(np.float64) @ inputs["B"].T.astype(np.float64)
    kernel = SKETCH.lower(workload, FEW, SKETCH.space(workload, FEW).schedule(0))
    result = np.asarray(interpret(finish(kernel, FEW), inputs)["C"], np.float64)
    of_ours, of_float32 = result - exact, inputs["A"] @ inputs["B"].T - exact
    assert np.sqrt(np.mean(of_ours**2)) <= 2 * np.sqrt(np.mean(of_float32**2))


@pytest.mark.parametrize("transpose_b", [True, False])
@pytest.mark.parametrize("precision", ["tf32x3", "bf16x6"])
def test_b_is_read_once_and_split_in_registers(precision: str, transpose_b: bool) -> None:
    """B takes no workspace: the one that there is holds the planes of A."""
    workload = workload_of("matmul", m=64, n=2112, k=7168, transpose_b=transpose_b, precision=precision)
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None
    kernel = SKETCH.lower(workload, H200, space.schedule(int(space.prior_seconds.argmin())))
    planes = {"tf32x3": 2, "bf16x6": 3}[precision]
    assert [t.shape for t in kernel.workspace] == [(planes, 64, 7168)]
    resources = build_kernel(finish(kernel, H200), H200).resources
    assert all(r.spill_bytes == 0 for r in resources.values())


@pytest.mark.parametrize(
    "parameters",
    [
        {"m": 64, "n": 64, "k": 66, "transpose_b": True, "precision": "tf32x3"},  # rows at no multiple of 16 bytes
        {"m": 64, "n": 66, "k": 64, "precision": "tf32x3"},
        {"m": 64, "n": 64, "k": 64, "transpose_b": True, "precision": "tf32"},
        {"m": 64, "n": 64, "k": 64, "transpose_b": True},
    ],
    ids=["odd rows", "odd rows along n", "tf32", "ieee"],
)
def test_other_operands_are_left_to_other_sketches(parameters: dict[str, Any]) -> None:
    assert not SKETCH.matches(workload_of("matmul", **parameters), H200)
