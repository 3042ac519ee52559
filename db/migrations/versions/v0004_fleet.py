"""Adds the fleet: units, leases, attempts and tenants; a state, a fence and a place in the queue for every task."""

from typing import Any

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)

revision = "0004"
down_revision = "0003"

NUMBER = BigInteger().with_variant(Integer, "sqlite")
PARTIAL_INDEXES = (
    ("ix_jobs_deadline", "jobs", ("deadline",), "deadline IS NOT NULL"),
    (
        "ix_tasks_claim",
        "tasks",
        ("tenant", "executor", "target", text("priority DESC"), "job", "position"),
        "state = 'ready'",
    ),
    ("ix_tasks_leased", "tasks", ("tenant",), "state = 'leased'"),
    ("ix_tasks_source", "tasks", ("source_job", "source_task"), "state = 'blocked'"),
    ("ix_tasks_flight", "tasks", ("flight_key",), "flight_key IS NOT NULL"),
    ("ix_trials_unit", "trials", ("unit", "id"), "unit IS NOT NULL"),
    ("ix_attempts_open", "attempts", ("job", "task"), "ended_at IS NULL"),
)
NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
}
FINAL = "('succeeded', 'failed', 'cancelled')"


def upgrade() -> None:
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)
    _create_tables()
    for name, table, indexed, where in PARTIAL_INDEXES:
        op.create_index(name, table, [*indexed], sqlite_where=text(where), postgresql_where=text(where))
    op.execute("INSERT INTO tenants (name) VALUES ('default')")
    op.execute(
        "UPDATE tasks SET target = (SELECT jobs.target FROM jobs WHERE jobs.number = tasks.job),"
        " executor = (SELECT jobs.executor FROM jobs WHERE jobs.number = tasks.job),"
        f" ready_since = {NOW[op.get_bind().dialect.name]}"
    )
    op.execute(
        "UPDATE tasks SET state = 'done' WHERE stop_reason IS NOT NULL"
        f" OR job IN (SELECT number FROM jobs WHERE state IN {FINAL})"
    )


def downgrade() -> None:
    """Drop what was added. Tasks that were under way go on from their records, as an older program does it."""
    for name, table, *_ in reversed(PARTIAL_INDEXES):
        op.drop_index(name, table_name=table)
    for table in ("attempts", "leases", "units", "tenants"):
        op.drop_table(table)
    for table, columns in _columns().items():
        for column in columns:
            op.drop_column(table, column.name)


def _columns() -> dict[str, tuple[Column[Any], ...]]:
    """Return the new columns of each table."""
    return {
        "jobs": (
            Column("tenant", String(64), nullable=False, server_default="default"),
            Column("priority", Integer(), nullable=False, server_default="0"),
            Column("paused", Boolean(), nullable=False, server_default=false()),
            Column("deadline", Float(), nullable=True),
            Column("fresh", Boolean(), nullable=False, server_default=false()),
        ),
        "tasks": (
            Column("state", String(8), nullable=False, server_default="ready"),
            Column("fence", BigInteger(), nullable=False, server_default="0"),
            Column("losses", Integer(), nullable=False, server_default="0"),
            Column("target", String(64), nullable=False, server_default=""),
            Column("executor", String(64), nullable=False, server_default=""),
            Column("tenant", String(64), nullable=False, server_default="default"),
            Column("priority", Integer(), nullable=False, server_default="0"),
            Column("aged", Integer(), nullable=False, server_default="0"),
            Column("ready_since", Float(), nullable=False, server_default="0"),
            Column("flight_key", String(128), nullable=True),
            Column("source_job", String(64), nullable=True),
            Column("source_task", Integer(), nullable=True),
            Column("adopted", Integer(), nullable=False, server_default="0"),
        ),
        "trials": (
            Column("unit", String(64), nullable=True),
            Column("host", String(255), nullable=True),
            Column("adopted_from", BigInteger(), nullable=True),
        ),
    }


def _create_tables() -> None:
    op.create_table(
        "units",
        Column("id", NUMBER, nullable=False),
        Column("uuid", String(64), nullable=False),
        Column("device", NUMBER, nullable=False),
        Column("host", String(255), nullable=False),
        Column("executor", String(64), nullable=False),
        Column("ordinal", Integer(), nullable=False),
        Column("state", String(16), nullable=False),
        Column("reason", Text(), nullable=True),
        Column("since", Float(), nullable=False),
        Column("seen_until", Float(), nullable=False),
        Column("health", JSON(), nullable=False),
        Column("anchor_seconds", Float(), nullable=True),
        Column("probed_at", Float(), nullable=True),
        Column("fence", BigInteger(), nullable=False, server_default="0"),
        ForeignKeyConstraint(["device"], ["devices.id"], name=op.f("fk_units_device")),
        PrimaryKeyConstraint("id", name=op.f("pk_units")),
        UniqueConstraint("uuid", name=op.f("uq_units_uuid")),
    )
    op.create_index(op.f("ix_units_host"), "units", ["host"])
    op.create_table(
        "leases",
        Column("kind", String(8), nullable=False),
        Column("subject", String(128), nullable=False),
        Column("fence", BigInteger(), nullable=False),
        Column("owner", String(64), nullable=False),
        Column("until", Float(), nullable=False),
        PrimaryKeyConstraint("kind", "subject", name=op.f("pk_leases")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "attempts",
        Column("job", NUMBER, autoincrement=False, nullable=False),
        Column("task", Integer(), autoincrement=False, nullable=False),
        Column("fence", BigInteger(), autoincrement=False, nullable=False),
        Column("owner", String(64), nullable=False),
        Column("units", JSON(), nullable=False),
        Column("began_at", Float(), nullable=False),
        Column("ended_at", Float(), nullable=True),
        Column("how", String(16), nullable=True),
        Column("detail", Text(), nullable=False, server_default=""),
        ForeignKeyConstraint(["job", "task"], ["tasks.job", "tasks.position"], name=op.f("fk_attempts_job_task")),
        PrimaryKeyConstraint("job", "task", "fence", name=op.f("pk_attempts")),
    )
    op.create_table(
        "tenants",
        Column("name", String(64), nullable=False),
        Column("weight", Float(), nullable=False, server_default="1"),
        Column("virtual_seconds", Float(), nullable=False, server_default="0"),
        Column("most_units", Integer(), nullable=True),
        Column("most_queued", Integer(), nullable=True),
        PrimaryKeyConstraint("name", name=op.f("pk_tenants")),
    )
