"""Fills a database with many records at once, for the benchmarks of look-ups and of lists."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Any

from sqlalchemy import JSON, Connection, Table, insert, text

from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Clocks, Evidence, Failed, Reason, Timed, Trial, TrialStage
from tilewright.db import migrate
from tilewright.db.best import fill_best
from tilewright.db.catalog import keep_device, keep_toolchain
from tilewright.db.encode import time_text
from tilewright.db.engine import Database, parse_url
from tilewright.db.rows import NewTask, NewTrial, NewTunedModel
from tilewright.db.tables import attempts, jobs, tasks, trials, workloads
from tilewright.db.trials import columns_of
from tilewright.db.tuned_models import keep_tuned_model
from tilewright.service.wiring import sketch_versions
from tilewright.te.json import workload_to_json
from tilewright.te.operators import OPERATORS

RECORDS_PER_WORKLOAD = 10
TASKS_PER_JOB = 64
LONG_TASK = 10_000
"""So many trials has the only task of the job ``long``."""
DAYS = 30
"""The jobs ended evenly in so many days before now."""
MODELS, KERNELS = 30, 40
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
    """Make the tables and fill them; return the number of workloads that look-ups may ask for. Each has eight times and
    a failure here, and a time of an older toolchain. The job ``long`` has one task more, of ``LONG_TASK`` trials."""
    count = max(1, records // RECORDS_PER_WORKLOAD)
    last = -(-count // TASKS_PER_JOB)
    database = Database(parse_url(url))
    migrate.upgrade(database)
    began = datetime.now(UTC) - timedelta(days=DAYS)
    moments = [time_text(began + timedelta(days=DAYS * n / last)) for n in range(last + 1)]
    with database.writing(unlimited=True) as connection:
        here = keep_device(connection, HERE.device)
        chains = [keep_toolchain(connection, on.toolchain) for on in (HERE, OLDER)]
        _insert(connection, workloads, _workloads(count + 1))
        _insert(connection, jobs, (_job(n, "long" if n == last else f"filled{n}", at) for n, at in enumerate(moments)))
        _insert(connection, tasks, _tasks(count))
        _insert(connection, attempts, _attempts(count, moments))
        with _indexed_afterwards(connection, trials):
            _insert(connection, trials, _trials(count, seed, here, chains, moments))
        for number in range(MODELS):
            keep_tuned_model(connection, _model(number, count))
        connection.execute(text(_BEST_TRIALS))
        connection.execute(text(_BEST_SECONDS))
    with database.writing(unlimited=True) as connection:
        fill_best(connection)
    if not database.embedded:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("SET statement_timeout = 0")
            for table, column in (("workloads", "id"), ("jobs", "number"), ("trials", "id")):  # given, not drawn
                numbers = f"pg_get_serial_sequence('{table}', '{column}')"
                connection.exec_driver_sql(f"SELECT setval({numbers}, max({column})) FROM {table}")
            connection.exec_driver_sql("VACUUM ANALYZE")
    database.close()
    return count


_BEST_TRIALS = """
UPDATE tasks SET best_trial = (SELECT trials.id FROM trials WHERE trials.job = tasks.job
AND trials.task = tasks.position
AND trials.seconds IS NOT NULL ORDER BY trials.rank_seconds, trials.schedule_key, trials.id LIMIT 1)"""
_BEST_SECONDS = "UPDATE tasks SET best_seconds = (SELECT rank_seconds FROM trials WHERE trials.id = tasks.best_trial)"


_INDEXES = """
SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() AND tablename = :name
AND indexname NOT IN (SELECT conname FROM pg_constraint)"""
INDEX_MEMORY = "512MB"


@contextmanager
def _indexed_afterwards(connection: Connection, table: Table) -> Iterator[None]:
    """Drop the indexes of a table of PostgreSQL for the block, but for those of its keys: building one from many rows
    is quicker than adding each row to it."""
    indexes = list[tuple[str, str]]()
    if connection.dialect.name == "postgresql":
        found = connection.execute(text(_INDEXES), {"name": table.name})
        indexes = [(str(name), str(definition)) for name, definition in found]
        connection.exec_driver_sql(f"SET LOCAL maintenance_work_mem = '{INDEX_MEMORY}'")
    for name, _ in indexes:
        connection.exec_driver_sql(f"DROP INDEX {name}")
    yield
    for _, definition in indexes:
        connection.exec_driver_sql(definition)
    if indexes:
        connection.exec_driver_sql(f"ANALYZE {table.name}")


def _insert(connection: Connection, table: Table, rows: Iterator[dict[str, object]]) -> None:
    """Add rows, to PostgreSQL by COPY. All have the columns of the first one, or fewer."""
    if connection.dialect.name == "postgresql":
        first = next(rows)
        names = list(first)
        structured = [isinstance(table.c[name].type, JSON) for name in names]
        driver: Any = connection.connection.driver_connection
        given, made = list[object]([None] * len(names)), list[object]([None] * len(names))
        copied = f"COPY {table.name} ({', '.join(names)}) FROM STDIN"
        with driver.cursor() as cursor, cursor.copy(copied) as copy:
            for row in chain([first], rows):
                assert row.keys() <= first.keys(), row.keys() - first.keys()
                for place, name in enumerate(names):
                    value = row.get(name)
                    if value is not given[place]:  # most rows share most of their values
                        given[place] = value
                        made[place] = json.dumps(value) if structured[place] and value is not None else value
                copy.write_row(made)
        return
    while batch := list(islice(rows, ROWS_AT_ONCE)):
        connection.execute(insert(table), batch)


def _workloads(count: int) -> Iterator[dict[str, object]]:
    """Yield workloads that differ in their keys and, in the text, in their sizes."""
    data = workload_to_json(OPERATORS["matmul"].workload({"m": 64, "n": 64, "k": 32}))
    for number in range(count):
        expression = f"C[i, j] = sum(A[i, k] * B[k, j]) for i < {number}"
        sizes = {"flops": 1_000_000, "minimum_bytes": 4_000}
        yield {"id": number + 1, "key": key_of(number), "data": data, "expression": expression, **sizes}


def _job(number: int, name: str, moment: str) -> dict[str, object]:
    return {
        "number": number + 1,
        "id": name,
        "state": "succeeded",
        **dict.fromkeys(("created_at", "started_at", "finished_at"), moment),
        "budget_trials": RECORDS_PER_WORKLOAD,
        "strategy": "random",
        "seed": 0,
        "target": "llvm",
        "executor": "local",
        "cache": "warm",
        "device": 1,
        "imported": False,
        "version": 1,
        "owner": "somebody",
        "tags": ",nightly,",
    }


def _model(number: int, count: int) -> NewTunedModel:
    numbers = {(number * KERNELS + kernel) % count for kernel in range(KERNELS)}
    parts = (NewTask(key_of(one), {}, "", 1_000_000, 4_000, "matmul", {}) for one in sorted(numbers))
    return NewTunedModel(
        f"{number:064x}", f"model {number}", tuple((part, part.operator or "", 2) for part in parts), {}
    )


def _tasks(count: int) -> Iterator[dict[str, object]]:
    """Yield a task for each workload, and the long one. One task of a job in ten is of a seldom operator."""
    for number in range(count + 1):
        alone = number == count
        seldom = number % (10 * TASKS_PER_JOB) == 0
        yield {
            "job": _job_of(number, count),
            "position": 0 if alone else number % TASKS_PER_JOB,
            "workload": number + 1,
            "operator": "softmax" if seldom else "matmul",
            "parameters": {"m": number + 1, "n": 64, "k": 32},
            "trials": LONG_TASK if alone else RECORDS_PER_WORKLOAD,
            "failures": {"check:wrong_result": 1},
            "state": "done",
            "stop_reason": "trials",
            "target": "llvm",
            "executor": "local",
            "wall_seconds": 3.5,
            "device_seconds": 2.5,
            "roofline_seconds": 5e-6,
            "baseline_seconds": 2e-5,
            "baseline_name": "NumPy",
        }


def _attempts(count: int, moments: Sequence[str]) -> Iterator[dict[str, object]]:
    for number in range(count + 1):
        job = _job_of(number, count)
        began = datetime.fromisoformat(moments[job - 1]).timestamp()
        times = {"began_at": began, "ended_at": began + 3.5, "how": "done"}
        place = {"job": job, "task": 0 if number == count else number % TASKS_PER_JOB, "fence": 1}
        yield {**place, "owner": "owner", "units": ["unit-0"], **times}


def _trials(
    count: int, seed: int, device: int, toolchains: Sequence[int], moments: Sequence[str]
) -> Iterator[dict[str, object]]:
    draws = stream(seed, "records")
    timed, failed = _row(device, toolchains[0], Timed((1e-5,), 10)), _row(device, toolchains[0], _FAILURE)
    for number in range(count + 1):
        job, alone = _job_of(number, count), number == count
        for sequence in range(LONG_TASK if alone else RECORDS_PER_WORKLOAD):
            kind = sequence % RECORDS_PER_WORKLOAD
            place = {
                "id": number * RECORDS_PER_WORKLOAD + sequence + 1,
                "job": job,
                "task": 0 if alone else number % TASKS_PER_JOB,
                "sequence": sequence,
                "workload": number + 1,
                "toolchain": toolchains[kind == RECORDS_PER_WORKLOAD - 1],
                "knobs": {"tile_m": sequence % 64, "tile_n": sequence // 64, "unroll": 4, "order": "ijk"},
                "schedule_key": key_of(1_000_000_000 + sequence),
                "elapsed_seconds": 0.3 * (sequence + 1),
                "created_at": moments[job - 1],
            }
            if kind == RECORDS_PER_WORKLOAD - 2:
                yield {**failed, **place}
                continue
            seconds = 1e-5 * (1.0 + float(draws.random()))
            samples = [seconds * (1 + 0.01 * step) for step in range(-3, 4)]
            yield {**timed, **place, "samples": samples, "seconds": seconds, "rank_seconds": seconds}


_FAILURE = Failed(TrialStage.CHECK, Reason.WRONG_RESULT, "C[3, 7] is 1.5, expected 1.25 +- 2e-05; 17 of 1024 differ")


def _job_of(number: int, count: int) -> int:
    """Return the number of the job that has the ``number``-th workload."""
    return (number // TASKS_PER_JOB if number < count else -(-count // TASKS_PER_JOB)) + 1


def _row(device: int, toolchain: int, outcome: Timed | Failed) -> dict[str, object]:
    """Return what the rows of all trials with such an outcome have in common."""
    schedule = Schedule.of("cpu_loops", sketch_versions()["cpu_loops"], {"tile_m": 0})
    evidence = Evidence(1, 0.25, 1e-5, 1e-5, True, True, 1e-5, "0" * 64, 4096, {"load_average_1min": 0.5})
    trial = Trial(schedule, outcome, Clocks(0.001, 0.02, 0.003, 0.01, 0.001), evidence)
    return columns_of(NewTrial("filled0", 0, 0, "", HERE, trial, 0.5, unit="unit-0"), 1, 1, device, toolchain)
