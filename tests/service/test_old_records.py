"""Records of an earlier version are served under today's names, and their schedules still lower, compile and run."""

from collections.abc import Iterator

import numpy as np
import pytest

from tilewright.codegen.lowering import build_kernel, lower
from tilewright.core.renamed import RENAMED, current
from tilewright.core.schedule import Schedule
from tilewright.core.target import DeviceInfo
from tilewright.core.trial import Timed
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import load_module
from tilewright.schedule.sketches import SKETCHES
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import BestView, JobView
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.tests.db.old_database import unpacked
from tilewright.tests.service.following import all_trials


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    url = unpacked(tmp_path_factory.mktemp("old") / "old.sqlite3")
    with Service.open(Settings(database_url=url, run_jobs=False)) as opened:
        yield opened


def jobs(service: Service, target: str) -> list[JobView]:
    found = [job for job in service.jobs(page_size=99).items if job.target == target]
    assert len(found) == {"cuda": 13, "llvm": 7}[target]
    return found


def device_of(service: Service, best: BestView) -> DeviceInfo:
    return next(view.info for view in service.devices() if view.key == best.device_key)


def test_the_best_schedule_of_every_workload_is_served_under_todays_names(service: Service) -> None:
    for job in (*jobs(service, "cuda"), *jobs(service, "llvm")):
        (task,) = job.tasks
        best = service.best(task.workload_key, device_key=job.device_key, relax=("profile", "toolchain"))
        assert best.match in (("exact",), ("toolchain",), ("profile",), ("profile", "toolchain")), best.match
        assert best.schedule.sketch in SKETCHES and best.schedule.version == SKETCHES[best.schedule.sketch].version
        assert task.best is not None and best.seconds == task.best.seconds
        assert service.trial(best.record_id).schedule == best.schedule
        told = [e.data["schedule"] for e in service.events(job.id) if e.kind == "best"]
        assert told and all((s["sketch"], s["version"]) not in RENAMED for s in told)  # type: ignore[index]


@pytest.mark.parametrize("target", ["cuda", "llvm"])
def test_every_timed_schedule_is_accepted_by_its_sketch(service: Service, target: str) -> None:
    checked: set[str] = set()
    for job in jobs(service, target):
        (task,) = job.tasks
        workload = service.workload_of(task.workload_key)
        assert task.best is not None
        arch = device_of(service, task.best).target
        timed = [trial.schedule for trial in all_trials(service, job) if isinstance(trial.outcome, Timed)]
        assert task.best.schedule in timed
        for schedule in timed:
            sketch = SKETCHES[schedule.sketch]
            assert all(len(column) == 1 for column in sketch.derive(workload, arch, [schedule]).values())
            assert sketch.prior_seconds(workload, arch, [schedule]).shape == (1,)
            lower(workload, arch, schedule)
            checked.add(schedule.sketch)
    before = {"cuda": 7, "llvm": 4}[target]
    assert len(checked) == before, checked


def test_the_best_schedules_of_a_processor_compile_and_run_right(service: Service) -> None:
    here = host_target("llvm")
    ran = 0
    for job in jobs(service, "llvm"):
        (task,) = job.tasks
        assert task.best is not None
        workload, schedule = service.workload_of(task.workload_key), task.best.schedule
        target = device_of(service, task.best).target
        build_kernel(lower(workload, target, schedule), target)
        if target.arch != here.arch or not set(target.features) <= set(here.features):
            continue  # this machine cannot run what the other one could
        inputs = random_inputs(workload, 1)
        results = load_module(workload, schedule, here)(*inputs.values())
        wanted, limits = reference(workload, inputs), tolerance(workload)
        for name, result in zip(workload.outputs, results, strict=True):
            absolute, relative = limits[name]
            got = np.asarray(result).astype(np.float64)
            np.testing.assert_allclose(got, wanted[name], rtol=relative, atol=absolute)
        ran += 1
    assert ran in (0, 7)


def test_a_schedule_with_old_names_can_be_asked_for(service: Service) -> None:
    """What a user kept in a file, or an older client sends, means the same as before."""
    (old,) = [key for key in RENAMED if key[0] == "cpu_loops"]
    job = next(job for job in jobs(service, "llvm") if job.tasks[0].operator == "softmax")
    (task,) = job.tasks
    assert task.best is not None
    entry = RENAMED[old]
    names = {new: before for before, new in entry.knobs.items()}
    values = {
        entry.knobs.get(knob, knob): {new: before for before, new in changed.items()}
        for knob, changed in entry.values.items()
    }
    knobs = {names.get(k, k): values.get(k, {}).get(str(v), v) for k, v in task.best.schedule.knobs}
    given = {"sketch": old[0], "version": old[1], "knobs": {**knobs, **entry.dropped}}
    assert Schedule.from_json(given).key == task.best.schedule.key


def test_every_old_name_leads_to_a_sketch_of_today() -> None:
    for (sketch, version), entry in RENAMED.items():
        today, version_today, _ = current(sketch, version, {})
        assert today in SKETCHES and SKETCHES[today].version == version_today > version, sketch
        kept = set(entry.knobs.values())
        assert len(kept) == len(entry.knobs), f"two knobs of {sketch} have one new name"
        assert not kept & set(entry.dropped)
