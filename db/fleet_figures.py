"""Reads figures of the fleet: for Prometheus, for warnings, and to foretell when a task begins."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection, func, select

from .clock import clock, database_now
from .ended_totals import ATTEMPT, TASK, count_states
from .rows import FleetFigures
from .tables import IS_LEASED, IS_READY, attempts, leases, tasks, trials

BUSY_WINDOW_SECONDS = 600.0
"""The busy share of a unit is that of so many seconds before now."""
RECENT_TASKS = 200
"""How many tasks that ended last say how long a task takes."""


def load_figures(connection: Connection) -> FleetFigures:
    """Count tasks by state, leases, and attempts by how they ended."""
    now = database_now(connection)
    held = select(leases.c.kind, func.count()).where(leases.c.until > clock()).group_by(leases.c.kind)
    losses = select(func.coalesce(func.sum(tasks.c.losses), 0)).where(tasks.c.state.in_(("ready", "leased", "blocked")))
    by_state, oldest_ready_seconds = count_tasks(connection, now)
    return FleetFigures(
        tasks=by_state,
        oldest_ready_seconds=oldest_ready_seconds,
        leases={kind: count for kind, count in connection.execute(held)},
        attempts=count_states(connection, ATTEMPT, of_all=True),
        losses=int(connection.execute(losses).scalar_one()),
        busy=_busy(connection, now),
        silent_seconds=silent_seconds(connection, now),
    )


def count_tasks(connection: Connection, now: float) -> tuple[dict[str, int], float | None]:
    """Return how many tasks there are in each state that has any, and for how long the oldest of those that are ready
    has waited; None where none is."""
    since = connection.execute(select(func.min(tasks.c.ready_since)).where(IS_READY)).scalar()
    waited = None if since is None else max(0.0, now - since)
    return count_states(connection, TASK, of_all=True), waited


def silent_seconds(connection: Connection, now: float) -> float:
    """Return for how long the task that is silent longest, of those that run, has recorded no trial."""
    newest = select(trials.c.created_at).where(trials.c.job == tasks.c.job, trials.c.task == tasks.c.position)
    newest_at = newest.order_by(trials.c.sequence.desc()).limit(1).scalar_subquery()
    of_task = (attempts.c.job == tasks.c.job) & (attempts.c.task == tasks.c.position)
    query = select(attempts.c.began_at, newest_at).join(tasks, of_task).where(attempts.c.ended_at.is_(None))
    last = [
        max(began, 0.0 if at is None else datetime.fromisoformat(at).timestamp())
        for began, at in connection.execute(query.where(IS_LEASED))
    ]
    return max(0.0, now - min(last)) if last else 0.0


def load_waiting(connection: Connection) -> dict[tuple[str, str], int]:
    """Return how many tasks are ready for each target and executor."""
    wanted = (tasks.c.target, tasks.c.executor)
    query = select(*wanted, func.count()).where(tasks.c.state == "ready").group_by(*wanted)
    return {(target, executor): count for target, executor, count in connection.execute(query)}


def load_task_seconds(connection: Connection) -> dict[str, float]:
    """Return how long a task for each target took lately, on average. Targets without such a task are left out."""
    ended = select(tasks.c.target, tasks.c.wall_seconds).where(tasks.c.wall_seconds.is_not(None))
    recent = ended.order_by(tasks.c.job.desc(), tasks.c.position.desc()).limit(RECENT_TASKS)
    found = defaultdict[str, list[float]](list)
    for target, seconds in connection.execute(recent):
        found[target].append(seconds)
    return {target: sum(seconds) / len(seconds) for target, seconds in found.items()}


def _busy(connection: Connection, now: float) -> dict[str, float]:
    """Return the share of the last ``BUSY_WINDOW_SECONDS`` in which each unit had a task."""
    start = now - BUSY_WINDOW_SECONDS
    columns = (attempts.c.units, attempts.c.began_at, attempts.c.ended_at)
    lately = (attempts.c.ended_at.is_(None), attempts.c.ended_at > start)  # each has an index of its own
    found = [row for condition in lately for row in connection.execute(select(*columns).where(condition))]
    spans = defaultdict[str, list[tuple[float, float]]](list)
    for uuids, began, ended in sorted(found, key=lambda row: row.began_at):
        for uuid in uuids:
            spans[uuid].append((max(began, start), now if ended is None else ended))
    return {uuid: min(1.0, _covered(found) / BUSY_WINDOW_SECONDS) for uuid, found in spans.items()}


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans, which come in the order of their beginnings."""
    total, end = 0.0, float("-inf")
    for first, last in spans:
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total
