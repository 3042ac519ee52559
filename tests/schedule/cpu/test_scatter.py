"""Scatters on processors: what the class takes, and that every setting computes the same bits."""

import functools

import numpy as np
import pytest

from tests.schedule.gpu.test_scatter import CASES
from tests.schedule.gpu.tiles import assert_agrees
from tilewright.codegen.llvm.architectures import target_named
from tilewright.core.policy import SpacePolicy
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import load_module
from tilewright.schedule.cpu.scatter.space import CPU_SCATTER as SKETCH
from tilewright.schedule.cpu.scatter.term_parts import CHUNK
from tilewright.schedule.sketches import sketches_for
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload

AVX512 = target_named("x86-64+avx512f+avx512bw+avx512vl")
WHOLE = SpacePolicy(prune=False)
FEW = {"batches of pairs"}
"""Those to so few elements that terms are compared with all of them."""


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = parse_workload(CASES[case])
    if case in FEW:
        assert not SKETCH.matches(workload, AVX512)
        return
    assert [s.name for s in sketches_for(workload, AVX512)] == ["cpu_scatter"]
    assert assert_agrees(SKETCH, workload, 7, AVX512, WHOLE) >= 4


def test_terms_are_added_in_their_order_by_every_setting() -> None:
    """Some terms belong to no element, and most to one."""
    workload = parse_workload(
        "I: int32[900]\nD: float32[900, 48]\nG[v < 100, d] = sum over i < 900 of select(int64(I[i]) == v, D[i, d], 0.0)"
    )
    inputs = random_inputs(workload, 1)
    place = np.where(np.arange(900) % 3 > 0, 11, inputs["I"])
    place[::9], place[::10] = -1, 100
    wanted = np.zeros((101, 48), np.float32)
    for i in range(900):
        wanted[place[i] if place[i] >= 0 else 100] += inputs["D"][i]
    target = host_target("llvm")
    space = SKETCH.space(workload, target, policy=WHOLE)
    for row in range(0, len(space), 7):
        module = load_module(workload, space.schedule(row), target)
        (got,) = module(place.astype(np.int32), inputs["D"])
        np.testing.assert_array_equal(got, wanted[:100])


@pytest.mark.parametrize("columns", [1, 3, 4])
@pytest.mark.parametrize("terms", [200, 900, 5000])
def test_tasks_that_share_terms_add_them_in_their_order(terms: int, columns: int) -> None:
    """Each has whole chunks, the last one also what is left over. Some terms belong to no element."""
    text = "I: int32[{0}]\nD: float32[{0}, {1}]\n"
    text += "G[v < 100, d] = sum over i < {0} of select(int64(I[i]) == v, D[i, d], 0.0)"
    workload = parse_workload(text.format(terms, columns))
    inputs, target = random_inputs(workload, 1), host_target("llvm")
    place = np.where(np.arange(terms) % 3 > 0, 11, inputs["I"]).astype(np.int32)
    place[::9], place[::10] = -1, 100
    space, found = SKETCH.space(workload, target, policy=WHOLE), 0
    for parts in (1, 2, 4):
        for row in np.flatnonzero(space.column("term_parts") == parts):
            chunks = -(-(terms // CHUNK) // parts)
            sums = np.zeros((parts, 101, columns), np.float32)
            for i in range(terms):
                sums[min(i // CHUNK // max(chunks, 1), parts - 1), place[i] if place[i] >= 0 else 100] += inputs["D"][i]
            (got,) = load_module(workload, space.schedule(int(row)), target)(place, inputs["D"])
            np.testing.assert_array_equal(got, functools.reduce(np.add, sums)[:100])
            found += 1
    assert found == {200: 1, 900: 2, 5000: 3}[terms]
