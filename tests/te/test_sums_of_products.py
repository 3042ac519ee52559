"""Sums of several products, such as those of complex numbers: the same values, from sums of one product."""

from collections.abc import Callable

import pytest

from tests.sketch_agreement import agree
from tilewright.ir.interpret import interpret
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.te.contraction import contraction_of
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.sums_of_products import with_single_products
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload


def complex_product(dtype: str = "float32", i: int = 5, k: int = 7, j: int = 4) -> Workload:
    """A product of matrices of complex numbers, whose parts lie next to each other."""

    def part(name: str, at: str) -> str:
        return f"{name}[{at}]" if dtype in ("float32", "float64") else f"float32({name}[{at}])"

    a, b = ([part(name, f"{at}, {n}") for n in (0, 1)] for name, at in (("A", "i, k"), ("B", "k, j")))
    real, imaginary = f"{a[0]} * {b[0]} - {a[1]} * {b[1]}", f"{a[0]} * {b[1]} + {a[1]} * {b[0]}"
    return parse_workload(
        f"A: {dtype}[{i}, {k}, 2]\nB: {dtype}[{k}, {j}, 2]\n"
        f"Y[i < {i}, j < {j}, c < 2] = sum over k < {k} of select(c == 0, {real}, {imaginary})"
    )


def apart() -> Workload:
    """The parts of the numbers lie in tensors of their own."""
    return parse_workload("""
        A: float32[5, 7]
        B: float32[5, 7]
        C: float32[7, 4]
        D: float32[7, 4]
        R[i, j] = sum over k < 7 of A[i, k] * C[k, j] - B[i, k] * D[k, j]           # output
        I[i, j] = sum over k < 7 of -(A[i, k] * D[k, j]) - B[i, k] * C[k, j]        # output""")


def some_elements() -> Workload:
    """Two of three elements, one of them only for some results."""
    return parse_workload(
        "A: float32[5, 7, 3]\nB: float32[7, 4]\n"
        "Y[i, j] = sum over k < 7 of (A[i, k, 2] - select(j > 1, A[i, k, 0], 0)) * B[k, j]"
    )


@pytest.mark.parametrize(
    ("case", "reduced"),
    [(complex_product, [2]), (lambda: complex_product("float16"), [2]), (apart, [1] * 4), (some_elements, [2])],
)
def test_values_stay(case: Callable[[], Workload], reduced: list[int]) -> None:
    workload = case()
    made = with_single_products(workload)
    assert made is not None and made.output_buffers == workload.output_buffers
    sums = [s for s in made.stages if s.reducer is not None]
    assert [len(s.reduce_axes) for s in sums] == reduced and all(map(contraction_of, sums))
    inputs, limits = random_inputs(workload, 1), tolerance(workload)
    wanted = interpret(loop_nest(workload), inputs)
    for name, of in (("single products", made), ("the reference", workload)):
        agree(name, reference(of, inputs), wanted, limits)


@pytest.mark.parametrize(
    "body",
    [
        "A[i, k, 0] * B[k, j]",  # one product
        "A[i, k, 0] * A[i, k, 1] * B[k, j]",  # one of both elements
        "exp(A[i, k, 0]) * B[k, j] + exp(A[i, k, 1])",  # what is added is no product
    ],
)
def test_what_stays(body: str) -> None:
    assert (
        with_single_products(
            parse_workload(f"A: float32[5, 7, 2]\nB: float32[7, 4]\nY[i, j] = sum over k < 7 of {body}")
        )
        is None
    )
