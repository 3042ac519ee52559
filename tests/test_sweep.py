"""The sweep of all kernels: it goes on where it was, tells a wrong kernel from a right one, survives its children."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.benchmarks import sweep
from tilewright.benchmarks.suite import Options
from tilewright.workers.reference_data import compute_reference


def _options(folder: Path, **extra: str) -> Options:
    return Options("transpose", 1, 0, {"odd": "0", "processes": "2", "folder": str(folder), **extra})


def test_a_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    first = sweep.run(_options(tmp_path))
    assert first.passed and first.summary["left"] == 0 and int(str(first.summary["kernels"])) > 10
    lines = (tmp_path / "sweep.jsonl").read_text().splitlines()
    (tmp_path / "sweep.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    assert sweep.run(_options(tmp_path)).summary["kernels"] == first.summary["kernels"]
    assert len((tmp_path / "sweep.jsonl").read_text().splitlines()) == len(lines)
    assert sweep.run(_options(tmp_path, again="1")).summary["tasks"] == 0


def test_an_end_in_time_says_what_is_left(tmp_path: Path) -> None:
    result = sweep.run(_options(tmp_path, seconds="0"))
    assert not result.passed and result.summary["left"] == result.summary["tasks"]


def test_a_child_that_dies_is_replaced_and_named() -> None:
    task = sweep.tasks(0, 0, "transpose")[0]
    with sweep.Lane(2, 0, 60.0) as lane:
        os.kill(lane.pid, signal.SIGKILL)
        answer = lane.answer(task)
        assert ["died of SIGKILL"] == [f["detail"] for f in answer["failures"]]
        assert lane.answer(task)["failures"] == []


@pytest.mark.parametrize("runs_here", [True, False])
def test_a_wrong_kernel_is_named_with_all_that_shows_it_again(runs_here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture is that of other values: every kernel is wrong then."""
    task = replace(sweep.tasks(0, 0, "softmax")[0], runs_here=runs_here)

    def other(workload: Any, seed: int) -> Any:
        found = compute_reference(workload, seed)
        return replace(found, expected=compute_reference(workload, seed + 1).expected)

    monkeypatch.setattr("tilewright.benchmarks.sweep.compute_reference", other)
    said: list[Any] = []

    class Ear:
        def send(self, what: Any) -> None:
            said.append(what)

    found = sweep.judged_all(Ear(), task, 0, 2, 0)
    assert found["kernels"] == len(found["failures"]) == 2
    failure = json.loads(json.dumps(found["failures"][0]))
    assert {"operator", "parameters", "seed", "schedule", "target", "detail"} == set(failure)
    assert [s["schedule"] for s in said] == [f["schedule"] for f in found["failures"]]
