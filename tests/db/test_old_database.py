"""A database that an earlier version wrote is upgraded: its schedules have today's names, and nothing else changed."""

from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import create_engine, text, update

from tilewright.core.errors import StoreError
from tilewright.core.renamed import RENAMED
from tilewright.core.schedule import Schedule
from tilewright.db import migrate, renaming
from tilewright.db.engine import Database, parse_url
from tilewright.db.store import RecordStore
from tilewright.db.tables import metadata, trials
from tilewright.tests.db.old_database import MIGRATION, Rows, all_rows, copy_rows, lines, unpacked
from tilewright.tests.db.postgres import PostgresServer

ADDED = ("unit", "host", "adopted_from", "predicted_score", "learned_from")
"""Columns of trials that are newer than the database."""


@pytest.fixture
def old(tmp_path: Path) -> Rows:
    return all_rows(unpacked(tmp_path / "before.sqlite3"))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path, old: Rows) -> str:
    """Return the address of a database that stands where the earlier version left it."""
    if request.param == "sqlite":
        return unpacked(tmp_path / "old.sqlite3")
    postgres: PostgresServer = request.getfixturevalue("postgres")
    address = postgres.url()
    copy_rows(old, address)
    return address


def upgraded(url: str) -> Rows:
    database = Database(parse_url(url))
    assert migrate.upgrade(database) == (MIGRATION, migrate.head())
    with database.writing() as connection:
        assert renaming.rename_schedules(connection) == (0, 0)  # nothing is left to do
    database.close()
    return all_rows(url)


def schedule_of(row: dict[str, Any]) -> Schedule:
    return Schedule.from_json({"sketch": row["sketch"], "version": row["sketch_version"], "knobs": row["knobs"]})


def test_schedules_have_todays_names_and_nothing_else_changes(
    url: str, old: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renaming, "BATCH_ROWS", 7)  # several batches, the last of them short
    new = upgraded(url)
    assert all((row["sketch"], row["sketch_version"]) in RENAMED for row in old["trials"])
    for before, after in zip(old["trials"], new["trials"], strict=True):
        schedule = schedule_of(before)
        renamed = {
            "sketch": schedule.sketch,
            "sketch_version": schedule.version,
            "knobs": dict(schedule.knobs),
            "schedule_key": schedule.key,
        }
        assert after == {**before, **renamed, **dict.fromkeys(ADDED)}
        assert list(after["knobs"]) == [name for name, _ in schedule.knobs]  # people read them in this order
    for before, after in zip(old["events"], new["events"], strict=True):
        told = before["data"].get("schedule")
        data = before["data"] if told is None else {**before["data"], "schedule": Schedule.from_json(told).to_json()}
        assert after == {**before, "data": data}
    for name in ("devices", "toolchains", "workloads", "models"):
        assert new[name] == old[name]
    added: dict[str, object] = {"prune": True, "prior": True, "paused": False, "deadline": None, "fresh": False}
    added |= {
        "tenant": "default",
        "priority": 0,
        "model": None,
        "budget_runs": None,
        "owner": "",
        "tags": "",
        "notes": "",
        "device_seconds": None,
        "counted": None,
        "retuning": None,
        "request_id": "",
        "units": 1,
    }
    assert [{**row, **added} for row in old["jobs"]] == new["jobs"]
    for before, after in zip(old["tasks"], new["tasks"], strict=True):
        kept = {name: value for name, value in after.items() if name in before}
        assert kept == {**before, "best_trial": after["best_trial"]}
        assert (after["state"], after["fence"], after["tenant"]) == ("done", 0, "default")
        own = [row for row in new["trials"] if (row["job"], row["task"]) == (after["job"], after["position"])]
        spent = sum(row["check_seconds"] + row["time_seconds"] for row in own)
        assert after["device_seconds"] == pytest.approx(spent) and (spent > 0) == bool(own)


def test_the_best_trial_of_a_task_is_the_one_that_a_look_up_finds(url: str) -> None:
    upgraded(url)
    with RecordStore(url) as store:
        jobs = store.jobs(limit=99)
        assert len(jobs) == 20
        for job in jobs:
            (task,) = job.tasks
            assert task.best is not None
            identity = task.best.record.identity
            found = store.answers(
                [task.workload_key],
                device_key=identity.device_key,
                toolchain_key=identity.toolchain_key,
                profile=identity.profile,
            )
            assert min(found, key=lambda row: row.rank).record_id == task.best.record.id
            assert (identity.sketch, identity.sketch_version) not in RENAMED


def test_old_lines_are_imported_under_todays_names(url: str, tmp_path: Path) -> None:
    upgraded(url)
    with RecordStore(url) as store, RecordStore(f"sqlite:///{tmp_path}/imported.sqlite3") as other:
        records = sum('"kind":"record"' in line for line in lines())
        assert other.import_lines(lines()) == (records, 0)
        for job in store.jobs(limit=99):
            mine, theirs = (one.trials(job.id, 0, limit=99) for one in (store, other))
            assert [row.record.trial for row in mine] == [row.record.trial for row in theirs]
            assert [row.record.identity for row in mine] == [row.record.identity for row in theirs]
            assert other.job(job.id).policy == job.policy
        assert other.import_lines(store.export_lines()) == (0, records)
        assert store.import_lines(lines()) == (0, records)


def test_a_row_with_old_names_is_read_under_todays(url: str, old: Rows) -> None:
    upgraded(url)
    row = old["trials"][0]
    names = {name: row[name] for name in ("sketch", "sketch_version", "knobs")}
    with RecordStore(url) as store:
        with store.database.writing() as connection:
            connection.execute(update(trials).where(trials.c.id == row["id"]).values(names))
        record = store.trial(row["id"]).record
        assert record.trial.schedule == schedule_of(row)
        assert record.identity.sketch == record.trial.schedule.sketch


def test_unfinished_tasks_are_ready_and_ended_ones_done(url: str) -> None:
    """Of three jobs that were under way, one had ended its task, one was to be cancelled, and one had just begun."""
    engine = create_engine(url)
    with engine.begin() as connection:
        names = list(connection.execute(text("SELECT id FROM jobs ORDER BY number LIMIT 3")).scalars())
        for name, state in zip(names, ("running", "cancelling", "queued"), strict=True):
            connection.execute(
                text("UPDATE jobs SET state = :s, finished_at = NULL WHERE id = :n"), {"s": state, "n": name}
            )
        open_tasks = "UPDATE tasks SET stop_reason = NULL WHERE job IN (SELECT number FROM jobs WHERE id = :n)"
        for name in names[1:]:
            connection.execute(text(open_tasks), {"n": name})
    engine.dispose()
    database = Database(parse_url(url))
    migrate.upgrade(database)
    database.close()
    with RecordStore(url) as store:
        states = {job.id: job.tasks[0].state.value for job in store.jobs(limit=99)}
        assert [states.pop(name) for name in names] == ["done", "ready", "ready"]
        assert set(states.values()) == {"done"}
        fleet = store.fleet
        fleet.reap()
        assert [store.job(name).state for name in names] == ["succeeded", "cancelled", "queued"]
        job = store.job(names[2])
        assert fleet.now() - 600 < job.tasks[0].ready_since <= fleet.now()
        claimed = fleet.claim_task([job.target], job.executor, "o", units=[], seconds=60.0)
        assert claimed is not None and (claimed.job_id, claimed.lease.fence) == (names[2], 1)
        assert [tenant.name for tenant in fleet.tenants()] == ["default"]


def test_the_migration_can_be_taken_back(url: str) -> None:
    database = Database(parse_url(url))
    migrate.upgrade(database, "0003")
    before = all_rows(url)
    migrate.upgrade(database)
    with database.writing() as connection:
        config = migrate._config()
        config.attributes.update(connection=connection, metadata=metadata)
        command.downgrade(config, "0003")
    assert all_rows(url) == before
    assert migrate.upgrade(database) == ("0003", migrate.head())
    with database.reading() as connection:
        assert migrate.differences(connection) == []
    database.close()


@pytest.mark.postgres
def test_a_shared_database_is_upgraded_on_request_only(postgres: PostgresServer, old: Rows) -> None:
    address = postgres.url()
    copy_rows(old, address)
    with pytest.raises(StoreError, match=f"at migration {MIGRATION}, this program needs {migrate.head()}"):
        RecordStore(address)
