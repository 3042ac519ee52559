"""Defines the frozen values of ``DashboardStore``: figures of a job and of the whole service."""

from collections.abc import Mapping
from dataclasses import dataclass

from .rows import TrialRow


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """Holds what a chart of a task's progress needs of one trial. ``device_seconds`` is how long the trials up to this
    one occupied a device. ``failure`` is ``stage:reason``. ``is_best``: faster than all before it."""

    record_id: int
    sequence: int
    elapsed_seconds: float
    device_seconds: float
    seconds: float | None
    failure: str | None
    is_best: bool


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """Says on what the trials of a task spent time, on one unit (a UUID; None where it is not known)."""

    unit: str | None
    host: str | None
    trials: int
    failed: int
    search: float
    compile: float
    check: float
    time: float
    overhead: float


@dataclass(frozen=True, slots=True)
class HealthRow:
    """Holds what was seen of a device beside one trial: its anchor kernel, and readings by name."""

    record_id: int
    sequence: int
    elapsed_seconds: float
    anchor_seconds: float | None
    readings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """Holds the knobs of one trial, under today's names, with the seconds that rank it; None: it failed."""

    record_id: int
    sequence: int
    sketch: str
    knobs: Mapping[str, int | str]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """Holds a trial that the cost model had predicted (``core.trial.Prediction``); ``seconds`` is None if it failed."""

    sequence: int
    score: float
    learned_from: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class RunningRow:
    """Holds a task that is being searched. ``lately`` trials of it ended in its last ``lately_seconds``."""

    job_id: str
    task: int
    operator: str | None
    parameters: Mapping[str, object] | None
    workload_key: str
    trials: int
    budget_trials: int
    best_seconds: float | None
    baseline_seconds: float | None
    roofline_seconds: float | None
    lately: int
    lately_seconds: float


@dataclass(frozen=True, slots=True)
class SpentRow:
    """Says what was done on one class of devices: by jobs of the last day, and by all."""

    device_key: str
    device_name: str
    tasks: int
    trials: int
    device_seconds: float
    day_device_seconds: float


@dataclass(frozen=True, slots=True)
class CauseRow:
    """Says how often trials of all jobs failed for one reason in a span of time, with the newest of them."""

    stage: str
    reason: str
    count: int
    newest_record_id: int
    newest_job_id: str
    newest_detail: str


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """Holds what a search found so far. It goes on with ids below ``before``; None: there is no more."""

    rows: tuple[TrialRow, ...]
    before: int | None


@dataclass(frozen=True, slots=True)
class BestTaskRow:
    """Holds the best record of a task that has one, with what is shown where tasks are compared."""

    job_id: str
    created_at: str
    task: int
    operator: str | None
    parameters: Mapping[str, object] | None
    workload_key: str
    flops: int
    minimum_bytes: int
    trials: int
    record_id: int
    seconds: float
    device_key: str
    device_name: str
