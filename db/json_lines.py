"""Carries records from one database to another as JSON lines.

Every line is an object with a ``kind``. ``workload``, ``device``, ``toolchain`` and ``job`` lines stand before the
first ``record`` that refers to them by key or name. A record names the unit that took it, and its host, where they are
known. One that a task adopted names the record that was measured (``adopted_from``: its job, task and sequence), whose
line stands before, so that nobody takes the copy for a second measurement. Unknown members and kinds are refused.
Lines that an earlier version wrote are accepted: old names of sketches and knobs are replaced by today's
(``core.renamed``), and a job without ``prune`` and ``prior`` has the default policy.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, select, update

from ..core.budget import Budget
from ..core.errors import InvalidParameter, TilewrightError
from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.target import DeviceInfo, Toolchain
from ..core.trial import Trial
from ..te.json import workload_from_json
from ..te.key import workload_key
from .catalog import load_device, load_toolchain, load_workload
from .encode import (
    clocks_from_json,
    clocks_to_json,
    device_from_json,
    evidence_from_json,
    evidence_to_json,
    number_in,
    outcome_from_json,
    outcome_to_json,
    profile_from_text,
    toolchain_from_json,
    value_in,
)
from .jobs import FINAL, insert_job, load_job
from .recording import record_trial
from .rows import JobRow, NewJob, NewTask, NewTrial, TrialRow
from .tables import jobs, tasks, trials
from .task import task_of
from .trials import load_after
from .visibility import job_tenant, visible

MAX_LINE_CHARACTERS = 16 << 20
MAX_TARGET_CHARACTERS = 64
MOST_TRIALS = 1 << 30
"""A task has fewer trials, which the database's integers hold."""
"""A target may be the key of a device."""
PAGE = 500


@dataclass
class JsonLinesExporter:
    """Writes records as lines. What records refer to is written once, before its first use."""

    written: set[tuple[str, str]] = field(default_factory=set)
    newest: int = 0

    def page(self, connection: Connection) -> list[str]:
        """Return the lines of the next records; the list is empty at the end."""
        lines: list[str] = []
        rows = load_after(connection, self.newest, PAGE)
        places = _places(connection, {row.adopted_from for row in rows if row.adopted_from is not None})
        for row in rows:
            identity = row.record.identity
            self._once(lines, "workload", identity.workload_key, lambda key: load_workload(connection, key))
            self._once(lines, "device", identity.device_key, lambda key: load_device(connection, key))
            self._once(lines, "toolchain", identity.toolchain_key, lambda key: load_toolchain(connection, key))
            if ("job", row.record.job_id) not in self.written:
                job = load_job(connection, row.record.job_id)
                for task in job.tasks:
                    self._once(lines, "workload", task.workload_key, lambda key: load_workload(connection, key))
                self.written.add(("job", job.id))
                lines.append(_line(job_to_json(job)))
            lines.append(_line(record_to_json(row, places.get(row.adopted_from))))
            self.newest = row.record.id
        return lines

    def _once(self, lines: list[str], kind: str, key: str, load: Callable[[str], Mapping[str, object] | None]) -> None:
        if (kind, key) not in self.written:
            self.written.add((kind, key))
            lines.append(_line({"kind": kind, "key": key, "data": load(key)}))


def job_to_json(job: JobRow) -> dict[str, object]:
    """Return the line of a job, which holds its submission. A job that has not ended is written as cancelled."""
    return {
        "kind": "job",
        "id": job.id,
        "state": job.state if job.state in FINAL else "cancelled",
        "created_at": job.created_at,
        "budget": job.budget.to_json(),
        "strategy": job.strategy,
        "seed": job.seed,
        "target": job.target,
        "executor": job.executor,
        "cache": job.cache,
        "prune": job.policy.prune,
        "prior": job.policy.prior,
        "tasks": [
            {"workload": task.workload_key, "operator": task.operator, "parameters": task.parameters}
            for task in job.tasks
        ],
    }


def record_to_json(row: TrialRow, adopted_from: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the line of a record; ``adopted_from`` says which record it is a copy of, if it is one."""
    record = row.record
    known = (("unit", row.unit), ("host", row.host), ("adopted_from", adopted_from))
    place = {name: value for name, value in known if value is not None}
    return {
        "kind": "record",
        "job": record.job_id,
        "task": record.task,
        "sequence": record.sequence,
        "device": record.identity.device_key,
        "toolchain": record.identity.toolchain_key,
        "profile": record.identity.profile,
        "schedule": record.trial.schedule.to_json(),
        "outcome": outcome_to_json(record.trial.outcome),
        "clocks": clocks_to_json(record.trial.clocks),
        "evidence": evidence_to_json(record.trial.evidence),
        "elapsed_seconds": row.elapsed_seconds,
        "created_at": record.created_at,
        **place,
    }


@dataclass
class JsonLinesImporter:
    """Reads lines into a database, inside the caller's transaction."""

    connection: Connection
    workloads: dict[str, NewTask] = field(default_factory=dict)
    devices: dict[str, DeviceInfo] = field(default_factory=dict)
    toolchains: dict[str, Toolchain] = field(default_factory=dict)
    own_jobs: set[str] = field(default_factory=set)
    added: int = 0
    known: int = 0

    def read(self, lines: Iterable[str]) -> None:
        """Add the records that are not there yet. Raises InvalidParameter that names the line and what is wrong."""
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                self._line(_parsed(line))
            except TilewrightError as error:
                raise InvalidParameter(f"line {number}: {error.message}", field=error.field or "line") from error

    def _line(self, data: Mapping[str, object]) -> None:
        kind = data.get("kind")
        if kind == "job":
            self._job(data)
        elif kind == "record":
            self._record(data)
        elif kind in ("workload", "device", "toolchain"):
            _members(data, {"kind", "key", "data"})
            key = value_in(data, "key", str)
            if self._noun(kind, key, data["data"]) != key:
                raise InvalidParameter(f"this {kind} has another key than {key}", field="/key")
        else:
            raise InvalidParameter(
                f"{kind!r} is no kind of line; allowed: workload, device, toolchain, job, record", field="/kind"
            )

    def _noun(self, kind: str, key: str, data: object) -> str:
        if kind == "workload":
            workload = workload_from_json(data)
            self.workloads[key] = task_of(workload)
            return workload_key(workload)
        if kind == "device":
            self.devices[key] = device_from_json(data)
            return self.devices[key].key
        self.toolchains[key] = toolchain_from_json(data)
        return self.toolchains[key].key

    def _job(self, data: Mapping[str, object]) -> None:
        _members(data, _JOB, optional=_POLICY)
        job_id = value_in(data, "id", str)
        if not 1 <= len(job_id) <= 64:
            raise InvalidParameter("a job's name has 1 to 64 characters", field="/id")
        found = self.connection.execute(select(jobs.c.imported, jobs.c.tenant).where(jobs.c.id == job_id)).first()
        if found is not None and job_tenant() not in (None, found[1]):
            raise InvalidParameter(f"the name {job_id[:80]!r} is taken; a job needs another one", field="/id")
        if found is not None:
            if not found[0]:
                self.own_jobs.add(job_id)
            return
        if data["state"] not in FINAL:
            raise InvalidParameter(
                f"{data['state']!r} is no state to end in; allowed: {', '.join(FINAL)}", field="/state"
            )
        seed = value_in(data, "seed", int)
        if not 0 <= seed < 1 << 63:
            raise InvalidParameter(f"seed {seed}; allowed: 0 to 2^63 - 1", field="/seed")
        new = NewJob(
            id=job_id,
            state=str(data["state"]),
            tasks=tuple(self._task(task, f"/tasks/{i}") for i, task in enumerate(_list(data, "tasks"))),
            budget=_budget(data["budget"]),
            seed=seed,
            policy=_policy(data),
            strategy=_name(data, "strategy"),
            target=_name(data, "target", MAX_TARGET_CHARACTERS),
            executor=_name(data, "executor"),
            cache=_name(data, "cache"),
            tenant=job_tenant() or "default",
        )
        insert_job(self.connection, new, imported=True, created_at=_time(data))

    def _task(self, data: object, where: str) -> NewTask:
        if not isinstance(data, Mapping):
            raise InvalidParameter("a task is an object", field=where)
        _members(data, {"workload", "operator", "parameters"}, where)
        key, operator, parameters = data["workload"], data["operator"], data["parameters"]
        if not isinstance(key, str) or key not in self.workloads:
            raise InvalidParameter(f"no line before this one has the workload {key!r}", field=f"{where}/workload")
        if operator is not None and (not isinstance(operator, str) or len(operator) > 64):
            raise InvalidParameter("an operator is a name", field=f"{where}/operator")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidParameter("parameters are an object", field=f"{where}/parameters")
        known = self.workloads[key]
        return NewTask(key, known.workload, known.expression, known.flops, known.minimum_bytes, operator, parameters)

    def _record(self, data: Mapping[str, object]) -> None:
        _members(data, _RECORD, optional=_PLACE)
        job_id, task, sequence = (
            value_in(data, "job", str),
            value_in(data, "task", int),
            value_in(data, "sequence", int),
        )
        device, toolchain = value_in(data, "device", str), value_in(data, "toolchain", str)
        if device not in self.devices or toolchain not in self.toolchains:
            raise InvalidParameter("no line before this one has this record's device and toolchain", field="/device")
        trial = Trial(
            Schedule.from_json(data["schedule"]),
            outcome_from_json(data["outcome"]),
            clocks_from_json(data["clocks"]),
            evidence_from_json(value_in(data, "evidence", dict)),
        )
        if not 1 <= len(trial.schedule.sketch) <= 64 or not 0 <= trial.schedule.version < 1 << 31:
            raise InvalidParameter("a sketch has a name of 1 to 64 characters and a small version", field="/schedule")
        unit, host = _place(data, "unit", 64), _place(data, "host", 255)
        origin = self._origin(data)
        done = self._trials(job_id, task)
        if sequence < done:
            self.known += 1
            return
        if sequence >= MOST_TRIALS:
            raise InvalidParameter(f"trial {sequence}; allowed: below {MOST_TRIALS}", field="/sequence")
        if job_id in self.own_jobs:
            raise InvalidParameter(f"trial {sequence} of job {job_id}, which is this database's own", field="/job")
        profile = profile_from_text(value_in(data, "profile", str))
        on = MeasuredOn(self.devices[device], self.toolchains[toolchain], profile)
        elapsed = number_in(data, "elapsed_seconds")
        new = NewTrial(job_id, task, sequence, "", on, trial, elapsed, _time(data), unit, host)
        stored = record_trial(self.connection, new, imported=True)
        if origin is not None:
            copied = trials.c.id == stored.record_id
            self.connection.execute(update(trials).where(copied).values(adopted_from=origin))
            of_task = (tasks.c.job == jobs.c.number, jobs.c.id == job_id, tasks.c.position == task)
            self.connection.execute(update(tasks).where(*of_task).values(adopted=tasks.c.adopted + 1))
        self.added += 1

    def _origin(self, data: Mapping[str, object]) -> int | None:
        """Return the id here of the record that this one is a copy of; None where it is none."""
        if "adopted_from" not in data:
            return None
        place = value_in(data, "adopted_from", dict)
        _members(place, {"job", "task", "sequence"}, "/adopted_from")
        measured = (
            jobs.c.id == value_in(place, "job", str),
            trials.c.task == _bounded(value_in(place, "task", int)),
            trials.c.sequence == _bounded(value_in(place, "sequence", int)),
        )
        query = select(trials.c.id).join(jobs, jobs.c.number == trials.c.job).where(*measured)
        found = self.connection.execute(query).scalar()
        if found is None:
            raise InvalidParameter("no line before this one has the record that it is a copy of", field="/adopted_from")
        return int(found)

    def _trials(self, job_id: str, task: int) -> int:
        query = (
            select(tasks.c.trials)
            .join(jobs, jobs.c.number == tasks.c.job)
            .where(jobs.c.id == job_id, visible(jobs.c.tenant), tasks.c.position == _bounded(task))
        )
        found = self.connection.execute(query).scalar()
        if found is None:
            raise InvalidParameter(f"there is no task {task} of job {job_id[:80]!r}", field="/task")
        return int(found)


_JOB = {"kind", "id", "state", "created_at", "budget", "strategy", "seed", "target", "executor", "cache", "tasks"}
_POLICY = frozenset({"prune", "prior"})
_PLACE = frozenset({"unit", "host", "adopted_from"})
_RECORD = {
    "kind",
    "job",
    "task",
    "sequence",
    "device",
    "toolchain",
    "profile",
    "schedule",
    "outcome",
    "clocks",
    "evidence",
    "elapsed_seconds",
    "created_at",
}


def _places(connection: Connection, record_ids: Iterable[int]) -> dict[int | None, Mapping[str, object]]:
    """Return where records stand, by id: their jobs, tasks and sequences."""
    query = select(trials.c.id, jobs.c.id.label("job"), trials.c.task, trials.c.sequence)
    query = query.join(jobs, jobs.c.number == trials.c.job).where(trials.c.id.in_(list(record_ids)))
    return {number: {"job": job, "task": task, "sequence": n} for number, job, task, n in connection.execute(query)}


def _bounded(number: int) -> int:
    """Return a number that the database takes; one beyond all that it has stays so."""
    return min(max(number, -1), MOST_TRIALS)


def _line(data: Mapping[str, object]) -> str:
    # members keep their order: the order of a schedule's knobs is meant for people
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _parsed(line: str) -> Mapping[str, object]:
    if len(line) > MAX_LINE_CHARACTERS:
        raise InvalidParameter(f"the line is longer than {MAX_LINE_CHARACTERS} characters")
    try:
        data = json.loads(line, parse_constant=_no_constant)
        if "\\u" in line:  # escapes can spell what no database stores as text
            json.dumps(data, ensure_ascii=False).encode()
            if "\\u0000" in line:
                raise ValueError("it holds a NUL character")
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"the line is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidParameter("the line is not an object")
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not in JSON")


def _members(
    data: Mapping[str, object], names: set[str], where: str = "", optional: frozenset[str] = frozenset()
) -> None:
    for name in names - data.keys():
        raise InvalidParameter(f"{name!r} is missing", field=f"{where}/{name}")
    for name in data.keys() - names - optional:
        allowed = ", ".join(sorted(names | optional))
        raise InvalidParameter(f"{name!r} is not known; allowed: {allowed}", field=f"{where}/{name}")


def _list(data: Mapping[str, object], name: str) -> list[object]:
    value = value_in(data, name, list)
    if not 1 <= len(value) <= 100_000:
        raise InvalidParameter(f"{len(value)} {name}; allowed: 1 to 100000", field=f"/{name}")
    return value


def _name(data: Mapping[str, object], name: str, most: int = 16) -> str:
    value = value_in(data, name, str)
    if not 1 <= len(value) <= most:
        raise InvalidParameter(f"{value[:80]!r} is no {name}: it has 1 to {most} characters", field=f"/{name}")
    return value


def _place(data: Mapping[str, object], name: str, most: int) -> str | None:
    return _name(data, name, most) if name in data else None


def _time(data: Mapping[str, object]) -> str:
    value = value_in(data, "created_at", str)
    if len(value) > 32:
        raise InvalidParameter(f"{value[:80]!r} is no time", field="/created_at")
    return value


def _policy(data: Mapping[str, object]) -> SpacePolicy:
    return SpacePolicy(
        prune=value_in(data, "prune", bool) if "prune" in data else DEFAULT_POLICY.prune,
        prior=value_in(data, "prior", bool) if "prior" in data else DEFAULT_POLICY.prior,
    )


def _budget(data: object) -> Budget:
    if not isinstance(data, Mapping):
        raise InvalidParameter("a budget is an object", field="/budget")
    _members(data, {"trials", "seconds", "stall"}, "/budget", frozenset({"runs"}))
    stall = None if data["stall"] is None else value_in(data, "stall", int)
    seconds = None if data["seconds"] is None else number_in(data, "seconds")
    runs = None if data.get("runs") is None else number_in(data, "runs")
    return Budget(value_in(data, "trials", int), seconds, stall, runs)
