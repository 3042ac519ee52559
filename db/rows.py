"""Defines the frozen values that the store takes and returns. They are separate from the tables and from the wire
types."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.budget import Budget
from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.record import MeasuredOn, Record
from ..core.trial import Trial


@dataclass(frozen=True, slots=True)
class NewTask:
    """This task is to be stored. ``workload`` is the JSON of the workload whose key is ``workload_key``."""

    workload_key: str
    workload: Mapping[str, object]
    expression: str
    flops: int
    minimum_bytes: int
    operator: str | None = None
    parameters: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """This job is to be stored, in the state that it starts in."""

    id: str
    state: str
    tasks: tuple[NewTask, ...]
    budget: Budget
    strategy: str
    seed: int
    target: str
    executor: str
    cache: str
    policy: SpacePolicy = DEFAULT_POLICY


@dataclass(frozen=True, slots=True)
class NewTrial:
    """This trial is to be stored: what was measured, and which trial of which task it is."""

    job_id: str
    task: int
    sequence: int
    workload_key: str
    measured_on: MeasuredOn
    trial: Trial
    elapsed_seconds: float
    created_at: str | None = None
    """When it was measured; None means now."""


@dataclass(frozen=True, slots=True)
class BestRow:
    """Holds a timed record with the name of its device and the operations of its workload."""

    record: Record
    device_name: str
    flops: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Holds a task as it is stored. ``failures`` maps ``stage:reason`` to how many trials failed so."""

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
    """The id of the newest record when the task began: a resumed task learns from the same records."""
    wall_seconds: float | None
    timing_seconds: float | None
    """For how much of ``wall_seconds`` the device was timing; both are None before the task's end."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """Holds a job as it is stored; ``number`` orders jobs by submission."""

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
    policy: SpacePolicy
    device_key: str | None
    device_name: str | None
    version: int
    tasks: tuple[TaskRow, ...]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """Holds a record, and for how many seconds its job had been running when the trial ended."""

    record: Record
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class PointRow:
    """Holds what a chart needs of a trial. ``failure`` is ``stage:reason``."""

    record_id: int
    sequence: int
    elapsed_seconds: float
    seconds: float | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class FailureRow:
    """Says how often one kind of failure happened in a task, with its newest message."""

    stage: str
    reason: str
    count: int
    newest_detail: str
    newest_record_id: int


@dataclass(frozen=True, slots=True)
class EventRow:
    """Says what happened to a job. ``id`` grows with time inside a job."""

    id: int
    job_id: str
    kind: str
    data: Mapping[str, object]
    created_at: str


@dataclass(frozen=True, slots=True)
class NearRow:
    """Names a workload of an operator that has timed records."""

    workload_key: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ModelRow:
    """Holds a trained cost model as bytes (UBJSON or arrays, never a pickle), with what it was trained on."""

    id: int
    kind: str
    feature_version: int
    device_key: str | None
    records: int
    data: bytes
    metrics: Mapping[str, float]
    created_at: str
