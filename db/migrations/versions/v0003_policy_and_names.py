"""Adds how a job searches (whether it prunes, whether it uses the prior), and gives schedules today's names."""

from alembic import op
from sqlalchemy import Boolean, Column, true

# Alembic loads this file by its path, so that it cannot import relatively.
from tilewright.db.renaming import rename_schedules

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("jobs", Column("prune", Boolean(), nullable=False, server_default=true()))
    op.add_column("jobs", Column("prior", Boolean(), nullable=False, server_default=true()))
    rename_schedules(op.get_bind())


def downgrade() -> None:
    """Drop the columns. The names stay as they are: an older program keeps such records, and does not know the
    sketches that they name."""
    op.drop_column("jobs", "prior")
    op.drop_column("jobs", "prune")
