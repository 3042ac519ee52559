"""Jobs, units and holders of leases for the tests of the fleet."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Table, create_engine, make_url, select, text, update

from tilewright.core.budget import Budget
from tilewright.core.fleet import MOST_LOSSES, Lease, TaskClaim, Unit
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Clocks, Failed, Reason, Timed, Trial, TrialStage
from tilewright.db import jobs, migrate
from tilewright.db.engine import Database, parse_url
from tilewright.db.leases import TASK
from tilewright.db.rows import JobRow, NewJob, NewTask, NewTrial, StoredTrial
from tilewright.db.store import RecordStore
from tilewright.db.tables import jobs as job_table
from tilewright.db.tables import leases, metadata, tasks, units

CPU = DeviceInfo("Some CPU", Target("llvm", "x86-64", ("avx2",), 2, 32), {"cores": 2.0})
GPU = DeviceInfo("Some GPU", Target("cuda", "sm_90a", (), 132, 16), {"sm_count": 132.0})
TOOLCHAIN = Toolchain({"cuda": "13", "tilewright": "1"})
ON_GPU = MeasuredOn(GPU, TOOLCHAIN, Profile("cold", 2))
END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"""
FIRST_NUMBERS = "SELECT setval(format('%%I', sequencename)::regclass, start_value, false) FROM pg_sequences"
LONG = 600.0
"""A lease of so many seconds does not end within a test."""


def migrated(url: str) -> RecordStore:
    """A store on the empty database at ``url``, which becomes a copy of one that went through all migrations: they
    take ten times as long as the copy."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        Path(str(address.database)).write_bytes(_migrated_file())
    else:
        _copy_migrated(address.set(database="postgres").render_as_string(hide_password=False), str(address.database))
    return RecordStore(url)


def _upgrade(url: str) -> None:
    database = Database(parse_url(url))
    migrate.upgrade(database)
    database.close()


@cache
def _migrated_file() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "migrated.sqlite3"
        _upgrade(f"sqlite:///{file}")
        return file.read_bytes()


def _copy_migrated(server: str, name: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if connection.execute(text("SELECT 1 FROM pg_database WHERE datname = 'migrated'")).first() is None:
            connection.exec_driver_sql("CREATE DATABASE migrated")
            _upgrade(make_url(server).set(database="migrated").render_as_string(hide_password=False))
        connection.exec_driver_sql(f"DROP DATABASE {name}")
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE migrated")
    engine.dispose()


def emptied(store: RecordStore) -> None:
    """Delete all rows but the usual tenant's."""
    with store.database.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            if table.name != "tenants":
                connection.execute(table.delete())


def as_migrated(store: RecordStore) -> None:
    """Make a database of PostgreSQL as ``migrated`` leaves it, and end whatever others do there."""
    with store.database.writing() as connection:
        connection.exec_driver_sql(END_OTHERS)
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
        connection.exec_driver_sql(FIRST_NUMBERS)
        for table, rows in first_rows().items():
            connection.execute(table.insert(), rows)


@cache
def first_rows() -> Mapping[Table, list[dict[str, object]]]:
    """The rows that the migrations make."""
    with TemporaryDirectory() as folder, migrated(f"sqlite:///{folder}/migrated.sqlite3") as store:
        with store.database.reading() as connection:
            found = {table: connection.execute(select(table)).mappings().all() for table in metadata.sorted_tables}
    return {table: [dict(row) for row in rows] for table, rows in found.items() if rows}


def gpus(store: RecordStore, count: int, *, host: str = "h1", seen_seconds: float = LONG) -> list[str]:
    """Register so many GPUs of a host; return their UUIDs."""
    found = [Unit(f"GPU-{host}-{i}", GPU, host, "local", i) for i in range(count)]
    store.fleet.register_units(found, seen_seconds=seen_seconds)
    return [unit.uuid for unit in found]


def new_tasks(count: int = 1, *, flight: str | None = None, first: int = 0) -> tuple[NewTask, ...]:
    return tuple(
        NewTask(
            f"{first + i:0>64}",
            {"stages": [first + i]},
            "C[i] = A[i]",
            1000,
            4000,
            flight_key=None if flight is None else f"{flight}/{i}",
        )
        for i in range(count)
    )


def submit(
    store: RecordStore,
    name: str,
    count: int = 1,
    *,
    target: str = "cuda",
    trials: int = 10,
    flight: str | None = None,
    **more: object,
) -> None:
    """Store a job of ``count`` tasks."""
    tasks = new_tasks(count, flight=flight)
    made = NewJob(name, "queued", tasks, Budget(trials), "random", 7, target, "local", "cold")
    store.create_job(replace(made, **more))  # type: ignore[arg-type]


def move_job(store: RecordStore, job_id: str, path: Mapping[str, Sequence[str]], error: str | None = None) -> JobRow:
    """Take a job through the states ``path[present state]``, with one event for each, as if its tasks had been worked
    on; return it."""
    with store.database.writing() as connection:
        row = jobs.lock_job(connection, job_id)
        for state in path[row["state"]]:
            jobs.change_job_state(connection, row, state, error)
            if state in jobs.FINAL:
                jobs.close_waiting(connection, row["number"], None)
        return jobs.load_job(connection, job_id)


def claim(
    store: RecordStore, owner: str = "o", *, targets: Sequence[str] = ("cuda",), unit: str = "", seconds: float = LONG
) -> TaskClaim | None:
    return store.fleet.claim_task(targets, "local", owner, units=[unit] if unit else [], seconds=seconds)


def claimed(store: RecordStore, owner: str = "o", *, unit: str = "", seconds: float = LONG) -> TaskClaim:
    found = claim(store, owner, unit=unit, seconds=seconds)
    assert found is not None
    return found


def trial(
    job: str, task: int, sequence: int, seconds: float | None = 1e-6, *, spent: float = 1.0, unit: str | None = None
) -> NewTrial:
    """A trial that took ``spent`` seconds of the device; ``seconds`` None: one that failed."""
    outcome = Failed(TrialStage.CHECK, Reason.WRONG_RESULT) if seconds is None else Timed((seconds,))
    schedule = Schedule.of("loops", 1, {"tile": sequence})
    found = Trial(schedule, outcome, Clocks(time=spent))
    return NewTrial(job, task, sequence, "", ON_GPU, found, 0.5 * sequence, unit=unit)


def measure(
    store: RecordStore,
    held: TaskClaim,
    count: int = 1,
    *,
    seconds: float | None = 1e-6,
    spent: float = 1.0,
    unit: str | None = None,
) -> StoredTrial:
    """Record the next ``count`` trials of a task; return what was answered to the last."""
    here = (job_table.c.id == held.job_id, tasks.c.position == held.task)
    with store.database.reading() as connection:
        first = connection.execute(select(tasks.c.trials).join(job_table).where(*here)).scalar_one()
    for sequence in range(first, first + count):
        new = trial(held.job_id, held.task, sequence, seconds, spent=spent, unit=unit)
        answer = store.add_trial(new, lease=held.lease)
    return answer


def finish(store: RecordStore, held: TaskClaim, stop_reason: str = "trials", detail: str = "") -> str:
    return store.fleet.finish_task(held.lease, stop_reason, {}, detail=detail)


def run_out(store: RecordStore, *held: Lease) -> None:
    """Let leases run out, as if time had passed."""
    with store.database.writing() as connection:
        for lease in held:
            row = (leases.c.kind == lease.kind, leases.c.subject == lease.subject)
            connection.execute(update(leases).where(*row).values(until=leases.c.until - 2**MOST_LOSSES * LONG))


def wait(store: RecordStore, seconds: float) -> None:
    """Let all ready tasks have waited for so many seconds more."""
    with store.database.writing() as connection:
        connection.execute(update(tasks).values(ready_since=tasks.c.ready_since - seconds))


def unseen(store: RecordStore, uuid: str) -> None:
    """Let a unit have been seen too long ago."""
    with store.database.writing() as connection:
        connection.execute(update(units).where(units.c.uuid == uuid).values(seen_until=0.0))


def leased_subjects(store: RecordStore) -> set[str]:
    with store.database.reading() as connection:
        return set(connection.execute(select(leases.c.subject).where(leases.c.kind == TASK)).scalars())


def job_events(store: RecordStore, name: str, kind: str) -> list[dict[str, object]]:
    return [dict(event.data) for event in store.events(name, after=0, limit=999) if event.kind == kind]
