"""After a change of the toolchain and of a sketch: what holds is kept, and what moved is searched again.

The device is a simulated one. On it a schedule takes the same time whenever it is measured, so verdicts are known."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilewright.api.app import create_app
from tilewright.cli.exits import Exit
from tilewright.core.budget import Budget
from tilewright.core.policy import SpacePolicy
from tilewright.core.target import Toolchain
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.upgrade import upgrade_database
from tilewright.service.views import JobSpec, JobState
from tilewright.tests.api.serving import running
from tilewright.tests.cli.commands import in_process
from tilewright.tests.db.postgres import PostgresServer
from tilewright.tests.service.following import finished
from tilewright.tests.service.simulated import simulated_processor

TRIALS, AGAIN = 6, 4
HOLDS, MOVED = {"m": 48, "n": 64, "k": 96}, {"m": 64, "n": 48, "k": 128}
BEFORE = Toolchain({"llvm": "1"})
pytestmark = pytest.mark.postgres


@dataclass(frozen=True)
class RetunedService:
    """``keys`` are those of the two products, and ``address`` is where the service answers."""

    folder: Path
    address: str
    keys: tuple[str, ...]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return in_process(self.folder, "--url", self.address, *arguments)

    def job(self, *arguments: str) -> dict[str, Any]:
        """Return the job that a command prints."""
        done = self.run("--json", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def service(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetunedService]:
    """A service with records that say that another toolchain made them. Of the first product the fastest schedule was
    the fastest then, by a sketch of another version; of the second one the slowest was. The runners-up are the
    slowest."""
    folder = tmp_path_factory.mktemp("retuned")
    with ExitStack() as stack:
        settings = Settings(database_url=postgres.url(), run_jobs=False)
        upgrade_database(settings)
        stack.enter_context(simulated_processor(settings.database_url))
        opened = stack.enter_context(Service.open(settings))
        address = stack.enter_context(running(create_app(opened, settings)))
        tasks = tuple(opened.operator_workload("matmul", shape) for shape in (HOLDS, MOVED))
        whole = SpacePolicy(prune=False, prior=False)  # with schedules that are many times as slow as others
        spec = JobSpec(tasks, Budget(TRIALS), strategy="random", seed=3, policy=whole, fresh=True)
        job = finished(opened, opened.submit(spec)[0])
        assert job.state is JobState.SUCCEEDED
        lines = [json.loads(line) for line in opened.export_records()]
        (folder / "before.jsonl").write_text("\n".join(json.dumps(line) for line in _before(lines)))
        made = RetunedService(folder, address, tuple(task.workload_key for task in job.tasks))
        imported = made.run("records", "import", str(folder / "before.jsonl"))
        assert imported.returncode == 0 and f"{2 * TRIALS} records imported" in imported.stdout, imported
        yield made


def _before(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for task in (0, 1):
        of_task = [line for line in lines if line["kind"] == "record" and line["task"] == task]
        timed = sorted((r for r in of_task if "samples" in r["outcome"]), key=_seconds)
        assert len(timed) >= 3
        least = _seconds(timed[0])
        order = [timed[0], timed[-1], timed[-2]] if task == 0 else [timed[-1], timed[0], timed[-2]]
        order += [record for record in timed if record not in order]
        for rank, record in enumerate(order):
            record["outcome"] = {"samples": [100 * least * (1 + rank)] * 5, "launches_per_sample": 1}
    for line in lines:
        if line["kind"] == "toolchain":
            line |= {"key": BEFORE.key, "data": dict(BEFORE.components)}
        elif line["kind"] == "job":
            line["id"] = "before"
        elif line["kind"] == "record":
            line |= {"job": "before", "toolchain": BEFORE.key}
            if line["task"] == 0:
                line["schedule"]["version"] = 0
    return lines


def _seconds(record: Mapping[str, Any]) -> float:
    samples = sorted(record["outcome"]["samples"])
    return float(samples[len(samples) // 2])


def test_what_holds_is_kept_and_what_moved_is_searched_again(service: RetunedService) -> None:
    nothing = service.run("retune")  # both have records of the present toolchain as well
    assert nothing.returncode == Exit.NOT_FOUND and "nothing to retune" in nothing.stderr
    budget = ("--runners-up", "2", "--trials", str(AGAIN), "--strategy", "random")
    printed = service.run("retune", *budget, *service.keys)
    assert printed.returncode == 0 and "kept       1 of 2; saved 5 of 12 trials (42 %)" in printed.stdout
    (job_id,) = re.findall(r"job +(\w{16}) \(succeeded\)", printed.stdout)

    job = service.job("job", "show", job_id)
    assert job["retuning"] == {"runners_up": 2, "toolchain_before": None}
    kept, moved = job["tasks"]
    assert kept["retuned"]["verdict"] == kept["stop_reason"] == "kept"
    assert kept["trials"] == kept["retuned"]["measured"] == 3 and kept["saved_trials"] == TRIALS - 3
    assert kept["retuned"]["ratio"] < 1 < kept["retuned"]["earlier_seconds"] / kept["best"]["seconds"]
    assert kept["retuned"]["earlier_toolchain_key"] == BEFORE.key != kept["best"]["toolchain_key"]
    assert kept["best"]["schedule"]["version"] > 0  # the sketch as it is now
    assert moved["retuned"]["verdict"] == "outranked" and moved["stop_reason"] == "trials"
    assert moved["retuned"]["lead"] > 1 + moved["retuned"]["noise"]
    assert (moved["trials"], moved["retuned"]["measured"], moved["saved_trials"]) == (AGAIN, 3, TRIALS - AGAIN)
    assert all(task["saved_seconds"] is not None for task in job["tasks"])
    assert "retuned    kept" in service.run("job", "show", job_id).stdout


def test_a_workload_without_earlier_records_is_left_alone(service: RetunedService) -> None:
    job = service.job("retune", "--toolchain-before", "ab" * 32, service.keys[0])
    (task,) = job["tasks"]
    assert job["state"] == "succeeded" and task["stop_reason"] == "kept"
    assert task["retuned"]["verdict"] == "current" and task["trials"] == 0 and task["saved_trials"] is None


def test_bad_requests_say_what_is_allowed(service: RetunedService) -> None:
    refused = service.run("retune", "--trials", "8", service.keys[0])
    assert refused.returncode == Exit.BAD_INPUT and "one for the winner and 8 for the runners-up" in refused.stderr
    unknown = service.run("retune", "ab" * 32)
    assert unknown.returncode == Exit.NOT_FOUND and "no workload 'abab" in unknown.stderr
    elsewhere = service.run("retune", "--device", "cuda:sm_1")
    assert elsewhere.returncode == Exit.BAD_INPUT and "cuda:sm_1" in elsewhere.stderr
