"""Finds what was the best before a change of the toolchain or of a sketch.

A workload has *moved* on a device under a profile where it has timed records there, but none of the present toolchain
by a sketch in its present version. Its earlier records are those of one toolchain, that of the newest of them.
"""

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, and_, func, not_, or_, select, tuple_
from sqlalchemy.engine import RowMapping

from ..core.record import MeasuredOn
from ..core.retuning import EarlierTrials
from .tables import best_records, devices, jobs, measured_on, tasks, toolchains, trials, workloads
from .trials import FULL, record_of
from .visibility import record_tenant

REPEATS = 8
"""A schedule may have been measured so many times, by several jobs, without hiding others."""


def load_moved(
    connection: Connection,
    device_key: str,
    profile: str,
    toolchain_key: str | None,
    sketches: Mapping[str, int],
    before: str | None,
    limit: int,
) -> tuple[str, ...]:
    """Return the keys of the workloads that have moved, those first whose records are the newest. Where
    ``toolchain_key`` is None nobody knows the present one, and all workloads are returned. ``before``: only those with
    records of this toolchain."""
    key = best_records.c.workload_key
    is_current = and_(
        measured_on.c.toolchain_key == toolchain_key,
        tuple_(best_records.c.sketch, best_records.c.sketch_version).in_(list(sketches.items())),
    )
    query = (
        select(key)
        .join(measured_on, measured_on.c.id == best_records.c.measured_on)
        .where(measured_on.c.device_key == device_key, measured_on.c.profile == profile)
        .group_by(key)
        .order_by(func.max(best_records.c.record_id).desc(), key)
        .limit(limit)
    )
    if record_tenant() is not None:
        query = query.where(best_records.c.tenant == record_tenant())
    if toolchain_key is not None:
        query = query.having(_number_of(is_current) == 0)
    if before is not None:
        query = query.having(_number_of(measured_on.c.toolchain_key == before) > 0)
    return tuple(connection.execute(query).scalars())


def load_earlier(
    connection: Connection,
    workload_key: str,
    on: MeasuredOn,
    sketches: Mapping[str, int],
    before: str | None,
    tenant: str | None,
    until: int,
    limit: int,
) -> EarlierTrials | None:
    """Return the ``limit`` fastest records of a workload, of as many schedules; None where there are none. They were
    measured on the device and under the profile of ``on``, but by another toolchain, or their sketch has another
    version now. ``before``: of this toolchain. Records above ``until`` do not count; ``tenant``: only those of this
    one."""
    of_sketch = tuple_(trials.c.sketch, trials.c.sketch_version).in_(list(sketches.items()))
    selected = FULL.where(
        workloads.c.key == workload_key,
        devices.c.key == on.device.key,
        trials.c.profile == str(on.profile),
        trials.c.seconds.is_not(None),
        trials.c.adopted_from.is_(None),
        trials.c.id <= until,
        or_(toolchains.c.key != on.toolchain.key, not_(of_sketch)),
    )
    if tenant is not None:
        selected = selected.where(jobs.c.tenant == tenant)
    if before is not None:
        selected = selected.where(toolchains.c.key == before)
    newest = connection.execute(selected.order_by(trials.c.id.desc()).limit(1)).mappings().first()
    if newest is None:
        return None
    fastest = selected.where(trials.c.toolchain == newest["toolchain"])
    fastest = fastest.order_by(trials.c.rank_seconds, trials.c.schedule_key, trials.c.id).limit(REPEATS * limit)
    found: dict[str, RowMapping] = {}
    for row in connection.execute(fastest).mappings():
        found.setdefault(row["schedule_key"], row)
    rows = list(found.values())[:limit]
    spent_trials, spent_seconds = _spent(connection, rows[0])
    return EarlierTrials(tuple(record_of(row) for row in rows), spent_trials, spent_seconds)


def _spent(connection: Connection, row: RowMapping) -> tuple[int, float | None]:
    """Return how many trials the task of a record measured, and how long it took. Imported tasks have no time of their
    own: that of their last trial stands for it."""
    of_task = (tasks.c.job == row["job"], tasks.c.position == row["task"])
    task = connection.execute(select(tasks.c.trials, tasks.c.adopted, tasks.c.wall_seconds).where(*of_task)).one()
    last = select(func.max(trials.c.elapsed_seconds)).where(trials.c.job == row["job"], trials.c.task == row["task"])
    return task.trials - task.adopted, task.wall_seconds or connection.execute(last).scalar()


def _number_of(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count().filter(condition)
