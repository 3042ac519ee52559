"""Records a trial on PostgreSQL in one statement, which is one round trip and one commit.

``recording`` says what belongs together; this does the same where nothing is unusual:

    held ─▶ ticket ─▶ task ─▶ trial, best ─▶ job ─▶ told, charged
    lease   record id  counters  rows        version  events, tenant's time

Each part reads what the part before it returns, so that locks are taken in the order that ``leases`` asks for, and
nothing is written unless all is. Without the lease ``held`` is empty, and with a gap in the sequence ``task`` is. The
caller then takes the general way, which says why. It also adds a device that is new. Ids of rows that never change are
asked for once (``_Place``), because each table and each index of the statement takes PostgreSQL time, used or not.

The tenant's row is the only one that task workers of different jobs change. Whoever finds it locked passes over it, and
charges the tenant with the next trial: otherwise each commit would wait for the one before it and for the disk.

The statement has a connection of its own, where it is planned once. It is written with PostgreSQL's own placeholders:
psycopg would parse a statement of this length again each time. Event ids come from a sequence that is asked while the
job's row is locked, so that they grow in the order of commits.
"""

import dataclasses
import json
import re
import select
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql

from ..core.errors import StoreError
from ..core.fleet import Lease, Wanted
from ..core.record import MeasuredOn
from ..core.trial import Timed
from .best import answer_json
from .driver_errors import driven
from .encode import now
from .engine import Database
from .leases import TASK, task_in
from .recording import trial_events
from .rows import NewTrial, StoredTrial
from .tables import best_records, trials
from .trials import columns_of
from .wanted import PATIENCE_SECONDS, SLICE_SECONDS, wanted_in, wanted_of

SETTINGS = ("plan_cache_mode = force_generic_plan", "enable_seqscan = off", "jit = off")
"""Of the statement's connection. Each part finds its row by an index, also while the tables are small. Where there is
no index, a plan without sequential scans seems so expensive that it would be compiled each time."""
KNOWN_PLACES = 64
"""So many tasks are remembered, each with what its trials refer to."""

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_NAMED = re.compile(r"%\((\w+)\)s")
_CLOCK = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
_PLACE = """
SELECT tasks.job, workloads.key, workloads.flops, devices.id, toolchains.id, measured_on.id
FROM tasks JOIN jobs ON jobs.number = tasks.job JOIN workloads ON workloads.id = tasks.workload
CROSS JOIN devices CROSS JOIN toolchains LEFT JOIN measured_on ON measured_on.device_key = devices.key
  AND measured_on.toolchain_key = toolchains.key AND measured_on.profile = %(profile)s
WHERE jobs.id = %(job_id)s AND tasks.position = %(task)s
  AND devices.key = %(device_key)s AND toolchains.key = %(toolchain_key)s"""
_RESOLVED = {"id": "task.id", "job": "task.job", "workload": "task.workload"}


def _given(table: Table, name: str) -> str:
    return f"CAST(%({name})s AS {table.c[name].type.compile(dialect=_DIALECT)})"


def _numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with numbers instead of the names of its parameters, and the names in this order."""
    names = tuple(dict.fromkeys(_NAMED.findall(statement)))
    return _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", statement), names


def _inserted() -> str:
    names = [column.name for column in trials.columns if column.name != "adopted_from"]
    values = ", ".join(_RESOLVED.get(name) or _given(trials, name) for name in names)
    return f"INSERT INTO trials ({', '.join(names)}) SELECT {values} FROM task"


_RANK, _SKETCH, _VERSION, _KEY = (
    _given(trials, name) for name in ("rank_seconds", "sketch", "sketch_version", "schedule_key")
)
_IDENTITY = f"""b.workload_key = {_given(best_records, "workload_key")}
      AND b.measured_on = {_given(best_records, "measured_on")}
      AND b.tenant = task.tenant AND b.sketch = {_SKETCH} AND b.sketch_version = {_VERSION}"""
_RECORD, _NAMES = _numbered(f"""
WITH held AS MATERIALIZED (
  SELECT fence FROM leases WHERE kind = '{TASK}' AND subject = %(subject)s AND fence = %(fence)s AND until > {_CLOCK}
  FOR NO KEY UPDATE
), ticket AS MATERIALIZED (
  SELECT nextval('trials_id_seq') AS id FROM held
), task AS (
  UPDATE tasks SET trials = tasks.trials + 1, losses = 0, device_seconds = tasks.device_seconds + %(device_seconds)s,
    failures = CASE WHEN CAST(%(failure)s AS TEXT) IS NULL THEN tasks.failures ELSE CAST(
      CAST(tasks.failures AS JSONB) || jsonb_build_object(CAST(%(failure)s AS TEXT),
        COALESCE(CAST(tasks.failures ->> CAST(%(failure)s AS TEXT) AS INTEGER), 0) + 1) AS JSON) END,
    best_trial = CASE WHEN {_RANK} < COALESCE(tasks.best_seconds, 'Infinity') THEN ticket.id ELSE tasks.best_trial END,
    best_seconds = LEAST(tasks.best_seconds, {_RANK})
  FROM ticket
  WHERE tasks.job = {_given(trials, "job")} AND tasks.position = %(task)s AND tasks.trials = %(sequence)s
  RETURNING ticket.id, tasks.job, tasks.workload, tasks.best_trial IS NOT DISTINCT FROM ticket.id AS is_best,
    tasks.tenant, tasks.executor, tasks.target
), trial AS ({_inserted()}
), best AS (
  INSERT INTO best_records AS b
    (workload_key, measured_on, tenant, sketch, sketch_version, record_id, rank_seconds, schedule_key, answer)
  SELECT {_given(best_records, "workload_key")}, {_given(best_records, "measured_on")}, task.tenant, {_SKETCH},
    {_VERSION}, task.id, {_RANK}, {_KEY}, '{{"record_id":' || task.id || CAST(%(answer)s AS TEXT)
  FROM task WHERE {_RANK} IS NOT NULL AND NOT EXISTS (
    SELECT FROM best_records AS b
    WHERE {_IDENTITY} AND (b.rank_seconds, b.schedule_key, b.record_id) <= ({_RANK}, {_KEY}, task.id))
  ON CONFLICT (workload_key, measured_on, tenant, sketch, sketch_version) DO UPDATE
    SET record_id = excluded.record_id, rank_seconds = excluded.rank_seconds, schedule_key = excluded.schedule_key,
      answer = excluded.answer
    WHERE (excluded.rank_seconds, excluded.schedule_key, excluded.record_id)
      < (b.rank_seconds, b.schedule_key, b.record_id)
  RETURNING 1
), job AS (
  UPDATE jobs SET version = jobs.version + 1 FROM task
  WHERE jobs.number = task.job AND (SELECT count(*) FROM best) >= 0
  RETURNING jobs.number, jobs.state, jobs.paused, jobs.priority, jobs.tenant
), told AS (
  INSERT INTO events (job, kind, data, created_at)
  SELECT job.number, about.kind, CAST('{{"record_id":' || task.id || about.data AS JSON), %(told_at)s
  FROM job, task, (VALUES (1, 'trial', CAST(%(trial_event)s AS TEXT)), (2, 'best', CAST(%(best_event)s AS TEXT)))
    AS about (place, kind, data)
  WHERE about.place = 1 OR task.is_best ORDER BY about.place
), free AS MATERIALIZED (
  SELECT tenants.name FROM job JOIN tenants ON tenants.name = job.tenant FOR NO KEY UPDATE OF tenants SKIP LOCKED
), charged AS (
  UPDATE tenants SET virtual_seconds = tenants.virtual_seconds + %(spent)s / tenants.weight
  FROM free WHERE tenants.name = free.name RETURNING 1
)
SELECT EXISTS (SELECT FROM charged), task.id, job.state, job.paused OR attempts.fence IS NULL
  OR EXISTS (SELECT FROM units WHERE state <> 'ready')
  OR (attempts.began_at <= {_CLOCK} - {SLICE_SECONDS} AND EXISTS (
    SELECT FROM tasks AS w WHERE w.state = 'ready' AND w.tenant = task.tenant AND w.executor = task.executor
      AND w.target = task.target AND w.priority > job.priority AND w.ready_since <= {_CLOCK} - {PATIENCE_SECONDS}))
FROM task CROSS JOIN job LEFT JOIN attempts
  ON attempts.job = task.job AND attempts.task = %(task)s AND attempts.fence = %(fence)s""")
_PLACE, _PLACE_NAMES = _numbered(_PLACE)
_CHARGE, _CHARGE_NAMES = _numbered("""
UPDATE tenants SET virtual_seconds = tenants.virtual_seconds + %(spent)s / tenants.weight
FROM jobs WHERE jobs.number = %(job)s AND tenants.name = jobs.tenant RETURNING 1""")


class _Place(NamedTuple):
    """Has what the trials of a task refer to, when they are measured on one thing: what ``_PLACE`` selects. The last is
    None while nothing was timed there."""

    job: int
    workload_key: str
    flops: int
    device: int
    toolchain: int
    measured_on: int | None


class RecordStatement:
    """Thread-safe. For a database on PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._connection: Any = None
        self._places: dict[tuple[object, ...], _Place] = {}
        self._owed: dict[int, float] = {}
        self._on: tuple[MeasuredOn, Mapping[str, str]] | None = None

    def close(self) -> None:
        """Close the connection. The next trial opens another one."""
        with self._lock:
            if self._connection is not None:
                with suppress(StoreError):
                    self._charge_others(None)
            self._drop()

    def record(self, new: NewTrial, lease: Lease) -> StoredTrial | None:
        """Store a trial of the task that is leased. None: nothing was written, and the general way has to be taken.
        Raises StoreError, after which the trial may have been stored or not."""
        outcome = new.trial.outcome
        unusual = isinstance(outcome, Timed) and (outcome.final_samples or outcome.final_rank_seconds is not None)
        if unusual or new.measured_on.device.measured or task_in(lease) != (new.job_id, new.task):
            return None
        with self._lock:
            place = self._place_of(new)
            if place is None:
                return None
            self._charge_others(place.job)
            parameters = self._parameters(new, lease, place)
            row = self._execute(_RECORD, _NAMES, parameters)
            if row is None:
                self._places.clear()
                return None
            charged, record_id, state, look = row
            self._owed = {} if charged else {place.job: cast(float, parameters["spent"])}
        wanted = wanted_in(state)
        if look and wanted is Wanted.GO:
            with self._database.reading() as connection:
                wanted = wanted_of(connection, [lease])
        return StoredTrial(record_id, state, wanted)

    def _charge_others(self, job: int | None) -> None:
        """Charge the tenant of a job before this one for what its last trials took, if it was not."""
        for other, spent in list(self._owed.items()):
            if other != job:
                self._execute(_CHARGE, _CHARGE_NAMES, {"job": other, "spent": spent})
                self._owed.pop(other)

    def _place_of(self, new: NewTrial) -> _Place | None:
        """Return what a trial refers to; None where something of that is new."""
        names = self._names_of(new)
        key = (new.job_id, new.task, *names.values())
        found = self._places.get(key)
        timed = isinstance(new.trial.outcome, Timed)
        if found is None or (timed and found.measured_on is None):
            row = self._execute(_PLACE, _PLACE_NAMES, {"job_id": new.job_id, "task": new.task, **names})
            if row is None or (timed and row[-1] is None):
                return None
            if len(self._places) >= KNOWN_PLACES:
                self._places.clear()
            found = self._places[key] = _Place(*row)
        return found

    def _parameters(self, new: NewTrial, lease: Lease, place: _Place) -> dict[str, object]:
        outcome, clocks = new.trial.outcome, new.trial.clocks
        values = columns_of(new, place.job, 0, place.device, place.toolchain)
        identity = {
            "job_id": new.job_id,
            "workload_key": place.workload_key,
            "device_name": new.measured_on.device.name,
            **self._names_of(new),
        }
        timed = isinstance(outcome, Timed)
        answer = answer_json(identity, new.trial, place.flops, str(values["created_at"])) if timed else None
        trial_event, best_event = trial_events(new, place.flops)
        return {
            **{name: _stored(value) for name, value in values.items()},
            "workload_key": place.workload_key,
            "measured_on": place.measured_on,
            "subject": lease.subject,
            "fence": lease.fence,
            "device_seconds": clocks.check + clocks.time,
            "spent": sum(dataclasses.astuple(clocks)) + self._owed.get(place.job, 0.0),
            "failure": None if timed else f"{outcome.stage.value}:{outcome.reason.value}",  # type: ignore[union-attr]
            "answer": None if answer is None else _continued(answer),
            "trial_event": _continued(json.dumps(trial_event)),
            "best_event": None if best_event is None else _continued(json.dumps(best_event)),
            "told_at": now(),
        }

    def _names_of(self, new: NewTrial) -> Mapping[str, str]:
        """Return the keys of the device and the toolchain, and the profile. A task has one of each, and hashing them
        takes a while."""
        on = new.measured_on
        if self._on is None or self._on[0] is not on:
            names = {"device_key": on.device.key, "toolchain_key": on.toolchain.key, "profile": str(on.profile)}
            self._on = (on, names)
        return self._on[1]

    def _execute(self, statement: str, names: Sequence[str], parameters: Mapping[str, object]) -> Any:
        """Return the only row that a statement yields, or None. After an error the connection is given up."""
        try:
            with driven(self._database.url, self._database.driver_error):
                given = [parameters[name] for name in names]
                return self._open().execute(statement, given, prepare=True).fetchone()
        except BaseException:
            self._drop()
            raise

    def _open(self) -> Any:
        """Return the connection. One on which the server has said something unasked is given up: mostly that it was
        shut down meanwhile."""
        if self._connection is not None and (self._connection.closed or _has_news(self._connection.fileno())):
            self._drop()
        if self._connection is None:
            self._connection = self._database.own_connection()
            self._connection.cursor_factory = self._database.raw_cursor
            for setting in SETTINGS:
                self._connection.execute(f"SET {setting}")
        return self._connection

    def _drop(self) -> None:
        self._places.clear()  # it may be another database that answers next
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _has_news(descriptor: int) -> bool:
    polled = select.poll()
    polled.register(descriptor, select.POLLIN)
    return bool(polled.poll(0))


def _stored(value: object) -> object:
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def _continued(text: str) -> str:
    """Return the text of a JSON object as it goes on after its first member."""
    return f",{text[1:]}"
