"""Runs a private PostgreSQL server for tests. It has its own data folder and socket, which are removed afterwards."""

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from tilewright.tests.db.small_disk import small_disk

NEEDED = ("initdb", "pg_ctl")
PREFIX = "tw-pg-"
UP_SECONDS = 60.0
"""A server that had no room answers within so long once it has."""


def programs() -> Path | None:
    """Return the folder of the newest installed server's programs; None when there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    for folder in reversed(found):
        if all((folder / name).exists() for name in NEEDED):
            return folder
    first = shutil.which("initdb")
    return Path(first).parent if first is not None and shutil.which("pg_ctl") is not None else None


class PostgresServer:
    """Is a running server. ``url`` makes an empty database and returns its address."""

    def __init__(self, folder: Path, data: Path, bin_folder: Path, durable: bool, namespace: str) -> None:
        self._data = data
        self._socket = folder
        self._bin = bin_folder
        self._fsync = "on" if durable else "off"
        self._namespace = namespace
        self._databases = 0

    def url(self) -> str:
        self._databases += 1
        name = f"test_{self._databases}"
        engine = create_engine(self._address("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self._address(name)

    def url_at(self, host: str, url: str) -> str:
        """The address of a database for those who reach the server over the network at ``host``."""
        return make_url(url).set(host=host, query={}).render_as_string(hide_password=False)

    def _address(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self._socket}"

    def start(self) -> None:
        # there is no TCP; durability is PostgreSQL's own business, which tests are not about
        listen = "*" if self._namespace else ""
        options = f"-c listen_addresses='{listen}' -c unix_socket_directories={self._socket} -c fsync={self._fsync}"
        options += " -c max_wal_size=64MB -c min_wal_size=32MB"
        command: list[str | Path] = [self._bin / "pg_ctl", "-D", self._data, "-w", "-o", options]
        run([*command, "-l", self._socket / "log", "start"], self._namespace)

    def fill_disk(self, seconds: float) -> None:
        """Leave the server no room on its disk for so long. It may end itself then, and is started again."""
        filler = self._data.parent / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass
        time.sleep(seconds)
        filler.unlink()
        end = time.monotonic() + UP_SECONDS
        while not self._answers():
            assert time.monotonic() < end, (self._socket / "log").read_text()[-4000:]
            with suppress(AssertionError):  # it has begun to start by itself
                self.start()

    def _answers(self) -> bool:
        engine = create_engine(self._address("postgres"))
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("CREATE TEMPORARY TABLE room (i integer)")
        except SQLAlchemyError:
            return False
        finally:
            engine.dispose()
        return True

    def processes(self) -> list[psutil.Process]:
        """The server and its children, the server first."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]

    def stop(self) -> None:
        run([self._bin / "pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop"])


def run(command: list[str | Path], namespace: str = "") -> None:
    """Run a server program, as the user ``postgres`` when we are root (the server refuses to run as root). In a network
    ``namespace`` where one is named."""
    words = [str(word) for word in command]
    if os.geteuid() == 0:
        words = ["runuser", "-u", "postgres", "--", *words]
    if namespace:
        words = ["ip", "netns", "exec", namespace, *words]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def _first_data(bin_folder: Path) -> Path:
    """The folder of a server that was never started. To copy it takes a tenth of the time of making it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    data = folder / "data"
    run([bin_folder / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"])
    return data


@contextmanager
def server(durable: bool = False, mebibytes: int | None = None, namespace: str = "") -> Iterator[PostgresServer]:
    """Start a server for the block, which waits for its disk if it is to be ``durable``; with ``mebibytes``, on a disk
    of so much room; with ``namespace``, in that network, where it listens. Skip the test where PostgreSQL is not
    installed."""
    bin_folder = programs()
    if bin_folder is None:
        pytest.skip("PostgreSQL is not installed")
    # pytest's folders are too deep: a socket's path may have 107 characters at most
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        with nullcontext(folder) if mebibytes is None else small_disk(folder / "disk", mebibytes) as disk:
            if os.geteuid() == 0:
                shutil.chown(disk, "postgres", "postgres")
            data = disk / "data"
            run(["cp", "-r", "--preserve=mode", _first_data(bin_folder), data])
            if namespace:
                with (data / "pg_hba.conf").open("a") as rules:
                    rules.write("host all all 10.77.0.0/16 trust\n")
            running = PostgresServer(folder, data, bin_folder, durable, namespace)
            running.start()
            try:
                yield running
            finally:
                running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> None:
    """End servers of processes that were killed, which could not do so themselves, and remove their folders."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not owner.isdecimal() or psutil.pid_exists(int(owner)):
            continue
        for data in (folder / "data", folder / "disk" / "data"):
            with suppress(OSError, ValueError, IndexError, psutil.Error):
                first = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
                for process in (*first.children(recursive=True), first):
                    process.kill()
        if (folder / "disk").is_mount():
            subprocess.run(["umount", "-l", str(folder / "disk")], check=False)
        shutil.rmtree(folder, ignore_errors=True)
