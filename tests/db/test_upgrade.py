"""A server's database is upgraded while programs of the version before use it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tilewright.core.errors import StoreError
from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url
from tilewright.db.store import RecordStore
from tilewright.tests.db.fleets import claimed, migrated, submit, trial
from tilewright.tests.db.postgres import PostgresServer

pytestmark = pytest.mark.postgres
NEXT = '''
"""Stands for the migration of the next version."""
from alembic import op
from sqlalchemy import Column, Float
revision, down_revision, lives_with_before = "9999", "{head}", {lives}
online = ("SELECT pg_sleep({pause})", "CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_next ON trials (host)")
def upgrade():
    op.add_column("trials", Column("next", Float(), nullable=False, server_default="1"))
    op.create_index("ix_next", "trials", ["host"], if_not_exists=True)
'''
NEXT_PROGRAM = """
import sys
from importlib.resources import files
from pathlib import Path
from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url
folder = Path(sys.argv[2])
made = migrate._config
def config():
    found = made()
    own = found.get_main_option("script_location")
    found.set_main_option("version_locations", f"{own}/versions {folder}")
    found.set_main_option("path_separator", "space")
    return found
migrate._config = config
"""
"""The next version: this program with one more migration."""
UPGRADES = """
print("begins", flush=True)
print(migrate.upgrade(Database(parse_url(sys.argv[1])))[1], flush=True)
"""
RECORDS = """
from tilewright.db.store import RecordStore
from tilewright.tests.db.fleets import claimed, submit, trial
with RecordStore(sys.argv[1]) as store:
    submit(store, "next", trials=1_000_000)
    held = claimed(store, "next")
    for number, line in enumerate(sys.stdin):
        store.add_trial(trial("next", 0, number), lease=held.lease)
        print(number, flush=True)
"""


def next_version(
    url: str, folder: Path, *, does: str = UPGRADES, lives: bool = True, pause: float = 0.0
) -> "subprocess.Popen[str]":
    folder.mkdir(exist_ok=True)
    (folder / "v9999_next.py").write_text(NEXT.format(head=migrate.head(), lives=lives, pause=pause))
    words = [sys.executable, "-c", NEXT_PROGRAM + does, url, str(folder)]
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def both_record(url: str, folder: Path, recording: list[int], count: int) -> None:
    """Let the next version record trials of a job of its own, while this version records all the while."""
    beside = next_version(url, folder, does=RECORDS)
    assert beside.stdin is not None and beside.stdout is not None
    for number in range(count):
        beside.stdin.write("one more\n")
        beside.stdin.flush()
        assert beside.stdout.readline() == f"{number}\n"
        more(recording)
    assert beside.communicate()[0] == "" and beside.returncode == 0


@pytest.fixture
def recording(own_store: RecordStore) -> Iterator[list[int]]:
    """A program of this version that records trials all the while; what is given grows with each that was stored."""
    submit(own_store, "j", trials=1_000_000)
    held, ending, stored, failed = claimed(own_store), threading.Event(), list[int](), list[BaseException]()

    def record() -> None:
        try:
            while not ending.is_set():
                own_store.add_trial(trial("j", 0, len(stored)), lease=held.lease)
                stored.append(len(stored))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=record)
    thread.start()
    yield stored
    ending.set()
    thread.join()
    assert not failed
    assert own_store.job("j").tasks[0].trials == len(stored)


def more(stored: list[int]) -> None:
    """Wait until another trial was stored."""
    end = threading.Event()
    before = len(stored)
    for _ in range(1200):
        if len(stored) > before:
            return
        end.wait(0.1)
    raise AssertionError("nothing is recorded any more")


def test_the_version_before_goes_on_through_an_upgrade_that_was_killed(
    own_store: RecordStore, recording: list[int], tmp_path: Path
) -> None:
    url = own_store.database.url.render_as_string(hide_password=False)
    killed = next_version(url, tmp_path / "next", pause=600.0)
    assert killed.stdout is not None and killed.stdout.readline() == "begins\n"
    in_the_middle = (
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600%' AND pid <> pg_backend_pid()"
    )
    for _ in range(600):
        with own_store.database.reading() as connection:
            if connection.execute(text(in_the_middle)).scalar_one():
                break
        threading.Event().wait(0.1)
    else:
        raise AssertionError("the upgrade did not come to its middle")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    with own_store.database.writing() as connection:  # what the server does once it has missed the client
        connection.execute(text(in_the_middle.replace("count(*)", "pg_terminate_backend(pid)")))
    more(recording)
    resumed = next_version(url, tmp_path / "next")
    assert resumed.communicate()[0] == "begins\n9999\n" and resumed.returncode == 0
    more(recording)
    own_store.ping()  # it is ready, beside the next version
    with RecordStore(url) as again:  # and may be started again
        assert again.job("j").state == "running"
    both_record(url, tmp_path / "next", recording, 10)
    assert own_store.job("next").tasks[0].trials == 10
    with own_store.database.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM trials WHERE next = 1")).scalar_one() > 10
        assert not connection.execute(text("SELECT 1 FROM pg_index WHERE NOT indisvalid")).all()
    database = Database(parse_url(url))
    assert migrate.upgrade(database) == ("9999", "9999")  # nothing is left to do
    database.close()


def test_a_version_that_cannot_live_with_the_upgrade_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.url()
    migrated(url).close()
    done = next_version(url, tmp_path / "next", lives=False)
    assert done.communicate()[0] == "begins\n9999\n"
    with pytest.raises(StoreError, match="at migration 9999, which this program does not know"):
        RecordStore(url)
