"""Adds keys of users and the audit log, and says whose each job, model, record and idempotency key is.

``best_records`` and ``idempotency_keys`` get a tenant in their primary keys. ``migrate.upgrade`` fills the first again
afterwards; keys of the second are kept.
"""

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
)

revision = "0009"
down_revision = "0008"

NUMBER = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        Column("number", NUMBER, nullable=False),
        Column("id", String(16), nullable=False),
        Column("sha256", String(64), nullable=False),
        Column("kind", String(8), nullable=False),
        Column("parent", String(16), nullable=True),
        Column("name", String(128), nullable=False),
        Column("tenant", String(64), nullable=False),
        Column("scopes", JSON(), nullable=False),
        Column("requests_per_second", Float(), nullable=True),
        Column("created_at", String(32), nullable=False),
        Column("expires_at", String(32), nullable=True),
        Column("revoked_at", String(32), nullable=True),
        PrimaryKeyConstraint("number", name="pk_api_keys"),
        UniqueConstraint("id", name="uq_api_keys_id"),
    )
    op.create_table(
        "audit_entries",
        Column("number", NUMBER, nullable=False),
        Column("at", String(32), nullable=False),
        Column("key_id", String(16), nullable=True),
        Column("name", String(128), nullable=False),
        Column("tenant", String(64), nullable=False),
        Column("action", String(64), nullable=False),
        Column("path", Text(), nullable=False),
        Column("status", Integer(), nullable=False),
        Column("request_id", String(64), nullable=False),
        PrimaryKeyConstraint("number", name="pk_audit_entries"),
    )
    op.add_column("jobs", Column("owner", String(128), nullable=False, server_default=""))
    op.add_column("jobs", Column("tags", String(1024), nullable=False, server_default=""))
    op.add_column("jobs", Column("notes", Text(), nullable=False, server_default=""))
    op.create_index("ix_jobs_tenant_number", "jobs", ["tenant", "number"])
    with op.batch_alter_table("tuned_models") as table:
        table.add_column(Column("tenant", String(64), nullable=False, server_default="default"))
        table.drop_constraint("uq_tuned_models_key", type_="unique")
        table.create_unique_constraint("uq_tuned_models_tenant_key", ["tenant", "key"])
    with op.batch_alter_table("idempotency_keys") as table:
        table.add_column(Column("tenant", String(64), nullable=False, server_default="default"))
        table.drop_constraint("pk_idempotency_keys", type_="primary")
        table.create_primary_key("pk_idempotency_keys", ["tenant", "key"])
    _best_records(["workload_key", "measured_on", "tenant", "sketch", "sketch_version"])


def downgrade() -> None:
    _best_records(["workload_key", "measured_on", "sketch", "sketch_version"])
    with op.batch_alter_table("idempotency_keys") as table:
        table.drop_constraint("pk_idempotency_keys", type_="primary")
        table.drop_column("tenant")
        table.create_primary_key("pk_idempotency_keys", ["key"])
    with op.batch_alter_table("tuned_models") as table:
        table.drop_constraint("uq_tuned_models_tenant_key", type_="unique")
        table.drop_column("tenant")
        table.create_unique_constraint("uq_tuned_models_key", ["key"])
    op.drop_index("ix_jobs_tenant_number", table_name="jobs")
    for name in ("owner", "tags", "notes"):
        op.drop_column("jobs", name)
    op.drop_table("audit_entries")
    op.drop_table("api_keys")


def _best_records(key: list[str]) -> None:
    """Make the table anew, empty, with this primary key."""
    op.drop_table("best_records")
    tenant = [Column("tenant", String(64), nullable=False)] if "tenant" in key else []
    op.create_table(
        "best_records",
        Column("workload_key", String(64), nullable=False),
        Column("measured_on", NUMBER, ForeignKey("measured_on.id", name="fk_best_records_measured_on"), nullable=False),
        *tenant,
        Column("sketch", String(64), nullable=False),
        Column("sketch_version", Integer(), nullable=False, autoincrement=False),
        Column("record_id", BigInteger(), nullable=False),
        Column("rank_seconds", Float(), nullable=False),
        Column("schedule_key", String(64), nullable=False),
        Column("answer", Text(), nullable=False),
        PrimaryKeyConstraint(*key, name="pk_best_records"),
    )
    op.create_index("ix_best_records_record_id", "best_records", ["record_id"])
