"""A database that cannot serve says so in one line, and nothing is lost."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, event

from tilewright.core.budget import Budget
from tilewright.core.errors import InvalidParameter, StorageFull, StoreError
from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url
from tilewright.db.rows import NewJob, NewTask
from tilewright.db.store import RecordStore
from tilewright.tests.db.postgres import server
from tilewright.tests.db.small_disk import small_disk


def new_job(name: str, padding: int = 0) -> NewJob:
    task = NewTask(f"{name:0>64}", {"stages": ["x" * padding]}, "C[i] = A[i]", 1, 4)
    return NewJob(name, "queued", (task,), Budget(), "random", 0, "llvm", "local", "warm")


def url(path: Path) -> str:
    return f"sqlite:///{path}"


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that has the database open."""
    program = (
        "import sys; from tilewright.db.store import RecordStore; RecordStore(sys.argv[1]); "
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, url(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def test_a_second_process_is_told_which_one_has_the_database(tmp_path: Path) -> None:
    path = tmp_path / "tilewright.sqlite3"
    with holder(path) as child:
        with pytest.raises(StoreError, match=rf"in use by process {child.pid} \(-c .*one process at a time"):
            RecordStore(url(path))
        child.send_signal(signal.SIGKILL)
        child.wait()
        RecordStore(url(path)).close()  # a killed process holds nothing


def test_the_lock_ends_with_the_store(tmp_path: Path) -> None:
    path = tmp_path / "tilewright.sqlite3"
    first = RecordStore(url(path))
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()} "):
        RecordStore(url(path))
    first.close()
    RecordStore(url(path)).close()


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "tilewright.sqlite3"
    RecordStore(url(path)).close()
    assert path.exists()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (Path("/proc/nowhere/tilewright.sqlite3"), "cannot use the folder /proc/nowhere"),
        (Path("/proc/tilewright.sqlite3"), r"cannot write /proc/tilewright.sqlite3.lock"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(path: Path, said: str) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        RecordStore(url(path))
    assert "\n" not in caught.value.message


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        RecordStore(url(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop its rights")
def test_a_database_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tilewright.sqlite3"
    RecordStore(url(path)).close()
    for mode in (0o700, 0o755):  # cannot even look into the folder; can look, but not write
        tmp_path.chmod(mode)
        child = os.fork()
        if child == 0:  # a copy of this process without rights; it never returns into pytest
            status = 1
            try:
                os.setgid(65534)
                os.setuid(65534)
                with pytest.raises(StoreError, match=r"cannot (use|write) .*: Permission denied"):
                    RecordStore(url(path))
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    path.write_text("these are my notes, " * 100)
    with pytest.raises(StoreError, match="is no SQLite database"):
        RecordStore(url(path))
    assert path.read_text().startswith("these are my notes")


def test_a_read_only_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tilewright.sqlite3"
    with RecordStore(url(path)) as store:
        event.listen(store.database.engine, "begin", lambda c: c.exec_driver_sql("PRAGMA query_only=ON"))
        with pytest.raises(StoreError, match="is read-only"):
            store.create_job(new_job("j"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 2) as folder:
        yield folder


def test_a_full_disk_loses_nothing_and_goes_on_when_there_is_room(disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * (1 << 20))
    path = disk / "tilewright.sqlite3"
    kept = []
    with RecordStore(url(path)) as store:
        with pytest.raises(StorageFull, match="the disk is full"):
            for number in range(100):
                store.create_job(new_job(f"j{number}", padding=50_000))
                kept.append(f"j{number}")
        assert kept
        assert [job.id for job in store.jobs(limit=200)] == kept[::-1]
        ballast.unlink()
        store.create_job(new_job("after"))
        assert [job.id for job in store.jobs(limit=200)] == ["after", *kept[::-1]]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_disk_too_full_to_begin_on_is_told(disk: Path) -> None:
    (disk / "ballast").write_bytes(b"x" * (2 * (1 << 20) - 4096))
    with pytest.raises(StoreError, match=r"the disk is full|No space left"):
        RecordStore(url(disk / "tilewright.sqlite3"))


@pytest.mark.parametrize("text", ["", "nonsense", "mysql://a/b", "sqlite://", "sqlite:///", "postgresql://[::1"])
def test_a_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_url(text)
    assert caught.value.field == "database_url"


def test_a_password_is_never_shown() -> None:
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        RecordStore("postgresql://tw:secret@127.0.0.1:1/none")
    assert "secret" not in caught.value.message and "127.0.0.1:1" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.postgres
def test_a_server_that_goes_away_is_told_and_found_again() -> None:
    with server() as running:
        address = running.url()
        with pytest.raises(StoreError, match=re.escape("run `tilewright db upgrade`")):
            RecordStore(address)
        missing = address.replace("/test_1", "/other")
        with pytest.raises(StoreError, match=r"no such database|cannot be reached"):
            RecordStore(missing)
        upgraded(address)
        with RecordStore(address) as store, RecordStore(address) as other:
            store.create_job(new_job("j"))
            running.stop()
            for ask in (lambda: store.job("j"), lambda: store.create_job(new_job("k")), store.ping):
                with pytest.raises(StoreError) as caught:
                    ask()
                assert "\n" not in caught.value.message
            running.start()
            assert store.job("j").id == "j"
            assert other.job("j").id == "j"


def upgraded(address: str) -> None:
    database = Database(parse_url(address))
    migrate.upgrade(database)
    database.close()


def test_pages_of_a_file_are_read_where_they_lie(tmp_path: Path) -> None:
    """Each look-up among many workloads reads other pages. They are not copied by system calls."""
    counts = Path("/proc/self/io")
    if not counts.exists():
        pytest.skip("this system does not count reads")

    def reads() -> int:
        return int(counts.read_text().split()[5])

    path, rows = tmp_path / "mapped.sqlite3", 4_000
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE wide (id INTEGER PRIMARY KEY, text TEXT)")
        other.executemany("INSERT INTO wide VALUES (?, ?)", ((number, "x" * 3_000) for number in range(rows)))
    other.close()
    database = Database(parse_url(url(path)))
    try:
        with database.autocommit() as connection:
            before = reads()
            for number in range(rows):
                connection.exec_driver_sql("SELECT text FROM wide WHERE id = ?", (7 * number % rows,)).one()
            assert reads() - before < rows // 10
    finally:
        database.close()


def test_who_reads_for_the_first_time_waits_for_no_writer(tmp_path: Path) -> None:
    """Look-ups run on the event loop, which stands still while they do."""
    database, found = Database(parse_url(url(tmp_path / "read.sqlite3"))), list[int]()

    def read() -> None:
        with database.autocommit() as connection:
            found.append(connection.exec_driver_sql("SELECT 1").scalar_one())

    reader = threading.Thread(target=read)
    try:
        with database.writing():
            reader.start()
            reader.join(20.0)
            assert found == [1]
    finally:
        reader.join()
        database.close()


def test_threads_share_the_connections_that_read(tmp_path: Path) -> None:
    """Each maps the file anew: a thread that begins would wait for every page of it. None is left open."""
    database, found = Database(parse_url(url(tmp_path / "shared.sqlite3"))), list[Connection]()

    def read() -> None:
        with database.autocommit() as connection:
            found.append(connection)

    for _ in range(3):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    with database.autocommit() as first:
        read()  # while another one reads
        database.close()
        assert not first.closed
    assert found[:3] == [first] * 3 and found[3] is not first
    assert first.closed and found[3].closed
