"""What only the Ray executor can go through: its own cluster, and the loss of actors."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tilewright.core.trial import Failed, Reason, Timed, Trial
from tilewright.runtime.devices import host_target
from tilewright.tests.workers.any_noise import ANY_NOISE
from tilewright.tests.workers.faulty_kernels import add_one, schedule
from tilewright.workers.executor import Executor
from tilewright.workers.executors import open_executor
from tilewright.workers.settings import Deadlines, ExecutorSettings

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray")

SETTINGS = ExecutorSettings(
    builder="tilewright.tests.workers.faulty_kernels:build",
    deadlines=Deadlines(compile=8.0, check=4.0),
    timing=ANY_NOISE,
    batch=4,
)


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marker")


@pytest.fixture(scope="module")
def executor(marker: Path) -> Iterator[Executor]:
    assert not ray.is_initialized()
    settings = replace(SETTINGS, python_path=(*SETTINGS.python_path, str(marker)))
    with open_executor("ray", host_target(), settings=settings) as opened:
        assert ray.is_initialized()
        yield opened
    assert not ray.is_initialized()


def trial(executor: Executor, fault: str) -> Trial:
    ((_, found),) = executor.measure(add_one(), [schedule(fault)])
    return found


def supervisors(marker: Path, role: str) -> list[tuple[psutil.Process, psutil.Process]]:
    """(actor, its child) for every child whose module path has ``marker`` in it and whose actor's class is ``role``."""
    found = []
    for process in psutil.process_iter():
        try:
            actor = process.parent()
            if str(marker) in process.environ().get("PYTHONPATH", "") and actor and role in " ".join(actor.cmdline()):
                found.append((actor, process))
        except psutil.Error:
            continue
    return found


def test_its_own_cluster_demands_a_token(executor: Executor) -> None:
    assert isinstance(trial(executor, "good").outcome, Timed)
    assert os.environ["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize(("role", "fault"), [("RunnerActor", "loops_for_ever"), ("BuilderActor", "builder_hangs")])
def test_a_killed_actor_takes_its_child_along_and_is_replaced(
    executor: Executor, marker: Path, role: str, fault: str
) -> None:
    """The candidate is tried again on the new actor, where it hangs to the end."""
    assert isinstance(trial(executor, "good").outcome, Timed)
    with ThreadPoolExecutor(1) as background:
        hanging = background.submit(trial, executor, fault)
        before = supervisors(marker, role)
        assert before
        for actor, _ in before:
            actor.send_signal(signal.SIGKILL)
        outcome = hanging.result().outcome
    assert isinstance(outcome, Failed) and outcome.reason is Reason.TIMEOUT
    _, alive = psutil.wait_procs([child for _, child in before], timeout=20)
    assert not alive
    assert isinstance(trial(executor, "good").outcome, Timed)
