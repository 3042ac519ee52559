"""Products with few rows whose operands have rows that begin anywhere: no launch copies them to other rows first."""

from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, workload_of
from tilewright.codegen.lowering import build_kernel, finish, lower
from tilewright.ir.interpret import interpret
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.workload import Workload


def linear(rows: int, inputs: int, outputs: int, **changed: Any) -> Workload:
    return workload_of("linear", rows=rows, inputs=inputs, outputs=outputs, **{"dtype": "float16", **changed})


def matmul(m: int, n: int, k: int, **changed: Any) -> Workload:
    return workload_of("matmul", m=m, n=n, k=k, **{"dtype": "bfloat16", **changed})


def part(first: int, k: int, whole: int) -> Workload:
    """Rows of A that are whole vectors, and a part of the rows of B, from an odd place on or up to one."""
    return parse_workload(
        f"A: float16[5, {k}]\nW: float16[23, {whole}]\n"
        f"C[i < 5, j < 23] = sum over k < {k} of float32(A[i, k]) * float32(W[j, k + {first}])\n"
        "Y[i, j] = float16(C[i, j])"
    )


TF32 = {"dtype": "float32", "precision": "tf32"}

CASES: dict[str, tuple[Workload, list[str]]] = {
    "odd rows": (linear(9, 333, 70, activation="relu"), ["cuda_skinny_mma", "cuda_skinny_mixed"]),
    "even rows": (linear(17, 138, 50, dtype="bfloat16"), ["cuda_skinny_mma", "cuda_skinny_mixed"]),
    "rows of fours": (linear(4, 148, 33), ["cuda_skinny_mma", "cuda_skinny_mixed"]),
    "many rows": (linear(61, 77, 40), ["cuda_skinny_mma", "cuda_skinny_mixed"]),
    "along n": (matmul(33, 133, 192), ["cuda_skinny_mma"]),
    "along n, all odd": (matmul(5, 67, 141), ["cuda_skinny_mma"]),
    "A along m": (matmul(13, 67, 70, transpose_a=True), ["cuda_skinny_mma"]),
    "both along k, transposed": (matmul(9, 35, 141, transpose_a=True, transpose_b=True), ["cuda_skinny_mma"]),
    "TF32": (matmul(9, 70, 77, transpose_b=True, **TF32), ["cuda_skinny_mma"]),
    "TF32 along n": (matmul(17, 67, 64, **TF32), ["cuda_skinny_mma"]),
    "TF32, A along m": (matmul(13, 35, 130, transpose_a=True, transpose_b=True, **TF32), ["cuda_skinny_mma"]),
    "short rows": (linear(5, 37, 51), ["cuda_skinny_mma", "cuda_skinny_mixed"]),
    "the ends of rows": (part(3, 120, 123), ["cuda_skinny_mma", "cuda_skinny_mixed"]),
    "rows without their ends": (part(0, 120, 125), ["cuda_skinny_mma", "cuda_skinny_mixed"]),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload, sketches = CASES[case]
    for name in sketches:
        assert assert_agrees(SKETCHES[name], workload, 4, H200, EVERY_LEGAL) == 4


@pytest.mark.parametrize("case", ["odd rows", "along n, all odd", "short rows", "the ends of rows", "TF32"])
def test_rows_beside_those_of_a_result_do_not_disturb_it(case: str) -> None:
    """Neighbours of rows are read with them. Infinities there reach no other result."""
    workload, sketches = CASES[case]
    inputs = random_inputs(workload, 0)
    weights = inputs[workload.inputs[1].name]
    columns = slice(1, None, 2)
    along_n = case.startswith("along n")
    if along_n:
        weights[:, columns] = np.inf
    else:
        weights[columns] = np.inf
    expected = reference(workload, inputs)
    for name in sketches:
        sketch = SKETCHES[name]
        space = sketch.space(workload, H200)
        for row in (0, len(space) // 2):
            found = interpret(lower(workload, H200, space.schedule(row)), inputs)
            for output, values in expected.items():
                even = np.asarray(found[output], np.float64)[:, ::2]
                assert np.isfinite(even).all()
                np.testing.assert_allclose(even, values[:, ::2], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_copied_first(case: str) -> None:
    workload, sketches = CASES[case]
    for name in sketches:
        kernel = lower(workload, H200, SKETCHES[name].space(workload, H200).schedule(0))
        assert len(kernel.launches) == 1 and not kernel.workspace


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("name", ["cuda_skinny_mma", "cuda_skinny_mixed"])
def test_the_schedule_of_the_least_prior_fits_the_registers(name: str, rows: int) -> None:
    workload = linear(rows, 1001, 1000)
    space = SKETCHES[name].space(workload, H200)
    assert space.prior_seconds is not None
    kernel = SKETCHES[name].lower(workload, H200, space.schedule(int(space.prior_seconds.argmin())))
    (resources,) = build_kernel(finish(kernel, H200), H200).resources.values()
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0
