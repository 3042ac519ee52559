"""Contraction paths: which orders there are, what they cost, and that each of them computes the sum."""

from dataclasses import replace

import numpy as np
import pytest

from tests.chains import einsum, random_chain
from tilewright.ir.interpret import interpret
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.te import build as te
from tilewright.te.check import check
from tilewright.te.contraction_path import contraction_paths
from tilewright.te.cost import flops
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

SIZES = {"b": 4, "i": 5, "j": 7, "k": 3, "l": 6, "m": 2, "o": 8}


def _paths(workload: Workload) -> dict[str, int]:
    return {path.name: path.operations for path in contraction_paths(workload.stages[0])}


@pytest.mark.parametrize(
    ("equation", "wanted"),
    [
        ("ij,jk,kl->il", {"(0*1)*2": 2 * (5 * 7 * 3 + 5 * 3 * 6), "0*(1*2)": 2 * (7 * 3 * 6 + 5 * 7 * 6)}),
        ("ij,jk,k->i", {"0*(1*2)": 2 * (7 * 3 + 5 * 7), "(0*1)*2": 2 * (5 * 7 * 3 + 5 * 3)}),
        ("i,ij,j->", {"(0*1)*2": 2 * (5 * 7 + 7), "0*(1*2)": 2 * (5 * 7 + 5)}),
        (
            "bi,oij,bj->bo",
            {
                "(0*2)*1": 4 * 5 * 7 + 2 * 4 * 8 * 5 * 7,
                "0*(1*2)": 2 * 4 * 8 * 5 * (7 + 1),
                "(0*1)*2": 2 * 4 * 8 * 7 * (5 + 1),
            },
        ),
        (
            "ik,jk,lk->ijl",
            {
                "(0*1)*2": 3 * 5 * 7 + 2 * 5 * 7 * 6 * 3,
                "(0*2)*1": 3 * 5 * 6 + 2 * 5 * 7 * 6 * 3,
                "0*(1*2)": 3 * 7 * 6 + 2 * 5 * 7 * 6 * 3,
            },
        ),
        ("ij,kl->ik", {"(0)*(1)": 5 * 7 + 3 * 6 + 5 * 3}),
    ],
)
def test_the_paths_of_an_einsum_and_their_operations(equation: str, wanted: dict[str, int]) -> None:
    found = _paths(einsum(equation, SIZES))
    assert found == wanted
    assert list(found.values()) == sorted(found.values())


def test_a_product_of_four_matrices_has_the_orders_that_cost_least() -> None:
    found = _paths(einsum("ij,jk,kl,lm->im", SIZES))
    assert {"((0*1)*2)*3", "0*(1*(2*3))", "(0*1)*(2*3)", "(0*(1*2))*3", "0*((1*2)*3)"} >= set(found)
    assert len(found) == 4 and min(found.values()) == found["0*(1*(2*3))"]


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->bik", "ij,ij,ij->i", "ij,j,jk->ik", "ijk->i"])
def test_what_no_order_makes_cheaper_has_no_path(equation: str) -> None:
    assert _paths(einsum(equation, SIZES)) == {}


def test_greatest_elements_and_sums_within_a_function_have_no_path() -> None:
    x, y = te.placeholder((4, 5), name="x"), te.placeholder((5, 6), name="y")
    j, k = te.reduce_axis(5, "j"), te.reduce_axis(6, "k")
    greatest = te.compute((4,), lambda i: te.max(x[i, j] * y[j, k] * y[j, k], axis=(j, k)))
    within = te.compute((4,), lambda i: te.sum(te.exp(x[i, j] * y[j, k]), axis=(j, k)))
    assert contraction_paths(te.workload(greatest).stages[0]) == contraction_paths(te.workload(within).stages[0]) == ()


def test_a_mask_of_one_factor_stays_with_it_and_a_mask_of_the_product_is_no_product() -> None:
    masked = einsum("ij,jk,kl->il", SIZES, masked=True)
    assert set(_paths(masked)) == {"(0*1)*2", "0*(1*2)"}
    x, y, z = (te.placeholder((5, 5), name=n) for n in "xyz")
    j, k = te.reduce_axis(5, "j"), te.reduce_axis(5, "k")
    body = te.compute(
        (5, 5),
        lambda i, n: te.sum(te.select(i <= k, x[i, j] * y[j, k] * z[k, n], te.constant(0.0, "float32")), axis=(j, k)),
    )
    assert contraction_paths(te.workload(body).stages[0]) == ()


def test_what_has_no_axis_of_the_sum_is_multiplied_last() -> None:
    (first, *_) = contraction_paths(einsum("ij,jk,kl->il", SIZES, scale=0.5).stages[0])
    assert first.name == "0*((1*2)*3)"
    *sums, last = first.stages
    assert [bool(s.reduce_axes) for s in sums] == [True, True] and not last.reduce_axes


def test_every_path_computes_the_sum() -> None:
    compared = 0
    for seed in range(16):
        workload = random_chain(seed)
        total, *rest = workload.stages
        inputs = random_inputs(workload, seed)
        wanted, limits = interpret(loop_nest(workload), inputs), tolerance(workload)
        for path in contraction_paths(total, frozenset({"y"})):
            steps = check(replace(workload, stages=(*path.stages, *rest)))
            for given in (reference(steps, inputs), interpret(loop_nest(steps), inputs)):
                for name, (absolute, relative) in limits.items():
                    a, b = np.asarray(given[name], np.float64), np.asarray(wanted[name], np.float64)
                    np.testing.assert_allclose(a, b, 2 * relative, 2 * absolute, err_msg=f"{seed} {path.name}")
            compared += 1
    assert compared > 16


def test_the_reference_of_a_large_chain_is_that_of_its_products() -> None:
    sizes = dict.fromkeys("ijkl", 400)  # 2.6e10 points, as it is written
    workload = einsum("ij,jk,kl->il", sizes)
    inputs = random_inputs(workload, 0)
    a, b, c = (inputs[f"X{n}"].astype(np.float64) for n in range(3))
    np.testing.assert_allclose(reference(workload, inputs)["total"], a @ b @ c, rtol=1e-12, atol=1e-10)


def test_operations_are_those_of_the_cheapest_order() -> None:
    assert flops(einsum("ij,jk,kl->il", dict.fromkeys("ijkl", 512))) == 2 * 2 * 512**3
    assert flops(OPERATORS["multi_dot"].workload({"m": 64, "n": 512, "k": 512, "p": 16})) == 2 * 64 * 16 * (512 + 512)


def test_the_tolerance_of_a_chain_allows_the_rounding_of_its_precision_twice() -> None:
    sizes = {"i": 64, "j": 64, "k": 64, "l": 64}
    product = tolerance(einsum("ij,jk->ik", sizes, precision="tf32"))["total"]
    chain = tolerance(einsum("ij,jk,kl->il", sizes, precision="tf32"))["total"]
    exact = tolerance(einsum("ij,jk,kl->il", sizes))["total"]
    assert chain[1] > 1.5 * product[1] > 20 * exact[1]
