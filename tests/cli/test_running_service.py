"""Commands without ``--url`` beside a service that runs on the same database, and beside each other."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.api.client import Client
from tilewright.api.local_service import find_service
from tilewright.api.server import running
from tilewright.core.budget import Budget
from tilewright.db.lock import DatabaseLock, lock_path, read_holder
from tilewright.examples import tune_over_http
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import JobSpec, JobState
from tilewright.te.operators import OPERATORS
from tilewright.tests.cli.commands import (
    LOG,
    MATMUL,
    answer,
    environment,
    program_in_process,
    serving,
    started,
    tilewright,
    wait_for,
)
from tilewright.tests.service.following import QUICK
from tilewright.tests.service.fork_server import ForkServer


def settings_of(folder: Path, **more: object) -> Settings:
    return Settings(database_url=f"sqlite:///{folder}/t.sqlite3").model_copy(update=more)


def queued_job(folder: Path, trials: int = 3) -> str:
    """Submit a job that waits in the database of ``folder``, which no process has open."""
    with Service.open(settings_of(folder, run_jobs=False)) as service:
        task = service.operator_workload(*QUICK)
        return service.submit(JobSpec((task,), Budget(trials), strategy="random"))[0].id


def test_commands_speak_to_the_service_that_has_the_database(forks: ForkServer, tmp_path: Path) -> None:
    with serving(forks, tmp_path) as (address, process):
        done = tilewright(tmp_path, "tune", *MATMUL, "--trials", "2", "--strategy", "random", "--no-prune")
        assert done.returncode == 0, done.stderr
        assert f"{address}/jobs/" in done.stdout  # its dashboard is there now
        with Client(address) as client:
            (job,) = client.jobs()
        assert (job.state, job.prune, job.prior) == (JobState.SUCCEEDED, False, True)
        assert "every legal setting" in tilewright(tmp_path, "job", "show", job.id).stdout
        assert answer(tmp_path, "best", *MATMUL)["job_id"] == job.id
        file = tmp_path / "records.jsonl"
        assert tilewright(tmp_path, "records", "export", str(file)).returncode == 0
        assert answer(tmp_path, "records", "import", str(file)) == {"imported": 0, "known": 2}
        assert answer(tmp_path, "tune", *MATMUL, "--trials", "1", "--detach")["id"] != job.id
        second = tilewright(tmp_path, "serve", "--port", "0")
        assert second.returncode == 4 and len(second.stderr.strip().splitlines()) == 1
        assert f"process {process.pid} " in second.stderr and f"answering on {address}" in second.stderr
    holder = read_holder(lock_path(tmp_path / "t.sqlite3"))
    assert holder is None  # a service that ends takes its address back


def test_the_address_of_a_killed_service_is_not_believed(forks: ForkServer, tmp_path: Path) -> None:
    with serving(forks, tmp_path) as (_, process):
        process.send_signal(signal.SIGKILL)
        process.wait()
    path = lock_path(tmp_path / "t.sqlite3")
    stale = read_holder(path)
    assert stale is not None and stale.pid == process.pid and stale.url is not None
    assert find_service(settings_of(tmp_path)) is None
    assert answer(tmp_path, "job", "list") == []


def test_a_service_on_another_database_is_not_spoken_to(forks: ForkServer, tmp_path: Path) -> None:
    """Its port may be the one that a killed service of this database had."""
    (tmp_path / "other").mkdir()
    with serving(forks, tmp_path / "other") as (address, _):
        there = read_holder(lock_path(tmp_path / "other" / "t.sqlite3"))
        assert there is not None and find_service(settings_of(tmp_path / "other")) is not None
        stale = {"pid": 1, "command": "gone", "since": "then", "instance": "0" * 16, "url": address, "lasting": True}
        lock_path(tmp_path / "t.sqlite3").write_text(json.dumps(stale))
        assert find_service(settings_of(tmp_path)) is None


def test_commands_that_only_read_run_no_jobs(tmp_path: Path) -> None:
    job = queued_job(tmp_path)
    for command in (("job", "list"), ("explain", *MATMUL), ("records", "export"), ("best", *MATMUL)):
        done = tilewright(tmp_path, "--json", *command)
        assert done.returncode == (3 if command[0] == "best" else 0), done.stderr
    with Service.open(settings_of(tmp_path, run_jobs=False)) as service:
        kept = service.job(job)
        assert (kept.state, kept.started_at, kept.tasks[0].trials) == (JobState.QUEUED, None, 0)
    assert answer(tmp_path, "job", "watch", job)["state"] == "succeeded"  # this one runs it


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("best", "best"),
        ("devices", "devices"),
        ("explain", "explain"),
        ("export", "export"),
        ("operators", "operators"),
        ("records", "export_records"),
        ("records", "import_records"),
        ("records", "import_log"),
        ("job", "list_jobs"),
        ("job", "show"),
        ("job", "trials"),
        ("job", "_change"),
        ("job", "attempts"),
        ("queue", "queue"),
        ("workers", "workers"),
        ("workers", "_change"),
        ("tenants", "tenants"),
        ("tenants", "set_tenant"),
    ],
)
def test_only_commands_that_tune_or_watch_ask_for_a_service_that_runs_jobs(module: str, name: str) -> None:
    """The others are given a service of their own without a job queue (``CommandContext.client``)."""
    command = getattr(importlib.import_module(f"tilewright.cli.{module}"), name)
    assert {"client", "job_connection"} & set(command.__code__.co_names) == {"client"}


def test_a_job_that_nobody_runs_is_cancelled_at_once(tmp_path: Path) -> None:
    job = queued_job(tmp_path)
    assert answer(tmp_path, "job", "cancel", job)["state"] == JobState.CANCELLED


def test_reading_and_tuning_beside_a_command_that_tunes(forks: ForkServer, tmp_path: Path) -> None:
    with started(
        forks, tmp_path, "tune", "matmul", "m=64", "n=48", "k=32", "--trials", "100000", "--strategy", "random"
    ) as tuning:
        wait_for(lock_path(tmp_path / "t.sqlite3"), '"lasting": false')
        wait_for(lock_path(tmp_path / "t.sqlite3"), "http://")
        end = time.monotonic() + 60
        while not (jobs := answer(tmp_path, "job", "list")):
            assert time.monotonic() < end, "the command has submitted no job"
        (job,) = jobs
        assert job["state"] in ("queued", "running")
        # a job would end with the other command: it is refused
        refused = tilewright(tmp_path, "tune", *MATMUL, "--trials", "1")
        assert refused.returncode == 4 and f"in use by process {tuning.pid} " in refused.stderr
        assert answer(tmp_path, "job", "cancel", job["id"])["state"] in ("cancelling", "cancelled")
        tuning.wait(60)
    with Service.open(settings_of(tmp_path, run_jobs=False)) as service:
        assert service.job(job["id"]).state is JobState.CANCELLED


def test_a_reader_waits_for_another_process_that_ends_soon(forks: ForkServer, tmp_path: Path) -> None:
    lock = DatabaseLock(lock_path(tmp_path / "t.sqlite3"))  # as another reader holds it: it answers nobody
    with started(forks, tmp_path, "--json", "operators") as reader:
        time.sleep(1)
        assert reader.poll() is None
        lock.release()
        reader.wait(120)
    said = (tmp_path / LOG).read_text()
    assert [operator["name"] for operator in json.loads(said)] == list(OPERATORS), said


def test_the_lock_is_the_databases_own(tmp_path: Path) -> None:
    path = lock_path(tmp_path / "t.sqlite3")
    for junk in ("", "{", "[]", '{"pid": 1}', '{"pid": "x", "command": 1, "since": 2}', "\x00" * 9000):
        path.write_text(junk)
        assert read_holder(path) is None and find_service(settings_of(tmp_path)) is None
    lock = DatabaseLock(path)
    lock.announce("http://127.0.0.1:9", lasting=True)
    holder = read_holder(path)
    assert holder == lock.holder and holder == replace(lock.holder, pid=os.getpid())
    lock.release()
    assert read_holder(path) is None


@pytest.mark.timeout(300)
def test_the_demo_has_a_database_of_its_own(forks: ForkServer, tmp_path: Path) -> None:
    words, home = ["--size", "32", "--trials", "2"], {"XDG_STATE_HOME": str(tmp_path / "state")}
    state = tmp_path / "state" / "tilewright"
    state.mkdir(parents=True)
    usual = Settings(database_url=f"sqlite:///{state}/tilewright.sqlite3", port=0)
    with running(usual, announce=True):  # as ``tilewright serve`` would, on the usual database
        command, surroundings = (
            [sys.executable, "-m", "tilewright.examples.tune_over_http", *words],
            environment(**home),
        )
        done = subprocess.run(command, env=surroundings, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starting the service" in done.stdout and f"--database {state}/demo.sqlite3 best" in done.stdout
    with started(forks, tmp_path, "--database", str(state / "demo.sqlite3"), "serve", "--port", "0"):
        wait_for(lock_path(state / "demo.sqlite3"), "http://")
        again = program_in_process(tune_over_http.main, tmp_path, *words, **home)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "a service runs on http://127.0.0.1:" in again.stdout
