"""Trains the cost models that are kept: one for each operator family of a job that has ended, on its device class.

records of relatives, the nearest first ─ experiences ─▶ data ─ wiring.train ─▶ model, with metrics on held-out tasks
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.record import MeasuredOn
from ..core.target import DeviceInfo
from ..cost_model.similarity import Situation, family_name
from ..db.rows import JobRow, ModelRow, TaskRow
from ..te.json import workload_from_json
from ..te.workload import Workload
from . import wiring
from .history import experiences, related_groups

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.store import RecordStore


def train_models(
    store: "RecordStore", job: JobRow, on: MeasuredOn, device: DeviceInfo, *, limit: int
) -> tuple[ModelRow, ...]:
    """Train a model of each operator family that the job has tasks of, from ``limit`` records of relatives of the last
    such task and its own ones, and store them. ``device`` has its peaks. Raises StoreError."""
    until, kept = store.newest_record(), list[ModelRow]()
    last_of: dict[str, tuple[TaskRow, Workload]] = {}
    for task in job.tasks:
        data = store.workload(task.workload_key)
        assert data is not None  # a foreign key guarantees it
        workload = workload_from_json(data)
        last_of[family_name(workload, device.target)] = task, workload
    for family, (task, workload) in last_of.items():
        situation = Situation(workload, device, on.toolchain.key, str(on.profile))
        groups = related_groups(store, situation, operator=task.operator, until=until, but=None, limit=limit)
        trained = wiring.train(experiences(store, store.history(groups, until=until)), job.seed % (1 << 31))
        if trained is not None:
            kept.append(
                store.keep_model(
                    wiring.kept_kind(family, device.target),
                    trained.feature_version,
                    trained.data,
                    records=trained.records,
                    metrics={**trained.metrics, "until_record": until},  # what is newer, the model has not seen
                    device=replace(device, measured={}),
                )
            )
    return tuple(kept)
