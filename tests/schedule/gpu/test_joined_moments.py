"""Norms whose threads exchange the mean and the squares of deviations at once: values, and what is taken."""

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, legal_schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.ir.interpret import interpret
from tilewright.schedule.gpu.rowwise.space import CUDA_ROWWISE as SKETCH
from tilewright.schedule.problems.rowwise import rowwise_problem
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

SETTINGS: dict[str, dict[str, KnobValue]] = {
    "lanes": {"threads_per_row": 32, "row_storage": "registers"},
    "warps": {"threads_per_row": 128, "row_storage": "registers"},
    "both storages": {"threads_per_row": 64, "row_storage": "registers_and_shared"},
    "circular buffer": {"threads_per_row": 64, "row_storage": "circular_buffer"},
    "read again": {"threads_per_row": 64, "row_storage": "global"},
}
LONG = workload_of("layer_norm", rows=2, columns=16384, dtype="float16")


def _agrees(workload: Workload, inputs: dict[str, np.ndarray], **knobs: KnobValue) -> None:
    schedule = legal_schedule_of(SKETCH, workload, H200, joined_moments=1, **knobs)
    got = interpret(finish(SKETCH.lower(workload, H200, schedule), H200), inputs)
    for name, wanted in reference(workload, inputs).items():
        absolute, relative = tolerance(workload)[name]
        np.testing.assert_allclose(np.asarray(got[name], np.float64), wanted, relative, absolute)


@pytest.mark.parametrize("setting", SETTINGS)
def test_norms_are_as_the_reference_says(setting: str) -> None:
    workload = workload_of("layer_norm", rows=5, columns=1024)
    _agrees(workload, random_inputs(workload, 1), **SETTINGS[setting])


@pytest.mark.parametrize("storage", ["registers", "circular_buffer"])
def test_clusters_share_rows(storage: str) -> None:
    _agrees(LONG, random_inputs(LONG, 1), threads_per_row=128, cluster_size=8, row_storage=storage)


def test_rows_far_from_zero_keep_their_digits() -> None:
    """Sums of squares without the mean taken off would lose all of them."""
    workload = workload_of("layer_norm", rows=3, columns=2048)
    inputs = random_inputs(workload, 1)
    inputs["X"] = inputs["X"] + np.float32(1000)
    schedule = legal_schedule_of(SKETCH, workload, H200, joined_moments=1, threads_per_row=128)
    got = np.asarray(interpret(finish(SKETCH.lower(workload, H200, schedule), H200), inputs)["Y"], np.float64)
    np.testing.assert_allclose(got, reference(workload, inputs)["Y"], 0, 1e-3)


def test_threads_have_as_many_elements_each() -> None:
    workload = workload_of("layer_norm", rows=4, columns=1000)
    knobs = dict(legal_schedule_of(SKETCH, workload, H200, threads_per_row=128).knobs) | {"joined_moments": 1}
    with pytest.raises(IllegalSchedule, match="joined_moments all threads of a row"):
        SKETCH.lower(workload, H200, Schedule(SKETCH.name, SKETCH.version, tuple(knobs.items())))


TEXT = "X: float32[8, 512]\nt[i] = sum over k < 512 of X[i, k]\nq[i] = sum over k < 512 of {}\nY[i] = t[i] + q[i]"


@pytest.mark.parametrize(
    ("squares", "found"),
    [
        ("(X[i, k] - t[i] / 512) * (X[i, k] - t[i] / 512)", True),
        ("(X[i, k] - t[i] * 0.001953125) * (X[i, k] - t[i] * 0.001953125)", True),
        ("(X[i, k] - t[i] / 511) * (X[i, k] - t[i] / 511)", False),
        ("(X[i, k] - t[i] / 512) * (X[i, k] - t[i] / 256)", False),
        ("X[i, k] * X[i, k]", False),
    ],
)
def test_only_deviations_from_the_mean_are_moments(squares: str, found: bool) -> None:
    problem = rowwise_problem(parse_workload(TEXT.format(squares)))
    assert problem is not None and problem.has_moments == found


def test_a_cluster_waits_once_less() -> None:
    """The kernels of the row that layer norms are slowest at have two barriers of the cluster for each row, and one."""
    workload = workload_of("layer_norm", rows=1024, columns=65536, dtype="float16")
    knobs: dict[str, KnobValue] = {"threads_per_row": 128, "cluster_size": 8, "row_storage": "circular_buffer"}
    backend, barriers = backend_for(H200), []
    for joined in (0, 1):
        schedule = legal_schedule_of(SKETCH, workload, H200, joined_moments=joined, ctas_per_sm=4, **knobs)
        source = backend.emit(finish(SKETCH.lower(workload, H200, schedule), H200), H200)
        binary = backend.compile(source, H200)  # refuses a kernel that spills
        assert binary.code
        barriers.append(source.text.count("cluster_sync_shared();"))
    assert barriers[0] == barriers[1] + 1
