"""The samples of finals (``trials.seconds`` becomes what a trial is ranked by), and how long tasks took."""

from alembic import op
from sqlalchemy import JSON, Column, Float

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("trials", Column("final_samples", JSON(none_as_null=True), nullable=True))
    op.add_column("tasks", Column("wall_seconds", Float(), nullable=True))
    op.add_column("tasks", Column("timing_seconds", Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "timing_seconds")
    op.drop_column("tasks", "wall_seconds")
    op.drop_column("trials", "final_samples")
