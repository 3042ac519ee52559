"""The server process: it serves, says in one line why it cannot, and closes what it opened."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.api.client import Client
from tilewright.tests.cli.commands import wait_until_answering
from tilewright.tests.ports import free_port


def environment(tmp_path: Path, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "TILEWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path}/t.sqlite3",
        "TILEWRIGHT_PORT": str(port),
        "TILEWRIGHT_RUN_JOBS": "false",
    }


def start(tmp_path: Path, port: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tilewright.api"],
        env=environment(tmp_path, port),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start(tmp_path, taken.getsockname()[1])
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.count("\n") == 1 and "address already in use" in said and "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(tmp_path: Path, with_signal: int) -> None:
    port = free_port()
    process = start(tmp_path, port)
    try:
        wait_until_answering(f"http://127.0.0.1:{port}", process)
        with Client(f"http://127.0.0.1:{port}", retries=0) as client:
            assert client.version().api == "v1"
            process.send_signal(with_signal)
            _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0 and "Traceback" not in said, said
