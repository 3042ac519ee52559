"""Runs a private PostgreSQL server for tests. It has its own data folder and socket, which are removed afterwards."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine

NEEDED = ("initdb", "pg_ctl")


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

    def __init__(self, folder: Path, bin_folder: Path, durable: bool = False) -> None:
        self._data = folder / "data"
        self._socket = folder
        self._bin = bin_folder
        self._fsync = "on" if durable else "off"
        self._databases = 0

    def url(self) -> str:
        self._databases += 1
        name = f"test_{self._databases}"
        engine = create_engine(self._address("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self._address(name)

    def _address(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self._socket}"

    def start(self) -> None:
        # there is no TCP; durability is PostgreSQL's own business, which tests are not about
        options = f"-c listen_addresses='' -c unix_socket_directories={self._socket} -c fsync={self._fsync}"
        run([self._bin / "pg_ctl", "-D", self._data, "-w", "-o", options, "-l", self._socket / "log", "start"])

    def processes(self) -> list[psutil.Process]:
        """The server and its children, the server first."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]

    def stop(self) -> None:
        run([self._bin / "pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop"])


def run(command: list[str | Path]) -> None:
    """Run a server program, as the user ``postgres`` when we are root (the server refuses to run as root)."""
    words = [str(word) for word in command]
    if os.geteuid() == 0:
        words = ["runuser", "-u", "postgres", "--", *words]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def server(durable: bool = False) -> Iterator[PostgresServer]:
    """Start a server for the block, which waits for its disk if it is to be ``durable``. Skip the test where PostgreSQL
    is not installed."""
    bin_folder = programs()
    if bin_folder is None:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(
        tempfile.mkdtemp(prefix="tw-pg-")
    )  # pytest's folders are too deep: a socket's path may have 107 characters at most
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        run([bin_folder / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"])
        running = PostgresServer(folder, bin_folder, durable)
        running.start()
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
