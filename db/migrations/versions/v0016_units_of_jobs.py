"""Adds how many units each task of a job may have at once."""

from alembic import op
from sqlalchemy import Column, Integer

revision = "0016"
down_revision = "0015"
lives_with_before = True
"""A program from before gives each task one."""


def upgrade() -> None:
    op.add_column("jobs", Column("units", Integer, nullable=False, server_default="1"))


def downgrade() -> None:
    op.drop_column("jobs", "units")
