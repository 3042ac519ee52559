"""Constant operands: copied once where that pays, and no obstacle anywhere else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, workload_of
from tests.sketch_agreement import check_schedules
from tilewright.codegen.backends import backend_for
from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.lowering import finish, lower
from tilewright.core.target import Target
from tilewright.ir.prologue import split_prologue
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import expressions, walk_statements
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te.workload import Workload

TILES = replace(
    target_named("x86-64+avx512f+avx512bw+avx512vl+avx512bf16+avx512vnni+amx-tile+amx-bf16+amx-int8"), threads=2
)
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {"rows": 21, "inputs": 131, "outputs": 101, "activation": "silu"}),
    "matmul": ("matmul", {"m": 35, "n": 71, "k": 131}),
    "half": ("matmul", {"m": 35, "n": 71, "k": 130, "dtype": "bfloat16", "transpose_b": True}),
    "bytes": ("matmul", {"m": 35, "n": 71, "k": 131, "dtype": "int8"}),
    "several": ("batch_matmul", {"batch": 2, "m": 33, "n": 37, "k": 119}),
    "windows": (
        "conv2d",
        {
            "batch": 1,
            "channels": 5,
            "height": 9,
            "width": 21,
            "filters": 35,
            "kernel_h": 3,
            "kernel_w": 3,
            "padding": 1,
        },
    ),
    "pixels": (
        "conv2d",
        {"batch": 1, "channels": 67, "height": 9, "width": 13, "filters": 35, "kernel_h": 1, "kernel_w": 1},
    ),
}


def case(name: str) -> Workload:
    operator, parameters = SMALL[name]
    return workload_of(operator, **parameters, constant_weights=True)


def sides(name: str) -> tuple[str, str]:
    """The knobs of the constant operand and of the other one: a convolution has its filters on the left."""
    return ("pack_a", "pack_b") if SMALL[name][0] == "conv2d" else ("pack_b", "pack_a")


@pytest.mark.parametrize("name", SMALL)
def test_kernels_compute_their_expression(name: str) -> None:
    target = host_target("llvm")
    for sketch in sketches_for(case(name), target):
        assert check_schedules(sketch.name, target, case(name), 5, 1) == 1
    if name in ("half", "bytes"):
        assert check_schedules("cpu_gemm_amx", TILES, case(name), 5, 1) == 1


@pytest.mark.parametrize("name", SMALL)
def test_the_constant_operand_is_copied_before_the_first_call(name: str) -> None:
    workload = case(name)
    (weights,) = workload.constants
    constant, other = sides(name)
    for sketch in sketches_for(workload, TILES):
        space = sketch.space(workload, TILES)
        assert (np.asarray(space.column(constant)) == "whole").all()
        whole = np.asarray(space.column(other)) == "whole"
        assert (space.quantities["whole_bytes"][~whole] == 0).all()
        for row in {0, int(np.argmax(whole))}:
            first, rest = split_prologue(finish(lower(workload, TILES, space.schedule(row)), TILES))
            assert first is not None
            read = [{x.buffer.name for s in walk_statements(part) for e in expressions(s) for x in loads_of(e)}
                    for part in (first, rest)]  # fmt: skip
            assert weights in read[0] and weights not in read[1]


def test_others_take_constants_as_they_come() -> None:
    """Where nothing is kept, neither the sketches nor their spaces nor the code change."""
    amd = Target("amdgpu", "gfx942", threads=304, vector_bytes=16)
    large = {"rows": 64, "inputs": 1024, "outputs": 512, "dtype": "bfloat16"}
    for target, parameters in ((H200, large), (amd, large), (TILES, {"rows": 1, "inputs": 64, "outputs": 48})):
        plain, marked = (workload_of("linear", **parameters, constant_weights=flag) for flag in (False, True))
        names = [s.name for s in sketches_for(plain, target)]
        assert [s.name for s in sketches_for(marked, target)] == names
        for name in names[:2]:
            spaces = [SKETCHES[name].space(w, target, limit=100) for w in (plain, marked)]
            assert np.array_equal(spaces[0].codes, spaces[1].codes)
            texts = [
                backend_for(target).emit(finish(lower(w, target, spaces[0].schedule(0)), target), target).text
                for w in (plain, marked)
            ]
            assert texts[0] == texts[1]
