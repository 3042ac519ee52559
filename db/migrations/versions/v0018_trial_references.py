"""Takes the references of trials away on PostgreSQL. It looked four rows up for each trial and locked them, among them
the row of the device, which all task workers share. What they refer to is never deleted, and whoever inserts a trial
has just read it; ``tilewright db check`` looks for references that lead nowhere.
"""

from alembic import op
from sqlalchemy import text

# Alembic loads this file by its path, so that it cannot import relatively.
from tilewright.db.partitions import lock_tables

revision = "0018"
down_revision = "0017"
lives_with_before = True
"""Programs from before insert the same rows."""
_REFERENCES = {
    "fk_trials_workload": ("workload", "workloads (id)"),
    "fk_trials_device": ("device", "devices (id)"),
    "fk_trials_toolchain": ("toolchain", "toolchains (id)"),
    "fk_trials_job_task": ("job, task", "tasks (job, position)"),
}


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        lock_tables(connection, "tasks", "workloads", "devices", "toolchains", "trials")
        op.execute(text(f"ALTER TABLE trials {', '.join(f'DROP CONSTRAINT {name}' for name in _REFERENCES)}"))


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for name, (columns, target) in _REFERENCES.items():
            op.execute(text(f"ALTER TABLE trials ADD CONSTRAINT {name} FOREIGN KEY ({columns}) REFERENCES {target}"))
