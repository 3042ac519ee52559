"""Finds what one record can be compared with, and who else has its schedule."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.trial import Timed
from ..db.dashboard_rows import BestTaskRow
from ..db.store import RecordStore
from .views import TaskView

MOST_OF_TASK, MOST_OF_DEVICE, MOST_USES = 30, 60, 50
"""How many are answered at most: of the same task, of other tasks of the device, and of those that use it."""
MOST_TASKS = 150
"""Among so many tasks of the device, the newest, those of other workloads are looked for."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Shows a timed record to compare with. It is a fast one of the same task (``same_task``), or the best of another
    task of the same device."""

    record_id: int
    job_id: str
    task: int
    same_task: bool
    operator: str | None
    parameters: Mapping[str, object] | None
    flops: int
    minimum_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ScheduleUse:
    """Shows a timed record of the same workload with the same schedule. ``adopted_from`` is the record that it is a
    copy of; None where it was measured."""

    record_id: int
    job_id: str
    task: int
    sequence: int
    device_key: str
    seconds: float
    created_at: str
    adopted_from: int | None


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model that users run, ``count`` of whose kernels compute the workload of a record."""

    key: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ReleaseUse:
    """A release that holds the schedule for the same workload, in the record ``record_id``."""

    name: str
    record_id: int
    created_at: str


@dataclass(frozen=True, slots=True)
class RelativesView:
    """``neighbours`` holds the fastest of the same task first, then others by job, newest first. ``uses`` holds the
    record itself, too, and is the newest first; so are ``models`` and ``releases``."""

    record_id: int
    neighbours: tuple[Neighbour, ...]
    uses: tuple[ScheduleUse, ...]
    models: tuple[ModelUse, ...]
    releases: tuple[ReleaseUse, ...]


def relatives(store: RecordStore, record_id: int, own: TaskView) -> RelativesView:
    """Return the relatives of a record, whose task is ``own``. Raises NotFound."""
    record = store.trial(record_id).record
    fast = store.trials_by_seconds(record.job_id, record.task, limit=MOST_OF_TASK)
    neighbours = [
        _neighbour(row.record.id, record.job_id, own, own.index, outcome.seconds, same_task=True)
        for row in fast
        if isinstance(outcome := row.record.trial.outcome, Timed)
    ]
    seen = {own.workload_key}
    for row in store.analysis.newest_bests(limit=MOST_TASKS, device_key=record.identity.device_key):
        if row.workload_key not in seen:
            seen.add(row.workload_key)
            neighbours.append(_neighbour(row.record_id, row.job_id, row, row.task, row.seconds, same_task=False))
    same = store.same_schedule(record_id, limit=MOST_USES)
    uses = tuple(
        ScheduleUse(
            row.record.id,
            row.record.job_id,
            row.record.task,
            row.record.sequence,
            row.record.identity.device_key,
            outcome.seconds,
            row.record.created_at,
            row.adopted_from,
        )
        for row in same
        if isinstance(outcome := row.record.trial.outcome, Timed)
    )
    models = tuple(ModelUse(*found) for found in store.models_with(own.workload_key, limit=MOST_USES))
    records = {record_id, *(row.record.id for row in same)}
    releases = tuple(ReleaseUse(*found) for found in store.releases.releases_with(records, limit=MOST_USES))
    return RelativesView(record_id, tuple(neighbours[: MOST_OF_TASK + MOST_OF_DEVICE]), uses, models, releases)


def _neighbour(
    record_id: int, job_id: str, about: TaskView | BestTaskRow, task: int, seconds: float, *, same_task: bool
) -> Neighbour:
    return Neighbour(
        record_id,
        job_id,
        task,
        same_task,
        about.operator,
        about.parameters,
        about.flops,
        about.minimum_bytes,
        seconds,
    )
