"""A primitive never changes what a kernel computes: random sequences of them on random workloads and operators."""

from collections import Counter

import pytest

from tests.random_expressions import other_reducers, random_workload
from tests.schedule.agreement import assert_computes
from tests.schedule.primitives import workloads
from tests.schedule.primitives.moves import random_moves, steps
from tilewright.core.streams import stream
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.verify import verify
from tilewright.schedule.loop_nest.nest import loop_nest
from tilewright.schedule.primitives import PRIMITIVES
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

SMALL = {
    "biased_product": workloads.biased_product,
    "softmax": workloads.softmax,
    "padded_windows": workloads.padded_windows,
    "neighbours": workloads.neighbours,
    "total": workloads.total,
    "two_outputs": workloads.two_outputs,
}


def check(workload: Workload, seed: int) -> None:
    taken = random_moves(loop_nest(workload), stream(seed, "moves"), 24, 6)
    for _, kernel in taken:
        verify(kernel)
    if taken:
        try:
            assert_computes(taken[-1][1], workload, seed)
            assert_computes(simplify_kernel(taken[-1][1]), workload, seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}, after {[name for name, _ in taken]}") from error


@pytest.mark.parametrize("chunk", range(10))
def test_random_workloads(chunk: int) -> None:
    for seed in range(chunk * 16, chunk * 16 + 16):
        check(random_workload(seed), seed)


def test_products_and_positions() -> None:
    for seed in range(100):
        workload = other_reducers(random_workload(seed))
        if workload is not None:
            check(workload, seed)


@pytest.mark.parametrize("name", SMALL)
def test_small_workloads(name: str) -> None:
    for seed in range(25):
        check(SMALL[name](), seed)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    """Cases of every operator that are small enough to be interpreted in no time."""
    tried = 0
    for number, case in enumerate(OPERATORS[name].few_cases()):
        workload = OPERATORS[name].workload(case)
        if steps(loop_nest(workload).body) <= 3000:
            check(workload, number)
            tried += 1
    assert tried > 3


def test_every_primitive_is_tried() -> None:
    """The sequences above do reach every primitive, deep inside one another."""
    seen = Counter(
        name
        for build in SMALL.values()
        for seed in range(25)
        for name, _ in random_moves(loop_nest(build()), stream(seed, "moves"), 24, 6)
    )
    assert all(seen[name] >= 10 for name in PRIMITIVES), seen
