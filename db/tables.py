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
    false,
    func,
    literal_column,
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
SQLITE_ONLY = {"sqlite_only": True}
"""Marks what a table has on SQLite and not on PostgreSQL."""
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
    Column("budget_runs", Float),
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
    Column("tenant", String(64), nullable=False, server_default="default"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("paused", Boolean, nullable=False, server_default=false()),
    Column("deadline", Float),
    # its tasks share no measurement with others and adopt no record
    Column("fresh", Boolean, nullable=False, server_default=false()),
    # what a job that retunes was asked for (``core.retuning.Retuning``)
    Column("retuning", JSON(none_as_null=True)),
    # the id of the model that its tasks are of: they share the budget then
    Column("model", NUMBER),
    # who submitted it, and what people wrote to it; tags stand between commas: ",nightly,llama,"
    Column("owner", String(128), nullable=False, server_default=""),
    Column("tags", String(1024), nullable=False, server_default=""),
    Column("notes", Text, nullable=False, server_default=""),
    # of the request that submitted it; log lines of its workers have it
    Column("request_id", String(64), nullable=False, server_default=""),
    # how many units each of its tasks may have at once
    Column("units", Integer, nullable=False, server_default="1"),
    # those of its tasks, once it has ended and stands in ``device_totals``
    Column("device_seconds", Float),
    # set once the job has ended and stands in ``ended_totals``
    Column("counted", Boolean),
    Index("ix_jobs_tenant_number", "tenant", "number"),
    Index(None, "state", "number"),
)
for _name, _columns, _where in (
    ("ix_jobs_not_counted", ("number",), "counted IS NULL"),
    ("ix_jobs_uncounted", ("number",), "device_seconds IS NULL"),
    ("ix_jobs_model", ("model", "number"), "model IS NOT NULL"),
    ("ix_jobs_finished_at", ("finished_at",), "finished_at IS NOT NULL"),
    ("ix_jobs_deadline", ("deadline",), "deadline IS NOT NULL"),
):
    Index(_name, *(jobs.c[name] for name in _columns), sqlite_where=text(_where), postgresql_where=text(_where))

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
    # for how long trials of the task occupied a device: they were checked and timed there
    Column("device_seconds", Float, nullable=False, server_default="0"),
    # the queue: target, executor and tenant are the job's, and the priority is the job's and the steps it aged
    Column("state", String(8), nullable=False, server_default="ready"),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    Column("losses", Integer, nullable=False, server_default="0"),
    Column("target", String(64), nullable=False, server_default=""),
    Column("executor", String(64), nullable=False, server_default=""),
    Column("tenant", String(64), nullable=False, server_default="default"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("aged", Integer, nullable=False, server_default="0"),
    Column("ready_since", Float, nullable=False, server_default="0"),
    # equal tasks share one search: a blocked one waits for its source, and afterwards says what it adopted
    Column("flight_key", String(128)),
    Column("source_job", String(64)),
    Column("source_task", Integer),
    Column("adopted", Integer, nullable=False, server_default="0"),
    # of a model's job: how often the workload occurs, and how many trials have been granted to the task so far
    Column("weight", Float, nullable=False, server_default="1"),
    Column("trial_limit", Integer),
    # by which share of its best time the cost model expected further trials to lower it when the last slice ended
    Column("improvement", Float),
    # of a job that retunes: what became of the earlier winner (``core.retuning.Retuned``)
    Column("retuned", JSON(none_as_null=True)),
    Index("ix_tasks_workload_job", "workload", "job", "position"),
    Index("ix_tasks_operator_job", "operator", "job", "position"),
    Index(None, "state"),
)
TUNED = text("best_trial IS NOT NULL")
Index(
    "ix_tasks_tuned",
    tasks.c.operator,
    tasks.c.job.desc(),
    tasks.c.position,
    sqlite_where=TUNED,
    postgresql_where=TUNED,
)
READY, LEASED, BLOCKED = text("state = 'ready'"), text("state = 'leased'"), text("state = 'blocked'")
Index(
    "ix_tasks_claim",
    *(tasks.c[name] for name in ("tenant", "executor", "target")),
    tasks.c.priority.desc(),
    tasks.c.job,
    tasks.c.position,
    sqlite_where=READY,
    postgresql_where=READY,
)
# with the value in the statement, not beside it, a plan that PostgreSQL keeps may use the indexes of these states
IS_READY, IS_LEASED, IS_BLOCKED = (
    tasks.c.state == literal_column(f"'{state}'") for state in ("ready", "leased", "blocked")
)
Index("ix_tasks_leased", tasks.c.tenant, sqlite_where=LEASED, postgresql_where=LEASED)
Index("ix_tasks_source", tasks.c.source_job, tasks.c.source_task, sqlite_where=BLOCKED, postgresql_where=BLOCKED)
SHARED = text("flight_key IS NOT NULL")
Index("ix_tasks_flight", tasks.c.flight_key, sqlite_where=SHARED, postgresql_where=SHARED)

units = Table(
    "units",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("uuid", String(64), nullable=False, unique=True),
    Column("device", ForeignKey("devices.id"), nullable=False),
    Column("host", String(255), nullable=False),
    Column("executor", String(64), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    # these times, and those of leases and attempts, are seconds of the database's clock (``clock``)
    Column("since", Float, nullable=False),
    Column("seen_until", Float, nullable=False),
    Column("health", JSON, nullable=False),
    Column("anchor_seconds", Float),
    Column("probed_at", Float),
    # the fence of the newest lease stands here and in ``tasks``: deleting a lease never resets it
    Column("fence", BigInteger, nullable=False, server_default="0"),
    Index(None, "host"),
)

leases = Table(
    "leases",
    metadata,
    Column("kind", String(8), primary_key=True),
    Column("subject", String(128), primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("owner", String(64), nullable=False),
    # renewals change this alone: without an index on it, and with room in the page, they leave all indexes as they are
    Column("until", Float, nullable=False),
    postgresql_with={"fillfactor": 50},
)

attempts = Table(
    "attempts",
    metadata,
    Column("job", NUMBER, primary_key=True, autoincrement=False),
    Column("task", Integer, primary_key=True, autoincrement=False),
    Column("fence", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", String(64), nullable=False),
    Column("units", JSON, nullable=False),
    Column("began_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("how", String(16)),
    Column("detail", Text, nullable=False, server_default=""),
    ForeignKeyConstraint(["job", "task"], ["tasks.job", "tasks.position"]),
)
OPEN = text("ended_at IS NULL")
Index("ix_attempts_open", attempts.c.job, attempts.c.task, sqlite_where=OPEN, postgresql_where=OPEN)
OVER = text("ended_at IS NOT NULL")
Index("ix_attempts_ended_at", attempts.c.ended_at, sqlite_where=OVER, postgresql_where=OVER)

tenants = Table(
    "tenants",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("weight", Float, nullable=False, server_default="1"),
    Column("virtual_seconds", Float, nullable=False, server_default="0"),
    Column("most_units", Integer),
    Column("most_queued", Integer),
)

trials = Table(
    "trials",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("job", NUMBER, nullable=False),
    Column("task", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    # the identity: workload, sketch with its version, device, toolchain, profile
    Column("workload", NUMBER, nullable=False),
    Column("sketch", String(64), nullable=False),
    Column("sketch_version", Integer, nullable=False),
    Column("device", NUMBER, nullable=False),
    Column("toolchain", NUMBER, nullable=False),
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
    # the unit that took the trial and its host, where they are known
    Column("unit", String(64)),
    Column("host", String(255)),
    # the record that this one is a copy of: the task took it over instead of measuring it again
    Column("adopted_from", BigInteger),
    # what the cost model said before the trial (``core.trial.Prediction``)
    Column("predicted_score", Float),
    Column("learned_from", Integer),
    UniqueConstraint("job", "task", "sequence"),
    # PostgreSQL would look these rows up and lock them for each trial
    ForeignKeyConstraint(["workload"], ["workloads.id"], info=SQLITE_ONLY),
    ForeignKeyConstraint(["device"], ["devices.id"], info=SQLITE_ONLY),
    ForeignKeyConstraint(["toolchain"], ["toolchains.id"], info=SQLITE_ONLY),
    ForeignKeyConstraint(["job", "task"], ["tasks.job", "tasks.position"], info=SQLITE_ONLY),
    CheckConstraint("(seconds IS NULL) <> (failed_stage IS NULL)", name="outcome"),
)

TIMED = text("seconds IS NOT NULL")
Index(
    "ix_trials_best_by_workload_device_toolchain_profile",
    *(trials.c[name] for name in ("workload", "device", "toolchain", "profile", "rank_seconds", "schedule_key", "id")),
    sqlite_where=TIMED,
    postgresql_where=TIMED,
)
Index(
    "ix_trials_rank",
    *(trials.c[name] for name in ("job", "task", "rank_seconds", "schedule_key", "id")),
    sqlite_where=TIMED,
    postgresql_where=TIMED,
)
FAILED = text("seconds IS NULL")
_KINDS = ("failed_stage", "failed_reason", "id")
for _name, _failed in (
    ("ix_trials_failed", ("job", "task", *_KINDS)),
    ("ix_trials_failed_since", ("created_at", *_KINDS, "job")),  # with the job, so that no row is read for its tenant
):
    Index(_name, *(trials.c[name] for name in _failed), sqlite_where=FAILED, postgresql_where=FAILED)
BY_UNIT = text("unit IS NOT NULL")
Index("ix_trials_unit", trials.c.unit, trials.c.id, sqlite_where=BY_UNIT, postgresql_where=BY_UNIT)
ADOPTED = text("adopted_from IS NOT NULL")
Index("ix_trials_adopted_from", trials.c.adopted_from, sqlite_where=ADOPTED, postgresql_where=ADOPTED)

measured_on = Table(
    "measured_on",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("device_key", KEY, nullable=False),
    Column("toolchain_key", KEY, nullable=False),
    Column("profile", String(32), nullable=False),
    UniqueConstraint("device_key", "toolchain_key", "profile"),
)

# What look-ups read (``best``): the fastest record of each identity, ready to be answered. It follows from ``trials``,
# and every upgrade fills it again.
best_records = Table(
    "best_records",
    metadata,
    Column("workload_key", KEY, primary_key=True),
    Column("measured_on", ForeignKey("measured_on.id"), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("sketch", String(64), primary_key=True),
    Column("sketch_version", Integer, primary_key=True, autoincrement=False),
    Column("record_id", BigInteger, nullable=False),
    Column("rank_seconds", Float, nullable=False),
    Column("schedule_key", KEY, nullable=False),
    Column("answer", Text, nullable=False),
    Index(None, "record_id"),
)

START_DIGITS = 12
"""So much of a key tells nearly all workloads apart."""
KEY_START = func.substr(best_records.c.workload_key, literal_column("1"), literal_column(str(START_DIGITS)), type_=KEY)
"""On SQLite an index of these starts is a fifth of the primary key's, and stays in the caches of a processor, where
many workloads are looked up at once."""
_key_start = Index("ix_best_records_key_start", KEY_START, best_records.c.measured_on, info=SQLITE_ONLY)
_key_start.ddl_if(dialect="sqlite")

# sums over the tasks of jobs that have ended (``device_totals``), for each tenant and class of devices
device_totals = Table(
    "device_totals",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("device", NUMBER, primary_key=True, autoincrement=False),
    Column("tasks", BigInteger, nullable=False),
    Column("trials", BigInteger, nullable=False),
    Column("device_seconds", Float, nullable=False),
)

# how many jobs, tasks and attempts of jobs that have ended are in which state (``ended_totals``)
ended_totals = Table(
    "ended_totals",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("kind", String(8), primary_key=True),
    Column("state", String(16), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

# the binaries of records that were the best of their task; ``code`` is packed, and ``bytes`` its size
artefacts = Table(
    "artefacts",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("sha256", KEY, nullable=False),
    Column("record_id", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False, server_default=false()),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("format", String(16), nullable=False),
    Column("description", JSON, nullable=False),
    Column("code", LargeBinary, nullable=False),
    Index(None, "sha256", unique=True),
    Index(None, "record_id"),
)

releases = Table(
    "releases",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("created_at", TIME, nullable=False),
    Column("sha256", KEY, nullable=False),
    Column("entries", Integer, nullable=False),
    Column("bundle", LargeBinary, nullable=False),
)

release_records = Table(
    "release_records",
    metadata,
    Column("release", ForeignKey("releases.number"), primary_key=True),
    Column("record", NUMBER, primary_key=True, autoincrement=False),
    Index(None, "record"),
)

channels = Table(
    "channels",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("pinned", Boolean, nullable=False, server_default=false()),
)

# every release that a channel ever pointed to; the last one is present
promotions = Table(
    "promotions",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("channel", ForeignKey("channels.name"), nullable=False),
    Column("release", ForeignKey("releases.number"), nullable=False),
    Column("how", String(16), nullable=False),
    Column("created_at", TIME, nullable=False),
    Index(None, "channel", "number"),
)

# partitions by month on PostgreSQL (``partitions``), where the primary key is (job, id, created_at)
events = Table(
    "events",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("job", NUMBER, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("data", JSON, nullable=False),
    Column("created_at", TIME, nullable=False),
    ForeignKeyConstraint(["job"], ["jobs.number"], info=SQLITE_ONLY),
    Index(None, "job", "id", info=SQLITE_ONLY),
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

# a model that users run: its workloads and how often each occurs (``models`` are cost models)
tuned_models = Table(
    "tuned_models",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("key", KEY, nullable=False),
    Column("name", String(128), nullable=False),
    # operators that the model's own library computes -> how often each occurs
    Column("foreign_calls", JSON, nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("tenant", String(64), nullable=False, server_default="default"),
    UniqueConstraint("tenant", "key"),
)

tuned_model_workloads = Table(
    "tuned_model_workloads",
    metadata,
    Column("model", ForeignKey("tuned_models.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("workload", ForeignKey("workloads.id"), nullable=False),
    Column("label", String(256), nullable=False),
    Column("count", Integer, nullable=False),
)

# whole runs of a model on a device, with the tuned schedules and with what they are compared with
model_timings = Table(
    "model_timings",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("model", ForeignKey("tuned_models.id"), nullable=False),
    Column("device_key", KEY, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("baseline", String(64), nullable=False),
    Column("baseline_seconds", Float, nullable=False),
    Column("tuned_kernels", Integer, nullable=False),
    Column("created_at", TIME, nullable=False),
    Index(None, "model", "id"),
)

# shape families, by name: made again, one takes the place of the one before
families = Table(
    "families",
    metadata,
    Column("id", NUMBER, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("document", JSON, nullable=False),
    Column("created_at", TIME, nullable=False),
    UniqueConstraint("tenant", "name"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant", String(64), primary_key=True, server_default="default"),
    Column("key", String(64), primary_key=True),
    Column("body_sha256", KEY, nullable=False),
    Column("job", ForeignKey("jobs.number"), nullable=False),
    Column("created_at", TIME, nullable=False),
    Index(None, "created_at"),
)

# what programs and people show to the service: keys, and sessions of browsers, whose secrets it does not keep
api_keys = Table(
    "api_keys",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("id", String(16), nullable=False, unique=True),
    Column("sha256", KEY, nullable=False),
    Column("kind", String(8), nullable=False),
    # the key that a session was opened with: it ends with that
    Column("parent", String(16)),
    Column("name", String(128), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("requests_per_second", Float),
    Column("created_at", TIME, nullable=False),
    Column("expires_at", TIME),
    Column("revoked_at", TIME),
)

# who changed what: one row for each request that may change something, and for each that was not allowed
audit_entries = Table(
    "audit_entries",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("at", TIME, nullable=False),
    Column("key_id", String(16)),
    Column("name", String(128), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("action", String(64), nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("request_id", String(64), nullable=False),
)
# programs whose newest migration is one of these may use the database, though it stands at a later one
compatible_programs = Table("compatible_programs", metadata, Column("migration", String(32), primary_key=True))
