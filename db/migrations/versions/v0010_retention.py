"""Adds indexes by which old rows are found and tasks counted, and which programs may use a database that is newer than
they are."""

from alembic import op
from sqlalchemy import Column, PrimaryKeyConstraint, String, text

revision = "0010"
down_revision = "0009"
lives_with_before = False
"""Programs from before do not look into the new table, and refuse the database."""
INDEXES = (
    ("ix_jobs_finished_at", "jobs", ("finished_at",), "finished_at IS NOT NULL"),
    ("ix_idempotency_keys_created_at", "idempotency_keys", ("created_at",), None),
    ("ix_tasks_state", "tasks", ("state",), None),
    ("ix_trials_adopted_from", "trials", ("adopted_from",), "adopted_from IS NOT NULL"),
)
online = tuple(
    f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table} ({', '.join(columns)})"
    + (f" WHERE {where}" if where else "")
    for name, table, columns, where in INDEXES
)
"""PostgreSQL runs these before the migration, each by itself, while others write."""


def upgrade() -> None:
    op.create_table(
        "compatible_programs",
        Column("migration", String(32), nullable=False),
        PrimaryKeyConstraint("migration", name=op.f("pk_compatible_programs")),
    )
    for name, table, columns, where in INDEXES:  # PostgreSQL has them already, unless it was empty
        condition = text(where) if where else None
        op.create_index(name, table, [*columns], if_not_exists=True, sqlite_where=condition, postgresql_where=condition)


def downgrade() -> None:
    for name, table, *_ in INDEXES:
        op.drop_index(name, table_name=table)
    op.drop_table("compatible_programs")
