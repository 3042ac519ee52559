"""Reductions inside of rows: vectors lie where what they read is contiguous."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.codegen.passes.pipeline import run_passes
from tilewright.ir.expr import Load, walk
from tilewright.ir.linear_form import flat_form
from tilewright.ir.stmt import expressions, walk_statements
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import Module, load_module
from tilewright.schedule.cpu.loops.fusion import fusion_plan
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance

AVX512 = replace(target_named("x86-64+avx2+avx512f+avx512bw+avx512vl+fma"), threads=2)
TWICE = """X: float32[6, 20, 64]
M[i, j] = max over k < 64 of X[i, j, k]
E[i, j, k] = exp(X[i, j, k] - M[i, j])
C[i, k] = sum over j < 20 of E[i, j, k]
Y[i, j, k] = E[i, j, k] / C[i, k]"""
GROUPS = """X: float16[4, 600, 32, 10]
M[b, g] = sum over c < 10, p < 600 of float32(X[b, p, g, c])
V[b, g] = sum over c < 10, p < 600 of (float32(X[b, p, g, c]) - M[b, g]) * (float32(X[b, p, g, c]) - M[b, g])
Y[b, p, g, c] = float16((float32(X[b, p, g, c]) - M[b, g] / 6000) / sqrt(V[b, g] / 6000 + 0.001))"""
FEW = """X: float32[4, 30, 7, 5]
M[b, g] = max over p < 30, c < 5 of X[b, p, g, c]
Y[b, p, g, c] = X[b, p, g, c] - M[b, g]"""
APART = """X: float32[4, 9, 7, 40]
M[b, g] = max over p < 9, c < 20 of X[b, p, g, c]
Y[b, p, g, c] = X[b, p, g, c] - M[b, g]"""


@pytest.mark.parametrize("text", [TWICE, GROUPS, FEW, APART])
def test_rows_of_several_sums_are_right(text: str) -> None:
    workload = parse_workload(text)
    assert [g.kind for g in fusion_plan(workload, inline_paddings=False, threads=2).groups] == ["row"]
    inputs = random_inputs(workload, 0)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    space = SKETCHES["cpu_loops"].space(workload, host_target("llvm"))
    for row in range(0, len(space), max(1, len(space) // 5)):
        module = load_module(workload, space.schedule(row))
        assert isinstance(module, Module)
        for name, result in zip(workload.outputs, module(*inputs.values()), strict=True):
            absolute, relative = limits[name]
            given, right = (np.asarray(array, np.float64) for array in (result, wanted[name]))
            np.testing.assert_allclose(given, right, rtol=relative, atol=absolute)


@pytest.mark.parametrize("text", [TWICE, GROUPS, APART])
def test_inputs_are_read_as_contiguous_vectors(text: str) -> None:
    workload, sketch = parse_workload(text), SKETCHES["cpu_loops"]
    space = sketch.space(workload, AVX512)
    for row in range(0, len(space), max(1, len(space) // 5)):
        final = run_passes(sketch.lower(workload, AVX512, space.schedule(row)))[-1][1]
        loads = {e for s in walk_statements(final.body) for root in expressions(s) for e in walk(root)}
        reads = [e for e in loads if isinstance(e, Load) and e.buffer.name == "X"]
        assert reads and all(flat_form(e.indices, e.buffer.strides).stride in (0, 1) for e in reads)
        assert max(e.lanes for e in reads) > 1


def test_partial_sums_of_a_group_norm_stay_in_registers() -> None:
    """The 320 channels of a pixel are 20 vectors; their totals of 600 pixels are added up in blocks."""
    workload, sketch = parse_workload(GROUPS), SKETCHES["cpu_loops"]
    schedule = sketch.space(workload, AVX512).schedule(0)
    final = run_passes(sketch.lower(workload, AVX512, schedule))[-1][1]
    source = LlvmBackend().emit(final, AVX512).text
    assert "M_part_c1" in source
    assert "sdiv <" not in source and "udiv <16 x i64>" not in source


def test_a_last_dimension_of_one_element_leaves_vectors() -> None:
    """It leaves stores past the caches, too, since rows are aligned as they would be without it."""
    text = (
        "X: float32[1024, 4096{one}]\nM[a < 1024] = sum over b < 4096{over} of X[a, b{at}]\n"
        "Y[a < 1024, b < 4096{over}] = X[a, b{at}] - M[a] * 0.25"
    )
    plain, longer = (
        SKETCHES["cpu_loops"].space(parse_workload(text.format(**parts)), AVX512)
        for parts in ({"one": "", "over": "", "at": ""}, {"one": ", 1", "over": ", c < 1", "at": ", c"})
    )
    assert [(k.name, k.values) for k in longer.knobs] == [(k.name, k.values) for k in plain.knobs]
    assert plain.prior_seconds is not None and longer.prior_seconds is not None
    np.testing.assert_allclose(longer.prior_seconds, plain.prior_seconds)
