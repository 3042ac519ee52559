"""Finds what schedules cost where they are not the best.

    for identities A and B with records: the same workload under other conditions, or another workload of the operator
        s = the fastest schedule of B, if A has timed it too
        loss = time of s under A / least time under A - 1

This is what a look-up for A would have lost that found the records of B alone.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from .best import find_any
from .rows import AnswerRow, TransferRow
from .tables import best_records, devices, tasks, toolchains, trials, workloads

MOST_ASKED, MOST_SERVED = 1_000, 100
"""So many identities, the newest ones, are taken for A, and with so many others each one is compared."""
_AT = {
    trials.c.workload: (workloads, "workload_key"),
    trials.c.device: (devices, "device_key"),
    trials.c.toolchain: (toolchains, "toolchain_key"),
}
_TIMES_OF = (
    select(trials.c.schedule_key, func.min(trials.c.rank_seconds))
    .where(
        *(
            column == select(table.c.id).where(table.c.key == bindparam(key)).scalar_subquery()
            for column, (table, key) in _AT.items()
        ),
        trials.c.profile == bindparam("profile"),
        trials.c.schedule_key.in_(bindparam("schedule_keys", expanding=True)),
        trials.c.seconds.is_not(None),
    )
    .group_by(trials.c.schedule_key)
)


def load_transfers(connection: Connection, sketches: Mapping[str, int], limit: int) -> list[TransferRow]:
    """Return such losses for workloads of the newest ``limit`` best records, at most ``limit`` of them. ``sketches``
    are the current ones with their versions; others do not count."""
    newest = select(best_records.c.workload_key).order_by(best_records.c.record_id.desc()).limit(limit)
    keys = list(dict.fromkeys(connection.execute(newest).scalars()))
    best: dict[tuple[str, str, str, str], AnswerRow] = {}
    for row in find_any(connection, keys):
        if sketches.get(row.sketch) == row.sketch_version:
            place = (row.workload_key, row.device_key, row.toolchain_key, row.profile)
            best[place] = min(best.get(place, row), row, key=lambda one: one.rank)
    rows = sorted(best.values(), key=lambda row: -row.record_id)
    operators = _operators(connection, {row.workload_key for row in rows})
    alike: dict[str, list[AnswerRow]] = {}
    for row in rows:
        alike.setdefault(operators.get(row.workload_key, row.workload_key), []).append(row)
    found: list[TransferRow] = []
    for asked in rows[:MOST_ASKED]:
        operator = operators.get(asked.workload_key)
        others = [row for row in alike[operator or asked.workload_key] if row is not asked]
        # the same workload under other conditions first: there are few of these
        others.sort(key=lambda row: row.workload_key != asked.workload_key)
        found += _losses(connection, asked, others[:MOST_SERVED], operator)
        if len(found) >= limit:
            break
    return found[:limit]


def _operators(connection: Connection, workload_keys: Iterable[str]) -> dict[str, str]:
    query = (
        select(workloads.c.key, tasks.c.operator)
        .join(tasks, tasks.c.workload == workloads.c.id)
        .where(workloads.c.key.in_(bindparam("keys", expanding=True)), tasks.c.operator.is_not(None))
        .distinct()
    )
    found = connection.execute(query, {"keys": sorted(workload_keys)})
    return {key: operator for key, operator in found}


def _losses(
    connection: Connection, asked: AnswerRow, others: Sequence[AnswerRow], operator: str | None
) -> list[TransferRow]:
    if not others:
        return []
    parts = {name: getattr(asked, name) for name in ("workload_key", "device_key", "toolchain_key", "profile")}
    keys = sorted({row.schedule_key for row in others})
    found = connection.execute(_TIMES_OF, {**parts, "schedule_keys": keys})
    seconds = {schedule_key: best for schedule_key, best in found}
    return [
        TransferRow(asked, served, seconds[served.schedule_key] / asked.rank_seconds - 1, operator)
        for served in others
        if served.schedule_key in seconds
    ]
