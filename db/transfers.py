"""Finds what schedules cost under other conditions than those where they were the best.

    for a workload with records under the conditions A and B
        s = the fastest schedule of B, if A has timed it too
        loss = time of s under A / least time under A - 1

This is what a look-up for A would have lost that found the records of B alone.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from .best import find_any
from .rows import AnswerRow, TransferRow
from .tables import best_records, devices, toolchains, trials, workloads

_AT = {
    trials.c.workload: (workloads, "workload_key"),
    trials.c.device: (devices, "device_key"),
    trials.c.toolchain: (toolchains, "toolchain_key"),
}
_TIME_OF = select(func.min(trials.c.rank_seconds)).where(
    *(
        column == select(table.c.id).where(table.c.key == bindparam(key)).scalar_subquery()
        for column, (table, key) in _AT.items()
    ),
    trials.c.profile == bindparam("profile"),
    trials.c.schedule_key == bindparam("schedule_key"),
    trials.c.seconds.is_not(None),
)


def load_transfers(connection: Connection, sketches: Mapping[str, int], limit: int) -> list[TransferRow]:
    """Return such losses for workloads of the newest ``limit`` best records, at most ``limit`` of them. ``sketches``
    are the current ones with their versions; others do not count."""
    newest = select(best_records.c.workload_key).order_by(best_records.c.record_id.desc()).limit(limit)
    keys = list(dict.fromkeys(connection.execute(newest).scalars()))
    best: dict[str, dict[tuple[str, str, str], AnswerRow]] = {}
    for row in find_any(connection, keys):
        if sketches.get(row.sketch) == row.sketch_version:
            at = best.setdefault(row.workload_key, {})
            place = (row.device_key, row.toolchain_key, row.profile)
            at[place] = min(at.get(place, row), row, key=lambda one: one.rank)
    found: list[TransferRow] = []
    for key in keys:
        found += _of_workload(connection, list(best.get(key, {}).values()))
        if len(found) >= limit:
            break
    return found[:limit]


def _of_workload(connection: Connection, rows: Sequence[AnswerRow]) -> list[TransferRow]:
    found = []
    for asked in rows:
        for served in rows:
            if served is asked:
                continue
            parts = {name: getattr(asked, name) for name in ("workload_key", "device_key", "toolchain_key", "profile")}
            seconds = connection.execute(_TIME_OF, {**parts, "schedule_key": served.schedule_key}).scalar()
            if seconds is not None:
                found.append(TransferRow(asked, served, seconds / asked.rank_seconds - 1))
    return found
