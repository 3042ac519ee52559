"""After a change of the toolchain and of a sketch: what holds is kept, and what moved is searched again, for real."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli.exits import Exit
from tilewright.core.budget import Budget
from tilewright.core.target import Toolchain
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import JobSpec, JobState
from tilewright.tests.cli.commands import answer, tilewright
from tilewright.tests.service.following import finished

TRIALS = 6
HOLDS, MOVED = {"m": 48, "n": 64, "k": 96}, {"m": 64, "n": 48, "k": 128}
BEFORE = Toolchain({"llvm": "1"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A database whose records say that another toolchain made them. Of the first product the fastest schedule was the
    fastest then, by a sketch of another version; of the second one the slowest was. The runners-up are the slowest."""
    made = tmp_path_factory.mktemp("retuned")
    with Service.open(Settings(database_url=f"sqlite:///{made}/source.sqlite3")) as service:
        tasks = tuple(service.operator_workload("matmul", shape) for shape in (HOLDS, MOVED))
        spec = JobSpec(tasks, Budget(TRIALS), strategy="random", seed=3, fresh=True)
        assert finished(service, service.submit(spec)[0]).state is JobState.SUCCEEDED
        lines = [json.loads(line) for line in service.export_records()]
    (made / "before.jsonl").write_text("\n".join(json.dumps(line) for line in _before(lines)))
    imported = tilewright(made, "records", "import", str(made / "before.jsonl"))
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
        elif line["kind"] == "record":
            line["toolchain"] = BEFORE.key
            if line["task"] == 0:
                line["schedule"]["version"] = 0
    return lines


def _seconds(record: Mapping[str, Any]) -> float:
    samples = sorted(record["outcome"]["samples"])
    return float(samples[len(samples) // 2])


def test_what_holds_is_kept_and_what_moved_is_searched_again(folder: Path) -> None:
    options = ("--runners-up", "2", "--trials", "5", "--strategy", "random")
    job = answer(folder, "retune", *options)
    assert job["state"] == "succeeded" and job["retuning"] == {"runners_up": 2, "toolchain_before": None}
    kept, moved = sorted(job["tasks"], key=lambda task: task["parameters"] != HOLDS)
    assert kept["retuned"]["verdict"] == kept["stop_reason"] == "kept"
    assert kept["trials"] == kept["retuned"]["measured"] == 3 and kept["saved_trials"] == TRIALS - 3
    assert kept["retuned"]["ratio"] < 1 < kept["retuned"]["earlier_seconds"] / kept["best"]["seconds"]
    assert kept["retuned"]["earlier_toolchain_key"] == BEFORE.key != kept["best"]["toolchain_key"]
    assert kept["best"]["schedule"]["version"] > 0  # the sketch as it is now
    assert moved["retuned"]["verdict"] == "outranked" and moved["stop_reason"] == "trials"
    assert moved["retuned"]["lead"] > 1 + moved["retuned"]["noise"]
    assert (moved["trials"], moved["retuned"]["measured"], moved["saved_trials"]) == (5, 3, TRIALS - 5)
    assert all(task["saved_seconds"] is not None for task in job["tasks"])

    shown = tilewright(folder, "job", "show", job["id"])
    assert "retuned    kept" in shown.stdout
    again = tilewright(folder, "retune", *options)
    assert again.returncode == Exit.NOT_FOUND and "nothing to retune" in again.stderr
    printed = tilewright(folder, "retune", *options, kept["workload_key"])  # a workload that is named is taken anyway
    assert printed.returncode == 0 and "kept       1 of 1; saved 3 of 6 trials (50 %)" in printed.stdout


def test_a_workload_without_earlier_records_is_left_alone(folder: Path) -> None:
    job = answer(folder, "retune", "--toolchain-before", "ab" * 32, _key(folder))
    (task,) = job["tasks"]
    assert job["state"] == "succeeded" and task["stop_reason"] == "kept"
    assert task["retuned"]["verdict"] == "current" and task["trials"] == 0 and task["saved_trials"] is None


def _key(folder: Path) -> str:
    """Return the key of a workload that is known there."""
    (job, *_) = answer(folder, "job", "list")
    return str(job["tasks"][0]["workload_key"])


def test_bad_requests_say_what_is_allowed(folder: Path) -> None:
    refused = tilewright(folder, "retune", "--trials", "8", _key(folder))
    assert refused.returncode == Exit.BAD_INPUT and "one for the winner and 8 for the runners-up" in refused.stderr
    unknown = tilewright(folder, "retune", "ab" * 32)
    assert unknown.returncode == Exit.NOT_FOUND and "no workload 'abab" in unknown.stderr
    elsewhere = tilewright(folder, "retune", "--device", "cuda:sm_1")
    assert elsewhere.returncode == Exit.BAD_INPUT and "cuda:sm_1" in elsewhere.stderr
