"""Adds models that users run: their workloads with counts, timings of whole runs, and jobs whose tasks share a
budget."""

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    String,
    UniqueConstraint,
    text,
)

revision = "0006"
down_revision = "0005"

NUMBER = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "tuned_models",
        Column("id", NUMBER, nullable=False),
        Column("key", String(64), nullable=False),
        Column("name", String(128), nullable=False),
        Column("foreign_calls", JSON(), nullable=False),
        Column("created_at", String(32), nullable=False),
        PrimaryKeyConstraint("id", name=op.f("pk_tuned_models")),
        UniqueConstraint("key", name=op.f("uq_tuned_models_key")),
    )
    op.create_table(
        "tuned_model_workloads",
        Column("model", NUMBER, nullable=False),
        Column("position", Integer(), nullable=False),
        Column("workload", NUMBER, nullable=False),
        Column("label", String(256), nullable=False),
        Column("count", Integer(), nullable=False),
        ForeignKeyConstraint(["model"], ["tuned_models.id"], name=op.f("fk_tuned_model_workloads_model")),
        ForeignKeyConstraint(["workload"], ["workloads.id"], name=op.f("fk_tuned_model_workloads_workload")),
        PrimaryKeyConstraint("model", "position", name=op.f("pk_tuned_model_workloads")),
    )
    op.create_table(
        "model_timings",
        Column("id", NUMBER, nullable=False),
        Column("model", NUMBER, nullable=False),
        Column("device_key", String(64), nullable=False),
        Column("seconds", Float(), nullable=False),
        Column("baseline", String(64), nullable=False),
        Column("baseline_seconds", Float(), nullable=False),
        Column("tuned_kernels", Integer(), nullable=False),
        Column("created_at", String(32), nullable=False),
        ForeignKeyConstraint(["model"], ["tuned_models.id"], name=op.f("fk_model_timings_model")),
        PrimaryKeyConstraint("id", name=op.f("pk_model_timings")),
    )
    op.create_index(op.f("ix_model_timings_model_id"), "model_timings", ["model", "id"])
    op.add_column("jobs", Column("model", NUMBER, nullable=True))
    op.add_column("tasks", Column("weight", Float(), nullable=False, server_default="1"))
    op.add_column("tasks", Column("trial_limit", Integer(), nullable=True))
    where = text("model IS NOT NULL")
    op.create_index("ix_jobs_model", "jobs", ["model", "number"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("ix_jobs_model", table_name="jobs")
    op.drop_column("jobs", "model")
    for name in ("weight", "trial_limit"):
        op.drop_column("tasks", name)
    for table in ("model_timings", "tuned_model_workloads", "tuned_models"):
        op.drop_table(table)
