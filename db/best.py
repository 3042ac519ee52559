"""Keeps the fastest record of each identity ready to be answered, and finds it by one entry of one index.

Whoever adds a timed trial calls ``keep_best``, and whoever changes what trials are ranked by calls ``rank_again``, in
the transaction that does it. An identity here is (workload, device, toolchain, profile, tenant of the job, sketch, its
version). Among equal times the schedule's key decides, and then the record's id.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import (
    ARRAY,
    Connection,
    Select,
    String,
    Table,
    any_,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from ..core.trial import Evidence, Timed, Trial
from .rows import AnswerRow
from .tables import KEY_START, START_DIGITS, best_records, devices, jobs, measured_on, toolchains, trials, workloads
from .trials import FULL, trial_of

ORACLE = "float64 reference of the workload"
"""What the outputs of every trial are compared with."""
FILLED_AT_ONCE = 1_000
"""How many records are entered at once when the table is filled."""
_IDENTITY = ("workload", "device", "toolchain", "profile", "sketch", "sketch_version")
_RANK = (trials.c.rank_seconds, trials.c.schedule_key, trials.c.id)
_KEY = ("workload_key", "measured_on", "tenant", "sketch", "sketch_version")


def _is_on() -> ColumnElement[bool]:
    columns = (measured_on.c.device_key, measured_on.c.toolchain_key, measured_on.c.profile)
    return best_records.c.measured_on == (
        select(measured_on.c.id).where(*(column == bindparam(column.name) for column in columns)).scalar_subquery()
    )


_ANSWER = (
    best_records.c.workload_key,
    best_records.c.sketch,
    best_records.c.sketch_version,
    best_records.c.record_id,
    best_records.c.rank_seconds,
    best_records.c.schedule_key,
    best_records.c.answer,
)
_ONE = best_records.c.workload_key == bindparam("workload_key")
_MANY = {
    "sqlite": best_records.c.workload_key.in_(bindparam("workload_keys", expanding=True)),
    # one text, whatever the number of keys: nothing is rendered or parsed again, and the server keeps its plan
    "postgresql": best_records.c.workload_key == any_(bindparam("workload_keys", type_=ARRAY(String))),
}
"""The condition on several workloads, by dialect."""
_STARTS = KEY_START.in_(bindparam("key_starts", type_=String, expanding=True))
_PARTS = (measured_on.c.device_key, measured_on.c.toolchain_key, measured_on.c.profile)
_OF_TENANT = best_records.c.tenant == bindparam("tenant")
_EXACT_ONE: Select[Any] = select(*_ANSWER).where(_ONE, _is_on())
_ROWID: ColumnElement[int] = literal_column("best_records.rowid")
# in the order of the rows, which are read faster in it than in the order of the keys: next rows lie below the same page
_IN_ORDER = _ROWID.in_(select(_ROWID).select_from(best_records).where(_STARTS, _is_on()).correlate(None))
_EXACT_MANY: dict[str, Select[Any]] = {
    "sqlite": select(*_ANSWER).where(_IN_ORDER),
    "postgresql": select(*_ANSWER).where(_MANY["postgresql"], _is_on()),
}
_DIALECTS: dict[str, Dialect] = {
    "sqlite": sqlite.dialect(paramstyle="named"),
    "postgresql": postgresql.dialect(paramstyle="pyformat"),  # type: ignore[no-untyped-call]
}


def _texts(query: Select[Any], dialect: str) -> dict[bool, str]:
    """Return the text of a statement, by whether it is for one tenant."""
    queries = {False: query, True: query.where(_OF_TENANT)}
    return {known: str(one.compile(dialect=_DIALECTS[dialect])) for known, one in queries.items()}


_DRIVEN = {
    ("sqlite", False): _texts(_EXACT_ONE, "sqlite"),
    ("postgresql", False): _texts(_EXACT_ONE, "postgresql"),
    ("postgresql", True): _texts(_EXACT_MANY["postgresql"], "postgresql"),
}
"""The statements that the driver is asked for directly, by dialect and by whether there are several workloads."""
_ANY: Select[Any] = select(*_ANSWER, *_PARTS).join(measured_on, measured_on.c.id == best_records.c.measured_on)


def find_exact(
    connection: Connection,
    workload_keys: Sequence[str],
    device_key: str,
    toolchain_key: str,
    profile: str,
    tenant: str | None = None,
) -> list[AnswerRow]:
    """Return what is kept of these workloads under these conditions: one row for each tenant, sketch and version; with
    a ``tenant`` of that one alone."""
    wanted: dict[str, Any] = {"device_key": device_key, "toolchain_key": toolchain_key, "profile": profile}
    if tenant is not None:
        wanted["tenant"] = tenant
    dialect, many = connection.dialect.name, len(workload_keys) != 1
    if not many:
        wanted["workload_key"] = workload_keys[0]
    elif dialect == "sqlite":
        wanted["key_starts"] = [key[:START_DIGITS] for key in workload_keys]
    else:
        wanted["workload_keys"] = list(workload_keys)
    rows = _driven(connection, _DRIVEN.get((dialect, many)), wanted)
    if rows is None:
        query = _EXACT_MANY[dialect] if many else _EXACT_ONE
        rows = connection.execute(query if tenant is None else query.where(_OF_TENANT), wanted)
    known = set(workload_keys)  # another key may start alike
    return [AnswerRow(*(*row, device_key, toolchain_key, profile)) for row in rows if row[0] in known]


def _driven(connection: Connection, texts: dict[bool, str] | None, wanted: dict[str, Any]) -> Iterable[Any] | None:
    """Ask the driver directly, because SQLAlchemy takes several times as long as such a statement. None where there is
    no text, or where the driver fails: SQLAlchemy runs the statement then, and says why in its own way."""
    if texts is None:
        return None
    driver: Any = connection.connection.driver_connection
    with suppress(connection.dialect.loaded_dbapi.Error):
        rows: Iterable[Any] = driver.execute(texts["tenant" in wanted], wanted).fetchall()
        return rows
    return None


def find_any(connection: Connection, workload_keys: Sequence[str], tenant: str | None = None) -> list[AnswerRow]:
    """Return what is kept of these workloads under any conditions; with a ``tenant`` of that one alone."""
    query = _ANY.where(_MANY[connection.dialect.name])
    if tenant is not None:
        query = query.where(best_records.c.tenant == tenant)
    return [AnswerRow(*row) for row in connection.execute(query, {"workload_keys": list(workload_keys)})]


def answer_of(row: RowMapping) -> str:
    """Return a row of ``trials.FULL`` with a time as the JSON object that look-ups answer with."""
    return f'{{"record_id":{row["id"]},{answer_json(row, trial_of(row), row["flops"], row["created_at"])[1:]}'


def answer_json(identity: Mapping[Any, Any], trial: Trial, flops: int, created_at: str) -> str:
    """Return what look-ups answer with, without the record's id. ``identity`` has the members that ``_ANSWERED``
    names."""
    outcome = trial.outcome
    assert isinstance(outcome, Timed)
    seconds = outcome.seconds
    data = {
        **{name: identity[name] for name in _ANSWERED},
        "schedule": trial.schedule.to_json(),
        "seconds": seconds,
        "spread": outcome.spread,
        "samples": outcome.final_samples or outcome.samples,
        "gflops": flops / seconds / 1e9 if flops else None,
        "evidence": {"oracle": ORACLE, **_evidence(trial.evidence)},
        "created_at": created_at,
    }
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


_ANSWERED = ("job_id", "workload_key", "device_key", "device_name", "toolchain_key", "profile")


def _evidence(evidence: Evidence) -> dict[str, object]:
    """Return evidence as an object: what is unknown or no finite number is null."""
    data: dict[str, object] = {}
    for name in Evidence.__slots__:
        value = getattr(evidence, name)
        data[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    data["environment"] = {name: number for name, number in evidence.environment.items() if math.isfinite(number)}
    return data


_PLACE = (
    (measured_on.c.device_key == devices.c.key)
    & (measured_on.c.toolchain_key == toolchains.c.key)
    & (measured_on.c.profile == trials.c.profile)
)
_KEPT = (
    (best_records.c.workload_key == workloads.c.key)
    & (best_records.c.measured_on == measured_on.c.id)
    & (best_records.c.tenant == jobs.c.tenant)
    & (best_records.c.sketch == trials.c.sketch)
    & (best_records.c.sketch_version == trials.c.sketch_version)
)
_KEPT_RANK = (best_records.c.rank_seconds, best_records.c.schedule_key, best_records.c.record_id)
_FASTER = (
    FULL.outerjoin(measured_on, _PLACE)
    .outerjoin(best_records, _KEPT)
    .where(trials.c.id.in_(bindparam("record_ids", expanding=True)), trials.c.seconds.is_not(None))
    .where(best_records.c.record_id.is_(None) | (tuple_(*_RANK) < tuple_(*_KEPT_RANK)))
)
"""Selects the timed records among the given ones that are faster than what is kept of their identity."""


def keep_best(connection: Connection, record_ids: Sequence[int]) -> None:
    """Enter these records where they are timed and faster than what is kept of their identity."""
    rows = connection.execute(_FASTER, {"record_ids": list(record_ids)}).mappings().all()
    numbers: dict[tuple[str, str, str], int] = {}
    _enter(connection, [_entry(connection, row, numbers) for row in rows])


def rank_again(connection: Connection, job: int, task: int) -> None:
    """Find the fastest record anew for every identity that the timed trials of a task have."""
    identity = [trials.c[name] for name in _IDENTITY]
    of_task = (trials.c.job == job, trials.c.task == task, trials.c.seconds.is_not(None))
    of_tenant = jobs.c.tenant == select(jobs.c.tenant).where(jobs.c.number == job).scalar_subquery()
    found, numbers = [], dict[tuple[str, str, str], int]()
    for values in connection.execute(select(*identity).where(*of_task).distinct()).all():
        of_identity = [column == value for column, value in zip(identity, values, strict=True)]
        fastest = FULL.where(*of_identity, of_tenant, trials.c.seconds.is_not(None)).order_by(*_RANK).limit(1)
        entry = _entry(connection, connection.execute(fastest).mappings().one(), numbers)
        found.append((tuple(entry[name] for name in _KEY), fastest))
    entries = []
    for key, fastest in sorted(found, key=lambda one: one[0]):  # the order of _enter: nobody waits in a circle
        # whoever enters a faster one meanwhile waits for this lock or is seen below
        kept = [best_records.c[name] == value for name, value in zip(_KEY, key, strict=True)]
        connection.execute(select(best_records.c.record_id).where(*kept).with_for_update())
        entries.append(_entry(connection, connection.execute(fastest).mappings().one(), numbers))
    _enter(connection, entries, always=True)


def fill_best(connection: Connection) -> None:
    """Empty the table and fill it from all trials."""
    connection.execute(delete(best_records))
    connection.execute(delete(measured_on))
    identity = [*(trials.c[name] for name in _IDENTITY), jobs.c.tenant]
    place = func.row_number().over(partition_by=identity, order_by=_RANK)
    timed = select(trials.c.id, place.label("place")).join(jobs, jobs.c.number == trials.c.job)
    ranked = timed.where(trials.c.seconds.is_not(None)).subquery()
    numbers = list(connection.execute(select(ranked.c.id).where(ranked.c.place == 1).order_by(ranked.c.id)).scalars())
    for first in range(0, len(numbers), FILLED_AT_ONCE):
        keep_best(connection, numbers[first : first + FILLED_AT_ONCE])


def _entry(connection: Connection, row: RowMapping, numbers: dict[tuple[str, str, str], int]) -> dict[str, object]:
    """Return a row of the table for one of ``trials.FULL``. ``numbers`` has what is known of ``measured_on``."""
    place = (row["device_key"], row["toolchain_key"], row["profile"])
    if place not in numbers:
        numbers[place] = _number_of(connection, place)
    return {
        "workload_key": row["workload_key"],
        "measured_on": numbers[place],
        "tenant": row["tenant"],
        "sketch": row["sketch"],
        "sketch_version": row["sketch_version"],
        "record_id": row["id"],
        "rank_seconds": row["rank_seconds"],
        "schedule_key": row["schedule_key"],
        "answer": answer_of(row),
    }


def _number_of(connection: Connection, parts: tuple[str, str, str]) -> int:
    names = [column.name for column in _PARTS]
    find = select(measured_on.c.id).where(*(column == value for column, value in zip(_PARTS, parts, strict=True)))
    found = connection.execute(find).scalar()
    if found is None:  # another process may add the same row at the same moment
        new = _insert(connection, measured_on).values(dict(zip(names, parts, strict=True)))
        connection.execute(new.on_conflict_do_nothing())
        found = connection.execute(find).scalar_one()
    return int(found)


def _enter(connection: Connection, entries: Iterable[Mapping[str, object]], *, always: bool = False) -> None:
    """Write entries in one order, so that no two transactions wait for each other."""
    ordered = sorted(entries, key=lambda entry: tuple(entry[name] for name in _KEY))
    if not ordered:
        return
    statement = _insert(connection, best_records)
    new = {column.name: statement.excluded[column.name] for column in best_records.columns}
    rank = tuple_(new["rank_seconds"], new["schedule_key"], new["record_id"])
    changed = {name: value for name, value in new.items() if name not in _KEY}
    upsert = statement.on_conflict_do_update(
        index_elements=_KEY, set_=changed, where=None if always else rank < tuple_(*_KEPT_RANK)
    )
    connection.execute(upsert, ordered)


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
