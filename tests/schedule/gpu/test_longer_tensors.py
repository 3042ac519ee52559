"""Products and attention over a part of their tensors: what lies behind the last place of an axis does not count."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, workload_of
from tilewright.codegen.lowering import finish
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import map_loads
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.check import check
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

A100 = Target("cuda", "sm_80", (), threads=108, vector_bytes=16)
B200 = Target("cuda", "sm_100a", (), threads=148, vector_bytes=16)


IMAGES = {"batch": 2, "height": 12, "width": 12, "kernel_h": 3, "kernel_w": 3, "layout": "NHWC"}
FILTERS = "W"


def _longer(workload: Workload, by: int) -> Workload:
    """The same expression on inputs that go on in all dimensions, or on such filters where there are some."""
    names = {t.name for t in workload.inputs}
    names = names & {FILTERS} if len(workload.stages[0].reduce_axes) > 1 else names
    inputs = {t.name: replace(t, shape=tuple(n + by * (t.name in names) for n in t.shape)) for t in workload.inputs}

    def moved(load: Load) -> Load:
        tensor: Buffer = inputs.get(load.buffer.name, load.buffer)
        return Load(tensor, load.indices)

    stages = tuple(replace(s, body=map_loads(s.body, moved)) for s in workload.stages)
    return check(replace(workload, inputs=tuple(inputs.values()), stages=stages))


@pytest.mark.parametrize(
    ("sketch", "target", "operator", "parameters", "by"),
    [
        ("cuda_gemm", H200, "matmul", {"m": 72, "n": 80, "k": 104, "transpose_b": True}, 8),
        ("cuda_gemm", H200, "matmul", {"m": 72, "n": 88, "k": 101}, 3),
        ("cuda_gemm_tcgen05", B200, "matmul", {"m": 72, "n": 80, "k": 104, "transpose_b": True}, 8),
        ("cuda_skinny_tma", H200, "linear", {"rows": 20, "inputs": 648, "outputs": 96}, 8),
        ("cuda_conv", H200, "conv2d", {**IMAGES, "channels": 24, "filters": 64}, 8),
        ("cuda_gemm_mma", A100, "linear", {"rows": 130, "inputs": 104, "outputs": 88}, 8),
        ("cuda_attention", H200, "attention", {"heads": 2, "queries": 70, "keys": 90, "depth": 40}, 24),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_numbers_behind_the_last_place_are_not_read(
    sketch: str, target: Target, operator: str, parameters: dict[str, Any], by: int
) -> None:
    """They are NaN there, which would show even where they are multiplied with zeros."""
    short = workload_of(operator, dtype="float16", **parameters)
    workload = _longer(short, by)
    schedule = SKETCHES[sketch].space(workload, target, limit=100).schedule(0)
    kernel = SKETCHES[sketch].lower(workload, target, schedule)
    inputs = {name: np.full(array.shape, np.nan, array.dtype) for name, array in random_inputs(workload, 0).items()}
    for name, array in random_inputs(short, 0).items():
        inputs[name][tuple(slice(n) for n in array.shape)] = array
    got, wanted = interpret(finish(kernel, target), inputs), reference(workload, inputs)
    for name, (absolute, relative) in tolerance(workload).items():
        np.testing.assert_allclose(got[name].astype(np.float64), wanted[name].astype(np.float64), relative, absolute)
