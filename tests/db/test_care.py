"""Databases are copied, brought back, checked, and rid of what is old."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from tilewright.core.budget import Budget
from tilewright.core.errors import Conflict, InvalidParameter, StoreError
from tilewright.db.json_lines import JsonLinesExporter
from tilewright.db.retention import Retention, delete_old
from tilewright.db.rows import NewJob
from tilewright.db.store import RecordStore
from tilewright.service.database_care import back_up_database, check_database, restore_database
from tilewright.service.settings import Settings
from tilewright.tests.db.fleets import claimed, finish, migrated, new_tasks, submit, trial
from tilewright.tests.db.postgres import PostgresServer

OLD = "2020-01-01T00:00:00.000000Z"


def settings_of(url: str) -> Settings:
    return Settings(database_url=url)


def measured(store: RecordStore, name: str, seconds: tuple[float | None, ...]) -> None:
    """Store a job that has ended, with trials of these times."""
    submit(store, name)
    held = claimed(store)
    for sequence, one in enumerate(seconds):
        store.add_trial(trial(name, 0, sequence, one), lease=held.lease)
    finish(store, held)


def lines(store: RecordStore) -> list[str]:
    with store.database.reading() as connection:
        return JsonLinesExporter().page(connection)


def test_a_copy_is_taken_while_the_database_is_used_and_brought_back(
    fleet_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file, embedded = tmp_path / "copy", fleet_url.startswith("sqlite")
    with migrated(fleet_url) as store:
        measured(store, "j", (2e-6, None, 1e-6))
        kept = lines(store)
        assert back_up_database(settings_of(fleet_url), file) == file.stat().st_size > 0
        with pytest.raises(Conflict, match="is there already"):
            back_up_database(settings_of(fleet_url), file)
        measured(store, "later", (1e-6,))
    if embedded:
        other = f"sqlite:///{tmp_path}/other/t.sqlite3"
    else:
        running: PostgresServer = request.getfixturevalue("postgres")
        other = running.url()
    restore_database(settings_of(other), file)
    assert check_database(settings_of(other)) == []
    with RecordStore(other) as store:
        assert lines(store) == kept
        measured(store, "new", (3e-6,))  # it may be written, and new ids do not meet old ones
    with pytest.raises((Conflict, StoreError)):  # it is not empty any more
        restore_database(settings_of(other), file)
    with pytest.raises(InvalidParameter, match="is to be restored"):
        restore_database(settings_of("postgresql://nobody@/x" if embedded else f"sqlite:///{tmp_path}/x"), file)


def test_a_check_names_what_does_not_fit(fleet_url: str) -> None:
    with migrated(fleet_url) as store:
        measured(store, "j", (2e-6, None, 1e-6))
        submit(store, "running")
        claimed(store)
    assert check_database(settings_of(fleet_url)) == []
    with RecordStore(fleet_url) as store, store.database.writing() as connection:
        for damage in (
            "UPDATE tasks SET trials = 1, best_seconds = 5 WHERE job = 1",
            "UPDATE best_records SET rank_seconds = 2e-6, record_id = 1",
            "DELETE FROM leases",
        ):
            connection.execute(text(damage))
    assert sorted(fault.partition(":")[0] for fault in check_database(settings_of(fleet_url))) == [
        "a task counts fewer trials than it has",
        "a task has a faster trial than its best one",
        "a task is leased, and there is no lease",
        "a task's best trial is not its own, or has no time",
        "look-ups answer with a record that another of its identity beats",
    ]


def test_old_rows_go_and_winners_stay(fleet_url: str) -> None:
    with migrated(fleet_url) as store:
        for name in ("old", "young"):
            measured(store, name, (2e-6, None, 1e-6, 3e-6))
        submit(store, "asked")
        store.create_job(replace(_new_job(), id="keyed"), key="k", body_sha256="0" * 64)
        with store.database.writing() as connection:
            connection.execute(text(f"UPDATE jobs SET finished_at = '{OLD}' WHERE id = 'old'"))
            connection.execute(text(f"UPDATE idempotency_keys SET created_at = '{OLD}'"))
        before = {name: store.job(name) for name in ("old", "young", "asked")}
        assert delete_old(store.database, Retention()) == dict.fromkeys(("events", "idempotency_keys", "trials"), 0)
        deleted = delete_old(store.database, Retention(events=30, keys=30, trials=30))
        embedded = store.database.embedded  # a server's events go by months (``test_partitions``)
        assert deleted == {"events": 6 if embedded else 0, "idempotency_keys": 1, "trials": 3}
        assert {name: store.job(name) for name in before} == before  # counters and bests are as they were
        assert [row.record.sequence for row in store.trials("old", 0, limit=9)] == [2]
        assert len(store.trials("young", 0, limit=9)) == 4
        assert not embedded or {event.kind for event in store.events("old", after=0, limit=99)} == {"state", "task"}
        assert delete_old(store.database, Retention(events=30, keys=30, trials=30))["trials"] == 0
    assert check_database(settings_of(fleet_url)) == []


def _new_job() -> NewJob:
    return NewJob("keyed", "queued", new_tasks(), Budget(10), "random", 7, "cuda", "local", "cold")
