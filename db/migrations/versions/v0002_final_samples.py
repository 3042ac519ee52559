"""Adds what re-measurements yield: samples, the figure that ranks trials afterwards; and how long tasks took."""

from collections.abc import Sequence

from alembic import op
from sqlalchemy import JSON, Column, Float, text

revision = "0002"
down_revision = "0001"

TIMED = text("seconds IS NOT NULL")
PLACES = (
    ("workload", "device", "toolchain", "profile"),
    ("workload", "device", "toolchain"),
    ("workload", "device"),
    ("workload",),
)


def upgrade() -> None:
    op.add_column("trials", Column("final_samples", JSON(none_as_null=True), nullable=True))
    op.add_column("trials", Column("rank_seconds", Float(), nullable=True))
    op.execute("UPDATE trials SET rank_seconds = seconds")
    _index_by("rank_seconds")
    op.add_column("tasks", Column("wall_seconds", Float(), nullable=True))
    op.add_column("tasks", Column("timing_seconds", Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "timing_seconds")
    op.drop_column("tasks", "wall_seconds")
    _index_by("seconds")
    op.drop_column("trials", "rank_seconds")
    op.drop_column("trials", "final_samples")


def _index_by(figure: str) -> None:
    for place in PLACES:
        name = "ix_trials_best_by_" + "_".join(place)
        columns: Sequence[str] = (*place, figure, "schedule_key", "id")
        op.drop_index(name, table_name="trials")
        op.create_index(name, "trials", [*columns], sqlite_where=TIMED, postgresql_where=TIMED)
