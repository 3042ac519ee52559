"""Adds the fastest record of each identity, ready to be answered, drops the indexes that look-ups no longer use, and
adds releases with their channels.

``migrate.upgrade`` fills the table of records afterwards, as it does after every upgrade.
"""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)

revision = "0005"
down_revision = "0004"

NUMBER = BigInteger().with_variant(Integer, "sqlite")
TIMED = text("seconds IS NOT NULL")
TUNED = text("best_trial IS NOT NULL")
UNUSED = (("workload", "device", "toolchain"), ("workload", "device"), ("workload",))


def upgrade() -> None:
    op.create_table(
        "measured_on",
        Column("id", NUMBER, nullable=False),
        Column("device_key", String(64), nullable=False),
        Column("toolchain_key", String(64), nullable=False),
        Column("profile", String(32), nullable=False),
        PrimaryKeyConstraint("id", name="pk_measured_on"),
        UniqueConstraint(
            "device_key", "toolchain_key", "profile", name="uq_measured_on_device_key_toolchain_key_profile"
        ),
    )
    op.create_table(
        "best_records",
        Column("workload_key", String(64), nullable=False),
        Column("measured_on", NUMBER, ForeignKey("measured_on.id", name="fk_best_records_measured_on"), nullable=False),
        Column("sketch", String(64), nullable=False),
        Column("sketch_version", Integer(), nullable=False, autoincrement=False),
        Column("record_id", BigInteger(), nullable=False),
        Column("rank_seconds", Float(), nullable=False),
        Column("schedule_key", String(64), nullable=False),
        Column("answer", Text(), nullable=False),
        PrimaryKeyConstraint("workload_key", "measured_on", "sketch", "sketch_version", name="pk_best_records"),
    )
    op.create_index("ix_best_records_record_id", "best_records", ["record_id"])
    _releases()
    for columns in UNUSED:
        op.drop_index("ix_trials_best_by_" + "_".join(columns), table_name="trials")
    op.drop_index("ix_tasks_operator", table_name="tasks")
    op.create_index(
        "ix_tasks_tuned",
        "tasks",
        ["operator", text("job DESC"), "position"],
        sqlite_where=TUNED,
        postgresql_where=TUNED,
    )


def _releases() -> None:
    op.create_table(
        "releases",
        Column("number", NUMBER, nullable=False),
        Column("name", String(64), nullable=False),
        Column("created_at", String(32), nullable=False),
        Column("sha256", String(64), nullable=False),
        Column("entries", Integer(), nullable=False),
        Column("bundle", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("number", name="pk_releases"),
        UniqueConstraint("name", name="uq_releases_name"),
    )
    channels = op.create_table(
        "channels",
        Column("name", String(16), nullable=False),
        Column("pinned", Boolean(), nullable=False, server_default=false()),
        PrimaryKeyConstraint("name", name="pk_channels"),
    )
    op.bulk_insert(channels, [{"name": "canary"}, {"name": "stable"}])
    op.create_table(
        "promotions",
        Column("number", NUMBER, nullable=False),
        Column("channel", String(16), ForeignKey("channels.name", name="fk_promotions_channel"), nullable=False),
        Column("release", NUMBER, ForeignKey("releases.number", name="fk_promotions_release"), nullable=False),
        Column("how", String(16), nullable=False),
        Column("created_at", String(32), nullable=False),
        PrimaryKeyConstraint("number", name="pk_promotions"),
    )
    op.create_index("ix_promotions_channel_number", "promotions", ["channel", "number"])


def downgrade() -> None:
    for name in ("promotions", "channels", "releases"):
        op.drop_table(name)
    op.drop_index("ix_tasks_tuned", table_name="tasks")
    op.create_index("ix_tasks_operator", "tasks", ["operator"])
    for columns in UNUSED:
        op.create_index(
            "ix_trials_best_by_" + "_".join(columns),
            "trials",
            [*columns, "rank_seconds", "schedule_key", "id"],
            sqlite_where=TIMED,
            postgresql_where=TIMED,
        )
    op.drop_table("best_records")
    op.drop_table("measured_on")
