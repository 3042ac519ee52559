"""Adds counts of what jobs that have ended left behind, indexes of when attempts ended and of failures with their jobs,
and on SQLite one of how the keys of best records start."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, PrimaryKeyConstraint, String, text

# Alembic loads this file by its path, so that it cannot import relatively.
from tilewright.db.partitions import lock_tables

revision = "0019"
down_revision = "0018"
lives_with_before = True
"""Programs from before neither read nor write what is new: jobs that they end are counted later."""
INDEXES = (
    ("ix_attempts_ended_at", "attempts (ended_at) WHERE ended_at IS NOT NULL"),
    (
        "ix_trials_failed_since",
        "trials (created_at, failed_stage, failed_reason, id, job) WHERE seconds IS NULL",
    ),
)
online = tuple(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {on}" for name, on in INDEXES)
"""PostgreSQL runs these before the migration, each by itself, while others write."""


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        lock_tables(connection, "jobs", "attempts", "trials")
    op.create_table(
        "ended_totals",
        Column("tenant", String(64), nullable=False),
        Column("kind", String(8), nullable=False),
        Column("state", String(16), nullable=False),
        Column("count", BigInteger(), nullable=False),
        PrimaryKeyConstraint("tenant", "kind", "state", name="pk_ended_totals"),
    )
    if connection.dialect.name == "postgresql":
        op.execute(text("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS counted BOOLEAN"))
    else:
        op.add_column("jobs", Column("counted", Boolean(), nullable=True))
    not_counted = text("counted IS NULL")
    op.create_index("ix_jobs_not_counted", "jobs", ["number"], sqlite_where=not_counted, postgresql_where=not_counted)
    for name, on in INDEXES:  # PostgreSQL has them already, unless it was empty
        op.execute(text(f"CREATE INDEX IF NOT EXISTS {name} ON {on}"))
    op.drop_index("ix_trials_failed_at", table_name="trials")
    if connection.dialect.name == "sqlite":
        start = "substr(workload_key, 1, 12), measured_on"
        op.execute(text(f"CREATE INDEX ix_best_records_key_start ON best_records ({start})"))


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(text("DROP INDEX ix_best_records_key_start"))
    failed = text("seconds IS NULL")
    columns = ["created_at", "failed_stage", "failed_reason", "id"]
    op.create_index("ix_trials_failed_at", "trials", columns, sqlite_where=failed, postgresql_where=failed)
    op.drop_index("ix_trials_failed_since", table_name="trials")
    op.drop_index("ix_attempts_ended_at", table_name="attempts")
    op.drop_index("ix_jobs_not_counted", table_name="jobs")
    op.drop_column("jobs", "counted")
    op.drop_table("ended_totals")
