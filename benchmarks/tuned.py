"""Tuning the rows of a table the way users do: as one job of a service in this process.

Settings of a suite that tunes: ``folder`` keeps the database there; ``tuned=FILE`` takes the schedules from an earlier
result instead; ``seconds=N`` ends the tuning of each row after that time.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.suite import Options
from tilewright.core.budget import Budget
from tilewright.core.policy import DEFAULT_POLICY, SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.targets import DeviceSelector, measured_on
from tilewright.service.views import JobSpec, TaskSpec, TaskView
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload


@dataclass(frozen=True)
class TunedOperator:
    """An operator of the library with its parameters, or without one an expression, whose parameter is its ``text``."""

    operator: str | None
    parameters: Mapping[str, Any]

    @property
    def workload(self) -> Workload:
        if self.operator is None:
            return parse_workload(self.parameters["text"])
        return OPERATORS[self.operator].workload(self.parameters)


@dataclass(frozen=True)
class Tuned:
    """Winners by row, with what is known of their tuning. ``timing_share``: of the wall time, on the device."""

    schedules: Mapping[str, Schedule]
    about: Mapping[str, Mapping[str, object]]
    seconds: float
    timing_share: float
    peaks: Mapping[str, float]
    toolchain: Mapping[str, str]


def tune_rows(
    rows: Mapping[str, TunedOperator],
    options: Options,
    trials: int,
    target: str,
    cache: str,
    policy: SpacePolicy = DEFAULT_POLICY,
) -> Tuned:
    """Tune the rows, or take what an earlier result has. Each row gets ``trials`` trials, unless the options say."""
    if "tuned" in options.extra:
        document = json.loads(Path(options.extra["tuned"]).read_text())
        kept = ("trials", "tuning_s", "found_us", "failures")
        about = {r["row"]: {k: r[k] for k in kept if k in r} for r in document["rows"]}
        summary = document["summary"]
        return Tuned(schedules(options.extra["tuned"]), about, summary["tuning_s"], summary["timing_share"], {}, {})
    tasks = tuple(TaskSpec(r.workload, r.operator, r.parameters if r.operator else None) for r in rows.values())
    seconds = float(options.extra["seconds"]) if "seconds" in options.extra else None
    budget = Budget(options.trials or trials, seconds)
    spec = JobSpec(tasks, budget, seed=options.seed, target=target, cache=cache, policy=policy)
    began = time.perf_counter()
    with ExitStack() as stack:
        folder = Path(options.extra.get("folder") or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        settings = Settings(database_url=f"sqlite:///{folder / 'tuned.sqlite3'}")
        service = stack.enter_context(Service.open(settings))
        job, _ = service.submit(spec)
        after = 0
        while not (view := service.job(job.id)).state.is_final:
            for event in service.events(job.id, after=after, timeout_seconds=5.0):
                after = event.id
        wall = time.perf_counter() - began
        if view.error is not None:
            print("the job says:", view.error)
        timing = sum(task.timing_seconds or 0.0 for task in view.tasks)
        device = next(d for d in service.devices() if d.info.key == view.device_key)
    named = dict(zip(rows, view.tasks, strict=True))
    found = {name: task.best.schedule for name, task in named.items() if task.best is not None}
    about = {name: _about(task) for name, task in named.items()}
    toolchain = dict(measured_on(DeviceSelector(target)).toolchain.components)
    return Tuned(found, about, wall, timing / wall, dict(device.info.measured), toolchain)


def separately(options: Options, name: str) -> Options:
    """Return the options with a database of its own for what is called so: nothing tuned under another name is known
    there."""
    folder = options.extra.get("folder")
    return options if folder is None else replace(options, extra={**options.extra, "folder": f"{folder}/{name}"})


def schedules(path: str) -> dict[str, Schedule]:
    """Return the winners of an earlier result, by row."""
    rows = json.loads(Path(path).read_text())["rows"]
    return {r["row"]: Schedule.from_json(r["schedule"]) for r in rows if "schedule" in r}


def _about(task: TaskView) -> dict[str, object]:
    """Return how a row was tuned."""
    found = None if task.best is None else 1e6 * task.best.seconds
    return {
        "trials": task.trials,
        "tuning_s": task.wall_seconds,
        "found_us": found,
        "failures": dict(task.failures),
        "space": task.space_size,
    }
