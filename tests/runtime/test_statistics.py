"""The variance of long columns in float32, by one pass around a pivot."""

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.codegen.lowering import build
from tilewright.core.dtypes import float32
from tilewright.core.target import Target
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.numpy_tensors import NumpyTensors
from tilewright.runtime.program import BoundProgram
from tilewright.schedule.defaults import default_schedule, has_class

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
ROWS, COLUMNS = 4096, 64


def moments() -> BoundProgram:
    """The program for a GPU, with kernels for this processor."""
    x = Value("x", TensorType((4, ROWS // 4, COLUMNS), float32))
    b = GraphBuilder([x.name])
    outputs = tuple(b.node(op, x, dims=(0, 1)).name for op in ("mean", "variance"))
    program = compile_program(check_graph(Graph((x,), (), b.nodes, outputs)), lambda w: has_class(w, H200), gpu=True)
    device = CpuDevice()
    kernels = {
        key: device.load(build(task.workload, device.target, default_schedule(task.workload, device.target)))
        for key, task in program.tasks.items()
    }
    return BoundProgram(program, kernels, NumpyTensors())


def _large(noise: np.ndarray) -> np.ndarray:
    return 1e4 + noise


def _rising(noise: np.ndarray) -> np.ndarray:
    return noise + np.linspace(-50, 50, ROWS)[:, None]


def _lone(noise: np.ndarray) -> np.ndarray:
    noise[1234] = 1e5
    return noise


@pytest.mark.parametrize("make", [_large, _rising, _lone])
def test_the_variance_of_a_column_has_no_cancellation(make: Callable[[np.ndarray], np.ndarray]) -> None:
    data = make(np.random.default_rng(0).standard_normal((ROWS, COLUMNS))).astype(np.float32)
    mean, variance = moments()([data.reshape(4, -1, COLUMNS)], [])
    np.testing.assert_allclose(mean, data.astype(np.float64).mean(0), rtol=1e-6, atol=1e-6 * np.abs(data).max())
    np.testing.assert_allclose(variance, data.astype(np.float64).var(0, ddof=1), rtol=1e-5)


def test_the_variance_of_equal_elements_is_not_negative() -> None:
    data = np.full((ROWS, COLUMNS), 0.1, np.float32) * np.arange(COLUMNS, dtype=np.float32)
    _, variance = moments()([data.reshape(4, -1, COLUMNS)], [])
    assert (variance >= 0).all() and (variance <= 1e-12).all()


def test_the_variance_of_what_is_no_number_is_none() -> None:
    data = np.zeros((ROWS, COLUMNS), np.float32)
    data[100, 3], data[200, 4] = np.nan, np.inf
    _, variance = moments()([data.reshape(4, -1, COLUMNS)], [])
    assert np.isnan(variance[[3, 4]]).all() and (np.delete(variance, [3, 4]) == 0).all()
