"""What the death of a task worker says about its task."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tilewright.core.fleet import AttemptEnd
from tilewright.service.worker_death import ProcessorUse, WorkerDeath, memory_kills
from tilewright.service.worker_journal import WorkerJournal

URL = "postgresql://someone:secret@db.example/tilewright"
SERVICE = """
import sys
from pathlib import Path
from tilewright.service.worker_journal import WorkerJournal

journal = WorkerJournal(Path(sys.argv[1]), sys.argv[2])
journal.write(["first", "second"])
journal.write(["third"])
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("death", "end"),
    [
        (WorkerDeath(-signal.SIGKILL, False, 3, 3), AttemptEnd.KILLED),
        (WorkerDeath(-signal.SIGKILL, False, 3, 4), AttemptEnd.ACTOR_LOST),  # memory ran out meanwhile
        (WorkerDeath(-signal.SIGKILL, False, None, None), AttemptEnd.ACTOR_LOST),  # nobody knows whether it did
        (WorkerDeath(-signal.SIGKILL, True, 3, 3), AttemptEnd.ACTOR_LOST),  # it did not answer
        (WorkerDeath(-signal.SIGKILL, True, 3, 3, held_up=True), AttemptEnd.HOLDER_DELAYED),  # and could not
        (WorkerDeath(-signal.SIGSEGV, False, 3, 3), AttemptEnd.ACTOR_LOST),
        (WorkerDeath(0, False, 3, 3), None),
        (WorkerDeath(1, False, 3, 3), None),
    ],
)
def test_only_a_kill_from_outside_says_nothing_about_the_task(death: WorkerDeath, end: AttemptEnd | None) -> None:
    assert death.end is end


def test_a_silent_process_that_was_stopped_is_told_from_one_that_waits_for_something() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        before = ProcessorUse.of(process.pid)
        assert before is not None
        waiting = ProcessorUse("S", before.seconds)
        assert not waiting.held_up(before, 1.0)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        stopped = ProcessorUse.of(process.pid)
        assert stopped is not None and stopped.held_up(before, 1.0)
        process.kill()
    assert ProcessorUse.of(process.pid) is None
    starved, busy = ProcessorUse("SR", 0.4), ProcessorUse("RS", 2.0)
    nothing = ProcessorUse("R", 0.0)
    assert starved.held_up(nothing, 1.0) and not busy.held_up(nothing, 1.0)


def test_workers_of_a_service_that_was_killed_are_reported_by_the_next_one(tmp_path: Path) -> None:
    journal = WorkerJournal(tmp_path, URL)
    journal.write(["own"])
    pipe, paths = subprocess.PIPE, os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(tmp_path), URL],
        stdin=pipe,
        stdout=pipe,
        env={**os.environ, "PYTHONPATH": paths},
    ) as service:
        assert service.stdout is not None and service.stdout.readline() == b"written\n"
        assert list(journal.dead_workers()) == []  # it lives
        service.kill()
    psutil.wait_procs([service])
    another = WorkerJournal(tmp_path, URL + "2")
    assert list(another.dead_workers()) == []  # they are of another database
    ((owner, death),) = journal.dead_workers()
    assert (owner, death.status, death.memory_kills_after) == ("third", -signal.SIGKILL, memory_kills())
    assert list(journal.dead_workers()) == []  # that was said
    another.close()
    journal.close()
    assert list(tmp_path.iterdir()) == []
