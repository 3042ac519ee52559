"""Processes on one PostgreSQL tell each other of their commits."""

import threading

import pytest
from sqlalchemy import text

from tilewright.db.store import RecordStore
from tilewright.service.notifier import LISTENING_POLL_SECONDS, POLL_SECONDS, CommitNotifier
from tilewright.tests.db.fleets import migrated
from tilewright.tests.db.postgres import PostgresServer

LONG_SECONDS = 120.0


@pytest.fixture(scope="module")
def shared_url(postgres: PostgresServer) -> str:
    return postgres.url()


@pytest.mark.postgres
def test_a_commit_of_another_process_wakes_whoever_waits(shared_url: str) -> None:
    """Two stores stand for two processes: each has connections of its own."""
    ready = threading.Event()
    with migrated(shared_url) as one, RecordStore(shared_url) as other:
        teller, waiter = CommitNotifier(one, lambda: None), CommitNotifier(other, ready.set)
        try:
            assert teller.wait_for(lambda: teller.poll_seconds() == LISTENING_POLL_SECONDS, LONG_SECONDS)
            assert waiter.wait_for(ready.is_set, LONG_SECONDS)
            ready.clear()
            teller.notify(tasks=True)
            assert ready.wait(LONG_SECONDS)
            ready.clear()
            # after a restart it listens again, and looks for tasks, because it may have missed something
            with one.database.writing() as connection:
                ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
                connection.execute(text(ended + " OR query LIKE '%pg_notify%' AND pid <> pg_backend_pid()"))
            assert ready.wait(LONG_SECONDS)
            assert waiter.wait_for(lambda: waiter.poll_seconds() == LISTENING_POLL_SECONDS, LONG_SECONDS)
        finally:
            for notifier in (teller, waiter):
                notifier.close()
                notifier.stop()
        assert waiter.poll_seconds() == POLL_SECONDS
