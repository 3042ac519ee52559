"""Special functions: their errors in units in the last place, on processors, and their kernels for GPUs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.contracts.test_graph_operators import node_of
from tests.runtime.test_program import bound, run
from tests.sketch_agreement import check_schedules
from tilewright.core.dtypes import DTYPES
from tilewright.core.target import Target
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import Case, TensorType
from tilewright.graph.operators.special import SPECIAL
from tilewright.graph.region import write_workload

torch = pytest.importorskip("torch")

Points = list[tuple[float, float]]

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Points, float]] = {
    "erfc": (torch.erfc, [(-6, 9), (-1, 1)], 5),
    "erfcx": (torch.special.erfcx, [(-9, 9), (9, 1e30)], 6),
    "erfinv": (torch.erfinv, [(-1, 1), (0.999, 1)], 1),
    "lgamma": (torch.lgamma, [(0, 3), (0, 60), (60, 1e30), (-0.4, 0), (-6, 0)], 1.5),
    "digamma": (torch.digamma, [(0, 3), (0, 60), (60, 1e30), (-0.4, 0), (-6, 0)], 1.5),
    "i0e": (torch.special.i0e, [(-20, 20), (20, 1e30)], 1),
    "i1e": (torch.special.i1e, [(-20, 20), (20, 1e30)], 1),
}
"""The function of torch, the ranges that points are drawn from, and how many units float32 may be off. (Of lgamma,
units are those of 1 where it is less.)"""


def graph_of(name: str, count: int, dtype: str) -> Graph:
    x, b = Value("x", TensorType((count,), DTYPES[dtype])), GraphBuilder(["x"])
    y = b.node(name, x)
    return check_graph(Graph((x,), (), b.nodes, (y.name,)))


def computed(name: str, x: np.ndarray) -> np.ndarray:
    graph = graph_of(name, len(x), x.dtype.name)
    return run(bound(graph), graph, {"x": x})[0]


def test_each_special_function_is_checked() -> None:
    assert set(FUNCTIONS) == {s.name for s in SPECIAL}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_of_float32(name: str) -> None:
    function, ranges, most = FUNCTIONS[name]
    draw = np.random.default_rng(0)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 8.625, -1e-30, 1e-30, -2.0, 1e-45, -1e9, -1e31]
    x = np.concatenate([*(draw.uniform(*r, 400) for r in ranges), ends]).astype(np.float32)
    found = computed(name, x).astype(np.float64)
    truth = function(torch.from_numpy(x).double()).numpy()
    single = truth.astype(np.float32).astype(np.float64)  # with the infinities of float32
    np.testing.assert_array_equal(np.isnan(found), np.isnan(single))
    rest = np.isfinite(single) & ~np.isnan(single)
    np.testing.assert_array_equal(found[np.isinf(single)], single[np.isinf(single)])
    size = np.maximum(np.abs(truth[rest]), 1.0 if name in ("lgamma", "digamma") else 1.2e-38)
    assert (np.abs(found[rest] - truth[rest]) / np.spacing(size.astype(np.float32))).max() <= most


@pytest.mark.parametrize("name", ["erfc", "erfinv", "digamma"])
def test_errors_of_float64(name: str) -> None:
    function, ranges, _ = FUNCTIONS[name]
    x = np.concatenate([np.linspace(*r, 50)[1:-1] for r in ranges])
    np.testing.assert_allclose(computed(name, x), function(torch.from_numpy(x)).numpy(), 4e-15, 4e-15)


@pytest.mark.parametrize("name", ["erfc", "lgamma"])
def test_kernels_for_gpus_compute_the_same(name: str) -> None:
    """A kernel class takes them: everything is one expression."""
    graph = node_of(name, Case((TensorType((6, 64), DTYPES["float32"]),)))
    workload = write_workload(graph, graph.nodes, ("y",), frozenset(["x0"])).workload
    assert check_schedules("cuda_pointwise", Target("cuda", "sm_90a", threads=132, vector_bytes=16), workload, 0, 1)
