"""Looks whether what a database holds fits together.

Each check is a query for rows that should not be there. SQLite and PostgreSQL keep keys and most references themselves.
The checks are therefore about what only this program knows: counters, bests, and what look-ups answer with. They are
also about references of tables that many write to, which PostgreSQL does not keep (``tables.SQLITE_ONLY``).
"""

from sqlalchemy import Connection, text

from .engine import Database

SHOWN = 5
"""So many of the rows that a check finds are named."""
_TASK = "'task ' || t.position || ' of job number ' || t.job"
CHECKS = {
    "a task counts fewer trials than it has": f"""
        SELECT {_TASK} FROM tasks AS t
        WHERE t.trials <= (SELECT MAX(r.sequence) FROM trials AS r WHERE r.job = t.job AND r.task = t.position)""",
    "a task's best trial is not its own, or has no time": f"""
        SELECT {_TASK} FROM tasks AS t WHERE t.best_trial IS NOT NULL AND NOT EXISTS (
          SELECT 1 FROM trials AS r WHERE r.id = t.best_trial AND r.job = t.job AND r.task = t.position
          AND r.rank_seconds = t.best_seconds)""",
    "a task has a faster trial than its best one": f"""
        SELECT {_TASK} FROM tasks AS t WHERE EXISTS (
          SELECT 1 FROM trials AS r WHERE r.job = t.job AND r.task = t.position AND r.seconds IS NOT NULL
          AND r.rank_seconds < COALESCE(t.best_seconds, 1e308))""",
    "look-ups answer with a record that is not there": """
        SELECT 'record ' || b.record_id FROM best_records AS b
        WHERE NOT EXISTS (SELECT 1 FROM trials AS r WHERE r.id = b.record_id AND r.rank_seconds = b.rank_seconds)""",
    "look-ups answer with a record that another of its identity beats": """
        SELECT 'record ' || b.record_id FROM best_records AS b JOIN trials AS k ON k.id = b.record_id
        WHERE EXISTS (SELECT 1 FROM trials AS r WHERE r.workload = k.workload AND r.device = k.device
          AND r.toolchain = k.toolchain AND r.profile = k.profile AND r.seconds IS NOT NULL
          AND r.rank_seconds < b.rank_seconds AND r.sketch = k.sketch AND r.sketch_version = k.sketch_version)""",
    "a record refers to what is not there": """
        SELECT 'record ' || r.id FROM trials AS r LEFT JOIN tasks AS t ON t.job = r.job AND t.position = r.task
        LEFT JOIN workloads AS w ON w.id = r.workload LEFT JOIN devices AS d ON d.id = r.device
        LEFT JOIN toolchains AS c ON c.id = r.toolchain
        WHERE t.job IS NULL OR w.id IS NULL OR d.id IS NULL OR c.id IS NULL""",
    "an event is of a job that is not there": """
        SELECT 'event ' || e.id FROM events AS e LEFT JOIN jobs AS j ON j.number = e.job WHERE j.number IS NULL""",
    "a task is leased, and there is no lease": f"""
        SELECT {_TASK} FROM tasks AS t JOIN jobs AS j ON j.number = t.job WHERE t.state = 'leased' AND NOT EXISTS (
          SELECT 1 FROM leases AS l WHERE l.kind = 'task' AND l.subject = j.id || '/' || t.position)""",
    "a task that is over waits in a lease": """
        SELECT l.subject FROM leases AS l WHERE l.kind = 'task' AND NOT EXISTS (
          SELECT 1 FROM jobs AS j JOIN tasks AS t ON t.job = j.number
          WHERE t.state = 'leased' AND l.subject = j.id || '/' || t.position)""",
    "a job that has ended has a task that has not": f"""
        SELECT {_TASK} FROM jobs AS j JOIN tasks AS t ON t.job = j.number
        WHERE j.state IN ('succeeded', 'cancelled') AND t.state IN ('ready', 'leased', 'blocked')""",
}
"""What is wrong -> the query that names where."""


def faults(database: Database) -> list[str]:
    """Return what does not fit together, each with some of the rows; nothing where all is well. The database may be in
    use meanwhile. Raises StoreError."""
    with database.reading() as connection:
        found = _damage(connection) if database.embedded else []
        if not database.embedded:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        for wrong, query in CHECKS.items():
            rows = [row[0] for row in connection.execute(text(f"{query} LIMIT {SHOWN + 1}"))]
            if rows:
                found.append(f"{wrong}: {', '.join(rows[:SHOWN])}{', and more' if len(rows) > SHOWN else ''}")
    return found


def _damage(connection: Connection) -> list[str]:
    broken = [row[0] for row in connection.exec_driver_sql(f"PRAGMA integrity_check({SHOWN})") if row[0] != "ok"]
    lost = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(SHOWN)
    return [
        *broken,
        *(f"a row of {table} refers to a row of {parent} that is not there" for table, _, parent, _ in lost),
    ]
