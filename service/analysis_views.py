"""The frozen values that the service answers questions about many jobs with."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.schedule import Schedule
from ..db.dashboard_rows import BestTaskRow
from ..db.rows import ModelSummary
from .views import BestView

BestTaskView = BestTaskRow
"""A task with its best record is answered as it is stored."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """Describes a tensor of a workload. ``role`` is ``input``, ``constant input``, ``stage`` or ``output``."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class TaskEstimate:
    """Says what a task would cost. ``trials`` is the most that the budget allows.

    ``seconds`` is how long its search would take. It follows from what trials took in ``basis_tasks`` ended tasks of
    the same ``basis`` (workload, operator or target). ``least_seconds`` and ``most_seconds`` follow from the quickest
    and the slowest of them. All are None where no task has ended. ``host_bytes`` is what making its inputs and its
    reference takes, of ``available_bytes``; ``device_bytes`` is what its data take on the device. ``known`` is the best
    record there is of the workload on any device.
    """

    workload_key: str
    operator: str | None
    expression: str
    tensors: tuple[TensorView, ...]
    flops: int
    minimum_bytes: int
    trials: int
    seconds: float | None
    least_seconds: float | None
    most_seconds: float | None
    basis: str | None
    basis_tasks: int
    host_bytes: int
    device_bytes: int
    available_bytes: int | None
    known: BestView | None


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """Says what a job would cost. ``device_seconds`` adds its tasks up, and ``wall_seconds`` deals them out over the
    ``units`` that are ready for them. ``waiting`` tasks for the same target are in the queue before it. ``warnings``
    say why it would not run."""

    tasks: tuple[TaskEstimate, ...]
    trials: int
    device_seconds: float | None
    wall_seconds: float | None
    units: int
    waiting: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """Shows a workload in a list. ``best_seconds`` is the least time of all its tasks, on whichever device."""

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
class ResultView:
    """Shows the best record of one task. ``against_record_id`` is the fastest result before it on the same device and
    profile. ``ratio`` is its time over that of the former, and ``p_value`` is that of a Mann-Whitney U test of their
    samples. All three are None for the first. ``why`` says in which respects a regression differs from that result."""

    record_id: int
    job_id: str
    task: int
    created_at: str
    device_key: str
    device_name: str
    toolchain_key: str
    toolchain: str
    profile: str
    sketch: str
    strategy: str
    trials: int
    seconds: float
    spread: float
    gflops: float | None
    roofline_seconds: float | None
    against_record_id: int | None
    ratio: float | None
    p_value: float | None
    is_regression: bool
    why: str


@dataclass(frozen=True, slots=True)
class WorkloadHistory:
    """Shows what was found for a workload. ``results`` come in the order of time; ``best`` has the fastest of each
    device and profile, the fastest first."""

    workload_key: str
    operator: str | None
    parameters: Mapping[str, object] | None
    expression: str
    flops: int
    minimum_bytes: int
    results: tuple[ResultView, ...]
    best: tuple[ResultView, ...]
    regressions: int


@dataclass(frozen=True, slots=True)
class ComparedView:
    """Shows one of the schedules that are compared. ``label`` is a letter. Three figures compare its samples with those
    of the first. ``ratio`` is its median over the other, ``p_value`` that of a two-sided Mann-Whitney U test after
    Holm's correction, and ``effect`` the rank-biserial correlation. They are None for the first, and for another
    workload. ``says`` puts them in a sentence."""

    label: str
    title: str
    job_id: str
    task: int
    record_id: int
    workload_key: str
    device_name: str
    toolchain_key: str
    profile: str
    strategy: str
    trials: int
    schedule: Schedule
    seconds: float
    spread: float
    flops: int
    ratio: float | None
    p_value: float | None
    effect: float | None
    says: str


@dataclass(frozen=True, slots=True)
class ComparedSample:
    """Holds one sample of a compared schedule: the seconds of a run."""

    label: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Says when a compared job found a faster schedule: its best so far after ``trials`` and ``elapsed_seconds``."""

    label: str
    trials: int
    elapsed_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class KnobRow:
    """Holds the values of one knob in all compared schedules; None where a schedule has no such knob."""

    name: str
    differs: bool
    values: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class ScheduleComparison:
    """Compares two to eight schedules. ``test`` names the significance test. ``curves`` are those of the schedules that
    were given as jobs. ``same_workload``: whether times may be compared at all."""

    items: tuple[ComparedView, ...]
    samples: tuple[ComparedSample, ...]
    curves: tuple[CurvePoint, ...]
    knobs: tuple[KnobRow, ...]
    test: str
    same_workload: bool


@dataclass(frozen=True, slots=True)
class ImportanceView:
    """Says how much of a cost model's gain a feature column has; ``share`` is from 0 to 1."""

    column: str
    unit: str
    meaning: str
    share: float


@dataclass(frozen=True, slots=True)
class HeldOutTask:
    """Says how well a cost model predicts a task that it has not seen. ``top_score`` is the best measured speed among
    the eight that it ranks highest; both it and ``rank_correlation`` (Spearman) are None where they have no value."""

    job_id: str
    task: int
    workload_key: str
    operator: str | None
    records: int
    rank_correlation: float | None
    mean_absolute_error: float
    top_score: float | None


@dataclass(frozen=True, slots=True)
class HeldOutRecord:
    """Holds what a cost model predicts for a record that it has not seen, and what was measured: speeds relative to
    the best of the task, 0 for a failure."""

    record_id: int
    job_id: str
    task: int
    sketch: str
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True)
class StoredModels:
    """Shows the stored cost models, newest first, and one of them. ``records`` come with the worst prediction first.
    ``why`` says why there are none."""

    models: tuple[ModelSummary, ...]
    shown: ModelSummary | None
    importance: tuple[ImportanceView, ...]
    tasks: tuple[HeldOutTask, ...]
    records: tuple[HeldOutRecord, ...]
    why: str
