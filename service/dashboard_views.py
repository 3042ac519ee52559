"""The frozen values that the dashboard's figures are answered with. Durations are in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.fleet import TaskState
from ..db.dashboard_rows import CauseRow, HealthRow, RunningRow, SpentRow, WorkerRow
from .fleet_views import UnitView
from .views import JobState

Knob = int | str | None


@dataclass(frozen=True, slots=True)
class ProgressView:
    """Holds a task's trials as columns of equal length, thinned out to every ``step``-th trial, every new best and the
    last trial. ``device_seconds`` is how long the trials up to this one occupied a device. ``best_low`` and
    ``best_high`` are the quartiles of the samples of a trial that was a new best, and None for others. Events of the
    job after ``last_event_id`` tell what came later."""

    job_id: str
    task: int
    step: int
    trials: int
    last_event_id: int
    record_id: tuple[int, ...]
    sequence: tuple[int, ...]
    elapsed_seconds: tuple[float, ...]
    device_seconds: tuple[float, ...]
    seconds: tuple[float | None, ...]
    failure: tuple[str | None, ...]
    best_low: tuple[float | None, ...]
    best_high: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class KnobView:
    """Describes a knob that varies among a task's trials. ``importance`` is its share of the whole; None where there
    are too few timed trials. ``best_value`` is that of the fastest trial."""

    name: str
    values: int
    importance: float | None
    best_value: Knob


@dataclass(frozen=True, slots=True)
class SettingView:
    """Shows the settings of one timed trial. ``knobs`` holds the knobs that vary; None: its sketch has no such knob."""

    record_id: int
    sequence: int
    seconds: float
    knobs: Mapping[str, Knob]


@dataclass(frozen=True, slots=True)
class SliceCell:
    """Says how fast trials with these values of two knobs were at best, and how many were timed."""

    x: Knob
    y: Knob
    seconds: float
    trials: int


@dataclass(frozen=True, slots=True)
class SliceView:
    """Shows the fastest trial for each pair of values of two knobs: of each knob the 24 values that did best."""

    x: str
    y: str
    cells: tuple[SliceCell, ...]


@dataclass(frozen=True, slots=True)
class KnobsView:
    """Says what the knobs of a task do. Of ``trials`` trials ``sampled`` were looked at, of which ``timed`` ran, and
    ``method`` compares the fastest ``top`` of these with all of them. ``settings`` are the fastest trials, and others
    evenly drawn; the fastest come first."""

    job_id: str
    task: int
    trials: int
    sampled: int
    timed: int
    top: int
    method: str
    knobs: tuple[KnobView, ...]
    slice: SliceView | None
    settings: tuple[SettingView, ...]


@dataclass(frozen=True, slots=True)
class RoundView:
    """Says how well the cost model foretold the trials of one round: those between two of its trainings.

    ``learned_from`` is how many results of the task it knew. ``rank_correlation`` is Spearman's, of the predicted
    with the measured speeds of the ``timed`` trials; None with fewer than three. ``predicted`` and ``measured`` are the
    means of the score (the best seconds that were known then, over the seconds of the trial)."""

    learned_from: int
    trials: int
    timed: int
    rank_correlation: float | None
    predicted: float | None
    measured: float | None


@dataclass(frozen=True, slots=True)
class PredictedPoint:
    """Holds the predicted and the measured score of one trial."""

    predicted: float
    measured: float
    sequence: int
    learned_from: int


@dataclass(frozen=True, slots=True)
class ModelQualityView:
    """Compares what the cost model of a task foretold with what was measured, over all rounds and in each.
    ``points`` are at most a few hundred trials, evenly drawn."""

    job_id: str
    task: int
    timed: int
    rank_correlation: float | None
    rounds: tuple[RoundView, ...]
    points: tuple[PredictedPoint, ...]


@dataclass(frozen=True, slots=True)
class WorkersView:
    """Says where the time of a task went, by unit."""

    job_id: str
    task: int
    workers: tuple[WorkerRow, ...]


@dataclass(frozen=True, slots=True)
class DeviceHealthView:
    """Shows the device beside every ``step``-th trial. ``readings`` names what was read, in the order of the rows."""

    job_id: str
    task: int
    step: int
    readings: tuple[str, ...]
    rows: tuple[HealthRow, ...]


@dataclass(frozen=True, slots=True)
class WinView:
    """Shows what a task of a job that has ended found, against its baseline and its roofline."""

    job_id: str
    task: int
    operator: str | None
    parameters: Mapping[str, object] | None
    workload_key: str
    device_name: str | None
    finished_at: str | None
    record_id: int
    seconds: float
    baseline_seconds: float | None
    baseline_name: str | None
    roofline_seconds: float | None
    trials: int


@dataclass(frozen=True, slots=True)
class OverviewView:
    """Shows what the service does now and what it found lately. ``tasks`` counts tasks by state. ``since`` is a day
    before now: causes of failure and device seconds are those after it."""

    since: str
    jobs: Mapping[JobState, int]
    tasks: Mapping[TaskState, int]
    oldest_ready_seconds: float | None
    trials_per_second: float
    running: tuple[RunningRow, ...]
    units: tuple[UnitView, ...]
    wins: tuple[WinView, ...]
    spent: tuple[SpentRow, ...]
    failures: tuple[CauseRow, ...]
