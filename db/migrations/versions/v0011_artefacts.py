"""Adds the binaries of the fastest records."""

from alembic import op
from sqlalchemy import JSON, BigInteger, Boolean, Column, Integer, LargeBinary, PrimaryKeyConstraint, String, false

revision = "0011"
down_revision = "0010"

NUMBER = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "artefacts",
        Column("number", NUMBER, nullable=False),
        Column("sha256", String(64), nullable=False),
        Column("record_id", BigInteger(), nullable=False),
        Column("pinned", Boolean(), nullable=False, server_default=false()),
        Column("bytes", BigInteger(), nullable=False),
        Column("created_at", String(32), nullable=False),
        Column("format", String(16), nullable=False),
        Column("description", JSON(), nullable=False),
        Column("code", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("number", name="pk_artefacts"),
    )
    op.create_index("ix_artefacts_sha256", "artefacts", ["sha256"], unique=True)
    op.create_index("ix_artefacts_record_id", "artefacts", ["record_id"])


def downgrade() -> None:
    op.drop_table("artefacts")
