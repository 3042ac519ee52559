"""Stores models that users run: their workloads, how often each occurs, and whole runs that were timed. ``models`` has
cost models, which are something else."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import RowMapping

from ..core.errors import NotFound
from .admission import admit_job
from .catalog import keep_workload
from .encode import now
from .jobs import CLOSED
from .rows import ModelTimingRow, ModelWorkloadRow, NewJob, NewTunedModel, TunedModelRow
from .tables import devices, jobs, model_timings, trials, tuned_model_workloads, tuned_models, workloads
from .visibility import visible, visible_record

MOST_JOBS = 20
MOST_TIMINGS = 20
"""How many jobs and timings of a model are shown: the newest."""


def load_fastest(
    connection: Connection, workload_keys: Sequence[str], device_key: str, profile: str, most: int
) -> dict[str, tuple[int, tuple[float, ...]]]:
    """Return how many trials of a workload were timed on a device under a profile, and the ``most`` fastest times,
    ascending, for every workload that has any."""
    rank = func.row_number().over(partition_by=workloads.c.key, order_by=(trials.c.seconds, trials.c.id)).label("rank")
    count = func.count().over(partition_by=workloads.c.key).label("count")
    ranked = (
        select(workloads.c.key, trials.c.seconds, rank, count)
        .join(workloads, workloads.c.id == trials.c.workload)
        .join(devices, devices.c.id == trials.c.device)
        .join(jobs, jobs.c.number == trials.c.job)
        .where(
            visible_record(jobs.c.tenant),
            workloads.c.key.in_(workload_keys),
            devices.c.key == device_key,
            trials.c.profile == profile,
            trials.c.seconds.is_not(None),
            trials.c.adopted_from.is_(None),
        )
        .subquery()
    )
    found: dict[str, tuple[int, tuple[float, ...]]] = {}
    query = select(ranked).where(ranked.c.rank <= most).order_by(ranked.c.key, ranked.c.rank)
    for key, seconds, _, timed in connection.execute(query):
        found[key] = timed, (*found.get(key, (0, ()))[1], seconds)
    return found


def keep_tuned_model(connection: Connection, new: NewTunedModel) -> bool:
    """Store a model unless it is there; return whether it is new. The name is the one that was given last."""
    find = select(tuned_models.c.id).where(tuned_models.c.key == new.key, tuned_models.c.tenant == new.tenant)
    found = connection.execute(find).scalar()
    if found is not None:
        renamed = update(tuned_models).where(tuned_models.c.id == found, tuned_models.c.name != new.name)
        connection.execute(renamed.values(name=new.name))
        return False
    by_key = {task.workload_key: task for task, _, _ in new.workloads}
    ids = {key: keep_workload(connection, by_key[key]) for key in sorted(by_key)}
    kind = sqlite if connection.dialect.name == "sqlite" else postgresql
    values = {"key": new.key, "tenant": new.tenant, "name": new.name, "created_at": now()}
    added = kind.insert(tuned_models).values(**values, foreign_calls=dict(new.foreign_calls))
    connection.execute(added.on_conflict_do_nothing())
    number = int(connection.execute(find.with_for_update(key_share=True)).scalar_one())
    if _has_workloads(connection, number):
        return False  # another process stored it at the same moment
    rows = [
        {"model": number, "position": n, "workload": ids[task.workload_key], "label": label, "count": count}
        for n, (task, label, count) in enumerate(new.workloads)
    ]
    if rows:
        connection.execute(insert(tuned_model_workloads), rows)
    return True


def _has_workloads(connection: Connection, number: int) -> bool:
    query = select(tuned_model_workloads.c.model).where(tuned_model_workloads.c.model == number).limit(1)
    return connection.execute(query).first() is not None


def _named(key: str) -> Select[Any]:
    """Select the model with a key. Whoever sees those of all tenants is shown the one that was stored first."""
    seen = select(tuned_models).where(tuned_models.c.key == key, visible(tuned_models.c.tenant))
    return seen.order_by(tuned_models.c.id).limit(1)


def lock_tuned_model(connection: Connection, key: str) -> RowMapping:
    """Return the row of a model and lock it until the transaction ends. Raises NotFound."""
    row = connection.execute(_named(key).with_for_update(key_share=True)).mappings().first()
    if row is None:
        raise NotFound(f"there is no model {key[:80]!r}", field="model_key")
    return row


def admit_model_job(connection: Connection, new: NewJob) -> tuple[str, bool]:
    """Add the job of a model, unless one for the same target is under way; return (the job's id, whether it is new).
    Raises NotFound where there is no such model, and what ``admit_job`` raises."""
    assert new.model_key is not None
    number = lock_tuned_model(connection, new.model_key)["id"]
    query = select(jobs.c.id).where(
        jobs.c.model == number, jobs.c.target == new.target, jobs.c.state.not_in(CLOSED)
    )  # fmt: skip
    found = connection.execute(query.order_by(jobs.c.number).limit(1)).scalar()
    if found is not None:
        return str(found), False
    admit_job(connection, new)
    return new.id, True


def add_timing(connection: Connection, key: str, timing: ModelTimingRow) -> None:
    """Store the time of whole runs of a model. Raises NotFound."""
    connection.execute(
        insert(model_timings).values(
            model=lock_tuned_model(connection, key)["id"],
            device_key=timing.device_key,
            seconds=timing.seconds,
            baseline=timing.baseline,
            baseline_seconds=timing.baseline_seconds,
            tuned_kernels=timing.tuned_kernels,
            created_at=timing.created_at,
        )
    )


def load_tuned_model(connection: Connection, key: str) -> TunedModelRow:
    """Return a model. Raises NotFound."""
    row = connection.execute(_named(key)).mappings().first()
    if row is None:
        raise NotFound(f"there is no model {key[:80]!r}", field="model_key")
    return _rows_of(connection, [row])[0]


def page_of_tuned_models(
    connection: Connection, *, before: int | None, limit: int, most_workloads: int
) -> tuple[TunedModelRow, ...]:
    """Return models with numbers below ``before``, newest first: no more of them than have ``most_workloads`` workloads
    together, and one."""
    query = select(tuned_models).where(visible(tuned_models.c.tenant)).order_by(tuned_models.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuned_models.c.id < before)
    rows, model = connection.execute(query).mappings().all(), tuned_model_workloads.c.model
    counts = select(model, func.count()).where(model.in_([row["id"] for row in rows])).group_by(model)
    count_of = {number: count for number, count in connection.execute(counts)}
    sums = [0, *accumulate(count_of[row["id"]] for row in rows)]
    kept = [row for row, earlier in zip(rows, sums, strict=False) if earlier <= most_workloads]
    return _rows_of(connection, kept)


def _rows_of(connection: Connection, rows: Sequence[RowMapping]) -> tuple[TunedModelRow, ...]:
    numbers = [row["id"] for row in rows]
    parts: dict[int, list[ModelWorkloadRow]] = defaultdict(list)
    for part in connection.execute(_parts(numbers)).mappings():
        names = ModelWorkloadRow.__dataclass_fields__
        parts[part["model"]].append(ModelWorkloadRow(**{name: part[name] for name in names}))
    return tuple(
        TunedModelRow(
            number=row["id"],
            key=row["key"],
            name=row["name"],
            foreign_calls=row["foreign_calls"],
            created_at=row["created_at"],
            workloads=tuple(parts[row["id"]]),
            jobs=_jobs_of(connection, row["id"]),
            timings=_timings_of(connection, row["id"]),
        )
        for row in rows
    )


def _parts(numbers: Sequence[int]) -> Select[Any]:
    columns = (workloads.c.expression, workloads.c.flops, workloads.c.minimum_bytes)
    return (
        select(tuned_model_workloads, workloads.c.key.label("workload_key"), *columns)
        .join(workloads, workloads.c.id == tuned_model_workloads.c.workload)
        .where(tuned_model_workloads.c.model.in_(numbers))
        .order_by(tuned_model_workloads.c.model, tuned_model_workloads.c.position)
    )


def _jobs_of(connection: Connection, number: int) -> tuple[str, ...]:
    query = select(jobs.c.id).where(jobs.c.model == number, visible(jobs.c.tenant))
    return tuple(connection.execute(query.order_by(jobs.c.number.desc()).limit(MOST_JOBS)).scalars())


def _timings_of(connection: Connection, number: int) -> tuple[ModelTimingRow, ...]:
    query = select(model_timings).where(model_timings.c.model == number)
    rows = connection.execute(query.order_by(model_timings.c.id.desc()).limit(MOST_TIMINGS)).mappings()
    return tuple(ModelTimingRow(**{name: row[name] for name in ModelTimingRow.__dataclass_fields__}) for row in rows)


def models_with(connection: Connection, workload_key: str, limit: int) -> tuple[tuple[str, str, int], ...]:
    """Return (key, name, how many of its kernels compute it) of the newest models that have a workload."""
    used = tuned_model_workloads
    query = (
        select(tuned_models.c.key, tuned_models.c.name, used.c.count.label("kernels"))
        .join(used, used.c.model == tuned_models.c.id)
        .join(workloads, workloads.c.id == used.c.workload)
        .where(workloads.c.key == workload_key)
        .order_by(tuned_models.c.id.desc())
        .limit(limit)
    )
    return tuple((row.key, row.name, row.kernels) for row in connection.execute(query))
