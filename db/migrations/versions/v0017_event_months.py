"""Makes partitions by month of the events on PostgreSQL. No row is copied: the table becomes the first partition.

It ends with the month after the upgrade; a constraint, which is checked while others write, says so. The primary key
has to have the time in it. It begins with the job, so that it is the index of all reads. The reference to the job went
because PostgreSQL looked the job up for each event, whose row the writer has locked anyway, and because attaching a
partition would lock all jobs.
"""

from alembic import op
from sqlalchemy import Connection, text

# Alembic loads this file by its path, so that it cannot import relatively.
from tilewright.db.partitions import lock_tables

revision = "0017"
down_revision = "0016"
lives_with_before = True
"""Programs from before insert and read through ``events``, which has the columns that it had."""
_KEY = "CREATE UNIQUE INDEX {how} IF NOT EXISTS pk_events_first ON events (job, id, created_at)"
_BOUND = """
DO $$ BEGIN EXECUTE 'ALTER TABLE events DROP CONSTRAINT IF EXISTS ck_events_first, '
  || 'ADD CONSTRAINT ck_events_first CHECK (created_at < ' || quote_literal(to_char(
    date_trunc('month', now() AT TIME ZONE 'UTC') + interval '2 months', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
  || ') NOT VALID'; END $$"""
_CHECK = "ALTER TABLE events VALIDATE CONSTRAINT ck_events_first"
online = (_KEY.format(how="CONCURRENTLY"), "SET lock_timeout = '5s'", _BOUND, "RESET lock_timeout", _CHECK)
"""PostgreSQL runs these before the migration, each by itself, while others write."""
_END = """
SELECT substring(pg_get_constraintdef(oid) FROM '''(.*?)''') FROM pg_constraint
WHERE conname = 'ck_events_first' AND conrelid = to_regclass('events') AND convalidated"""
_SWAP = (
    "ALTER TABLE events DROP CONSTRAINT fk_events_job, DROP CONSTRAINT pk_events",
    "DROP INDEX ix_events_job_id",
    "ALTER TABLE events ADD CONSTRAINT pk_events_first PRIMARY KEY USING INDEX pk_events_first",
    "ALTER TABLE events RENAME TO events_first",
    "CREATE TABLE events (LIKE events_first INCLUDING DEFAULTS) PARTITION BY RANGE (created_at)",
    "ALTER TABLE events ADD CONSTRAINT pk_events PRIMARY KEY (job, id, created_at)",
    "ALTER TABLE events ATTACH PARTITION events_first FOR VALUES FROM (MINVALUE) TO ('{end}')",
    "ALTER TABLE events_first DROP CONSTRAINT ck_events_first",
    "CREATE TABLE events_default PARTITION OF events DEFAULT",
    "ALTER SEQUENCE events_id_seq OWNED BY events.id",
)
_BACK = (
    "CREATE TABLE events_again (LIKE events INCLUDING DEFAULTS)",
    "INSERT INTO events_again SELECT * FROM events",
    "ALTER SEQUENCE events_id_seq OWNED BY events_again.id",
    "DROP TABLE events",
    "ALTER TABLE events_again RENAME TO events",
    "ALTER TABLE events ADD CONSTRAINT pk_events PRIMARY KEY (id)",
    "ALTER TABLE events ADD CONSTRAINT fk_events_job FOREIGN KEY (job) REFERENCES jobs (number)",
    "CREATE INDEX ix_events_job_id ON events (job, id)",
)


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        lock_tables(connection, "jobs", "events")
        if _end(connection) is None:  # the database was empty
            for statement in (_KEY.format(how=""), _BOUND, _CHECK):
                connection.exec_driver_sql(statement)
        end = _end(connection)
        for statement in _SWAP:
            connection.exec_driver_sql(statement.format(end=end))


def _end(connection: Connection) -> str | None:
    """Return the time before which all events were made."""
    found: str | None = connection.execute(text(_END)).scalar()
    return found


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for statement in _BACK:
            op.execute(text(statement))
