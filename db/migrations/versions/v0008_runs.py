"""Adds how often a model is to run, which says how much measuring pays."""

from alembic import op
from sqlalchemy import Column, Float

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("jobs", Column("budget_runs", Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "budget_runs")
