"""Keeps the events of a server's database in partitions by month, so that old ones go without a DELETE.

    events_before_2026_10 │ events_2026_10 │ events_2026_11 │ events_2026_12 │ events_2027_01       events_default
    what stays of before    months that are still kept        made ahead                            no partition has it

``events_first`` is the table from before there were partitions: it ends with the month after the upgrade. The ranges
leave no gap. A row without a partition goes to ``events_default``, and moves when its month gets one.

Whatever is done here takes the lock ``ADVISORY_LOCK`` first, so that one process at a time does it. Locks of tables are
waited for ``LOCK_MILLISECONDS`` at most. That is less than PostgreSQL's ``deadlock_timeout`` (1 s), so that nobody else
is chosen to give way, and others wait no longer than that behind us.
"""

import re
import time
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, CursorResult, column, insert, select, table, text, true
from sqlalchemy.exc import OperationalError

from .encode import time_text
from .engine import Database
from .tables import events, jobs

ADVISORY_LOCK = 0x7465_6C70
LOCK_MILLISECONDS = 500
LOCK_TRIES, LOCK_PAUSE_SECONDS = 20, 0.25
MONTHS_AHEAD = 2
"""So many months after the present one have partitions."""
_PARTITIONS = text(
    "SELECT relname, pg_get_expr(relpartbound, pg_class.oid) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid "
    "WHERE inhparent = to_regclass('events')"
)
_UNTIL = re.compile(r"TO \('([^']+)'\)")


def month_start(moment: datetime, later: int = 0) -> datetime:
    """Return when the month of ``moment`` began, or one that is so many months later."""
    year, month = divmod(moment.year * 12 + moment.month - 1 + later, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC)


def partitions(connection: Connection) -> dict[str, str]:
    """Return the partitions of events, the oldest first, and with each the time before which its rows were made."""
    found = {name: _UNTIL.search(bound) for name, bound in connection.execute(_PARTITIONS)}
    ends = [(until.group(1), name) for name, until in found.items() if until is not None]
    return {name: until for until, name in sorted(ends)}


def lock_tables(connection: Connection, *names: str) -> None:
    """Lock tables for the caller's transaction against all others, the first of them first. While somebody else has one
    of them, none is kept for longer than ``LOCK_MILLISECONDS``. Raises OperationalError after some tries."""
    wait_briefly(connection)
    for left in reversed(range(LOCK_TRIES)):
        try:
            with connection.begin_nested():
                connection.exec_driver_sql(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
            return
        except OperationalError:
            if not left:
                raise
            time.sleep(LOCK_PAUSE_SECONDS)


def wait_briefly(connection: Connection) -> None:
    """Let the caller's transaction wait for each lock for ``LOCK_MILLISECONDS`` at most."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")


def make_months(database: Database, today: datetime) -> list[str]:
    """Add the partitions that are missing up to ``MONTHS_AHEAD`` months after ``today``; return their names. Those who
    record go on meanwhile. Raises StoreError."""
    made = list[str]()
    goal = time_text(month_start(today, MONTHS_AHEAD + 1))
    while not database.embedded:
        with database.writing(unlimited=True) as connection:
            if not _alone(connection):
                break
            *_, start = partitions(connection).values()
            if start >= goal:
                break
            made.append(_make_month(connection, datetime.fromisoformat(start)))
    return made


def _make_month(connection: Connection, month: datetime) -> str:
    name = f"events_{month:%Y_%m}"
    bounds = {"start": time_text(month), "until": time_text(month_start(month, 1))}
    wait_briefly(connection)
    connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE events)")
    # those who insert into the default partition wait; it is empty unless nobody made partitions for months
    connection.exec_driver_sql("LOCK TABLE events_default IN ACCESS EXCLUSIVE MODE")
    stray = "DELETE FROM events_default WHERE created_at >= :start AND created_at < :until RETURNING *"
    connection.execute(text(f"WITH moved AS ({stray}) INSERT INTO {name} SELECT * FROM moved"), bounds)
    connection.exec_driver_sql(f"ALTER TABLE events ATTACH PARTITION {name} {_range(**bounds)}")
    return name


def drop_months(database: Database, before: str, gone: ColumnElement[bool]) -> int:
    """Drop the partitions with rows from ``before`` alone; return how many rows went. Rows for which the condition on
    events and jobs ``gone`` is not true stay, in a partition that takes the place of all these. It is filled while
    others read and write, who wait only for the swap. Raises StoreError."""
    with database.writing(unlimited=True) as connection:
        if not _alone(connection):
            return 0
        old = {name: until for name, until in partitions(connection).items() if until <= before}
        until = max(old.values(), default="")
        name = f"events_before_{until[:7].replace('-', '_')}"
        if not set(old) - {name}:
            return 0
        wait_briefly(connection)
        connection.exec_driver_sql(f"LOCK TABLE {', '.join(old)} IN SHARE MODE")
        count = f"SELECT sum(rows) FROM ({' UNION ALL '.join(f'SELECT count(*) AS rows FROM {one}' for one in old)}) c"
        rows = int(connection.exec_driver_sql(count).scalar_one())
        connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE events, CONSTRAINT old CHECK (created_at < '{until}'))")
        stay = _copy(connection, name, until, gone)
        connection.exec_driver_sql(f"ALTER TABLE {name} ADD CONSTRAINT pk_{name} PRIMARY KEY (job, id, created_at)")
        lock_tables(connection, "ONLY events")
        for one in old:
            connection.exec_driver_sql(f"ALTER TABLE events DETACH PARTITION {one}")
        connection.exec_driver_sql(f"ALTER TABLE events ATTACH PARTITION {name} {_range('', until)}")
        connection.exec_driver_sql(f"ALTER TABLE {name} DROP CONSTRAINT old")
        connection.exec_driver_sql(f"DROP TABLE {', '.join(old)}")
        return rows - stay


def _copy(connection: Connection, name: str, until: str, gone: ColumnElement[bool]) -> int:
    """Fill a table with the events from before ``until`` that are not ``gone``; return how many these are."""
    names = events.c.keys()
    rows = select(events).outerjoin(jobs, jobs.c.number == events.c.job).order_by(events.c.job, events.c.id)
    kept = rows.where(events.c.created_at < until, gone.is_not(true()))
    filled = insert(table(name, *(column(one) for one in names))).from_select(names, kept)
    found: CursorResult[object] = connection.execute(filled.execution_options(preserve_rowcount=True))
    return found.rowcount


def _range(start: str, until: str) -> str:
    return f"FOR VALUES FROM ({f'{start!r}' if start else 'MINVALUE'}) TO ({until!r})"


def _alone(connection: Connection) -> bool:
    """Return whether no other process works on partitions; none will until the caller's transaction ends."""
    return bool(connection.execute(text(f"SELECT pg_try_advisory_xact_lock({ADVISORY_LOCK})")).scalar_one())
