"""Every wait of an executor has a heartbeat in the waiting thread, and ends soon after a heartbeat raises."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tilewright.core.fleet import LeaseLost
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Failed, Reason, Timed
from tilewright.runtime.devices import host_target
from tilewright.tests.contracts.test_executors import FAULTY, children_of, marked
from tilewright.tests.workers.faulty_kernels import add_one, schedule
from tilewright.workers.executor import Executor
from tilewright.workers.local import LocalExecutor
from tilewright.workers.settings import Deadlines

PATIENT = Deadlines(compile=600.0, check=600.0, time=600.0)
"""A test that waited for one of these would be ended by its own time-out."""


def endless() -> Iterator[Schedule]:
    while True:
        yield schedule("good")


WAITS: dict[str, Callable[[Executor], object]] = {
    "a kernel that hangs": lambda e: list(e.measure(add_one(), [schedule("loops_for_ever")])),
    "a builder that hangs": lambda e: list(e.measure(add_one(), [schedule("builder_hangs")])),
    "candidates without end": lambda e: list(e.measure(add_one(), endless())),
    "a finalist that hangs": lambda e: e.remeasure(add_one(), [schedule("loops_for_ever")]),
    "a finalist's builder that hangs": lambda e: e.remeasure(add_one(), [schedule("builder_hangs")]),
    "a baseline": lambda e: e.baseline("matmul", {"m": 4096, "n": 4096, "k": 4096}),
    "peaks": lambda e: e.peaks(),
    "the start of a child": lambda e: e.measured_on,
}


@pytest.mark.parametrize("wait", WAITS)
def test_what_a_heartbeat_raises_ends_any_wait_and_kills_the_children_at_work(
    wait: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no peaks are known there
    beats: list[int] = []
    at_work: list[psutil.Process] = []
    last = 1 if wait == "the start of a child" else 3  # a child may start in less than three beats

    def heartbeat() -> None:
        beats.append(threading.get_ident())
        if len(beats) == last:
            at_work.extend(children_of(tmp_path))
            raise LeaseLost("planted")

    settings = replace(marked(tmp_path), deadlines=PATIENT, builders=1)
    with LocalExecutor(host_target(), settings=settings) as executor:
        executor.heartbeat = heartbeat
        # It may be raised between a build and the run, when no child is at work: then it is raised later.
        while not beats or ("hangs" in wait and all(process.is_running() for process in at_work) and last < 20):
            beats.clear()
            at_work.clear()
            with pytest.raises(LeaseLost, match="planted"):
                WAITS[wait](executor)
            assert beats == [threading.get_ident()] * last
            last += 1
        if "hangs" in wait:
            assert any(not process.is_running() for process in at_work)
        executor.heartbeat = lambda: None
        ((_, trial),) = executor.measure(add_one(), [schedule("good")])
        assert isinstance(trial.outcome, Timed)


def test_heartbeats_go_on_for_as_long_as_a_wait_lasts_and_change_nothing() -> None:
    beats: list[int] = []
    with LocalExecutor(host_target(), settings=replace(FAULTY, builders=1)) as executor:
        executor.heartbeat = lambda: beats.append(1)
        ((_, hung),) = executor.measure(add_one(), [schedule("loops_for_ever")])
    assert isinstance(hung.outcome, Failed) and hung.outcome.reason is Reason.TIMEOUT
    assert len(beats) > 5  # it hung for three seconds


def test_what_was_built_ahead_and_abandoned_is_built_again() -> None:
    with LocalExecutor(host_target(), settings=replace(FAULTY, builders=1)) as executor:
        executor.overlaps = True  # the processor stands for a device of its own
        executor.prefetch(add_one(), [schedule("builder_hangs"), schedule("good")])
        executor.abandon()
        ((_, trial),) = executor.measure(add_one(), [schedule("good")])
        assert isinstance(trial.outcome, Timed)
