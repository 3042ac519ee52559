"""Runs the command line and services as a user would. Services are processes that a fork server starts; commands run
in this process, where a test does not need a process of their own. Starting Python and importing the product takes most
of their time.
"""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tilewright.api.client import Client
from tilewright.api.client_errors import Unreachable
from tilewright.cli.main import main
from tilewright.tests.ports import free_port
from tilewright.tests.service.fork_server import ForkServer, Process

MATMUL = ["matmul", "m=24", "n=8", "k=4"]
LOG = "log"


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command: that of the tests without Tilewright's settings."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}, **more}


def tilewright_process(folder: Path, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder`` on the database there, as a process of its own."""
    command = [sys.executable, "-m", "tilewright.cli", "--database", str(folder / "t.sqlite3"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=seconds)


def tilewright(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder`` on the database there, in this process; ``more`` is added to its environment."""
    return in_process(folder, "--database", str(folder / "t.sqlite3"), *arguments, **more)


def in_process(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder`` in this process, with arguments and an environment of its own."""
    return program_in_process(main, folder, *arguments, **more)


def program_in_process(
    program: Callable[[], int | None], folder: Path, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the ``main`` of a program as ``in_process`` runs a command."""
    out, err = io.StringIO(), io.StringIO()
    command = ["tilewright", *arguments]
    code = 0
    with (
        patch.object(sys, "argv", command),
        patch.dict(os.environ, environment(**more), clear=True),
        chdir(folder),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            code = program() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def answer(folder: Path, *arguments: str) -> Any:
    """Return the JSON document that a command prints."""
    done = tilewright(folder, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def started(forks: ForkServer, folder: Path, *arguments: str, **more: str) -> Iterator[Process]:
    """Start a command on the database in ``folder`` that goes on while the block runs; end it afterwards. ``more`` is
    added to its environment, and what it says is in ``folder / LOG``."""
    words = ["--database", str(folder / "t.sqlite3"), *arguments]
    process = forks.start("tilewright.cli", words, more, folder / LOG)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(150)


@contextmanager
def serving(forks: ForkServer, folder: Path) -> Iterator[tuple[str, Process]]:
    """Run ``tilewright serve`` on the database in ``folder``; give its address and its process."""
    port = free_port()
    with started(forks, folder, "serve", "--port", str(port)) as process:
        wait_until_answering(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}", process


def wait_until_answering(address: str, process: Process, seconds: float = 120, **options: Any) -> None:
    """Wait until the service of a process answers. It is asked again and again without longer and longer pauses, which
    may be seconds too long in the end. ``options``: see ``Client``."""
    end = time.monotonic() + seconds
    with Client(address, retries=0, **options) as client:
        while True:
            try:
                assert client.version().version
                return
            except Unreachable:
                assert process.poll() is None, "the service ended"
                assert time.monotonic() < end, f"nobody answers at {address}"
            time.sleep(0.05)


def wait_for(path: Path, text: str, seconds: float = 60) -> None:
    """Wait until a file holds a text."""
    end = time.monotonic() + seconds
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < end, f"{path} does not say {text!r}"
        time.sleep(0.05)
