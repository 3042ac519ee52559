"""Events on PostgreSQL lie in partitions by month, which come by themselves and go whole."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tilewright.core.fleet import TaskClaim
from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url
from tilewright.db.partitions import make_months, month_start, partitions
from tilewright.db.retention import Retention, delete_old
from tilewright.db.store import RecordStore
from tilewright.service.database_care import back_up_database, check_database, restore_database
from tilewright.service.settings import Settings
from tilewright.tests.db.fleets import claimed, finish, submit, trial
from tilewright.tests.db.postgres import PostgresServer

pytestmark = pytest.mark.postgres
UPGRADE = """
import sys
from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url
print(migrate.upgrade(Database(parse_url(sys.argv[1])), "0020"), flush=True)
"""
"""To the last migration that the version at 0016 lives with."""


def month(later: int) -> datetime:
    """The start of a month, counted from the present one."""
    return month_start(datetime.now(UTC), later)


def name(later: int) -> str:
    return f"events_{month(later):%Y_%m}"


def move(connection: Connection, job: int, later: int) -> None:
    """Let the events and the job be of another month."""
    at = (month(later) + timedelta(days=9)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    connection.execute(text("UPDATE events SET created_at = :at WHERE job = :job"), {"at": at, "job": job})
    connection.execute(text("UPDATE jobs SET created_at = :at WHERE number = :job"), {"at": at, "job": job})


def places(opened: RecordStore) -> dict[str, set[int]]:
    """Partition -> the jobs whose events it has."""
    with opened.database.reading() as connection:
        found: dict[str, set[int]] = {}
        for where, job in connection.execute(text("SELECT CAST(CAST(tableoid AS regclass) AS text), job FROM events")):
            found.setdefault(where, set()).add(job)
        return found


def measured(opened: RecordStore, job: str, *, ends: bool = True) -> TaskClaim:
    """Store a job with trials."""
    submit(opened, job)
    held = claimed(opened, job)
    for sequence, seconds in enumerate((2e-6, None, 1e-6)):
        opened.add_trial(trial(job, 0, sequence, seconds), lease=held.lease)
    if ends:
        finish(opened, held)
    return held


def kinds(opened: RecordStore, job: str) -> set[str]:
    return {event.kind for event in opened.events(job, after=0, limit=99)}


def test_months_are_made_ahead_and_events_lie_in_theirs(own_store: RecordStore) -> None:
    assert make_months(own_store.database, month(0)) == [name(2)]
    assert make_months(own_store.database, month(0)) == []
    for job, later in enumerate((0, 2, 4), start=1):
        submit(own_store, f"j{job}")
        with own_store.database.writing() as connection:
            move(connection, job, later)
    assert places(own_store) == {"events_first": {1}, name(2): {2}, "events_default": {3}}
    before = [own_store.events(f"j{job}", after=0, limit=9) for job in (1, 2, 3)]
    assert make_months(own_store.database, month(2)) == [name(3), name(4)]  # nobody had made it in time
    assert places(own_store) == {"events_first": {1}, name(2): {2}, name(4): {3}}
    assert [own_store.events(f"j{job}", after=0, limit=9) for job in (1, 2, 3)] == before
    submit(own_store, "new")  # ids go on
    assert own_store.events("new", after=0, limit=1)[0].id > before[-1][-1].id


def test_old_months_go_but_for_what_is_to_stay(
    own_store: RecordStore, postgres: PostgresServer, tmp_path: Path
) -> None:
    make_months(own_store.database, month(3))
    held = {}
    for job, later in (("old", 1), ("open", 1), ("later", 2), ("young", 4)):
        held[job] = measured(own_store, job, ends=job != "open")
        with own_store.database.writing() as connection:
            number = int(connection.execute(text("SELECT max(number) FROM jobs")).scalar_one())
            move(connection, number, later)
            old = "UPDATE jobs SET finished_at = created_at WHERE finished_at IS NOT NULL AND number = :number"
            connection.execute(text(old), {"number": number})
    told = own_store.events("open", after=0, limit=99)

    def deleted_in(later: int) -> int:
        days = (datetime.now(UTC) - month(later)) / timedelta(days=1)
        return delete_old(own_store.database, Retention(events=days))["events"]

    assert deleted_in(1) == 0
    assert deleted_in(2) == 5  # three trials, and two of them were the best
    assert deleted_in(2) == 0
    assert kinds(own_store, "old") == {"state", "task"} < kinds(own_store, "later")
    assert own_store.events("open", after=0, limit=99) == told
    assert f"events_before_{month(2):%Y_%m}" in places(own_store) and name(2) in places(own_store)
    finish(own_store, held["open"])
    with own_store.database.writing() as connection:
        connection.execute(text("UPDATE jobs SET finished_at = created_at WHERE id = 'open'"))
    assert deleted_in(3) == 10  # those of the next month, and what had stayed of a job that has ended since
    assert set(places(own_store)) == {f"events_before_{month(3):%Y_%m}", name(4)}
    assert kinds(own_store, "young") == {"state", "task", "trial", "best"}

    file, other = tmp_path / "copy", postgres.url()
    back_up_database(Settings(database_url=own_store.database.url.render_as_string()), file)
    restore_database(Settings(database_url=other), file)
    assert check_database(Settings(database_url=other)) == []
    with RecordStore(other) as restored:
        assert places(restored) == places(own_store)
        with own_store.database.reading() as one, restored.database.reading() as two:
            assert partitions(one) == partitions(two)
            assert migrate.differences(two) == []
        measured(restored, "new")
        assert make_months(restored.database, month(4)) == [name(6)]


def test_a_job_is_read_and_written_while_older_months_are_locked(own_store: RecordStore) -> None:
    make_months(own_store.database, month(1))
    submit(own_store, "j")
    with own_store.database.writing() as connection:
        move(connection, 1, 2)
    with own_store.database.writing() as connection:
        connection.exec_driver_sql("LOCK TABLE ONLY events_first IN ACCESS EXCLUSIVE MODE")
        assert len(own_store.events("j", after=0, limit=9)) == 1


@contextmanager
def recording(opened: RecordStore) -> Iterator[list[int]]:
    """Record trials all the while; what is given grows with each that was stored."""
    submit(opened, "j", trials=1_000_000)
    held, ending, stored, failed = claimed(opened), threading.Event(), list[int](), list[BaseException]()

    def record() -> None:
        try:
            while not ending.is_set():
                opened.add_trial(trial("j", 0, len(stored)), lease=held.lease)
                stored.append(len(stored))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=record)
    thread.start()
    try:
        yield stored
    finally:
        ending.set()
        thread.join()
    assert not failed


def upgrading(url: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", UPGRADE, url], stdout=subprocess.PIPE, text=True)


def test_the_table_becomes_a_partition_while_the_version_before_records(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade is killed once, while it makes its index."""
    url = postgres.url()
    database = Database(parse_url(url))
    migrate.upgrade(database, "0016")
    monkeypatch.setattr(migrate, "check", lambda _: None)  # the version before writes as this one, but for two columns
    with database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN counted BOOLEAN")
        connection.exec_driver_sql("ALTER TABLE tasks ADD COLUMN improvement FLOAT")
    with RecordStore(url) as opened, recording(opened) as stored:
        with database.writing() as writer:
            writer.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            writer.exec_driver_sql("LOCK TABLE events IN ROW EXCLUSIVE MODE")  # the index waits until this ends
            killed = upgrading(url)
            wait_for(database, "query LIKE 'CREATE UNIQUE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'")
            os.kill(killed.pid, signal.SIGKILL)
            killed.communicate()
        wait_for(database, "query LIKE 'CREATE UNIQUE INDEX CONCURRENTLY%'", there=False)
        before = len(stored)
        resumed = upgrading(url)
        assert resumed.communicate()[0] == "('0016', '0020')\n"
        while len(stored) < before + 20:
            threading.Event().wait(0.01)
    assert migrate.upgrade(database) == ("0020", migrate.head())
    with RecordStore(url) as opened:
        ids = [event.data["record_id"] for event in opened.events("j", after=0, limit=10**6) if event.kind == "trial"]
        assert len(ids) == len(set(ids)) == len(stored) == opened.job("j").tasks[0].trials
        with opened.database.reading() as connection:
            assert migrate.differences(connection) == []
            assert partitions(connection) == {"events_first": month(2).strftime("%Y-%m-%dT%H:%M:%S.000000Z")}
            assert not connection.execute(text("SELECT 1 FROM pg_index WHERE NOT indisvalid")).all()
        assert make_months(opened.database, month(0)) == [name(2)]
    assert check_database(Settings(database_url=url)) == []
    database.close()


def wait_for(database: Database, condition: str, *, there: bool = True) -> None:
    """Wait until a session of the database is as the condition says, or none is."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
    for _ in range(600):
        with database.reading() as connection:
            if bool(connection.execute(text(query)).scalar_one()) == there:
                return
        threading.Event().wait(0.1)
    raise AssertionError(condition)
