"""Adds the id of the request that submitted a job."""

from alembic import op
from sqlalchemy import Column, String

revision = "0015"
down_revision = "0014"
lives_with_before = True
"""Jobs that a program from before submits have none."""


def upgrade() -> None:
    op.add_column("jobs", Column("request_id", String(64), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("jobs", "request_id")
