"""The commands of a fleet: a front end and a worker on the same PostgreSQL as processes, and what users see of them."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tilewright.api.client import Client, operator_task
from tilewright.core.budget import Budget
from tilewright.service.settings import Settings
from tilewright.service.upgrade import upgrade_database
from tilewright.tests.cli.commands import (
    MATMUL,
    answer,
    environment,
    in_process,
    serving,
    started,
    tilewright,
    wait_until_answering,
)
from tilewright.tests.db.postgres import PostgresServer
from tilewright.tests.ports import free_port
from tilewright.tests.service.following import QUICK
from tilewright.tests.service.fork_server import ForkServer

TOKEN = "a-token-of-the-tests"
LONG_TASK = operator_task(*QUICK)


def test_a_worker_needs_a_shared_database(tmp_path: Path) -> None:
    refused = tilewright(tmp_path, "worker")
    assert refused.returncode == 2 and len(refused.stderr.strip().splitlines()) == 1
    assert "PostgreSQL" in refused.stderr and not (tmp_path / "t.sqlite3").exists()


def test_jobs_are_changed_and_units_listed_by_command(forks: ForkServer, tmp_path: Path) -> None:
    assert "no host has joined" in tilewright(tmp_path, "workers").stdout
    with serving(forks, tmp_path):
        assert answer(tmp_path, "queue") == []
        assert answer(tmp_path, "tenants", "set", "team", "--weight", "2", "--most-queued", "7")["most_queued"] == 7
        assert [(one["name"], one["weight"]) for one in answer(tmp_path, "tenants")] == [
            ("default", 1.0),
            ("team", 2.0),
        ]
        assert tilewright(tmp_path, "job", "retry", "nobody").returncode == 3
        missing = tilewright(tmp_path, "workers", "drain", "GPU-none", "--reason", "a new driver")
        assert missing.returncode == 3 and "GPU-none" in missing.stderr


class Fleet:
    """A database of a server, and commands on it that show the token."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.settings = {"TILEWRIGHT_DATABASE_URL": url, "TILEWRIGHT_TOKEN": TOKEN, "COLUMNS": "240"}

    @contextmanager
    def started(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        command, surroundings = [sys.executable, "-m", "tilewright.cli", *arguments], environment(**self.settings)
        with subprocess.Popen(command, cwd=self.folder, env=surroundings, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.terminate()
                process.wait(150)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return in_process(self.folder, "--url", self.address, *arguments, **self.settings)

    def answer(self, *arguments: str) -> Any:
        done = self.run("--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def fleet(forks: ForkServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A front end that searches nothing, on a PostgreSQL of its own."""
    url = postgres.url()
    upgrade_database(Settings(database_url=url))
    made = Fleet(url, tmp_path_factory.mktemp("fleet"))
    serve = ("--database", made.url, "serve", "--no-jobs", "--port", str(made.port))
    with started(forks, made.folder, *serve, **made.settings) as process:
        wait_until_answering(made.address, process, token=TOKEN)
        yield made


@pytest.mark.postgres
@pytest.mark.slow
def test_a_worker_joins_searches_and_leaves(fleet: Fleet) -> None:
    tune = ("tune", *MATMUL, "--strategy", "random", "--detach", "--fresh", "--trials", "3", "--tenant", "team")
    job = fleet.answer(*tune, "--priority", "4", "--deadline", "9000", "--units", "2")
    assert (job["tenant"], job["priority"], job["fresh"]) == ("team", 4, True) and job["deadline"]
    assert job["units"] == 2
    assert job["tasks"][0]["waits_for"] == "no unit of the fleet serves llvm"
    with Client(fleet.address, token=TOKEN) as client, fleet.started("worker") as worker:
        held = client.submit(LONG_TASK, budget=Budget(100_000), strategy="random", fresh=True).id
        assert fleet.answer("job", "pause", held)["paused"]
        assert "its job is paused" in fleet.run("queue").stdout
        assert worker.stdout is not None and "working" in worker.stdout.readline()
        assert list(client.events(job["id"]))[-1].data["state"] == "succeeded"
        (attempt,) = fleet.answer("job", "attempts", job["id"])
        assert attempt["how"] == "done" and attempt["units"][0] in fleet.run("workers").stdout
        assert fleet.answer("job", "priority", held, "-5")["priority"] == -5
        assert not fleet.answer("job", "resume", held)["paused"]
        next(event for event in client.events(held) if event.kind == "trial")
        expect_no_secrets(worker.pid)
        worker.send_signal(signal.SIGTERM)
        worker.wait(150)
        assert worker.returncode == 0
        left = client.job(held)
        assert left.state == "running" and left.tasks[0].state == "ready"  # another worker goes on with it
        assert [one.how for one in client.attempts(held)] == ["yielded"]
        assert client.cancel(held).state == "cancelled"


def expect_no_secrets(pid: int) -> None:
    """Check that the children of a process have none of Tilewright's settings in their environment."""
    children = psutil.Process(pid).children(recursive=True)
    assert children
    for child in children:
        try:
            environ = child.environ()
        except psutil.NoSuchProcess:  # it ended in this moment
            continue
        assert TOKEN not in str(environ) and not [name for name in environ if name.startswith("TILEWRIGHT_")]


@pytest.mark.postgres
@pytest.mark.slow
def test_a_unit_is_taken_out_by_command(forks: ForkServer, fleet: Fleet) -> None:
    with Client(fleet.address, token=TOKEN) as client:
        with started(forks, fleet.folder, "--database", fleet.url, "worker", **fleet.settings):
            end = time.monotonic() + 60
            while not any(unit.seen for unit in client.units()):
                assert time.monotonic() < end, "no unit has joined"
                time.sleep(0.1)
        uuid = client.units()[0].uuid
        drained = fleet.answer("workers", "drain", uuid, "--reason", "a new driver")
        assert (drained["state"], drained["reason"]) == ("draining", "a new driver")
        assert "(a new driver)" in fleet.run("workers").stdout
        assert client.release(uuid, "done").state == "ready"


@pytest.mark.postgres
@pytest.mark.slow
def test_a_command_without_the_token_is_told_so(fleet: Fleet) -> None:
    surroundings = {**fleet.settings, "TILEWRIGHT_TOKEN": "another-token-of-16"}
    refused = in_process(fleet.folder, "--url", fleet.address, "queue", **surroundings)
    assert refused.returncode == 4 and "wants a key" in refused.stderr and len(refused.stderr.strip().splitlines()) == 1
