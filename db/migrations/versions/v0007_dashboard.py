"""Adds what the dashboard counts and looks up: device seconds of tasks, predictions of trials, and indexes."""

from typing import Any

from alembic import op
from sqlalchemy import Column, Float, Integer, text

revision = "0007"
down_revision = "0006"

INDEXES = (
    ("ix_trials_rank", ("job", "task", "rank_seconds", "schedule_key", "id"), "seconds IS NOT NULL"),
    ("ix_trials_failed", ("job", "task", "failed_stage", "failed_reason", "id"), "seconds IS NULL"),
    ("ix_trials_failed_at", ("created_at", "failed_stage", "failed_reason", "id"), "seconds IS NULL"),
)


def upgrade() -> None:
    for table, column in _columns():
        op.add_column(table, column)
    for name, indexed, where in INDEXES:
        op.create_index(name, "trials", [*indexed], sqlite_where=text(where), postgresql_where=text(where))
    op.execute(
        "UPDATE tasks SET device_seconds = (SELECT COALESCE(SUM(trials.check_seconds + trials.time_seconds), 0)"
        " FROM trials WHERE trials.job = tasks.job AND trials.task = tasks.position AND trials.adopted_from IS NULL)"
    )


def downgrade() -> None:
    for name, *_ in INDEXES:
        op.drop_index(name, table_name="trials")
    for table, column in _columns():
        op.drop_column(table, column.name)


def _columns() -> tuple[tuple[str, Column[Any]], ...]:
    return (
        ("tasks", Column("device_seconds", Float(), nullable=False, server_default="0")),
        ("trials", Column("predicted_score", Float(), nullable=True)),
        ("trials", Column("learned_from", Integer(), nullable=True)),
    )
