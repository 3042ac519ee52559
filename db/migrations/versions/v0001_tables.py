"""Creates the tables: workloads, devices, toolchains, jobs, tasks, trials, events, models, idempotency keys."""

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    text,
)

revision = "0001"
down_revision = None

NUMBER = BigInteger().with_variant(Integer, "sqlite")
TIMED = text("seconds IS NOT NULL")


def upgrade() -> None:
    """Create all tables in an empty database."""
    _create_nouns()
    _create_jobs()
    _create_notes()
    _create_tasks()
    _create_trials()
    _create_best_indexes()


def downgrade() -> None:
    """Drop all tables."""
    for table in ("trials", "tasks", "idempotency_keys", "events", "models", "jobs"):
        op.drop_table(table)
    for table in ("workloads", "toolchains", "devices"):
        op.drop_table(table)


def _create_nouns() -> None:
    op.create_table(
        "devices",
        Column("id", NUMBER, nullable=False),
        Column("key", String(length=64), nullable=False),
        Column("name", Text(), nullable=False),
        Column("target", JSON(), nullable=False),
        Column("hardware", JSON(), nullable=False),
        Column("measured", JSON(), nullable=False),
        PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        UniqueConstraint("key", name=op.f("uq_devices_key")),
    )
    op.create_table(
        "toolchains",
        Column("id", NUMBER, nullable=False),
        Column("key", String(length=64), nullable=False),
        Column("components", JSON(), nullable=False),
        PrimaryKeyConstraint("id", name=op.f("pk_toolchains")),
        UniqueConstraint("key", name=op.f("uq_toolchains_key")),
    )
    op.create_table(
        "workloads",
        Column("id", NUMBER, nullable=False),
        Column("key", String(length=64), nullable=False),
        Column("data", JSON(), nullable=False),
        Column("expression", Text(), nullable=False),
        Column("flops", BigInteger(), nullable=False),
        Column("minimum_bytes", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id", name=op.f("pk_workloads")),
        UniqueConstraint("key", name=op.f("uq_workloads_key")),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        Column("number", NUMBER, nullable=False),
        Column("id", String(length=64), nullable=False),
        Column("state", String(length=16), nullable=False),
        Column("created_at", String(length=32), nullable=False),
        Column("started_at", String(length=32), nullable=True),
        Column("finished_at", String(length=32), nullable=True),
        Column("error", Text(), nullable=True),
        Column("budget_trials", Integer(), nullable=False),
        Column("budget_seconds", Float(), nullable=True),
        Column("budget_stall", Integer(), nullable=True),
        Column("strategy", String(length=64), nullable=False),
        Column("seed", BigInteger(), nullable=False),
        Column("target", String(length=64), nullable=False),
        Column("executor", String(length=64), nullable=False),
        Column("cache", String(length=16), nullable=False),
        Column("device", NUMBER, nullable=True),
        Column("imported", Boolean(), nullable=False),
        Column("version", Integer(), nullable=False),
        ForeignKeyConstraint(["device"], ["devices.id"], name=op.f("fk_jobs_device")),
        PrimaryKeyConstraint("number", name=op.f("pk_jobs")),
        UniqueConstraint("id", name=op.f("uq_jobs_id")),
    )
    op.create_index(op.f("ix_jobs_state_number"), "jobs", ["state", "number"])


def _create_notes() -> None:
    op.create_table(
        "models",
        Column("id", NUMBER, nullable=False),
        Column("kind", String(length=64), nullable=False),
        Column("feature_version", Integer(), nullable=False),
        Column("device", NUMBER, nullable=True),
        Column("records", Integer(), nullable=False),
        Column("data", LargeBinary(), nullable=False),
        Column("metrics", JSON(), nullable=False),
        Column("created_at", String(length=32), nullable=False),
        ForeignKeyConstraint(["device"], ["devices.id"], name=op.f("fk_models_device")),
        PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )
    op.create_index(
        op.f("ix_models_kind_feature_version_device_id"), "models", ["kind", "feature_version", "device", "id"]
    )
    op.create_table(
        "events",
        Column("id", NUMBER, nullable=False),
        Column("job", NUMBER, nullable=False),
        Column("kind", String(length=16), nullable=False),
        Column("data", JSON(), nullable=False),
        Column("created_at", String(length=32), nullable=False),
        ForeignKeyConstraint(["job"], ["jobs.number"], name=op.f("fk_events_job")),
        PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job_id"), "events", ["job", "id"])
    op.create_table(
        "idempotency_keys",
        Column("key", String(length=64), nullable=False),
        Column("body_sha256", String(length=64), nullable=False),
        Column("job", NUMBER, nullable=False),
        Column("created_at", String(length=32), nullable=False),
        ForeignKeyConstraint(["job"], ["jobs.number"], name=op.f("fk_idempotency_keys_job")),
        PrimaryKeyConstraint("key", name=op.f("pk_idempotency_keys")),
    )


def _create_tasks() -> None:
    op.create_table(
        "tasks",
        Column("job", NUMBER, nullable=False),
        Column("position", Integer(), nullable=False),
        Column("workload", NUMBER, nullable=False),
        Column("operator", String(length=64), nullable=True),
        Column("parameters", JSON(none_as_null=True), nullable=True),
        Column("space_size", BigInteger(), nullable=True),
        Column("trials", Integer(), nullable=False),
        Column("failures", JSON(), nullable=False),
        Column("best_trial", BigInteger(), nullable=True),
        Column("best_seconds", Float(), nullable=True),
        Column("baseline_seconds", Float(), nullable=True),
        Column("baseline_name", Text(), nullable=True),
        Column("roofline_seconds", Float(), nullable=True),
        Column("roofline_by", String(length=16), nullable=True),
        Column("stop_reason", String(length=16), nullable=True),
        Column("history_until", BigInteger(), nullable=True),
        ForeignKeyConstraint(["job"], ["jobs.number"], name=op.f("fk_tasks_job")),
        ForeignKeyConstraint(["workload"], ["workloads.id"], name=op.f("fk_tasks_workload")),
        PrimaryKeyConstraint("job", "position", name=op.f("pk_tasks")),
    )
    op.create_index(op.f("ix_tasks_operator"), "tasks", ["operator"])
    op.create_index(op.f("ix_tasks_workload"), "tasks", ["workload"])


def _create_trials() -> None:
    op.create_table(
        "trials",
        Column("id", NUMBER, nullable=False),
        Column("job", NUMBER, nullable=False),
        Column("task", Integer(), nullable=False),
        Column("sequence", Integer(), nullable=False),
        Column("workload", NUMBER, nullable=False),
        Column("sketch", String(length=64), nullable=False),
        Column("sketch_version", Integer(), nullable=False),
        Column("device", NUMBER, nullable=False),
        Column("toolchain", NUMBER, nullable=False),
        Column("profile", String(length=32), nullable=False),
        Column("schedule_key", String(length=64), nullable=False),
        Column("knobs", JSON(), nullable=False),
        Column("seconds", Float(), nullable=True),
        Column("samples", JSON(none_as_null=True), nullable=True),
        Column("launches_per_sample", Integer(), nullable=True),
        Column("failed_stage", String(length=16), nullable=True),
        Column("failed_reason", String(length=32), nullable=True),
        Column("failed_detail", Text(), nullable=True),
        Column("evidence", JSON(), nullable=False),
        Column("search_seconds", Float(), nullable=False),
        Column("compile_seconds", Float(), nullable=False),
        Column("check_seconds", Float(), nullable=False),
        Column("time_seconds", Float(), nullable=False),
        Column("overhead_seconds", Float(), nullable=False),
        Column("elapsed_seconds", Float(), nullable=False),
        Column("created_at", String(length=32), nullable=False),
        CheckConstraint("(seconds IS NULL) <> (failed_stage IS NULL)", name=op.f("ck_trials_outcome")),
        ForeignKeyConstraint(["device"], ["devices.id"], name=op.f("fk_trials_device")),
        ForeignKeyConstraint(["job", "task"], ["tasks.job", "tasks.position"], name=op.f("fk_trials_job_task")),
        ForeignKeyConstraint(["toolchain"], ["toolchains.id"], name=op.f("fk_trials_toolchain")),
        ForeignKeyConstraint(["workload"], ["workloads.id"], name=op.f("fk_trials_workload")),
        PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        UniqueConstraint("job", "task", "sequence", name=op.f("uq_trials_job_task_sequence")),
    )


def _create_best_indexes() -> None:
    op.create_index(
        "ix_trials_best_by_workload",
        "trials",
        ["workload", "seconds", "schedule_key", "id"],
        sqlite_where=TIMED,
        postgresql_where=TIMED,
    )
    op.create_index(
        "ix_trials_best_by_workload_device",
        "trials",
        ["workload", "device", "seconds", "schedule_key", "id"],
        sqlite_where=TIMED,
        postgresql_where=TIMED,
    )
    op.create_index(
        "ix_trials_best_by_workload_device_toolchain",
        "trials",
        ["workload", "device", "toolchain", "seconds", "schedule_key", "id"],
        sqlite_where=TIMED,
        postgresql_where=TIMED,
    )
    op.create_index(
        "ix_trials_best_by_workload_device_toolchain_profile",
        "trials",
        ["workload", "device", "toolchain", "profile", "seconds", "schedule_key", "id"],
        sqlite_where=TIMED,
        postgresql_where=TIMED,
    )
