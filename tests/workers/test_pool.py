"""Worker pools, with supervisors that are lost when they are interrupted, as builder actors are."""

import threading
from concurrent.futures import CancelledError

import pytest

from tilewright.core.errors import WorkerLost
from tilewright.workers.pool import WorkerPool


class Fragile:
    """It counts as lost once it is interrupted, and its call then ends."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self.closed = threading.Event()

    @property
    def is_lost(self) -> bool:
        return self.interrupted.is_set()

    def start(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        self.closed.set()

    def work(self, begun: threading.Event) -> None:
        begun.set()
        self.interrupted.wait()
        raise WorkerLost("interrupted")


def test_idle_supervisors_that_are_lost_leave_without_new_work() -> None:
    """Whoever counts the members starts others in their place."""
    members = [Fragile() for _ in range(4)]
    pool = WorkerPool(members, "fragile")
    begun = threading.Event()
    running = pool.submit(lambda member: member.work(begun))
    begun.wait()
    pool.abandon()
    assert isinstance(running.exception(), WorkerLost)
    for member in members:
        member.closed.wait()
    waiting = pool.submit(lambda member: id(member))
    replacement = Fragile()
    pool.add(replacement)
    assert waiting.result() == id(replacement)
    pool.close()
    assert replacement.closed.is_set() and len(pool) == 0


def test_a_closed_pool_answers_all_work_and_takes_no_more() -> None:
    pool: WorkerPool[Fragile] = WorkerPool([Fragile()], "fragile")
    begun = threading.Event()
    running = pool.submit(lambda member: member.work(begun))
    begun.wait()
    waiting = pool.submit(lambda member: id(member))
    pool.close()
    assert isinstance(running.exception(), WorkerLost)
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(WorkerLost, match="is closed"):
        pool.submit(lambda member: id(member))


def test_a_failed_pool_answers_what_waits() -> None:
    pool: WorkerPool[Fragile] = WorkerPool([], "fragile")
    waiting = pool.submit(lambda member: id(member))
    pool.fail(WorkerLost("none will join"))
    for ask in (waiting.result, lambda: pool.submit(lambda member: id(member))):
        with pytest.raises(WorkerLost, match="none will join"):
            ask()
    pool.close()
