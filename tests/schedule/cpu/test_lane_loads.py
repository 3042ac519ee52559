"""Loads whose lanes are quotients or remainders are whole vectors that are shuffled."""

import numpy as np
import pytest

from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.codegen.passes.pipeline import run_passes
from tilewright.ir.rewrite import loads_of
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import Module, load_module
from tilewright.schedule.cpu.loops.lane_loads import steps_of_load
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference

NEAREST = "X: float32[3, 64]\nY[i, x < 128] = X[i, x // 2]"
SHUFFLED = "X: float16[2, 4, 64]\nY[i, x < 256] = X[i, x % 4, x // 4]"
PAIRS = """X: float16[3, 128]
C: float32[64]
Y[i, d] = float32(X[i, d]) * C[d // 2] + float32(select(d % 2 == 0, X[i, d // 2 * 2 + 1], X[i, d // 2 * 2]))"""
BILINEAR = "X: float32[3, 64]\nY[i, x < 128] = X[i, x // 2] * 0.75 + X[i, min(max(x // 2 + 1, 0), 63)] * 0.25"
CLAMPED = "X: float32[3, 64]\nY[i, x < 64] = X[i, min(max(x - 3, 0), 63)] + X[i, min(max(x + 2, 0), 63)]"
THIRDS = "X: float32[3, 40]\nY[i, x < 118] = X[i, x // 3] + float32(x % 3)"
UNFOLDED = "X: float16[3, 9, 58]\nY[i, k < 3, p < 392] = X[i, p // 56 + k, p % 56 + k]"
AVX512 = target_named("x86-64+avx2+avx512f+avx512bw+avx512vl+fma")


@pytest.mark.parametrize("text", [NEAREST, SHUFFLED, PAIRS, BILINEAR, CLAMPED, THIRDS, UNFOLDED])
def test_known_lanes_are_right_in_every_kind_of_tile(text: str) -> None:
    workload = parse_workload(text)
    inputs = random_inputs(workload, 0)
    wanted = reference(workload, inputs)
    space = SKETCHES["cpu_loops"].space(workload, host_target("llvm"))
    for row in range(0, len(space), max(1, len(space) // 8)):
        module = load_module(workload, space.schedule(row))
        assert isinstance(module, Module)
        for name, result in zip(workload.outputs, module(*inputs.values()), strict=True):
            np.testing.assert_allclose(result, wanted[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("text", [NEAREST, SHUFFLED, PAIRS, BILINEAR, CLAMPED])
def test_known_lanes_are_not_gathered(text: str) -> None:
    workload, sketch, backend = parse_workload(text), SKETCHES["cpu_loops"], LlvmBackend()
    space = sketch.space(workload, AVX512)
    for row in range(0, len(space), max(1, len(space) // 4)):
        final = run_passes(sketch.lower(workload, AVX512, space.schedule(row)))[-1][1]
        source = backend.emit(final, AVX512).text
        assert not any(word in source for word in ("gather", "sdiv <", "udiv <", "srem <", "urem <"))


@pytest.mark.parametrize(
    "text, steps",
    [(NEAREST, 2), (SHUFFLED, 8), (BILINEAR, 2), (THIRDS, 16), ("X: float32[3, 64]\nY[i, x] = X[i, x]", 1)],
)
def test_steps_of_a_load_of_sixteen_lanes(text: str, steps: int) -> None:
    (stage,) = parse_workload(text).stages
    assert {steps_of_load(load, "x", 16) for load in loads_of(stage.body)} == {steps}


def test_vectors_of_pixels_stay_within_a_row() -> None:
    """Rows of 56 pixels are vectors of 8; the widest two come first, as before."""
    workload, sketch = parse_workload(UNFOLDED), SKETCHES["cpu_loops"]
    space = sketch.space(workload, AVX512)
    assert next(k.values for k in space.knobs if k.name == "lanes") == (32, 16, 8)
    seconds = space.prior_seconds
    assert seconds is not None
    best = space.schedule(int(seconds.argmin()))
    assert dict(best.knobs)["lanes"] == 8
    source = LlvmBackend().emit(run_passes(sketch.lower(workload, AVX512, best))[-1][1], AVX512).text
    assert "gather" not in source
