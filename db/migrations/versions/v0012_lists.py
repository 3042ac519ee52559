"""Adds indexes by which lists of tasks are read, and counts of the jobs that have ended."""

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Integer, PrimaryKeyConstraint, String, text

revision = "0012"
down_revision = "0011"
lives_with_before = True
"""Programs from before neither read nor write what is new: jobs that they end are counted later."""
INDEXES = (
    ("ix_tasks_workload_job", "tasks", ("workload", "job", "position")),
    ("ix_tasks_operator_job", "tasks", ("operator", "job", "position")),
)
online = tuple(
    f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table} ({', '.join(columns)})"
    for name, table, columns in INDEXES
)
"""PostgreSQL runs these before the migration, each by itself, while others write."""

NUMBER = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "device_totals",
        Column("tenant", String(64), nullable=False),
        Column("device", NUMBER, nullable=False, autoincrement=False),
        Column("tasks", BigInteger(), nullable=False),
        Column("trials", BigInteger(), nullable=False),
        Column("device_seconds", Float(), nullable=False),
        PrimaryKeyConstraint("tenant", "device", name="pk_device_totals"),
    )
    op.add_column("jobs", Column("device_seconds", Float(), nullable=True))
    uncounted = text("device_seconds IS NULL")
    op.create_index("ix_jobs_uncounted", "jobs", ["number"], sqlite_where=uncounted, postgresql_where=uncounted)
    for name, table, columns in INDEXES:  # PostgreSQL has them already, unless it was empty
        op.create_index(name, table, [*columns], if_not_exists=True)
    op.drop_index("ix_tasks_workload", table_name="tasks")


def downgrade() -> None:
    op.create_index("ix_tasks_workload", "tasks", ["workload"])
    for name, table, _ in INDEXES:
        op.drop_index(name, table_name=table)
    op.drop_index("ix_jobs_uncounted", table_name="jobs")
    op.drop_column("jobs", "device_seconds")
    op.drop_table("device_totals")
