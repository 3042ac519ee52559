"""Bugs of a code generator do not get past the measuring path that every tuning run takes."""

from collections.abc import Iterator, Sequence

import pytest

from tilewright.core.trial import Failed, Outcome, Timed, TrialStage
from tilewright.runtime.devices import host_target
from tilewright.tests.workers.any_noise import ANY_NOISE
from tilewright.tests.workers.planted import BUGS, NONE, is_written, schedule, workload_named
from tilewright.workers.local import LocalExecutor
from tilewright.workers.settings import Deadlines, ExecutorSettings

SETTINGS = ExecutorSettings("tilewright.tests.workers.planted:build", Deadlines(check=2.0), ANY_NOISE, builders=2)
WORKLOADS = tuple(dict.fromkeys(bug.name for bug in BUGS.values()))


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    with LocalExecutor(host_target(), settings=SETTINGS) as opened:
        yield opened


def outcomes(executor: LocalExecutor, name: str, planted: Sequence[str]) -> list[Outcome]:
    """How the kernels of a workload with these bugs end, in this order."""
    schedules = [schedule(name, host_target(), bug) for bug in planted]
    found = dict(executor.measure(workload_named(name), schedules))
    return [found[n].outcome for n in range(len(planted))]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_planted_bug_fails_for_its_reason_and_the_kernel_without_it_is_timed(
    executor: LocalExecutor, name: str
) -> None:
    if not is_written(name, host_target()):
        pytest.skip("this machine lacks the instructions")
    planted = [bug for bug, b in BUGS.items() if b.name == name]
    *failed, good = outcomes(executor, name, [*planted, NONE])
    assert isinstance(good, Timed), good
    for bug, outcome in zip(planted, failed, strict=True):
        assert isinstance(outcome, Failed), f"{bug} was not seen: {outcome}"
        assert (outcome.stage, outcome.reason) == (TrialStage.CHECK, BUGS[bug].reason), f"{bug}: {outcome}"
        assert BUGS[bug].says in outcome.detail, f"{bug}: {outcome}"


def test_there_are_enough_of_them() -> None:
    assert (
        len([b for b in BUGS.values() if is_written(b.name, host_target())]) >= 10
        and len({b.reason for b in BUGS.values()}) >= 5
    )
