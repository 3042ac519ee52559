"""The dashboard's figures on both databases equal what the trials themselves add up to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.core.record import RecordFilter
from tilewright.core.trial import Failed, Timed
from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url
from tilewright.db.store import RecordStore
from tilewright.tests.api.filled import keep_job, operator_task
from tilewright.tests.api.recorded_job import TRIALS, keep_recorded_job
from tilewright.tests.db.fleets import LONG, claimed, migrated, submit
from tilewright.tests.db.postgres import PostgresServer

LONG_AGO, UNIT = "2020-01-01T00:00:00.000000Z", "GPU-a100"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    if request.param == "sqlite":
        with migrated(f"sqlite:///{tmp_path}/t.sqlite3") as opened:
            yield opened
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    address = postgres.url()
    database = Database(parse_url(address))
    migrate.upgrade(database)
    database.close()
    with RecordStore(address) as opened:
        yield opened


def test_figures_of_a_task_and_of_all_jobs(store: RecordStore) -> None:
    keep_recorded_job(store, "recorded")
    keep_job(store, "other", [operator_task("matmul", {"m": 64, "n": 64, "k": 64})], 20)
    trials = store.trials("recorded", 0, limit=TRIALS)
    outcomes = [row.record.trial.outcome for row in trials]
    spent = [row.record.trial.clocks.check + row.record.trial.clocks.time for row in trials]

    everything, event = store.dashboard.progress("recorded", 0, after=-1, step=1, limit=1000)
    assert [row.sequence for row in everything] == list(range(TRIALS)) and event > 0
    best = float("inf")
    for n, (row, outcome) in enumerate(zip(everything, outcomes, strict=True)):
        assert row.device_seconds == pytest.approx(sum(spent[: n + 1]))
        assert row.is_best == (isinstance(outcome, Timed) and outcome.seconds < best)
        best = min(best, outcome.seconds) if isinstance(outcome, Timed) else best
        assert (row.failure is None) == isinstance(outcome, Timed)
    thin, _ = store.dashboard.progress("recorded", 0, after=10, step=7, limit=1000)
    kept = {row.sequence for row in everything if row.is_best or row.sequence % 7 == 0 or row.sequence == TRIALS - 1}
    assert [row.sequence for row in thin] == sorted(n for n in kept if n > 10)
    assert thin == tuple(everything[row.sequence] for row in thin)

    (worker,) = store.dashboard.workers("recorded", 0)
    failed = sum(isinstance(outcome, Failed) for outcome in outcomes)
    assert (worker.unit, worker.trials, worker.failed) == (UNIT, TRIALS, failed)
    assert worker.check + worker.time == pytest.approx(sum(spent))
    health = store.dashboard.health("recorded", 0, step=5)
    assert [row.sequence for row in health] == list(range(0, TRIALS, 5)) and "power_watts" in health[0].readings
    settings = store.dashboard.settings("recorded", 0, fastest=1, step=1000)
    fastest = store.trials_by_seconds("recorded", 0, limit=1)[0].record
    assert {row.record_id for row in settings} == {trials[0].record.id, fastest.id}
    predicted = store.dashboard.predicted("recorded", 0)
    assert len(predicted) >= 16 and all(row.learned_from >= 16 for row in predicted)

    by_device = {row.device_name: row for row in store.dashboard.spent(LONG_AGO)}
    assert by_device["NVIDIA A100"].device_seconds == pytest.approx(sum(spent))
    assert by_device["NVIDIA A100"].day_device_seconds == pytest.approx(sum(spent))
    assert by_device["Example CPU, 2 cores"].trials == 20
    assert sum(cause.count for cause in store.dashboard.causes(LONG_AGO)) == failed + sum(
        row.count for row in store.failures("other", 0)
    )
    assert store.dashboard.causes("2999-01-01T00:00:00.000000Z") == ()

    found = store.dashboard.search(RecordFilter(operator="softmax", failed=False), before=None, limit=5).rows
    assert [row.record.id for row in found] == sorted((row.record.id for row in found), reverse=True)
    assert {row.record.job_id for row in found} == {"recorded"}
    wanted = RecordFilter(job_id="other", sketch="cpu_loops", device_key=found[0].record.identity.device_key)
    assert store.dashboard.search(wanted, before=None, limit=5).rows == ()

    submit(store, "running", target="cuda")
    assert store.fleet.lease_unit(UNIT, "0123456789abcdef", seconds=LONG) is not None
    claimed(store, "0123456789abcdef", unit=UNIT)
    (task,) = store.dashboard.running()
    assert (task.job_id, task.trials, task.lately, task.lately_seconds) == ("running", 0, 0, 0.0)
