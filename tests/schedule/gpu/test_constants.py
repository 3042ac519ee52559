"""Launches that read constant inputs alone: they are done once, and the others need nothing else of these inputs."""

from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish, lower
from tilewright.core.schedule import KnobValue
from tilewright.ir.global_writes import globals_written
from tilewright.ir.interpret import interpret
from tilewright.ir.prologue import split_prologue
from tilewright.ir.stmt import Kernel, walk_statements
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.workload import Workload

WINDOW = {"batch": 1, "kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": "float16", "layout": "NHWC"}
STEM = {**WINDOW, "channels": 3, "height": 12, "width": 16, "filters": 64}
GROUPS = {**WINDOW, "channels": 64, "height": 6, "width": 8, "filters": 64, "groups": 8}
STRIDED = {**WINDOW, "batch": 2, "channels": 32, "height": 4, "width": 64, "filters": 40, "stride": 2}
PRODUCT = {"m": 64, "n": 64, "k": 64}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, KnobValue], list[str]]] = {
    "folded": ("conv2d", STEM, {}, ["fold_filters"]),
    "widened": ("conv2d", GROUPS, {}, ["widen"]),
    "wide pixels": ("conv2d", STRIDED, {"space_to_depth": 2}, ["space_to_depth"]),
    "odd rows": ("matmul", {**PRODUCT, "n": 67, "k": 66, "dtype": "float16"}, {"repacked": 1}, ["even_rows"]),
    "K-major": ("matmul", {**PRODUCT, "precision": "tf32"}, {}, ["pack_n"]),
    "split": ("matmul", {**PRODUCT, "precision": "tf32x3", "transpose_b": True}, {}, ["pack_n"]),
}


def case(name: str, *, constant: bool = True) -> tuple[Workload, Kernel]:
    operator, parameters, knobs, _ = CASES[name]
    workload = workload_of(operator, **parameters, constant_weights=constant)
    sketch = SKETCHES["cuda_gemm" if operator == "matmul" else "cuda_conv"]
    return workload, lower(workload, H200, legal_schedule_of(sketch, workload, H200, **knobs))


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_serves_calls_with_other_inputs(name: str) -> None:
    workload, kernel = case(name)
    first, rest = split_prologue(kernel)
    assert first is not None
    one, two = (random_inputs(workload, seed) for seed in (1, 2))
    two = {n: one[n] if n in workload.constants else array for n, array in two.items()}
    given = tuple(b for b in kernel.inputs if b.name in workload.constants)
    filled = {b.name: b for s in walk_statements(first) for b in globals_written(s)}
    made = interpret(Kernel("first", given, tuple(filled.values()), (), first), {b.name: one[b.name] for b in given})
    others = tuple(b for b in kernel.workspace if b.name not in filled)
    parts = Kernel("rest", (*kernel.inputs, *filled.values()), kernel.outputs, others, rest)
    for inputs in (one, two):
        found = interpret(parts, {**inputs, **made})
        for output, value in interpret(kernel, inputs).items():
            np.testing.assert_array_equal(found[output], value)


@pytest.mark.parametrize("name", CASES)
def test_launches_of_the_prologue_are_marked(name: str) -> None:
    for constant in (True, False):
        launches = backend_for(H200).emit(finish(case(name, constant=constant)[1], H200), H200).launches
        marked = [launch.function.removeprefix("tw_") for launch in launches if launch.in_prologue]
        assert marked == (CASES[name][3] if constant else [])
