"""Nothing begins on a device whose lease has ended, not even in a process that was stopped meanwhile."""

import json
import math
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tilewright.core.fleet import LeaseLost
from tilewright.core.trial import Timed
from tilewright.runtime.devices import host_target
from tilewright.tests.contracts.test_executors import FAULTY
from tilewright.tests.workers.faulty_kernels import add_one, schedule
from tilewright.workers.device_lock import DeviceLock
from tilewright.workers.executor import Executor
from tilewright.workers.lease_guard import LeaseGuard
from tilewright.workers.local import LocalExecutor
from tilewright.workers.probe import local_unit

GIVEN: dict[str, Callable[[Executor], object]] = {
    "a candidate": lambda e: list(e.measure(add_one(), [schedule("good")])),
    "a re-measurement": lambda e: e.remeasure(add_one(), [schedule("good")]),
    "peaks": lambda e: e.peaks(),
    "a baseline": lambda e: e.baseline("matmul", {"m": 8, "n": 8, "k": 8}),
}


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    with LocalExecutor(host_target(), settings=replace(FAULTY, builders=1)) as opened:
        yield opened


@pytest.mark.parametrize("what", GIVEN)
def test_without_its_lease_nothing_is_given_to_the_device(executor: LocalExecutor, what: str) -> None:
    guard = LeaseGuard(time.monotonic() + 3600)
    executor.allowed = guard
    guard.revoke()
    with pytest.raises(LeaseLost, match="the lease of this device has ended"):
        GIVEN[what](executor)
    guard.renewed(math.inf)
    GIVEN[what](executor)


@pytest.mark.parametrize("what", GIVEN)
def test_a_child_that_gets_its_request_too_late_does_not_begin(executor: LocalExecutor, what: str) -> None:
    """As if the process had been stopped between its look at the clock and the moment that the child has the device."""
    asked: list[float] = []

    def stopped_then_lost() -> float:
        if asked:
            raise LeaseLost("noticed afterwards")
        asked.append(time.monotonic())
        return asked[0]

    executor.allowed = stopped_then_lost
    with pytest.raises(LeaseLost, match="noticed afterwards"):
        GIVEN[what](executor)


def test_a_request_that_waited_for_the_device_is_made_again_under_a_renewed_lease(executor: LocalExecutor) -> None:
    answers = iter([time.monotonic(), math.inf])
    executor.allowed = lambda: next(answers, math.inf)
    ((_, trial),) = executor.measure(add_one(), [schedule("good")])
    assert isinstance(trial.outcome, Timed)


def test_who_has_a_lease_holds_the_lock_of_the_device_while_something_is_on_it(tmp_path: Path) -> None:
    """Even that of a processor, which programs without leases share. The file shows whose lease it is."""
    file = tmp_path / f"tilewright-device-{local_unit().uuid}.lock"
    found: list[str] = []

    def heartbeat() -> None:
        if file.exists() and (text := file.read_text()):
            found.append(text)
            raise LeaseLost("seen")

    settings = replace(FAULTY, builders=1, lock_folder=str(tmp_path))
    with LocalExecutor(host_target(), settings=settings, fence=5) as executor:
        executor.heartbeat = heartbeat
        with pytest.raises(LeaseLost, match="seen"):
            list(executor.measure(add_one(), [schedule("loops_for_ever")]))
        assert json.loads(found[0])["fence"] == 5
        with DeviceLock(local_unit().uuid, tmp_path, fence=6).held(lambda: None):
            assert json.loads(file.read_text())["fence"] == 6


SCRIPT = textwrap.dedent(
    """
    import itertools, sys, time
    from dataclasses import replace
    from tilewright.core.fleet import LeaseLost
    from tilewright.runtime.devices import host_target
    from tilewright.tests.contracts.test_executors import FAULTY
    from tilewright.tests.workers.faulty_kernels import add_one, schedule
    from tilewright.workers.lease_guard import LeaseGuard
    from tilewright.workers.local import LocalExecutor

    with LocalExecutor(host_target(), settings=replace(FAULTY, builders=1)) as executor:
        list(executor.measure(add_one(), [schedule("good")]))
        until = time.monotonic() + float(sys.argv[1])
        executor.allowed = LeaseGuard(until)
        print(until, flush=True)
        try:
            for _, trial in executor.measure(add_one(), itertools.repeat(schedule("good"))):
                print("trial", flush=True)
        except LeaseLost:
            print("lost", flush=True)
    """
)


def test_a_process_that_was_stopped_past_its_lease_times_nothing_more() -> None:
    """At most the one candidate that was on the device when the process was stopped is reported afterwards."""
    program = subprocess.Popen([sys.executable, "-c", SCRIPT, "3.0"], stdout=subprocess.PIPE, bufsize=0)
    assert program.stdout is not None
    until = float(program.stdout.readline())
    assert program.stdout.readline() == b"trial\n"
    children = psutil.Process(program.pid).children(recursive=True)
    os.kill(program.pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(program.pid, os.WUNTRACED)[1])
    while select.select([program.stdout], [], [], 0)[0]:  # what it had printed before it was stopped
        assert b"lost" not in program.stdout.read(1 << 16)
    time.sleep(max(0.0, until - time.monotonic()))
    os.kill(program.pid, signal.SIGCONT)
    assert program.communicate(timeout=60)[0].split() in ([b"lost"], [b"trial", b"lost"])
    assert program.returncode == 0
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
