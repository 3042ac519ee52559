"""Answers how long trials took in tasks that have ended."""

from statistics import median

from sqlalchemy import Connection, select
from sqlalchemy.sql.elements import ColumnElement

from .rows import TrialCost
from .tables import devices, jobs, tasks, workloads

RECENT_TASKS = 24
"""Only so many ended tasks are looked at, the newest."""


def load_trial_cost(
    connection: Connection, target_kind: str, workload_key: str, operator: str | None
) -> TrialCost | None:
    """Return how many wall-clock seconds a trial took lately on devices of a kind: in tasks of the same workload, or
    where there are none of the same operator, or of any. Trials that were adopted took none. None where no task has
    ended on such a device."""
    cases: list[tuple[str, ColumnElement[bool]]] = [("workload", workloads.c.key == workload_key)]
    if operator is not None:
        cases.append(("operator", tasks.c.operator == operator))
    cases.append(("target", tasks.c.wall_seconds.is_not(None)))
    query = (
        select(tasks.c.wall_seconds / (tasks.c.trials - tasks.c.adopted))
        .join(jobs, jobs.c.number == tasks.c.job)
        .join(workloads, workloads.c.id == tasks.c.workload)
        .join(devices, devices.c.id == jobs.c.device)
        .where(tasks.c.wall_seconds.is_not(None), tasks.c.trials > tasks.c.adopted)
        .where(devices.c.target["kind"].as_string() == target_kind)
        .order_by(tasks.c.job.desc(), tasks.c.position.desc())
        .limit(RECENT_TASKS)
    )
    for basis, condition in cases:
        found = [float(seconds) for seconds in connection.execute(query.where(condition)).scalars()]
        if found:
            return TrialCost(basis, len(found), median(found), min(found), max(found))
    return None
