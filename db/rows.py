"""What the store takes and gives: frozen values, apart from the tables and from what goes over the wire."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.budget import Budget
from ..core.record import MeasuredOn, Record
from ..core.trial import Trial


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to keep. ``workload`` is the JSON of the workload whose key is ``workload_key``."""

    workload_key: str
    workload: Mapping[str, object]
    expression: str
    flops: int
    minimum_bytes: int
    operator: str | None = None
    parameters: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to keep, in the state it starts in."""

    id: str
    state: str
    tasks: tuple[NewTask, ...]
    budget: Budget
    strategy: str
    seed: int
    target: str
    executor: str
    cache: str


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A trial to keep: what was measured, and where it stands in its job."""

    job_id: str
    task: int
    sequence: int
    workload_key: str
    measured_on: MeasuredOn
    trial: Trial
    elapsed_seconds: float
    created_at: str | None = None
    """None: now."""


@dataclass(frozen=True, slots=True)
class BestRow:
    """A timed record with what is needed to judge it."""

    record: Record
    device_name: str
    flops: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as kept; ``failures``: ``stage:reason`` -> how many."""

    position: int
    workload_key: str
    expression: str
    flops: int
    minimum_bytes: int
    operator: str | None
    parameters: Mapping[str, object] | None
    space_size: int | None
    trials: int
    failures: Mapping[str, int]
    best: BestRow | None
    baseline_seconds: float | None
    baseline_name: str | None
    roofline_seconds: float | None
    roofline_by: str | None
    stop_reason: str | None
    history_until: int | None
    """The newest record when the task began: what it learns from does not change when it is resumed."""
    wall_seconds: float | None
    timing_seconds: float | None
    """Of the wall-clock time that the task took, how long the device was timing; None before its end."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as kept; ``number`` orders jobs by submission."""

    number: int
    id: str
    state: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    error: str | None
    budget: Budget
    strategy: str
    seed: int
    target: str
    executor: str
    cache: str
    device_key: str | None
    device_name: str | None
    version: int
    tasks: tuple[TaskRow, ...]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A record with the seconds its job had been running when it ended."""

    record: Record
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class PointRow:
    """A trial as a chart needs it; ``failure``: ``stage:reason``."""

    record_id: int
    sequence: int
    elapsed_seconds: float
    seconds: float | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One kind of failure of a task."""

    stage: str
    reason: str
    count: int
    newest_detail: str
    newest_record_id: int


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event; ``id`` grows with time inside a job."""

    id: int
    job_id: str
    kind: str
    data: Mapping[str, object]
    created_at: str


@dataclass(frozen=True, slots=True)
class NearRow:
    """A workload of an operator that has timed records."""

    workload_key: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A trained cost model as bytes (UBJSON or the like; never a pickle), with what it was trained on."""

    id: int
    kind: str
    feature_version: int
    device_key: str | None
    records: int
    data: bytes
    metrics: Mapping[str, float]
    created_at: str
