"""Defines the models of what the service answers with about many jobs at once: estimates, workloads over time,
comparisons, cost models."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from .responses import BestOut, ResponseModel, ScheduleOut, plain


class TensorOut(ResponseModel):
    """Describes a tensor of a workload. ``role`` is ``input``, ``constant input``, ``stage`` or ``output``."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class TaskEstimateOut(ResponseModel):
    """Says what a task would cost. ``seconds`` comes from ``basis_tasks`` ended tasks of the same ``basis`` (workload,
    operator or target), with the quickest and the slowest of them beside it; null where no task has ended."""

    workload_key: str
    operator: str | None
    expression: str
    tensors: tuple[TensorOut, ...]
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
    known: BestOut | None


class JobEstimateOut(ResponseModel):
    """Says what a job would cost: device seconds of all its tasks, and wall seconds on the units that are ready."""

    tasks: tuple[TaskEstimateOut, ...]
    trials: int
    device_seconds: float | None
    wall_seconds: float | None
    units: int
    waiting: int
    warnings: tuple[str, ...]


class WorkloadSummaryOut(ResponseModel):
    """Shows a workload in a list. ``best_seconds`` is the least time of all its tasks, on whichever device."""

    workload_key: str
    operator: str | None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(plain)]
    flops: int
    minimum_bytes: int
    tasks: int
    trials: int
    devices: int
    best_seconds: float | None
    newest_at: str


class WorkloadPage(ResponseModel):
    """This is a part of the list of workloads, those of the newest jobs first. ``next_page_token`` is empty at the end,
    and only there."""

    workloads: tuple[WorkloadSummaryOut, ...]
    next_page_token: str


class ResultOut(ResponseModel):
    """Shows the best record of one task. ``ratio`` is its time over that of ``against_record_id``, the fastest result
    before it on the same device and profile, and ``p_value`` that of a two-sided Mann-Whitney U test of their samples.
    A regression is slower by over 2 % with a p value under 0.01."""

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


class WorkloadHistoryOut(ResponseModel):
    """Shows what was found for a workload: ``results`` in the order of time, and the ``best`` of each device and
    profile."""

    workload_key: str
    operator: str | None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(plain)]
    expression: str
    flops: int
    minimum_bytes: int
    results: tuple[ResultOut, ...]
    best: tuple[ResultOut, ...]
    regressions: int


class ComparedOut(ResponseModel):
    """Shows one of the schedules that are compared. ``ratio``, ``p_value`` (after Holm's correction) and ``effect``
    (rank-biserial correlation) compare its samples with those of the first."""

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
    schedule: ScheduleOut
    seconds: float
    spread: float
    flops: int
    ratio: float | None
    p_value: float | None
    effect: float | None
    says: str


class ComparedSampleOut(ResponseModel):
    """Holds one sample of a compared schedule: the seconds of a run."""

    label: str
    seconds: float


class CurvePointOut(ResponseModel):
    """Says when a compared job found a faster schedule."""

    label: str
    trials: int
    elapsed_seconds: float
    seconds: float


class KnobRowOut(ResponseModel):
    """Holds the values of one knob in all compared schedules; null where a schedule has no such knob."""

    name: str
    differs: bool
    values: tuple[int | str | None, ...]


class ComparisonOut(ResponseModel):
    """Compares two to eight schedules. ``test`` names the significance test."""

    items: tuple[ComparedOut, ...]
    samples: tuple[ComparedSampleOut, ...]
    curves: tuple[CurvePointOut, ...]
    knobs: tuple[KnobRowOut, ...]
    test: str
    same_workload: bool


class CostModelOut(ResponseModel):
    """Says what a stored cost model was trained on, and how good the model before it was on the newest task."""

    id: int
    kind: str
    feature_version: int
    device_key: str | None
    device_name: str | None
    records: int
    metrics: Annotated[dict[str, float], BeforeValidator(plain)]
    created_at: str


class ImportanceOut(ResponseModel):
    """Says how much of a cost model's gain a feature column has, from 0 to 1."""

    column: str
    unit: str
    meaning: str
    share: float


class HeldOutTaskOut(ResponseModel):
    """Says how well a cost model predicts a task that it has not seen."""

    job_id: str
    task: int
    workload_key: str
    operator: str | None
    records: int
    rank_correlation: float | None
    mean_absolute_error: float
    top_score: float | None


class HeldOutRecordOut(ResponseModel):
    """Holds what a cost model predicts for a record that it has not seen, and what was measured: speeds relative to
    the best of the task, 0 for a failure."""

    record_id: int
    job_id: str
    task: int
    sketch: str
    predicted: float
    measured: float


class StoredModelsOut(ResponseModel):
    """Shows the stored cost models, newest first, and how good one of them is on what was measured after it was
    trained; the worst prediction comes first. ``why`` says why there are no predictions."""

    models: tuple[CostModelOut, ...]
    shown: CostModelOut | None
    importance: tuple[ImportanceOut, ...]
    tasks: tuple[HeldOutTaskOut, ...]
    records: tuple[HeldOutRecordOut, ...]
    why: str
