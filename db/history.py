"""Reads what models learn from: records of earlier tasks, in groups that have the parts of an identity in common."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, or_, select, tuple_

from ..core.record import Record
from .rows import HistoryGroup
from .tables import devices, jobs, tasks, toolchains, trials, workloads
from .trials import FULL, record_of

WINDOWS = (20_000, 100_000, 1_000_000)
"""So many of the newest records are looked at, and more of them only where too few groups were found among these."""
TASKS_AT_ONCE = 500
"""So many tasks stand in one statement."""


def load_groups(
    connection: Connection, *, target_kind: str, until: int, but: tuple[int, int] | None, limit: int
) -> tuple[HistoryGroup, ...]:
    """Return the newest ``limit`` groups of records with ids up to ``until`` on targets of a kind, newest first,
    without those of the (job, task) ``but``. Copies that tasks adopted are left out: nothing counts twice. The oldest
    of the groups may say that it has fewer records than it has."""
    found: tuple[HistoryGroup, ...] = ()
    for window in WINDOWS:
        found = _newest_groups(connection, target_kind, until, until - window, but, limit)
        if len(found) >= limit or window >= until:
            break
    return found


def _newest_groups(
    connection: Connection, target_kind: str, until: int, after: int, but: tuple[int, int] | None, limit: int
) -> tuple[HistoryGroup, ...]:
    """Do what ``load_groups`` does among the records with ids above ``after``."""
    parts = ("job", "task", "workload", "device", "toolchain", "profile")
    newest = func.max(trials.c.id)
    query = (
        select(*(trials.c[name] for name in parts), func.count().label("records"), newest.label("newest"))
        .where(trials.c.adopted_from.is_(None), trials.c.id <= until, trials.c.id > after)
        .group_by(*(trials.c[name] for name in parts))
    )
    if but is not None:
        query = query.where(or_(trials.c.job != but[0], trials.c.task != but[1]))
    groups = query.subquery()
    named = (
        select(
            jobs.c.id.label("job_id"),
            groups.c.task,
            workloads.c.key.label("workload_key"),
            devices.c.key.label("device_key"),
            toolchains.c.key.label("toolchain_key"),
            groups.c.profile,
            groups.c.records,
            tasks.c.operator,
            workloads.c.flops,
        )
        .join(jobs, jobs.c.number == groups.c.job)
        .join(tasks, (tasks.c.job == groups.c.job) & (tasks.c.position == groups.c.task))
        .join(workloads, workloads.c.id == groups.c.workload)
        .join(devices, devices.c.id == groups.c.device)
        .join(toolchains, toolchains.c.id == groups.c.toolchain)
        .where(devices.c.target["kind"].as_string() == target_kind)
        .order_by(groups.c.newest.desc())
        .limit(limit)
    )
    return tuple(HistoryGroup(**row) for row in connection.execute(named).mappings())


def load_records(connection: Connection, groups: Sequence[HistoryGroup], until: int) -> tuple[Record, ...]:
    """Return the records of groups with ids up to ``until``, those of one task in their order."""
    wanted = {group.identity for group in groups}
    found: list[Record] = []
    of_tasks = list(dict.fromkeys((group.job_id, group.task) for group in groups))
    for start in range(0, len(of_tasks), TASKS_AT_ONCE):
        some = of_tasks[start : start + TASKS_AT_ONCE]
        query = FULL.where(tuple_(jobs.c.id, trials.c.task).in_(some), trials.c.id <= until)
        query = query.where(trials.c.adopted_from.is_(None))
        rows = connection.execute(query.order_by(trials.c.job, trials.c.task, trials.c.sequence)).mappings()
        found += (record_of(row) for row in rows)
    return tuple(r for r in found if (r.job_id, r.task, *_measured_on(r)) in wanted)


def _measured_on(record: Record) -> tuple[str, str, str, str]:
    identity = record.identity
    return identity.workload_key, identity.device_key, identity.toolchain_key, identity.profile
