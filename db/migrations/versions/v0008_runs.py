"""Adds how often a model is to run, which says how much measuring pays, and shape families."""

from alembic import op
from sqlalchemy import JSON, BigInteger, Column, Float, Integer, String, UniqueConstraint

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("jobs", Column("budget_runs", Float(), nullable=True))
    op.create_table(
        "families",
        Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
        Column("tenant", String(64), nullable=False),
        Column("name", String(64), nullable=False),
        Column("document", JSON(), nullable=False),
        Column("created_at", String(32), nullable=False),
        UniqueConstraint("tenant", "name"),
    )


def downgrade() -> None:
    op.drop_table("families")
    op.drop_column("jobs", "budget_runs")
