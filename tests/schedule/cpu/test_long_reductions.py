"""Long reductions to few elements: cut into chunks, and equal to what they were."""

from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import pytest

from tests.sketch_agreement import check_schedules
from tilewright.codegen.lowering import lower
from tilewright.ir.stmt import For, LoopKind, Stmt, walk_statements
from tilewright.runtime.devices import host_target
from tilewright.schedule.cpu.loops.fusion import fusion_plan
from tilewright.schedule.cpu.loops.long_reductions import chunked
from tilewright.schedule.cpu.loops.sketch import CPU_LOOPS
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance

CASES: list[tuple[str, dict[str, Any]]] = [
    ("reduce", {"shape": [200_003], "axes": [0], "kind": "max"}),
    ("reduce", {"shape": [300, 521], "axes": [0, 1], "kind": "sum"}),
    ("reduce", {"shape": [2, 131_101], "axes": [1], "kind": "mean"}),
    ("reduce", {"shape": [7, 70_001], "axes": [1], "kind": "sum"}),
    ("matmul", {"m": 1, "n": 1, "k": 150_001}),
]


@pytest.mark.parametrize("operator, parameters", CASES)
def test_chunks_add_up(operator: str, parameters: dict[str, Any]) -> None:
    workload = OPERATORS[operator].workload(parameters)
    cut = chunked(workload, 2)
    assert len(cut.stages) == len(workload.stages) + 1
    inputs = random_inputs(workload, 1)
    wanted, given, limits = reference(workload, inputs), reference(cut, inputs), tolerance(workload)
    for name, result in wanted.items():
        np.testing.assert_allclose(given[name], result, limits[name][1], limits[name][0])


def test_short_ones_and_single_threads_are_left_alone() -> None:
    for operator, parameters in CASES:
        workload = OPERATORS[operator].workload(parameters)
        assert chunked(workload, 1) == workload
    small = OPERATORS["reduce"].workload({"shape": [64, 64], "axes": [0, 1]})
    assert chunked(small, 8) == small


def test_few_rows_keep_every_thread_busy() -> None:
    """Four long rows on two threads: each row alone has too few accumulators, and all four together are one task."""
    workload = OPERATORS["reduce"].workload({"shape": [4, 131_101], "axes": [1]})
    target = replace(host_target("llvm"), threads=2)
    schedule = CPU_LOOPS.space(workload, target).schedule(0)
    tasks = [s.extent for s in walk_statements(lower(workload, target, schedule).body) if is_parallel(s)]
    assert max(tasks, default=1) >= 16


@pytest.mark.parametrize("rows, columns, stored", [(3, 90_001, False), (3, 40_001, True), (64, 1024, True)])
def test_exponentials_of_few_long_rows_are_computed_twice(rows: int, columns: int, stored: bool) -> None:
    """They would go through memory. Where the caches have room for them, or a row at a time has, they are stored."""
    workload = OPERATORS["softmax"].workload({"rows": rows, "columns": columns})
    plan = fusion_plan(workload, inline_paddings=False, threads=2)
    exponentials = [s for g in plan.groups for s in g.stages if s.tensor.shape == (rows, columns)]
    assert len(exponentials) == 1 + stored
    assert check_schedules("cpu_loops", host_target("llvm"), workload, seed=0, count=1) == 1


def is_parallel(s: Stmt) -> TypeGuard[For]:
    return isinstance(s, For) and s.kind is LoopKind.PARALLEL


def test_their_kernels_agree() -> None:
    workload = OPERATORS["matmul"].workload(CASES[-1][1])
    assert check_schedules("cpu_loops", host_target("llvm"), workload, 0, 2) == 2
