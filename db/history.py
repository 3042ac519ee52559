"""Reads what models learn from: earlier tasks, and their records in groups with the same parts of an identity.

Which tasks there are, their own rows say. Records are read of those few alone that are asked for.
"""

from collections.abc import Iterator, Sequence

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, tuple_

from ..core.record import Record
from .history_rows import HistoryGroup, HistoryTask
from .tables import devices, jobs, tasks, toolchains, trials, workloads
from .trials import FULL, record_of

TASKS_LOOKED_AT = 4_000
"""So many of the newest tasks are looked at, whatever kind of target they are on."""
TASKS_AT_ONCE = 500
"""So many tasks stand in one statement."""


def load_tasks(
    connection: Connection, *, target_kind: str, until: int, but: tuple[int, int] | None, limit: int
) -> tuple[HistoryTask, ...]:
    """Return the newest ``limit`` tasks with records up to the id ``until`` on targets of a kind, newest first, without
    the (job, task) ``but``. The first record of a task says which kind of target it is on. Records are not counted:
    that would read them all."""
    newest = select(*(tasks.c[name] for name in ("job", "position", "workload", "operator"))).where(tasks.c.trials > 0)
    if but is not None:
        newest = newest.where(or_(tasks.c.job != but[0], tasks.c.position != but[1]))
    order = (tasks.c.job.desc(), tasks.c.position.desc())
    looked_at = newest.order_by(*order).limit(TASKS_LOOKED_AT).subquery()
    kind = (
        select(devices.c.target["kind"].as_string())
        .join(trials, trials.c.device == devices.c.id)
        .where(trials.c.job == looked_at.c.job, trials.c.task == looked_at.c.position)
        .where(trials.c.adopted_from.is_(None), trials.c.id <= until)
        .order_by(trials.c.sequence)
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(
            jobs.c.id.label("job_id"),
            looked_at.c.position.label("task"),
            workloads.c.key.label("workload_key"),
            looked_at.c.operator,
            workloads.c.flops,
            workloads.c.minimum_bytes,
        )
        .join(jobs, jobs.c.number == looked_at.c.job)
        .join(workloads, workloads.c.id == looked_at.c.workload)
        .where(kind == target_kind)
        .order_by(looked_at.c.job.desc(), looked_at.c.position.desc())
        .limit(limit)
    )
    return tuple(HistoryTask(**row) for row in connection.execute(query).mappings())


def load_groups(connection: Connection, of_tasks: Sequence[HistoryTask], until: int) -> tuple[HistoryGroup, ...]:
    """Return the groups of the records of tasks with ids up to ``until``, the one with the newest record first. Copies
    that tasks adopted are left out: nothing counts twice."""
    parts = (
        jobs.c.id.label("job_id"),
        trials.c.task,
        workloads.c.key.label("workload_key"),
        devices.c.key.label("device_key"),
        toolchains.c.key.label("toolchain_key"),
        trials.c.profile,
    )
    found: list[HistoryGroup] = []
    for some in _at_once([(task.job_id, task.task) for task in of_tasks]):
        query = (
            select(*parts, func.count().label("records"), func.max(trials.c.id).label("newest"))
            .join_from(trials, jobs, jobs.c.number == trials.c.job)
            .join(workloads, workloads.c.id == trials.c.workload)
            .join(devices, devices.c.id == trials.c.device)
            .join(toolchains, toolchains.c.id == trials.c.toolchain)
            .where(_of_tasks(some), trials.c.id <= until, trials.c.adopted_from.is_(None))
            .group_by(*parts)
        )
        found += (HistoryGroup(**row) for row in connection.execute(query).mappings())
    return tuple(sorted(found, key=lambda group: -group.newest))


def load_records(connection: Connection, groups: Sequence[HistoryGroup], until: int) -> tuple[Record, ...]:
    """Return the records of groups with ids up to ``until``, those of one task in their order."""
    wanted = {group.identity for group in groups}
    found: list[Record] = []
    for some in _at_once([(group.job_id, group.task) for group in groups]):
        query = FULL.where(_of_tasks(some), trials.c.id <= until, trials.c.adopted_from.is_(None))
        rows = connection.execute(query.order_by(trials.c.job, trials.c.task, trials.c.sequence)).mappings()
        found += (record_of(row) for row in rows)
    return tuple(r for r in found if (r.job_id, r.task, *_measured_on(r)) in wanted)


def _at_once(of_tasks: Sequence[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """Yield the (job, task) of one statement after another, each once."""
    each = list(dict.fromkeys(of_tasks))
    for start in range(0, len(each), TASKS_AT_ONCE):
        yield each[start : start + TASKS_AT_ONCE]


def _of_tasks(some: Sequence[tuple[str, int]]) -> ColumnElement[bool]:
    """Return the condition that a trial is of one of these (job, task). SQLite needs the jobs alone for its plan: pairs
    of columns of two tables made it read all trials."""
    return and_(jobs.c.id.in_([job for job, _ in some]), tuple_(jobs.c.id, trials.c.task).in_(some))


def _measured_on(record: Record) -> tuple[str, str, str, str]:
    identity = record.identity
    return identity.workload_key, identity.device_key, identity.toolchain_key, identity.profile
