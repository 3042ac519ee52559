"""The frozen values that the service takes and answers with. The API, the dashboard and the command line render
them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from ..core.budget import Budget, StopReason
from ..core.fleet import TaskState
from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.retuning import Retuned, Retuning
from ..core.schedule import Schedule
from ..core.target import DeviceInfo
from ..core.trial import Clocks, Evidence, Outcome, Reason, TrialStage
from ..te.workload import Workload

T = TypeVar("T")


class JobState(StrEnum):
    """A job goes QUEUED -> RUNNING -> SUCCEEDED | FAILED. From either of the first two it may go over CANCELLING to
    CANCELLED."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task is one workload to tune. ``operator`` and ``parameters`` say where it came from, if it came from the
    library."""

    workload: Workload
    operator: str | None = None
    parameters: Mapping[str, object] | None = None
    weight: float = 1.0
    """How often the workload occurs in the model of the job."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """This is what a user submits. ``budget`` holds for each task. ``target`` names a class of devices (see
    ``service.targets``). With a ``cache`` of None the profile is what is usual on such devices. ``policy`` says how
    much of the spaces is searched.

    ``tenant`` is whose the job is, and who its device time is charged to; None: that of whoever submits it. Of a
    tenant's jobs, those with a higher ``priority`` go first. A job that is not done ``deadline_seconds`` after its
    submission fails. A ``fresh`` job measures everything anew; others share the search of an equal task that is under
    way, and adopt records that fit exactly. ``tags`` and ``notes`` are for people. Each task may have so many ``units``
    of one class at once; it begins with one.

    With a ``model_key`` the tasks are the workloads of that model and share the budget: trials go to the task with the
    largest expected saving.

    With ``retuning`` a task is searched only where its earlier winner does not hold any more."""

    tasks: tuple[TaskSpec, ...]
    budget: Budget = Budget()
    strategy: str = "model"
    seed: int = 0
    target: str = "llvm"
    executor: str = "local"
    cache: str | None = None
    policy: SpacePolicy = DEFAULT_POLICY
    tenant: str | None = None
    priority: int = 0
    deadline_seconds: float | None = None
    fresh: bool = False
    model_key: str | None = None
    tags: tuple[str, ...] = ()
    notes: str = ""
    retuning: Retuning | None = None
    units: int = 1


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """Says how much slower a relaxed answer may be than the best schedule of what was asked for: 0.1 is a tenth.

    ``low`` to ``high`` is the 90 % interval. The three figures are None where nothing is known of such a loss.
    ``pairs`` is how many pairs of held-out records they come from, and ``ground`` says what those are.
    """

    median: float | None
    low: float | None
    high: float | None
    pairs: int
    ground: str


@dataclass(frozen=True, slots=True)
class BestView:
    """This is the best record that a look-up found. ``match`` is ``exact``, or names the identity parts that were
    relaxed to find it. ``expected_loss`` says how much that may cost; it is None for an exact match."""

    record_id: int
    job_id: str
    workload_key: str
    device_key: str
    device_name: str
    toolchain_key: str
    profile: str
    schedule: Schedule
    seconds: float
    spread: float
    samples: tuple[float, ...]
    gflops: float | None
    evidence: Evidence
    created_at: str
    match: tuple[str, ...] = ("exact",)
    expected_loss: ExpectedLoss | None = None


@dataclass(frozen=True, slots=True)
class TaskView:
    """Shows one task of a job and how far it is. ``roofline_seconds`` is the least time that the measured peaks allow,
    and ``roofline_by`` is ``flops`` or ``bytes``. ``baseline_seconds`` is the time of the operator's NumPy form on the
    same data."""

    index: int
    workload_key: str
    operator: str | None
    parameters: Mapping[str, object] | None
    expression: str
    flops: int
    minimum_bytes: int
    space_size: int | None
    trials: int
    failures: Mapping[str, int]
    """``stage:reason`` -> how many trials failed so."""
    best: BestView | None
    baseline_seconds: float | None
    baseline_name: str | None
    roofline_seconds: float | None
    roofline_by: str | None
    stop_reason: StopReason | None
    wall_seconds: float | None = None
    timing_seconds: float | None = None
    """For how much of ``wall_seconds`` the device was timing; both are None before the task's end."""
    state: TaskState = TaskState.READY
    queue_position: int | None = None
    """How many tasks of the queue go first, and one; None unless the task is ready."""
    waits_for: str | None = None
    """What a task that is not claimed waits for, in words; None where it only waits for its turn."""
    attempts: int = 0
    losses: int = 0
    """Attempts in a row that were lost without a new record."""
    adopted: int = 0
    """How many of ``trials`` are copies of records that were there: those of the task ``source_task`` of the job
    ``source_job``, or of any where these are None."""
    source_job: str | None = None
    source_task: int | None = None
    weight: float = 1.0
    """How often the workload occurs in the model of the job."""
    trial_limit: int | None = None
    """How many trials it may have so far, of a budget that the tasks share; None: the budget is its own."""
    retuned: Retuned | None = None
    """What became of the earlier winner; None where the job does not retune, or does not know yet."""
    saved_trials: int | None = None
    """How many trials the task needed less than the earlier one that found this winner; negative: more. None unless
    it has ended."""
    saved_seconds: float | None = None
    """How many seconds it took less; None also where nobody knows what the earlier one took."""


@dataclass(frozen=True, slots=True)
class JobView:
    """Shows a job in any state. ``version`` grows with every change, and is its ETag."""

    id: str
    state: JobState
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
    prune: bool
    """Whether only the promising settings of each space are searched (see ``core.policy``)."""
    prior: bool
    """Whether an analytic estimate of each setting's time is used."""
    tenant: str
    priority: int
    paused: bool
    fresh: bool
    device_key: str | None
    device_name: str | None
    tasks: tuple[TaskView, ...]
    version: int
    deadline: str | None = None
    """When the job fails unless it is done."""
    model_key: str | None = None
    """The model whose workloads its tasks are; they share the budget."""
    owner: str = ""
    """Who submitted it: the name of a key, or of a person who signed in; empty where no key was needed."""
    tags: tuple[str, ...] = ()
    notes: str = ""
    task_count: int = 0
    """How many tasks it has. In a list of jobs ``tasks`` are the first of them alone."""
    retuning: Retuning | None = None
    """What was asked for, where the job retunes."""
    units: int = 1
    """So many units each task may have at once."""


@dataclass(frozen=True, slots=True)
class TrialView:
    """Shows one recorded trial. ``elapsed_seconds`` is how long its task had been searched when it ended."""

    record_id: int
    job_id: str
    task: int
    sequence: int
    schedule: Schedule
    outcome: Outcome
    clocks: Clocks
    evidence: Evidence
    elapsed_seconds: float
    created_at: str
    workload_key: str
    device_key: str
    profile: str


class TrialOrder(StrEnum):
    """How ``Service.trials`` sorts. ``best`` puts timed trials first, the fastest before the others, and then the
    failed ones, the newest before the others."""

    OLDEST = "oldest"
    NEWEST = "newest"
    BEST = "best"


@dataclass(frozen=True, slots=True)
class SeriesView:
    """Holds what a chart needs: the trials of one task as columns of equal length, in the order they ran.

    ``Service.series`` answers with the trials beyond a sequence. ``seconds`` is None where the trial failed;
    ``failure`` is ``stage:reason`` then, and None otherwise.
    """

    job_id: str
    task: int
    record_id: tuple[int, ...]
    sequence: tuple[int, ...]
    elapsed_seconds: tuple[float, ...]
    seconds: tuple[float | None, ...]
    failure: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class FailureView:
    """Says how often one kind of failure happened in a task, with message and record of the newest one.
    ``Service.failures`` answers with them, the most frequent first."""

    stage: TrialStage
    reason: Reason
    count: int
    newest_detail: str
    newest_record_id: int


@dataclass(frozen=True, slots=True)
class EventView:
    """Says what happened to a job. ``id`` grows with time. ``data`` depends on ``kind``:

    - ``state`` has ``state`` and ``error`` (None unless the job failed);
    - ``task`` has ``task`` and what is new of it: ``space_size``, ``baseline_seconds``, ``baseline_name``,
      ``roofline_seconds``, ``roofline_by``, ``trials``, ``stop_reason``;
    - ``trial`` has ``task``, ``sequence``, ``record_id``, ``elapsed_seconds``, ``seconds`` and ``gflops`` (None when it
      failed), ``stage``, ``reason`` and ``detail`` (None when it was timed);
    - ``best`` has ``task``, ``sequence``, ``record_id``, ``elapsed_seconds``, ``seconds``, ``gflops``, ``schedule``.
    """

    id: int
    job_id: str
    kind: str
    data: Mapping[str, object]
    created_at: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page is a part of a list. ``next_token`` is empty at the end, and only there."""

    items: tuple[T, ...]
    next_token: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A section is one layer of an explanation. ``language`` is ``text``, ``json``, ``ir``, ``llvm-ir``, ``assembly``,
    …

    ``above`` is the title of the layer that this one was made from; None where its lines come from no other.
    ``origins`` has for each line the lines of that layer that it comes from, counted from 1, and is empty where nothing
    is known. ``linked`` is the fraction of its lines of which something is known (``codegen.layers.linked_share``).
    """

    title: str
    language: str
    text: str
    above: str | None = None
    origins: tuple[tuple[int, ...], ...] = ()
    linked: float | None = None


@dataclass(frozen=True, slots=True)
class MatrixLayer:
    """Says how many operations of matrix instructions a layer has, in its own terms."""

    title: str
    count: int


@dataclass(frozen=True, slots=True)
class FunctionView:
    """Describes one device function: its launch, what a thread of it takes, and how many blocks run at once.

    ``resident_blocks`` is how many blocks run on one multiprocessor at once. ``occupancy`` is the fraction of a
    multiprocessor's threads that they fill. ``waves`` is how often the device is filled until all blocks have run.
    """

    name: str
    blocks: tuple[int, int, int]
    threads: int
    cluster: int
    shared_bytes: int
    registers: int
    spill_bytes: int
    stack_bytes: int
    resident_blocks: int
    occupancy: float
    waves: float


@dataclass(frozen=True, slots=True)
class ExportView:
    """Holds a schedule as files. ``files`` maps names to contents. Their binary was built anew; ``binary_sha256`` is
    its hash, and ``same_binary`` says whether it is the very one that the record ``record_id`` measured. It is None
    where the schedule was given, and is of no record. ``has_measured`` says whether the one that was measured is among
    the files too (``service.explain.MEASURED_FILES``)."""

    workload_key: str
    schedule: Schedule
    files: Mapping[str, bytes]
    record_id: int | None
    binary_sha256: str
    same_binary: bool | None
    has_measured: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Shows every layer of the lowering pipeline for one schedule, and how fast the schedule is.

    ``warnings`` say what a user should know first, such as matrix instructions that are missing, and why. ``target`` is
    what the code is made for. ``instructions`` counts the assembly by class (``vector_fma``, ``vector_load``,
    ``scalar``, ``call``, …). ``functions`` are the functions of a device with launches. ``accessed_bytes`` counts the
    bytes that loads and stores of global memory access, also those that a cache serves. ``matrix_layers`` counts matrix
    operations from layer to layer, where there are some or should be some. The two peaks are the rates that the
    roofline is made of.
    """

    workload_key: str
    schedule: Schedule
    sections: tuple[Section, ...]
    instructions: Mapping[str, int]
    target: str
    functions: tuple[FunctionView, ...]
    flops: int
    minimum_bytes: int
    accessed_bytes: int
    flops_per_byte: float
    roofline_seconds: float | None
    roofline_by: str | None
    seconds: float | None
    fraction_of_roofline: float | None
    warnings: tuple[str, ...] = ()
    matrix_layers: tuple[MatrixLayer, ...] = ()
    peak_flops_per_second: float | None = None
    peak_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class OperatorView:
    """Describes an operator with the JSON schema of its parameters."""

    name: str
    summary: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """Describes a device that the database knows. ``present`` says whether it is attached to this service now."""

    info: DeviceInfo
    key: str
    present: bool


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """Describes a release: best schedules that are frozen under a name. ``sha256`` is the hash of what is in its
    bundle."""

    name: str
    created_at: str
    sha256: str
    entries: int
    bundle_bytes: int


@dataclass(frozen=True, slots=True)
class ChangedEntry:
    """Says what is other for one workload under some conditions. ``before_seconds`` is None where it was added, and
    ``after_seconds`` where it was removed. ``speedup`` is how often the old time holds the new one."""

    workload_key: str
    device_key: str
    toolchain_key: str
    profile: str
    before_seconds: float | None
    after_seconds: float | None
    speedup: float | None


@dataclass(frozen=True, slots=True)
class ReleaseDiff:
    """Says what is other in the release ``name`` than in ``against``. The lists are cut where they are long; of the
    changes the greatest speed-ups come first."""

    name: str
    against: str
    added: int
    removed: int
    changed: int
    same: int
    added_entries: tuple[ChangedEntry, ...]
    removed_entries: tuple[ChangedEntry, ...]
    changed_entries: tuple[ChangedEntry, ...]


@dataclass(frozen=True, slots=True)
class PromotionView:
    """Says that a channel began to point to a release. ``how`` is ``promoted`` or ``rolled back``."""

    release: str
    how: str
    created_at: str


@dataclass(frozen=True, slots=True)
class ChannelView:
    """Shows a channel: the release that it points to, and those before, the newest first."""

    name: str
    release: str | None
    pinned: bool
    history: tuple[PromotionView, ...]


@dataclass(frozen=True, slots=True)
class RunningService:
    """Names a service that runs on an embedded database and answers on ``url``. It answers with the same ``instance``
    there; another one answers when it has ended. ``lasting`` says whether it runs until somebody stops it; otherwise it
    ends with the command that it belongs to."""

    url: str
    instance: str
    lasting: bool


@dataclass(frozen=True, slots=True)
class HealthView:
    """``checks`` maps names to ``ok`` or to what is wrong. ``warnings`` say what people should look at, though the
    service does its work: tasks that no unit of the fleet can take."""

    ready: bool
    version: str
    checks: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
