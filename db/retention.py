"""Deletes what is no longer needed, by age. Winners and the evidence for them stay for ever.

Of jobs that ended long ago, it deletes

- events that tell of single trials; how the job and its tasks went stays. On PostgreSQL they go with their month
  (``partitions``),
- trials that nothing refers to: no best of its task or of its identity, none that a re-measurement timed again, none
  that was adopted elsewhere. Tasks keep their counters.

Idempotency keys go once they are old. Each step deletes at most ``ROWS_AT_ONCE`` rows in a transaction of its own, so
that nobody waits for it, and several processes may do it at once.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, CursorResult, Select, and_, delete, exists, select

from .engine import Database
from .partitions import drop_months
from .tables import best_records, events, idempotency_keys, jobs, tasks, trials

ROWS_AT_ONCE = 2_000
OF_TRIALS = ("trial", "best")
"""The kinds of event that tell of one trial."""
TABLES = {"events": events.c.id, "idempotency_keys": idempotency_keys.c.key, "trials": trials.c.id}
ENDED = ("succeeded", "cancelled")
"""The tasks of a job that failed may be tried again, from all of their trials."""


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many days rows are kept; None: for ever."""

    events: float | None = None
    keys: float | None = None
    trials: float | None = None


def delete_old(database: Database, keep: Retention) -> dict[str, int]:
    """Delete what is older than ``keep`` says; return how many rows of each table."""
    deleted = dict.fromkeys(TABLES, 0)
    old = {
        "events": _events(_before(keep.events)) if keep.events is not None and database.embedded else None,
        "idempotency_keys": None if keep.keys is None else _keys(_before(keep.keys)),
        "trials": None if keep.trials is None else _trials(_before(keep.trials)),
    }
    for name, chosen in old.items():
        column, count = TABLES[name], ROWS_AT_ONCE
        while chosen is not None and count == ROWS_AT_ONCE:
            rows = chosen.limit(ROWS_AT_ONCE).with_for_update(of=column.table, skip_locked=True)
            with database.writing() as connection:
                found: CursorResult[object] = connection.execute(delete(column.table).where(column.in_(rows)))
                count = found.rowcount
            deleted[name] += count
    if keep.events is not None and not database.embedded:
        before = _before(keep.events)
        deleted["events"] = drop_months(database, before, _of_old_trial(before))
    return deleted


def _before(days: float) -> str:
    moment = datetime.now(UTC) - timedelta(days=days)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _events(before: str) -> Select[tuple[int]]:
    return (
        select(events.c.id).select_from(events.join(jobs, jobs.c.number == events.c.job)).where(_of_old_trial(before))
    )


def _of_old_trial(before: str) -> ColumnElement[bool]:
    return and_(jobs.c.finished_at < before, jobs.c.state.in_(ENDED), events.c.kind.in_(OF_TRIALS))


def _keys(before: str) -> Select[tuple[str]]:
    return select(idempotency_keys.c.key).where(idempotency_keys.c.created_at < before)


def _trials(before: str) -> Select[tuple[int]]:
    of_ended = trials.join(jobs, jobs.c.number == trials.c.job)
    copies = trials.alias()
    return (
        select(trials.c.id)
        .select_from(of_ended)
        .where(jobs.c.finished_at < before, jobs.c.state.in_(ENDED), trials.c.final_samples.is_(None))
        .where(~exists().where(best_records.c.record_id == trials.c.id))
        .where(~exists().where(tasks.c.job == trials.c.job, tasks.c.best_trial == trials.c.id))
        .where(~exists().where(copies.c.adopted_from == trials.c.id))
    )
