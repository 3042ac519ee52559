"""Defines the models of what the service answers with on the wire. They are made from the frozen values of
``service.views``.

Times are RFC 3339 in UTC, and durations are in seconds. Fields may be added; none is renamed or removed within ``/v1``.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from ..core.budget import StopReason
from ..core.errors import InvalidParameter
from ..core.fleet import TaskState
from ..core.retuning import RetuneVerdict
from ..core.trial import Failed, Reason, Timed, TrialStage
from ..service.views import JobState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ResponseModel(BaseModel):
    """Is read from the attributes of a view. Clients ignore unknown fields, so that they can read the
    answers of a newer server."""

    model_config = ConfigDict(from_attributes=True, extra="ignore")


def plain(value: object) -> object:
    """Return a mapping, or pairs, as a dictionary."""
    return dict(value) if isinstance(value, Mapping | tuple) else value


def _outcome(value: object) -> object:
    if isinstance(value, Timed):
        return {
            "kind": "timed",
            "seconds": value.seconds,
            "spread": value.spread,
            "samples": value.samples,
            "launches_per_sample": value.launches_per_sample,
            "final_samples": value.final_samples,
        }
    if isinstance(value, Failed):
        return {"kind": "failed", "stage": value.stage, "reason": value.reason, "detail": value.detail}
    return value


class ScheduleOut(ResponseModel):
    """A schedule is one setting of a sketch's knobs."""

    sketch: str
    version: int
    knobs: Annotated[dict[str, int | str], BeforeValidator(plain)]


class TimedOut(ResponseModel):
    """The candidate ran and was right."""

    kind: Literal["timed"]
    seconds: float = Field(description="The median of the samples.")
    spread: float = Field(description="Relative distance between the quartiles of the samples.")
    samples: tuple[float, ...]
    launches_per_sample: int
    final_samples: tuple[float, ...] = Field(
        default=(),
        description="The samples of the re-measurement, if it was among the fastest of its task; seconds is their "
        "median then.",
    )


class FailedOut(ResponseModel):
    """The candidate has no time; this says why."""

    kind: Literal["failed"]
    stage: TrialStage
    reason: Reason
    detail: str


class ClocksOut(ResponseModel):
    """Says how many seconds of a trial each activity took."""

    search: float
    compile: float
    check: float
    time: float
    overhead: float


ORACLE = "float64 reference of the workload"
"""What the outputs of every trial are compared with."""


class EvidenceOut(ResponseModel):
    """Says why the result can be trusted. Every output was compared with ``oracle``. ``max_error`` is relative to the
    tolerance: at most 1 passes. ``environment`` has what the sensors of the device and of its host said."""

    oracle: str = ORACLE

    input_seed: int
    max_error: float | None
    absolute_tolerance: float | None
    relative_tolerance: float | None
    guard_bands_intact: bool | None
    outputs_written: bool | None
    anchor_seconds: float | None
    binary_key: str | None
    binary_bytes: int | None
    environment: Annotated[dict[str, float], BeforeValidator(plain)]


class ExpectedLossOut(ResponseModel):
    """Says how much slower the schedule may be than the best one of what was asked for: 0.1 is a tenth. The figures are
    null where nothing is known of such a loss."""

    median: float | None
    low: float | None = Field(description="Where the 90 % interval begins.")
    high: float | None = Field(description="Where the 90 % interval ends.")
    pairs: int = Field(description="How many pairs of held-out records the figures come from.")
    ground: str = Field(description="What those pairs are, or why there are too few.")


class BestOut(ResponseModel):
    """This is the best record, with the evidence for it. ``match`` is ``exact``, or names the identity parts that were
    relaxed to find it."""

    record_id: int
    job_id: str
    workload_key: str
    device_key: str
    device_name: str
    toolchain_key: str
    profile: str
    schedule: ScheduleOut
    seconds: float
    spread: float
    samples: tuple[float, ...]
    gflops: float | None
    evidence: EvidenceOut
    created_at: str
    match: tuple[str, ...]
    expected_loss: ExpectedLossOut | None = Field(
        default=None, description="What the relaxed parts may cost; null for an exact match."
    )


class BatchOut(ResponseModel):
    """Holds the best record of each workload that was asked for, in that order; null where there is none."""

    answers: tuple[BestOut | None, ...]


class BudgetOut(ResponseModel):
    """A task is tuned within these limits; null means no limit."""

    trials: int
    seconds: float | None
    stall: int | None


class RetunedOut(ResponseModel):
    """Says what became of the earlier winner of a task. ``kept``: it still is the first, and as fast as it was, within
    ``noise``; nothing was searched. ``outranked``, ``slower``, ``failed``: why a search went on. ``current``: there are
    no earlier records."""

    verdict: RetuneVerdict
    measured: int = Field(description="How many of the earlier schedules were measured again.")
    ratio: float | None = Field(description="Its time now over its time before, the machine's speed taken out.")
    lead: float | None = Field(description="Its time now over the least of those that were measured again.")
    noise: float = Field(description="By which share these two may be off.")
    earlier_record_id: int | None
    earlier_toolchain_key: str | None
    earlier_seconds: float | None
    earlier_trials: int = Field(description="How many trials the task measured that found it.")
    earlier_wall_seconds: float | None = Field(description="How long that task took; null where nobody knows.")


class RetuningOut(ResponseModel):
    """Says what was asked for by a job that retunes."""

    runners_up: int
    toolchain_before: str | None


class TaskOut(ResponseModel):
    """Shows one task of a job and how far it is."""

    index: int
    workload_key: str
    operator: str | None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(plain)]
    expression: str
    flops: int
    minimum_bytes: int
    space_size: int | None
    trials: int
    failures: Annotated[dict[str, int], BeforeValidator(plain)] = Field(description="stage:reason -> how many.")
    best: BestOut | None
    baseline_seconds: float | None
    baseline_name: str | None
    roofline_seconds: float | None
    roofline_by: str | None
    stop_reason: StopReason | None
    wall_seconds: float | None = Field(default=None, description="How long the task took; null before its end.")
    timing_seconds: float | None = Field(default=None, description="For how much of that the device was timing.")
    state: TaskState = Field(default=TaskState.READY, description="Where it stands in the queue.")
    queue_position: int | None = Field(default=None, description="Its place among the ready tasks, from 1.")
    waits_for: str | None = Field(default=None, description="What it waits for but its turn, in words.")
    attempts: int = Field(default=0, description="How often it was begun.")
    losses: int = Field(default=0, description="How many attempts in a row were lost without a new record.")
    adopted: int = Field(default=0, description="How many of its trials are copies of records that were there.")
    source_job: str | None = Field(default=None, description="The job whose task they are copies of, or are to be.")
    source_task: int | None = None
    weight: float = Field(default=1.0, description="How often the workload occurs in the model of the job.")
    trial_limit: int | None = Field(
        default=None, description="How many trials it may have so far, of a budget that the tasks of a model share."
    )
    retuned: RetunedOut | None = Field(
        default=None, description="What became of the earlier winner; null: the job does not retune, or not known yet."
    )
    saved_trials: int | None = Field(
        default=None, description="How many trials it needed less than the task that found the earlier winner."
    )
    saved_seconds: float | None = Field(default=None, description="How many seconds it took less than that task.")


class JobOut(ResponseModel):
    """Shows a job in any state. ``version`` grows with every change."""

    id: str
    state: JobState
    created_at: str
    started_at: str | None
    finished_at: str | None
    error: str | None
    budget: BudgetOut
    strategy: str
    seed: int
    target: str
    executor: str
    cache: str
    prune: bool = Field(default=True, description="Whether only promising settings are searched.")
    prior: bool = Field(default=True, description="Whether an analytic estimate of each setting's time is used.")
    tenant: str = Field(default="default", description="Who the device time is charged to.")
    priority: int = Field(default=0, description="Of a tenant's jobs, those with a higher one go first.")
    paused: bool = Field(default=False, description="Whether the job is held back.")
    fresh: bool = Field(default=False, description="Whether everything is measured anew.")
    units: int = Field(default=1, description="So many devices of one class each task may have at once.")
    device_key: str | None
    device_name: str | None
    tasks: tuple[TaskOut, ...]
    version: int
    deadline: str | None = Field(default=None, description="When the job fails unless it is done.")
    model_key: str | None = Field(
        default=None, description="The model whose workloads its tasks are; they share the budget."
    )
    owner: str = Field(default="", description="Who submitted it: the name of a key, or of a person; empty: unknown.")
    tags: tuple[str, ...] = ()
    notes: str = ""
    task_count: int = Field(
        default=0, description="How many tasks it has. In a list of jobs, `tasks` are the first three of them alone."
    )
    retuning: RetuningOut | None = Field(default=None, description="What was asked for, where the job retunes.")
    _plot: "Callable[..., Figure] | None" = PrivateAttr(default=None)

    def plot(self, kind: str = "progress", *, task: int = 0, across: str = "trials", log: bool = True) -> "Figure":
        """Return a matplotlib figure of a task as it is now, with what the charts of the job's page show. ``kind`` is
        ``progress``, ``knobs``, ``model``, ``workers`` or ``health``. ``across`` and ``log`` are for progress: its axis
        is ``trials``, ``seconds`` or ``device``. Jobs that a ``Client`` answered with can do this.

        Raises MissingExtra without matplotlib (the extra ``plot``), InvalidParameter, and what ``Client.job`` raises.
        """
        if self._plot is None:
            raise InvalidParameter("this job did not come from a client, which asks for its trials", field="job")
        return self._plot(self.id, kind, task=task, across=across, log=log)


class TrialOut(ResponseModel):
    """Shows one recorded trial. ``elapsed_seconds`` is how long its task had been searched when it ended."""

    record_id: int
    job_id: str
    task: int
    sequence: int
    schedule: ScheduleOut
    outcome: Annotated[TimedOut | FailedOut, Field(discriminator="kind"), BeforeValidator(_outcome)]
    clocks: ClocksOut
    evidence: EvidenceOut
    elapsed_seconds: float
    created_at: str


class SeriesOut(ResponseModel):
    """Holds the trials of one task as columns of equal length, in the order they ran."""

    job_id: str
    task: int
    record_id: tuple[int, ...]
    sequence: tuple[int, ...]
    elapsed_seconds: tuple[float, ...]
    seconds: tuple[float | None, ...]
    failure: tuple[str | None, ...]


class EventOut(ResponseModel):
    """Says what happened to a job."""

    id: int
    job_id: str
    kind: str
    data: Annotated[dict[str, Any], BeforeValidator(plain)]
    created_at: str


class JobPage(ResponseModel):
    """This is a part of the list of jobs, newest first. ``next_page_token`` is empty at the end, and only there."""

    jobs: tuple[JobOut, ...]
    next_page_token: str


class RecordOut(TrialOut):
    """Shows one record of any job, with what it was measured of and on."""

    workload_key: str
    device_key: str
    profile: str


class RecordPage(ResponseModel):
    """This is a part of all records, newest first. ``next_page_token`` is empty at the end, and only there."""

    records: tuple[RecordOut, ...]
    next_page_token: str


class TrialPage(ResponseModel):
    """This is a part of a task's trials. ``next_page_token`` is empty at the end, and only there."""

    trials: tuple[TrialOut, ...]
    next_page_token: str


class EventList(ResponseModel):
    """Holds the events after the given id. Ask again with ``after = last_id``. ``final`` says that nothing will
    follow."""

    events: tuple[EventOut, ...]
    last_id: int
    final: bool


class ValidatedOut(ResponseModel):
    """Answers ``validate_only``: the job would be accepted."""

    valid: Literal[True] = True
    workload_keys: tuple[str, ...]


class SectionOut(ResponseModel):
    """Shows one layer of the lowering pipeline as text."""

    title: str
    language: str
    text: str
    above: str | None = Field(default=None, description="The title of the layer that this one was made from.")
    origins: tuple[tuple[int, ...], ...] = Field(
        default=(),
        description="For each line the lines of that layer that it comes from, from 1. Empty: nothing is known.",
    )
    linked: float | None = Field(
        default=None,
        description="The fraction of the lines of which something is known; in assembly, of the machine instructions.",
    )


class MatrixLayerOut(ResponseModel):
    """Says how many operations of matrix instructions a layer has, in its own terms."""

    title: str
    count: int


class FunctionOut(ResponseModel):
    """Describes one device function: its launch, what a thread of it takes, and how many blocks run at once."""

    name: str
    blocks: tuple[int, int, int]
    threads: int
    cluster: int = Field(description="How many blocks a cluster has; 1: there are no clusters.")
    shared_bytes: int = Field(description="How much dynamic shared memory a block has.")
    registers: int
    spill_bytes: int
    stack_bytes: int
    resident_blocks: int = Field(description="How many blocks run on one multiprocessor at once.")
    occupancy: float = Field(description="The fraction of a multiprocessor's threads that they fill.")
    waves: float = Field(description="How often the device is filled until all blocks have run.")


def _encoded(value: object) -> object:
    if isinstance(value, Mapping):
        return {k: b64encode(v).decode() if isinstance(v, bytes) else v for k, v in value.items()}
    return value


class ExportOut(ResponseModel):
    """Holds a schedule as files."""

    workload_key: str
    schedule: ScheduleOut
    files: Annotated[dict[str, str], BeforeValidator(_encoded)] = Field(
        description="Maps each file's name to its content in base64."
    )
    record_id: int | None = Field(default=None, description="The record whose schedule this is, if it is of one.")
    binary_sha256: str = Field(default="", description="The hash of the machine code, which was built for this answer.")
    same_binary: bool | None = Field(
        default=None, description="Whether it is the very binary that the record measured; null without a record."
    )
    has_measured: bool = Field(
        default=False,
        description="Whether the binary that was measured is among the files: `kernel.cubin`, or `measured.o` beside "
        "the one that was built, and how it is launched in `measured.json`.",
    )


class ExplanationOut(ResponseModel):
    """Shows every layer of the lowering pipeline for one schedule, and how fast the schedule is."""

    workload_key: str
    schedule: ScheduleOut
    sections: tuple[SectionOut, ...]
    instructions: Annotated[dict[str, int], BeforeValidator(plain)]
    target: str = ""
    functions: tuple[FunctionOut, ...] = Field(default=(), description="The functions of a device with launches.")
    flops: int
    minimum_bytes: int
    accessed_bytes: int = Field(
        default=0,
        description="How many bytes loads and stores of global memory access, also those that a cache serves.",
    )
    flops_per_byte: float
    roofline_seconds: float | None
    roofline_by: str | None
    seconds: float | None
    fraction_of_roofline: float | None
    warnings: tuple[str, ...] = Field(
        default=(), description="What a user should know first: which matrix instructions are missing, and why."
    )
    matrix_layers: tuple[MatrixLayerOut, ...] = Field(
        default=(), description="Matrix operations from layer to layer; the first 0 is where they were lost."
    )
    peak_flops_per_second: float | None = Field(default=None, description="The rate of arithmetic of the roofline.")
    peak_bytes_per_second: float | None = Field(default=None, description="The rate of memory of the roofline.")


class OperatorOut(ResponseModel):
    """Describes an operator with the JSON schema of its parameters."""

    model_config = ConfigDict(from_attributes=True, extra="ignore", populate_by_name=True, protected_namespaces=())

    name: str
    summary: str
    parameters_schema: Annotated[dict[str, Any], BeforeValidator(plain)] = Field(
        validation_alias="schema", serialization_alias="schema"
    )


class OperatorList(ResponseModel):
    """Lists all operators of the library."""

    operators: tuple[OperatorOut, ...]


class WorkloadOut(ResponseModel):
    """Shows an expression in its JSON form, with its key, its text, and what it costs."""

    workload_key: str
    workload: dict[str, Any]
    expression: str
    flops: int
    minimum_bytes: int


class TargetOut(ResponseModel):
    """Says what code is generated for."""

    kind: str
    arch: str
    features: tuple[str, ...]
    threads: int
    vector_bytes: int


class DeviceOut(ResponseModel):
    """Describes a device that the database knows. ``present`` says whether it is attached to this service now."""

    key: str
    name: str
    target: TargetOut
    hardware: dict[str, float]
    measured: dict[str, float]
    present: bool


class DeviceList(ResponseModel):
    """Lists all devices that records were measured on, and those attached now."""

    devices: tuple[DeviceOut, ...]


class HealthOut(ResponseModel):
    """``checks`` maps names to ``ok`` or to what is wrong."""

    ready: bool
    version: str
    checks: Annotated[dict[str, str], BeforeValidator(plain)]
    warnings: tuple[str, ...] = Field(
        default=(),
        description="What people should look at though the service works: tasks that no unit can take, a Ray cluster "
        "that does not answer.",
    )


class VersionOut(ResponseModel):
    """Names the version of the service and of its wire format."""

    version: str
    api: Literal["v1"] = "v1"
    instance: str = Field(default="", description="A random name of this run of the service.")


class ImportedOut(ResponseModel):
    """Says how many records were imported, and how many the database had already."""

    imported: int
    known: int
