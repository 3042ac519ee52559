"""Defines the tables. Workloads, devices and toolchains are stored once by content key, and other rows refer to their
ids."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
    true,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING)

NUMBER = BigInteger().with_variant(Integer, "sqlite")
"""Row ids have 64 bits on both databases. SQLite generates ids only when the column is INTEGER."""
KEY = String(64)
"""A content key has 64 hexadecimal digits."""
TIME = String(32)
"""Times are RFC 3339 in UTC with microseconds, so that text order is time order."""

workloads = Table(
    "workloads",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("key", KEY, nullable=False, unique=True),
    Column("data", JSON, nullable=False),
    Column("expression", Text, nullable=False),
    Column("flops", BigInteger, nullable=False),
    Column("minimum_bytes", BigInteger, nullable=False),
)

devices = Table(
    "devices",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("key", KEY, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("target", JSON, nullable=False),
    Column("hardware", JSON, nullable=False),
    Column("measured", JSON, nullable=False),
)

toolchains = Table(
    "toolchains",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("key", KEY, nullable=False, unique=True),
    Column("components", JSON, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("state", String(16), nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("started_at", TIME),
    Column("finished_at", TIME),
    Column("error", Text),
    Column("budget_trials", Integer, nullable=False),
    Column("budget_seconds", Float),
    Column("budget_stall", Integer),
    Column("strategy", String(64), nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("target", String(64), nullable=False),
    Column("executor", String(64), nullable=False),
    Column("cache", String(16), nullable=False),
    Column("device", ForeignKey("devices.id")),
    Column("imported", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    # how a task's space is searched (``core.policy.SpacePolicy``)
    Column("prune", Boolean, nullable=False, server_default=true()),
    Column("prior", Boolean, nullable=False, server_default=true()),
    Index(None, "state", "number"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("job", ForeignKey("jobs.number"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("workload", ForeignKey("workloads.id"), nullable=False),
    Column("operator", String(64)),
    Column("parameters", JSON(none_as_null=True)),
    Column("space_size", BigInteger),
    Column("trials", Integer, nullable=False),
    Column("failures", JSON, nullable=False),
    Column("best_trial", BigInteger),
    Column("best_seconds", Float),
    Column("baseline_seconds", Float),
    Column("baseline_name", Text),
    Column("roofline_seconds", Float),
    Column("roofline_by", String(16)),
    Column("stop_reason", String(16)),
    Column("history_until", BigInteger),
    Column("wall_seconds", Float),
    Column("timing_seconds", Float),
    Index(None, "workload"),
    Index(None, "operator"),
)

trials = Table(
    "trials",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("job", NUMBER, nullable=False),
    Column("task", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    # the identity: workload, sketch with its version, device, toolchain, profile
    Column("workload", ForeignKey("workloads.id"), nullable=False),
    Column("sketch", String(64), nullable=False),
    Column("sketch_version", Integer, nullable=False),
    Column("device", ForeignKey("devices.id"), nullable=False),
    Column("toolchain", ForeignKey("toolchains.id"), nullable=False),
    Column("profile", String(32), nullable=False),
    Column("schedule_key", KEY, nullable=False),
    Column("knobs", JSON, nullable=False),
    # the outcome is a time or a failure
    Column("seconds", Float),
    Column("samples", JSON(none_as_null=True)),
    Column("launches_per_sample", Integer),
    Column("failed_stage", String(16)),
    Column("failed_reason", String(32)),
    Column("failed_detail", Text),
    Column("evidence", JSON, nullable=False),
    Column("search_seconds", Float, nullable=False),
    Column("compile_seconds", Float, nullable=False),
    Column("check_seconds", Float, nullable=False),
    Column("time_seconds", Float, nullable=False),
    Column("overhead_seconds", Float, nullable=False),
    Column("elapsed_seconds", Float, nullable=False),
    Column("created_at", TIME, nullable=False),
    # a re-measurement adds its samples to a timed trial, and the figure that ranks the trial instead of ``seconds``
    Column("final_samples", JSON(none_as_null=True)),
    Column("rank_seconds", Float),
    UniqueConstraint("job", "task", "sequence"),
    ForeignKeyConstraint(["job", "task"], ["tasks.job", "tasks.position"]),
    CheckConstraint("(seconds IS NULL) <> (failed_stage IS NULL)", name="outcome"),
)

TIMED = text("seconds IS NOT NULL")
# One partial index serves the exact look-up, and one serves each step by which a look-up may be relaxed. The winner is
# the first entry of its index, however many records there are.
for _columns in (
    ("workload", "device", "toolchain", "profile"),
    ("workload", "device", "toolchain"),
    ("workload", "device"),
    ("workload",),
):
    Index(
        "ix_trials_best_by_" + "_".join(_columns),
        *(trials.c[name] for name in (*_columns, "rank_seconds", "schedule_key", "id")),
        sqlite_where=TIMED,
        postgresql_where=TIMED,
    )

events = Table(
    "events",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("job", ForeignKey("jobs.number"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("data", JSON, nullable=False),
    Column("created_at", TIME, nullable=False),
    Index(None, "job", "id"),
)

models = Table(
    "models",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("feature_version", Integer, nullable=False),
    Column("device", ForeignKey("devices.id")),
    Column("records", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("created_at", TIME, nullable=False),
    Index(None, "kind", "feature_version", "device", "id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("body_sha256", KEY, nullable=False),
    Column("job", ForeignKey("jobs.number"), nullable=False),
    Column("created_at", TIME, nullable=False),
)
