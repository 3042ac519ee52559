"""What the death of a task worker says about its task."""

import signal

import pytest

from tilewright.core.fleet import AttemptEnd
from tilewright.service.worker_death import WorkerDeath


@pytest.mark.parametrize(
    ("death", "end"),
    [
        (WorkerDeath(-signal.SIGKILL, False, 3, 3), AttemptEnd.KILLED),
        (WorkerDeath(-signal.SIGKILL, False, 3, 4), AttemptEnd.ACTOR_LOST),  # memory ran out meanwhile
        (WorkerDeath(-signal.SIGKILL, False, None, None), AttemptEnd.ACTOR_LOST),  # nobody knows whether it did
        (WorkerDeath(-signal.SIGKILL, True, 3, 3), AttemptEnd.ACTOR_LOST),  # it did not answer
        (WorkerDeath(-signal.SIGSEGV, False, 3, 3), AttemptEnd.ACTOR_LOST),
        (WorkerDeath(0, False, 3, 3), None),
        (WorkerDeath(1, False, 3, 3), None),
    ],
)
def test_only_a_kill_from_outside_says_nothing_about_the_task(death: WorkerDeath, end: AttemptEnd | None) -> None:
    assert death.end is end
