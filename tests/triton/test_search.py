"""The configurations of a Triton kernel are a space that every strategy searches to its end."""

import numpy as np
import pytest

from tilewright.codegen.lowering import build, lower
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.core.target import DeviceInfo, Target
from tilewright.core.trial import Timed
from tilewright.cost_model.similarity import Situation, nearest
from tilewright.schedule.gpu.triton import CUDA_TRITON
from tilewright.schedule.sketches import sketches_for
from tilewright.search.pool import CandidatePool
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import Observation, SearchProblem
from tilewright.service.roofline import roofline
from tilewright.te.json import workload_from_json
from tilewright.te.operators import OPERATORS
from tilewright.tests.triton.kernels import add_workload

SM90A = Target("cuda", "sm_90a", (), 132, 16)
DEVICE = DeviceInfo("Example GPU", SM90A, {"multiprocessors": 132.0, "l2_bytes": 6e7}, {"copy_bytes_per_second": 4e12})
RANGES = {"BLOCK": [64, 128, 256, 512], "num_stages": [1, 2, 3], "num_warps": [1, 2, 4]}
WORKLOAD = workload_from_json(add_workload(configurations=RANGES))


def test_the_space_is_what_the_author_named() -> None:
    assert sketches_for(WORKLOAD, SM90A) == (CUDA_TRITON,)
    assert sketches_for(WORKLOAD, Target("llvm", "x86-64")) == ()
    space = CUDA_TRITON.space(WORKLOAD, SM90A)
    assert len(space) == space.total == 36
    assert {str(space.schedule(n)) for n in range(36)} == {str(s) for s in map(space.schedule, range(36))}
    assert len(CUDA_TRITON.space(WORKLOAD, SM90A, limit=10, seed=4)) == 10
    given = CUDA_TRITON.space(workload_from_json(add_workload()), SM90A)
    assert [given.schedule(n)["BLOCK"] for n in range(3)] == [128, 512, 1024]


def test_other_settings_are_illegal() -> None:
    wrong = Schedule.of("cuda_triton", 1, {"BLOCK": 96, "num_stages": 1, "num_warps": 4})
    with pytest.raises(IllegalSchedule, match="no configuration of add"):
        build(WORKLOAD, SM90A, wrong)
    with pytest.raises(IllegalSchedule, match="compiled by Triton"):
        lower(WORKLOAD, SM90A, CUDA_TRITON.space(WORKLOAD, SM90A).schedule(0))
    with pytest.raises(IllegalSchedule, match="cannot write this workload"):
        lower(OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8}), SM90A, wrong)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if not name.startswith("optuna")])
def test_every_strategy_finds_the_fastest(name: str) -> None:
    pool = CandidatePool.of(WORKLOAD, DEVICE, seed=1)
    assert np.isnan(pool.features[:, :10]).all()  # nothing is known of the kernel itself
    strategy = STRATEGIES[name](SearchProblem(pool, 1, ()))
    found: dict[int, float] = {}
    while len(found) < len(pool) and (asked := strategy.ask(4)):
        for candidate in asked:
            found[candidate] = 1e-5 * (1 + (candidate * 7) % 36)
        strategy.tell([Observation(c, Timed((found[c],) * 3)) for c in asked])
    assert min(found.values()) == 1e-5 and len(found) == 36


def test_kernels_of_users_are_nobodys_relatives() -> None:
    here = Situation(WORKLOAD, DEVICE, "toolchain", "cold-v2")
    product = Situation(OPERATORS["matmul"].workload({"m": 64, "n": 64, "k": 64}), DEVICE, "toolchain", "cold-v2")
    other = Situation(workload_from_json(add_workload()), DEVICE, "toolchain", "cold-v2")
    assert nearest(here, [product, other]) == [] and nearest(product, [here]) == []
    assert roofline(WORKLOAD, DEVICE, DEVICE.measured, "cold") is None
