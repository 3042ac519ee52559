"""Fills a database with many records at once, for the benchmark of look-ups."""

import hashlib
from collections.abc import Iterator

from sqlalchemy import Connection, insert

from tilewright.core.keys import canonical_json
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.db import migrate
from tilewright.db.best import fill_best
from tilewright.db.catalog import keep_device, keep_toolchain
from tilewright.db.engine import Database, parse_url
from tilewright.db.rows import NewTrial
from tilewright.db.tables import jobs, tasks, trials, workloads
from tilewright.db.trials import columns_of
from tilewright.service.wiring import sketch_versions

RECORDS_PER_WORKLOAD = 10
TASKS_PER_JOB = 64
ROWS_AT_ONCE = 5_000
HERE = MeasuredOn(
    DeviceInfo("Example CPU, 2 cores", Target("llvm", "x86-64", ("avx2", "fma"), 2, 32), {"cores": 2.0}),
    Toolchain({"llvm": "20", "tilewright": "0.1.0"}),
    Profile(),
)
OLDER = MeasuredOn(HERE.device, Toolchain({"llvm": "19", "tilewright": "0.1.0"}), Profile())
CONDITIONS = {
    "device_key": HERE.device.key,
    "toolchain_key": HERE.toolchain.key,
    "profile": str(HERE.profile),
}
"""Under these conditions all workloads have records."""


def key_of(number: int) -> str:
    """Return the key of the ``number``-th workload."""
    return hashlib.sha256(b"workload %d" % number).hexdigest()


def fill(url: str, records: int, seed: int) -> int:
    """Make the tables and fill them; return the number of workloads. Each has nine records here and one of an older
    toolchain."""
    count = max(1, records // RECORDS_PER_WORKLOAD)
    database = Database(parse_url(url))
    migrate.upgrade(database)
    draws = stream(seed, "records")
    with database.writing() as connection:
        places = [
            (keep_device(connection, on.device), keep_toolchain(connection, on.toolchain)) for on in (HERE, OLDER)
        ]
        _insert(connection, count)
        row = _row(places[0])
        rows: list[dict[str, object]] = []
        for number in range(count):
            for sequence in range(RECORDS_PER_WORKLOAD):
                older = sequence == RECORDS_PER_WORKLOAD - 1
                seconds = 1e-5 * (1.0 + float(draws.random()))
                samples = [seconds * (1 + 0.01 * step) for step in range(-3, 4)]
                position = number % TASKS_PER_JOB
                rows.append(
                    {
                        **row,
                        "job": number // TASKS_PER_JOB + 1,
                        "task": position,
                        "sequence": sequence,
                        "workload": number + 1,
                        "toolchain": places[older][1],
                        "knobs": {"tile_m": sequence, "tile_n": 8, "unroll": 4, "order": "ijk"},
                        "schedule_key": key_of(1_000_000_000 + sequence),
                        "samples": samples,
                        "seconds": seconds,
                        "rank_seconds": seconds,
                    }
                )
            if len(rows) >= ROWS_AT_ONCE:
                connection.execute(insert(trials), rows)
                rows = []
        if rows:
            connection.execute(insert(trials), rows)
    with database.writing() as connection:
        fill_best(connection)
    if not database.embedded:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for table, column in (("workloads", "id"), ("jobs", "number")):  # their numbers were given, not drawn
                numbers = f"pg_get_serial_sequence('{table}', '{column}')"
                connection.exec_driver_sql(f"SELECT setval({numbers}, max({column})) FROM {table}")
            connection.exec_driver_sql("VACUUM ANALYZE")
    database.close()
    return count


def _insert(connection: Connection, count: int) -> None:
    """Add the workloads, and jobs with a task for each."""
    for table, rows in ((workloads, _workloads(count)), (jobs, _jobs(count)), (tasks, _tasks(count))):
        batch: list[dict[str, object]] = []
        for row in rows:
            batch.append(row)
            if len(batch) == ROWS_AT_ONCE:
                connection.execute(insert(table), batch)
                batch = []
        if batch:
            connection.execute(insert(table), batch)


def _workloads(count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        data = {"stages": [number]}
        yield {
            "id": number + 1,
            "key": key_of(number),
            "data": data,
            "expression": f"C[i] = A[i] * {canonical_json(data)}",
            "flops": 1_000_000,
            "minimum_bytes": 4_000,
        }


def _jobs(count: int) -> Iterator[dict[str, object]]:
    for number in range(-(-count // TASKS_PER_JOB)):
        yield {
            "number": number + 1,
            "id": f"filled{number}",
            "state": "succeeded",
            "created_at": "2026-01-01T00:00:00.000000Z",
            "budget_trials": RECORDS_PER_WORKLOAD,
            "strategy": "random",
            "seed": 0,
            "target": "llvm",
            "executor": "local",
            "cache": "warm",
            "imported": True,
            "version": 1,
        }


def _tasks(count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        yield {
            "job": number // TASKS_PER_JOB + 1,
            "position": number % TASKS_PER_JOB,
            "workload": number + 1,
            "operator": "matmul",
            "parameters": {"m": number + 1, "n": 64, "k": 32},
            "trials": RECORDS_PER_WORKLOAD,
            "failures": {},
            "state": "done",
        }


def _row(place: tuple[int, int]) -> dict[str, object]:
    """Return what the rows of all trials have in common."""
    schedule = Schedule.of("cpu_loops", sketch_versions()["cpu_loops"], {"tile_m": 0})
    evidence = Evidence(1, 0.25, 1e-5, 1e-5, True, True, 1e-5, "0" * 64, 4096, {"load_average_1min": 0.5})
    trial = Trial(schedule, Timed((1e-5,), 10), Clocks(0.001, 0.02, 0.003, 0.01, 0.001), evidence)
    return columns_of(NewTrial("filled0", 0, 0, "", HERE, trial, 0.5), 1, 1, *place)
