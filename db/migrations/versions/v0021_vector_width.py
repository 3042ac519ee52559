"""Gives schedules of rows, columns and scans today's name of the width of their vectors (``vector_width``)."""

from alembic import op

# Alembic loads this file by its path, so that it cannot import relatively.
from tilewright.db.renaming import rename_schedules

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    rename_schedules(op.get_bind())


def downgrade() -> None:
    """Leave the names as they are: an older program keeps such records, and does not know their versions."""
