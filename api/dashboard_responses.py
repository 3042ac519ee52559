"""Defines the models of the figures that the dashboard shows. They are made from the frozen values of
``service.dashboard_views``."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ..core.fleet import TaskState
from ..core.trial import Reason, TrialStage
from ..service.views import JobState
from .fleet_responses import UnitOut
from .responses import ResponseModel, plain


class ProgressOut(ResponseModel):
    """Holds a task's trials as columns of equal length, in the order they ran: every ``step``-th one, every new best
    and the last."""

    job_id: str
    task: int
    step: int = Field(description="1: all trials are here.")
    trials: int = Field(description="How many trials the task has.")
    last_event_id: int = Field(description="Events of the job after this one tell what came later.")
    record_id: tuple[int, ...]
    sequence: tuple[int, ...]
    elapsed_seconds: tuple[float, ...]
    device_seconds: tuple[float, ...] = Field(description="For how long trials up to this one occupied a device.")
    seconds: tuple[float | None, ...]
    failure: tuple[str | None, ...] = Field(description="stage:reason of a trial that failed.")
    best_low: tuple[float | None, ...] = Field(
        description="The lower quartile of the samples of a trial that was a new best."
    )
    best_high: tuple[float | None, ...] = Field(description="The upper quartile of them.")


class FailureOut(ResponseModel):
    """Says how often one kind of failure happened in a task, with the newest of them."""

    stage: TrialStage
    reason: Reason
    count: int
    newest_detail: str
    newest_record_id: int


class FailureList(ResponseModel):
    """Lists the kinds of failure of a task, the most frequent first."""

    failures: tuple[FailureOut, ...]


class KnobOut(ResponseModel):
    """Describes a knob that varies among a task's trials."""

    name: str
    values: int
    importance: float | None = Field(description="Its share of the whole; null with too few timed trials.")
    best_value: int | str | None = Field(description="That of the fastest trial.")


class SettingOut(ResponseModel):
    """Shows the knobs of one trial that vary among trials."""

    record_id: int
    sequence: int
    seconds: float = Field(
        description="The time that it ranks by: one for all that cannot be told apart by what was measured."
    )
    knobs: Annotated[dict[str, int | str | None], BeforeValidator(plain)]


class SliceCellOut(ResponseModel):
    """Says how fast trials with these values of two knobs were at best, and how many were timed."""

    x: int | str | None
    y: int | str | None
    seconds: float
    trials: int


class SliceOut(ResponseModel):
    """Shows the fastest trial for each pair of values of two knobs: of each knob the 24 values that did best."""

    x: str
    y: str
    cells: tuple[SliceCellOut, ...]


class KnobsOut(ResponseModel):
    """Says what the knobs of a task do."""

    job_id: str
    task: int
    trials: int = Field(description="How many trials the task has.")
    sampled: int = Field(description="How many of them were looked at, evenly drawn.")
    timed: int = Field(description="How many of those have a time.")
    top: int = Field(description="How many of the timed ones count as the fastest.")
    method: str = Field(description="How importance is computed.")
    knobs: tuple[KnobOut, ...] = Field(description="The most important one first.")
    slice: SliceOut | None
    settings: tuple[SettingOut, ...] = Field(description="The fastest trials, then others evenly drawn.")


class RoundOut(ResponseModel):
    """Says how well the cost model foretold the trials between two of its trainings."""

    learned_from: int = Field(description="How many results of the task the model had learned from.")
    trials: int
    timed: int
    rank_correlation: float | None = Field(description="Spearman's, of predicted with measured scores.")
    predicted: float | None = Field(description="The mean predicted score: best seconds known, over seconds.")
    measured: float | None = Field(description="The mean measured score.")


class PredictedOut(ResponseModel):
    """Holds the predicted and the measured score of one trial."""

    predicted: float
    measured: float
    sequence: int
    learned_from: int


class ModelQualityOut(ResponseModel):
    """Compares what the cost model of a task foretold with what was measured."""

    job_id: str
    task: int
    timed: int = Field(description="How many trials were predicted and timed.")
    rank_correlation: float | None
    rounds: tuple[RoundOut, ...]
    points: tuple[PredictedOut, ...] = Field(description="Some of the trials, evenly drawn.")


class WorkerOut(ResponseModel):
    """Says on what the trials of a task spent seconds, on one unit."""

    unit: str | None
    host: str | None
    trials: int
    failed: int
    search: float
    compile: float
    check: float
    time: float
    overhead: float


class WorkerList(ResponseModel):
    """Says where the time of a task's trials went."""

    workers: tuple[WorkerOut, ...]


class DeviceReadingOut(ResponseModel):
    """Holds what was seen of the device beside one trial."""

    record_id: int
    sequence: int
    elapsed_seconds: float
    anchor_seconds: float | None
    readings: Annotated[dict[str, float], BeforeValidator(plain)]


class DeviceHealthOut(ResponseModel):
    """Shows the device beside every ``step``-th trial."""

    job_id: str
    task: int
    step: int
    readings: tuple[str, ...] = Field(description="The names of what was read.")
    rows: tuple[DeviceReadingOut, ...]


class RunningTaskOut(ResponseModel):
    """Shows a task that is being searched."""

    job_id: str
    task: int
    operator: str | None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(plain)]
    workload_key: str
    trials: int
    budget_trials: int
    best_seconds: float | None
    baseline_seconds: float | None
    roofline_seconds: float | None
    lately: int = Field(description="How many trials ended lately.")
    lately_seconds: float = Field(description="In how many seconds.")


class WinOut(ResponseModel):
    """Shows what a task of a job that has ended found."""

    job_id: str
    task: int
    operator: str | None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(plain)]
    workload_key: str
    device_name: str | None
    finished_at: str | None
    record_id: int
    seconds: float
    baseline_seconds: float | None
    baseline_name: str | None
    roofline_seconds: float | None
    trials: int


class SpentOut(ResponseModel):
    """Says what was done on one class of devices."""

    device_key: str
    device_name: str
    tasks: int
    trials: int
    device_seconds: float = Field(description="For how long trials were checked and timed there.")
    day_device_seconds: float = Field(description="That of jobs that ran on the last day.")


class CauseOut(ResponseModel):
    """Says how often trials of all jobs failed for one reason on the last day, with the newest of them."""

    stage: TrialStage
    reason: Reason
    count: int
    newest_record_id: int
    newest_job_id: str
    newest_detail: str


class OverviewOut(ResponseModel):
    """Shows what the service does now and what it found lately."""

    since: str = Field(description="A day before now.")
    jobs: Annotated[dict[JobState, int], BeforeValidator(plain)] = Field(description="How many in each state.")
    tasks: Annotated[dict[TaskState, int], BeforeValidator(plain)] = Field(
        description="How many in each state of the queue."
    )
    oldest_ready_seconds: float | None = Field(description="For how long the oldest ready task has waited.")
    trials_per_second: float = Field(description="Of all tasks that are being searched.")
    running: tuple[RunningTaskOut, ...]
    units: tuple[UnitOut, ...]
    wins: tuple[WinOut, ...] = Field(description="Of the newest jobs that succeeded.")
    spent: tuple[SpentOut, ...]
    failures: tuple[CauseOut, ...] = Field(description="Of the last day.")
