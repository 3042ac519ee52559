"""Rewrites the schedules in a database under today's names (``core.renamed``).

A migration calls ``rename_schedules``. Whoever adds a renaming to the table adds a migration that calls it again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Integer,
    Select,
    String,
    TableClause,
    and_,
    bindparam,
    column,
    select,
    table,
    text,
    tuple_,
    update,
)
from sqlalchemy.engine import RowMapping

from ..core.errors import InvalidParameter
from ..core.renamed import RENAMED, current
from ..core.schedule import Schedule

BATCH_ROWS = 2_000
"""How many rows are read and written at once: memory does not grow with the database."""

# These tables name only what is rewritten, so that a later change of ``tables`` does not change an old migration.
_TRIALS = table(
    "trials",
    column("id", BigInteger),
    column("sketch", String),
    column("sketch_version", Integer),
    column("knobs", JSON),
    column("schedule_key", String),
)
_EVENTS = table(
    "events", column("job", BigInteger), column("id", BigInteger), column("kind", String), column("data", JSON)
)

_BEST_AGAIN = text(
    "UPDATE tasks SET best_trial = ("
    " SELECT trials.id FROM trials"
    " WHERE trials.job = tasks.job AND trials.task = tasks.position AND trials.seconds IS NOT NULL"
    " ORDER BY trials.rank_seconds, trials.schedule_key, trials.id LIMIT 1) "
    "WHERE EXISTS (SELECT 1 FROM trials WHERE trials.id = tasks.best_trial AND trials.final_samples IS NOT NULL)"
)
"""Among trials that a re-measurement found equally fast the schedule's key decides, and keys have changed."""


def rename_schedules(connection: Connection) -> tuple[int, int]:
    """Rewrite every schedule that has an old name, inside the caller's transaction.

    Returns how many trials and how many events were rewritten. A second call finds nothing to do.
    """
    old_names = sorted({sketch for sketch, _ in RENAMED})
    trials = select(_TRIALS).where(_TRIALS.c.sketch.in_(old_names))
    events = select(_EVENTS).where(_EVENTS.c.kind == "best")
    counts = (
        _rewrite(connection, _TRIALS, ("id",), trials, _renamed_trial),
        _rewrite(connection, _EVENTS, ("job", "id"), events, _renamed_event),
    )
    if counts[0]:
        connection.execute(_BEST_AGAIN)
    return counts


def _rewrite(
    connection: Connection,
    rows: TableClause,
    key: Sequence[str],
    query: Select[Any],
    renamed: Callable[[RowMapping], Mapping[str, object] | None],
) -> int:
    """Give the rows of ``query`` the columns that ``renamed`` says (None: nothing changes), in the order of ``key``,
    whose values are positive numbers."""
    columns = [rows.c[name] for name in key]
    place = and_(*(column == bindparam(f"row_{column.name}") for column in columns))
    last, count = tuple(0 for _ in key), 0
    while True:
        later = query.where(tuple_(*columns) > tuple_(*last)).order_by(*columns).limit(BATCH_ROWS)
        batch = connection.execute(later).mappings().all()
        if not batch:
            return count
        last = tuple(batch[-1][name] for name in key)
        changes = [
            {f"row_{name}": row[name] for name in key} | {f"new_{name}": value for name, value in found.items()}
            for row in batch
            if (found := renamed(row)) is not None
        ]
        if changes:
            names = [name.removeprefix("new_") for name in changes[0] if name.startswith("new_")]
            values = {rows.c[name]: bindparam(f"new_{name}", type_=rows.c[name].type) for name in names}
            connection.execute(update(rows).where(place).values(values), changes)
            count += len(changes)


def _renamed_trial(row: RowMapping) -> Mapping[str, object] | None:
    if (row["sketch"], row["sketch_version"]) not in RENAMED:
        return None
    schedule = Schedule(*current(row["sketch"], row["sketch_version"], row["knobs"]))
    return {
        "sketch": schedule.sketch,
        "sketch_version": schedule.version,
        "knobs": dict(schedule.knobs),
        "schedule_key": schedule.key,
    }


def _renamed_event(row: RowMapping) -> Mapping[str, object] | None:
    stored = row["data"].get("schedule")
    try:
        schedule = Schedule.from_json(stored)
    except InvalidParameter:
        return None  # the event holds no schedule
    return None if schedule.to_json() == stored else {"data": {**row["data"], "schedule": schedule.to_json()}}
