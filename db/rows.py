"""Defines the frozen values that the store takes and returns. They are separate from the tables and from the wire
types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.budget import Budget
from ..core.fleet import AttemptEnd, TaskState, Unit, UnitState, Wanted
from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.record import MeasuredOn, Record
from ..core.trial import Prediction, Trial


@dataclass(frozen=True, slots=True)
class NewTask:
    """This task is to be stored. ``workload`` is the JSON of the workload whose key is ``workload_key``.

    ``flight_key`` (at most 128 characters) holds all that decides what a search measures: workload, target, executor,
    profile, sketch versions, toolchain, strategy and seed. Equal tasks that are in flight at once share one search.
    None: the task shares with no other.
    """

    workload_key: str
    workload: Mapping[str, object]
    expression: str
    flops: int
    minimum_bytes: int
    operator: str | None = None
    parameters: Mapping[str, object] | None = None
    flight_key: str | None = None
    weight: float = 1.0
    """How often the workload occurs in the model of the job."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """This job is to be stored, in the state that it starts in. ``deadline`` is in seconds of the database's clock.
    ``fresh``: its tasks share no search with others and adopt no record. ``model_key``: its tasks are the workloads of
    this model and share the budget, which is dealt out by weight and expected gain (``core.allocation``)."""

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
    tenant: str = "default"
    priority: int = 0
    deadline: float | None = None
    fresh: bool = False
    model_key: str | None = None
    owner: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    retuning: Mapping[str, object] | None = None
    """What a job that retunes was asked for (``core.retuning.Retuning``)."""
    request_id: str = ""
    """Of the request that submitted it."""
    units: int = 1
    """So many units each of its tasks may have at once."""


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
    unit: str | None = None
    """The UUID of the unit that took it, and below the host of that unit; None where they are not known."""
    host: str | None = None
    prediction: Prediction | None = None


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A trial was stored: its record id, the state of its job, and what is wanted of the holder of the task. Without a
    lease ``wanted`` says STOP while the job is being cancelled, and GO otherwise."""

    record_id: int
    state: str
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class BestRow:
    """Holds a timed record with the name of its device and the operations of its workload."""

    record: Record
    device_name: str
    flops: int


class AnswerRow(NamedTuple):
    """Holds the fastest record of one identity. ``answer`` is the record as a JSON object in text. Thousands are made
    for a batch of look-ups, and a tuple is made in a third of a dataclass's time."""

    workload_key: str
    sketch: str
    sketch_version: int
    record_id: int
    rank_seconds: float
    schedule_key: str
    answer: str
    device_key: str
    toolchain_key: str
    profile: str

    @property
    def rank(self) -> tuple[float, str, int]:
        """What decides between two rows: the lower is the better."""
        return self.rank_seconds, self.schedule_key, self.record_id


@dataclass(frozen=True, slots=True)
class ArtefactRow:
    """Is a binary that the record ``record_id`` measured. ``sha256`` is the hash of ``code``; ``description`` says how
    it is launched (``workers.wire``)."""

    sha256: str
    record_id: int
    format: str
    description: Mapping[str, object]
    code: bytes


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """Holds a release without its bundle. ``sha256`` is the hash of the bundle's content."""

    number: int
    name: str
    created_at: str
    sha256: str
    entries: int
    bundle_bytes: int


@dataclass(frozen=True, slots=True)
class PromotionRow:
    """Says that a channel began to point to a release. ``how`` is ``promoted`` or ``rolled back``."""

    release: str
    how: str
    created_at: str


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """Holds a channel with the releases that it pointed to, the present one first."""

    name: str
    pinned: bool
    history: tuple[PromotionRow, ...]


@dataclass(frozen=True, slots=True)
class TransferRow:
    """Says what the fastest schedule of ``served`` loses where ``asked`` is the fastest: 0.1 is a tenth."""

    asked: AnswerRow
    served: AnswerRow
    loss: float
    operator: str | None = None
    """What both compute; None: the workload came from no operator."""


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
    state: TaskState = TaskState.READY
    fence: int = 0
    losses: int = 0
    """Attempts in a row that were lost without a new record."""
    priority: int = 0
    """The job's priority, and a step for each ten minutes of waiting, two at most."""
    ready_since: float = 0.0
    adopted: int = 0
    """How many of ``trials`` are copies of records that were there: those of the task ``source_task`` of the job
    ``source_job``, or of any where these are None. A blocked task waits for that source."""
    source_job: str | None = None
    source_task: int | None = None
    weight: float = 1.0
    """How often the workload occurs in the model of the job."""
    trial_limit: int | None = None
    """How many trials it may have so far, of a budget that the tasks of a job share; None: the job's budget."""
    retuned: Mapping[str, object] | None = None
    """What became of the earlier winner (``core.retuning.Retuned``), once a job that retunes knows."""


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
    tenant: str = "default"
    priority: int = 0
    paused: bool = False
    deadline: float | None = None
    fresh: bool = False
    model_key: str | None = None
    """The model whose workloads its tasks are; they share the budget."""
    owner: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    task_count: int = 0
    """How many tasks it has; ``tasks`` are the first of them, where it stands in a list."""
    retuning: Mapping[str, object] | None = None
    units: int = 1


@dataclass(frozen=True, slots=True)
class TrialRow:
    """Holds a record, and for how many seconds its job had been running when the trial ended."""

    record: Record
    elapsed_seconds: float
    unit: str | None = None
    host: str | None = None
    adopted_from: int | None = None
    """The id of the record that this one is a copy of; None for one that its own task measured."""


@dataclass(frozen=True, slots=True)
class UnitRow:
    """Holds a unit with its state and who holds it: ``owner`` and ``held_until`` are None while nobody does. Times are
    in seconds of the database's clock."""

    unit: Unit
    state: UnitState
    reason: str | None
    since: float
    seen_until: float
    health: Mapping[str, float]
    anchor_seconds: float | None
    probed_at: float | None
    fence: int
    owner: str | None = None
    held_until: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """Holds an attempt at a task: who had it with which units (UUIDs), and how it ended; ``how`` is None before."""

    job_id: str
    task: int
    fence: int
    owner: str
    units: tuple[str, ...]
    began_at: float
    ended_at: float | None
    how: AttemptEnd | None
    detail: str


@dataclass(frozen=True, slots=True)
class TenantRow:
    """Holds a tenant. ``units`` are held by its tasks now; ``running`` and ``waiting`` count its tasks. None as a quota
    means that there is none."""

    name: str
    weight: float
    virtual_seconds: float
    most_units: int | None
    most_queued: int | None
    units: int = 0
    running: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Holds a task that runs or waits. ``owner`` and ``units`` are those of the attempt that runs. ``source`` is the
    (job, task) that a blocked task waits for; a blocked task without one belongs to a job that is paused."""

    job_id: str
    task: int
    tenant: str
    target: str
    executor: str
    state: TaskState
    priority: int
    ready_since: float
    trials: int
    budget_trials: int
    owner: str | None = None
    units: tuple[str, ...] = ()
    source: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Counts what the fleet does. ``tasks`` maps a state to the number of its tasks, ``leases`` a kind to how many are
    held, and ``attempts`` an end to how many ended so. ``oldest_ready_seconds``: for how long the oldest ready task has
    waited. ``losses``: the attempts in a row that unfinished tasks have lost. ``busy``: UUID of a unit -> the share of
    the last minutes in which it had a task. ``silent_seconds``: for how long the running task that is silent longest
    has recorded no trial."""

    tasks: Mapping[str, int]
    oldest_ready_seconds: float | None
    leases: Mapping[str, int]
    attempts: Mapping[str, int]
    losses: int
    busy: Mapping[str, float]
    silent_seconds: float


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
class TrialCost:
    """Says how many wall-clock seconds a trial took in ``tasks`` ended tasks: the median, the least and the most of
    their averages. ``basis`` says which tasks: of the same ``workload``, ``operator`` or ``target``."""

    basis: str
    tasks: int
    seconds: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """Says what is known of a workload as a whole. ``operator`` and ``parameters`` are those that it was submitted with
    last, at ``newest_at``."""

    workload_key: str
    operator: str | None
    parameters: Mapping[str, object] | None
    flops: int
    minimum_bytes: int
    tasks: int
    trials: int
    devices: int
    best_seconds: float | None
    newest_at: str


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Holds the best record of a task, and how it was searched for. ``components`` are those of the toolchain."""

    best: BestRow
    components: Mapping[str, str]
    job_created_at: str
    strategy: str
    trials: int
    roofline_seconds: float | None
    baseline_seconds: float | None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Says what a cost model was trained on and how good it was, without its bytes."""

    id: int
    kind: str
    feature_version: int
    device_key: str | None
    device_name: str | None
    records: int
    metrics: Mapping[str, float]
    created_at: str


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """Holds a shape family: ``document`` says what it was made for and from, and has the family as JSON."""

    number: int
    name: str
    document: Mapping[str, Any]
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


@dataclass(frozen=True, slots=True)
class NewTunedModel:
    """This model is to be stored: its distinct workloads, each with a label for people and how often it occurs, and the
    operators that its own library computes, with how often."""

    key: str
    name: str
    workloads: tuple[tuple[NewTask, str, int], ...]
    foreign_calls: Mapping[str, int]
    tenant: str = "default"


@dataclass(frozen=True, slots=True)
class ModelWorkloadRow:
    """Holds a workload of a model."""

    workload_key: str
    expression: str
    flops: int
    minimum_bytes: int
    label: str
    count: int


@dataclass(frozen=True, slots=True)
class ModelTimingRow:
    """Holds the time of whole runs of a model on a device: with the schedules that were known then, of which
    ``tuned_kernels`` had been tuned, and of the ``baseline`` beside it."""

    device_key: str
    seconds: float
    baseline: str
    baseline_seconds: float
    tuned_kernels: int
    created_at: str


@dataclass(frozen=True, slots=True)
class TunedModelRow:
    """Holds a model that users run. ``jobs`` are the ids of its jobs, newest first, at most 20 of them."""

    number: int
    key: str
    name: str
    foreign_calls: Mapping[str, int]
    created_at: str
    workloads: tuple[ModelWorkloadRow, ...]
    jobs: tuple[str, ...]
    timings: tuple[ModelTimingRow, ...]


@dataclass(frozen=True, slots=True)
class NewKey:
    """This key, or session of a browser (``kind``), is to be stored. ``id`` names it, and ``sha256`` is that of its
    secret. ``parent`` is the key that a session was opened with."""

    id: str
    sha256: str
    kind: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    parent: str | None = None
    requests_per_second: float | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """Holds a key or a session as it is stored; ``number`` orders them."""

    number: int
    id: str
    sha256: str
    kind: str
    parent: str | None
    name: str
    tenant: str
    scopes: tuple[str, ...]
    requests_per_second: float | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Holds an entry of the audit log: who asked for what, and what the answer was."""

    number: int
    at: str
    key_id: str | None
    name: str
    tenant: str
    action: str
    path: str
    status: int
    request_id: str
