"""Adds what a job that retunes was asked for, and what its tasks found."""

from alembic import op
from sqlalchemy import JSON, Column

revision = "0014"
down_revision = "0013"
lives_with_before = True
"""A worker from before tunes the tasks of such a job from the beginning."""


def upgrade() -> None:
    op.add_column("jobs", Column("retuning", JSON(), nullable=True))
    op.add_column("tasks", Column("retuned", JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "retuned")
    op.drop_column("jobs", "retuning")
