"""What the service answers with: frozen values that the API, the dashboard and the command line all render."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from ..core.budget import Budget, StopReason
from ..core.schedule import Schedule
from ..core.target import DeviceInfo
from ..core.trial import Clocks, Evidence, Outcome, Reason, Stage
from ..te.workload import Workload

T = TypeVar("T")


class JobState(StrEnum):
    """QUEUED -> RUNNING -> SUCCEEDED | FAILED; CANCELLING on the way to CANCELLED from either of the first two."""

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
    """One workload to tune; ``operator`` and ``parameters`` say where it came from, if from the library."""

    workload: Workload
    operator: str | None = None
    parameters: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a user submits. ``budget`` holds for each task. ``target``: a device of this host (``llvm``, ``cuda``,
    ``cuda:1``). ``cache``: None for what is usual on such devices."""

    tasks: tuple[TaskSpec, ...]
    budget: Budget = Budget()
    strategy: str = "model"
    seed: int = 0
    target: str = "llvm"
    executor: str = "local"
    cache: str | None = None


@dataclass(frozen=True, slots=True)
class BestView:
    """A winning record. ``match`` is ``exact`` or names the identity parts that were relaxed to find it."""

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


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task of a job and how far it is. ``roofline_seconds``: the least the measured peaks allow;
    ``roofline_by``: ``flops`` or ``bytes``. ``baseline_seconds``: the operator's NumPy form on the same data."""

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
    """``stage:reason`` -> how many."""
    best: BestView | None
    baseline_seconds: float | None
    baseline_name: str | None
    roofline_seconds: float | None
    roofline_by: str | None
    stop_reason: StopReason | None
    wall_seconds: float | None = None
    timing_seconds: float | None = None
    """How long the device was timing, of the wall-clock time the task took; None before its end."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job in whatever state; ``version`` grows with every change (an ETag)."""

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
    device_key: str | None
    device_name: str | None
    tasks: tuple[TaskView, ...]
    version: int


@dataclass(frozen=True, slots=True)
class TrialView:
    """One recorded trial. ``elapsed_seconds``: since the job started running."""

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


class TrialOrder(StrEnum):
    """How ``Service.trials`` sorts. ``best``: timed ones by seconds ascending, then the failed, newest first."""

    OLDEST = "oldest"
    NEWEST = "newest"
    BEST = "best"


@dataclass(frozen=True, slots=True)
class SeriesView:
    """The trials of one task as columns of equal length, in the order they ran: what a chart needs.

    Answered by ``Service.series(job_id, *, task=0, after=-1, limit=20_000)``: those with ``sequence > after``.
    ``seconds`` is None where the trial failed; ``failure`` is then ``stage:reason``, otherwise None.
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
    """One kind of failure in a task (``Service.failures(job_id, *, task=0)``, most frequent first): how often,
    and the newest one's message and record."""

    stage: Stage
    reason: Reason
    count: int
    newest_detail: str
    newest_record_id: int


@dataclass(frozen=True, slots=True)
class EventView:
    """Something that happened to a job. ``id`` grows; ``data`` by ``kind``:

    - ``state``: ``state``, ``error`` (None unless it failed);
    - ``task``: ``task`` and what is now known of it: ``space_size``, ``baseline_seconds``, ``baseline_name``,
      ``roofline_seconds``, ``roofline_by``, ``trials``, ``stop_reason``;
    - ``trial``: ``task``, ``sequence``, ``record_id``, ``elapsed_seconds``, ``seconds`` and ``gflops`` (None when it
      failed), ``stage``, ``reason`` and ``detail`` (None when it was timed);
    - ``best``: ``task``, ``sequence``, ``record_id``, ``elapsed_seconds``, ``seconds``, ``gflops``, ``schedule``.
    """

    id: int
    job_id: str
    kind: str
    data: Mapping[str, object]
    created_at: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; ``next_token`` is empty at the end, and only there."""

    items: tuple[T, ...]
    next_token: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One layer of an explanation. ``language``: ``text``, ``json``, ``ir``, ``llvm-ir``, ``assembly``."""

    title: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class FunctionView:
    """One device function: its launch, what a thread of it takes, and how many blocks run at once.

    ``resident_blocks``: on one multiprocessor. ``occupancy``: the share of the threads a multiprocessor has room for
    that they fill. ``waves``: how often the device fills up until all blocks have run.
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
    """A schedule as files. ``files``: name -> content."""

    workload_key: str
    schedule: Schedule
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every layer of the road of one schedule, and what it reached.

    ``warnings``: what a user should know first, such as matrix instructions that are missing, and why.
    ``target``: what the code is for. ``instructions``: class (``vector_fma``, ``vector_load``, ``scalar``, ``call``, …)
    -> count in the assembly. ``functions``: those of a device with launches. ``accessed_bytes``: what loads and stores
    of global memory ask for, repeats that caches serve included.
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


@dataclass(frozen=True, slots=True)
class OperatorView:
    """An operator and the JSON schema of its parameters."""

    name: str
    summary: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device known to the database. ``present``: attached to this service now."""

    info: DeviceInfo
    key: str
    present: bool


@dataclass(frozen=True, slots=True)
class HealthView:
    """``checks``: name -> ``ok`` or what is wrong."""

    ready: bool
    version: str
    checks: Mapping[str, str] = field(default_factory=dict)
