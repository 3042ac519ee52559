"""Adds what the cost model of a task expects of its next trials, by which the budget of a model's job is dealt out."""

from alembic import op
from sqlalchemy import Column, Float, text

# Alembic loads this file by its path, so that it cannot import relatively.
from tilewright.db.partitions import lock_tables

revision = "0020"
down_revision = "0019"
lives_with_before = True
"""Tasks that a worker from before ends have none: their slices go by the gaps between their fastest times."""


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        lock_tables(connection, "tasks")
        op.execute(text("ALTER TABLE tasks ADD COLUMN IF NOT EXISTS improvement FLOAT"))
    else:
        op.add_column("tasks", Column("improvement", Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "improvement")
