"""What a task learns from: records of its relatives, the nearest first, and only comparable ones together."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import Profile, Toolchain
from tilewright.core.trial import Evidence, Timed, Trial
from tilewright.cost_model.dataset import experience_data
from tilewright.cost_model.similarity import Situation, nearest
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.schedule.sketches import sketches_for
from tilewright.service.history import experiences, related_groups
from tilewright.te.json import workload_from_json
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.tests.api.filled import HERE, operator_task
from tilewright.tests.db.fleets import migrated

NEWER = replace(HERE, toolchain=Toolchain({"llvm": "21", "tilewright": "0.1.0"}))
COLD = replace(HERE, profile=Profile("cold"))


def keep(store: RecordStore, job: str, n: int, *measured: MeasuredOn) -> None:
    """Store a job of a product with ``n`` columns: two trials on each of ``measured``, the second one faster."""
    task = operator_task("matmul", {"m": 48, "n": n, "k": 32})
    space = sketches_for(_matmul(n), HERE.device.target)[0].space(_matmul(n), HERE.device.target, limit=8)
    store.create_job(NewJob(job, "queued", (task,), Budget(9), "model", 1, "llvm", "local", "warm"))
    for number, on in enumerate(measured):
        for second in range(2):
            trial = Trial(space.schedule(second), Timed((2e-5 / (1 + second),)), evidence=Evidence(anchor_seconds=1e-5))
            store.add_trial(NewTrial(job, 0, 2 * number + second, task.workload_key, on, trial, 1.0))


def _matmul(n: int) -> Workload:
    return OPERATORS["matmul"].workload({"m": 48, "n": n, "k": 32})


def test_history_is_of_relatives_and_keeps_what_cannot_be_compared_apart(tmp_path: Path) -> None:
    with migrated(f"sqlite:///{tmp_path}/t.sqlite3") as store:
        keep(store, "near", 64, HERE, NEWER)
        keep(store, "cold", 64, COLD)
        keep(store, "far", 128, HERE)
        keep(store, "other family", 512, HERE)
        keep(store, "own", 64, HERE)
        situation = Situation(_matmul(64), HERE.device, HERE.toolchain.key, str(HERE.profile))

        def chosen(limit: int) -> list[tuple[str, str]]:
            groups = related_groups(
                store, situation, operator="matmul", until=store.newest_record(), but=("own", 0), limit=limit
            )
            return [(group.job_id, group.toolchain_key) for group in groups]

        ours, newer = HERE.toolchain.key, NEWER.toolchain.key
        assert chosen(99) == [("near", ours), ("near", newer), ("far", ours)]
        assert chosen(2) == [("near", ours)]  # though others are newer
        tasks = store.history_tasks(target_kind="llvm", until=999, but=None, limit=99)
        groups = store.history_groups(tasks, until=999)
        found = experiences(store, store.history(groups, until=999))
        assert len(found) == 5 and sum(len(one.results) for one in found) == 12
        assert {(one.toolchain_key, one.profile) for one in found} == {
            (ours, "warm-v1"), (newer, "warm-v1"), (ours, "cold-v1")
        }  # fmt: skip
        assert all(experience_data([one])[1].max() == 1.0 for one in found)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    running = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    with migrated(f"sqlite:///{tmp_path}/t.sqlite3" if running is None else running.url()) as opened:
        yield opened


def test_a_search_for_the_nearest_finds_what_a_comparison_with_all_tasks_does(store: RecordStore) -> None:
    rng = stream(0, "tasks")
    elsewhere = replace(HERE, device=replace(HERE.device, name="another"))
    for number in range(40):
        task = operator_task(*_drawn(rng))
        store.create_job(NewJob(f"j{number}", "queued", (task,), Budget(9), "model", 1, "llvm", "local", "warm"))
        on = [HERE, NEWER, COLD, elsewhere][int(rng.integers(4))]
        for sequence in range(int(rng.integers(1, 5))):
            trial = Trial(Schedule.of("loops", 1, {"tile": sequence}), Timed((1e-5,)))
            store.add_trial(NewTrial(f"j{number}", 0, sequence, task.workload_key, on, trial, 1.0))
    until = store.newest_record() - 5
    groups = store.history_groups(
        store.history_tasks(target_kind="llvm", until=until, but=("j7", 0), limit=99), until=until
    )
    devices = {info.key: info for info in store.devices()}
    others = [
        Situation(_workload(store, group.workload_key), devices[group.device_key], group.toolchain_key, group.profile)
        for group in groups
    ]
    for limit in (1, 9, 30, 999):
        operator, parameters = _drawn(rng)
        asks = Situation(OPERATORS[operator].workload(parameters), HERE.device, HERE.toolchain.key, str(HERE.profile))
        counts = accumulate((groups[n].records for _, n in nearest(asks, others)), initial=0)
        wanted = [groups[n] for before, (_, n) in zip(counts, nearest(asks, others), strict=False) if before < limit]
        found = related_groups(store, asks, operator=operator, until=until, but=("j7", 0), limit=limit)
        assert list(found) == wanted and len(wanted) > 0


def _drawn(rng: np.random.Generator) -> tuple[str, dict[str, object]]:
    """Return an operator with parameters. There are few of them, so that some workloads come twice."""
    sizes = [int(n) for n in rng.choice([32, 64, 96, 128], 3)]
    if rng.random() < 0.5:
        return "matmul", dict(zip("mnk", sizes, strict=True))
    return "softmax", {"rows": sizes[0], "columns": sizes[1]}


def _workload(store: RecordStore, key: str) -> Workload:
    return workload_from_json(store.workload(key))
