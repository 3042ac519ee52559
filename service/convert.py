"""Converts between what is submitted, what is stored, and what is answered."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from ..core.budget import StopReason
from ..core.keys import content_key
from ..core.log_context import present_ids
from ..core.policy import DEFAULT_POLICY
from ..core.retuning import Retuned, RetuneVerdict, Retuning
from ..core.schedule import Schedule
from ..core.trial import Evidence, Reason, Timed, TrialStage
from ..db.recording import gflops
from ..db.rows import BestRow, EventRow, FailureRow, JobRow, NewJob, NewTask, PointRow, TaskRow, TrialRow
from ..db.task import task_of
from ..te.json import workload_to_json
from .callers import DEFAULT_TENANT
from .lookup import Answer
from .views import (
    BestView,
    EventView,
    FailureView,
    JobSpec,
    JobState,
    JobView,
    SeriesView,
    TaskSpec,
    TaskView,
    TrialView,
)


def spec_to_json(spec: JobSpec) -> dict[str, object]:
    """Return the canonical body of a submission: equal submissions give equal JSON.

    What has its default is left out where it came later than idempotency keys, so that a key used before still fits.
    """
    policy = spec.policy
    chosen: dict[str, object] = {} if policy == DEFAULT_POLICY else {"prune": policy.prune, "prior": policy.prior}
    later = {
        "tenant": spec.tenant,
        "priority": spec.priority,
        "deadline_seconds": spec.deadline_seconds,
        "fresh": spec.fresh,
        "tags": spec.tags,
        "notes": spec.notes,
        "units": spec.units,
    }
    if spec.retuning is not None:
        chosen["retuning"] = spec.retuning.to_json()
    chosen |= {name: value for name, value in later.items() if value != getattr(_DEFAULTS, name)}
    return {
        "tasks": [
            {
                "workload": workload_to_json(task.workload),
                "operator": task.operator,
                "parameters": None if task.parameters is None else dict(task.parameters),
            }
            for task in spec.tasks
        ],
        "budget": spec.budget.to_json(),
        "strategy": spec.strategy,
        "seed": spec.seed,
        "target": spec.target,
        "executor": spec.executor,
        "cache": spec.cache,
        **chosen,
    }


def body_sha256(spec: JobSpec) -> str:
    """Return the SHA-256 of the canonical body of a submission."""
    return content_key(spec_to_json(spec))


_DEFAULTS = JobSpec((), tenant="default")


def new_job(job_id: str, spec: JobSpec, sketches: Mapping[str, int], now: float, owner: str, *, shared: bool) -> NewJob:
    """Return the job to store for a spec that was checked, and that ``owner`` submits. ``sketches`` are those there
    are, with their versions, and ``now`` is the database's time. If not ``shared``, equal tasks of other tenants are
    not waited for. Raises InvalidWorkload when operations or bytes of a workload are too many to count."""
    assert spec.cache is not None and spec.tenant is not None
    search: dict[str, object] = {
        "target": spec.target,
        "executor": spec.executor,
        "cache": spec.cache,
        "strategy": spec.strategy,
        "seed": spec.seed,
        "prune": spec.policy.prune,
        "prior": spec.policy.prior,
        "sketches": dict(sketches),
    }
    if not shared and spec.tenant != DEFAULT_TENANT:
        search["tenant"] = spec.tenant
    return NewJob(
        id=job_id,
        state=JobState.QUEUED.value,
        tasks=tuple(_new_task(task, search, f"/tasks/{position}/workload") for position, task in enumerate(spec.tasks)),
        budget=spec.budget,
        strategy=spec.strategy,
        seed=spec.seed,
        target=spec.target,
        executor=spec.executor,
        cache=spec.cache,
        policy=spec.policy,
        tenant=spec.tenant,
        priority=spec.priority,
        deadline=None if spec.deadline_seconds is None else now + spec.deadline_seconds,
        fresh=spec.fresh,
        model_key=spec.model_key,
        owner=owner,
        tags=spec.tags,
        notes=spec.notes,
        retuning=None if spec.retuning is None else spec.retuning.to_json(),
        request_id=str(present_ids().get("request_id", "")),
        units=spec.units,
    )


def _new_task(task: TaskSpec, search: Mapping[str, object], field: str) -> NewTask:
    new = task_of(task.workload, task.operator, task.parameters, field=field)
    return replace(new, flight_key=content_key({**search, "workload": new.workload_key}), weight=task.weight)


def moment(seconds: float) -> str:
    """Return a time of the database's clock as RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_view(row: JobRow) -> JobView:
    """Return a job as it is answered, but for what its tasks wait for (``service.fleet``)."""
    return JobView(
        id=row.id,
        state=JobState(row.state),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error=row.error,
        budget=row.budget,
        strategy=row.strategy,
        seed=row.seed,
        target=row.target,
        executor=row.executor,
        cache=row.cache,
        prune=row.policy.prune,
        prior=row.policy.prior,
        tenant=row.tenant,
        priority=row.priority,
        paused=row.paused,
        fresh=row.fresh,
        device_key=row.device_key,
        device_name=row.device_name,
        tasks=tuple(task_view(task) for task in row.tasks),
        version=row.version,
        deadline=None if row.deadline is None else moment(row.deadline),
        model_key=row.model_key,
        owner=row.owner,
        tags=row.tags,
        notes=row.notes,
        task_count=row.task_count,
        units=row.units,
        retuning=None if row.retuning is None else Retuning(**row.retuning),  # type: ignore[arg-type]
    )


def task_view(row: TaskRow) -> TaskView:
    """Return a task as it is answered."""
    retuned = None if row.retuned is None else Retuned.from_json(row.retuned)
    saved_trials, saved_seconds = _saved(row, retuned)
    return TaskView(
        index=row.position,
        workload_key=row.workload_key,
        operator=row.operator,
        parameters=row.parameters,
        expression=row.expression,
        flops=row.flops,
        minimum_bytes=row.minimum_bytes,
        space_size=row.space_size,
        trials=row.trials,
        failures=row.failures,
        best=None if row.best is None else best_view(row.best),
        baseline_seconds=row.baseline_seconds,
        baseline_name=row.baseline_name,
        roofline_seconds=row.roofline_seconds,
        roofline_by=row.roofline_by,
        stop_reason=None if row.stop_reason is None else StopReason(row.stop_reason),
        wall_seconds=row.wall_seconds,
        timing_seconds=row.timing_seconds,
        state=row.state,
        attempts=row.fence,
        losses=row.losses,
        adopted=row.adopted,
        source_job=row.source_job,
        source_task=row.source_task,
        weight=row.weight,
        trial_limit=row.trial_limit,
        retuned=retuned,
        saved_trials=saved_trials,
        saved_seconds=saved_seconds,
    )


def _saved(row: TaskRow, retuned: Retuned | None) -> tuple[int | None, float | None]:
    """Return how many trials and seconds a task that has ended needed less than the one that found its winner."""
    if retuned is None or row.stop_reason is None or retuned.verdict is RetuneVerdict.CURRENT:
        return None, None
    spent, now = retuned.earlier_wall_seconds, row.wall_seconds
    seconds = None if spent is None or now is None else spent - now
    return retuned.earlier_trials - (row.trials - row.adopted), seconds


def best_view(row: BestRow) -> BestView:
    """Return the best record of a task as it is answered."""
    record = row.record
    outcome = record.trial.outcome
    assert isinstance(outcome, Timed)
    seconds = outcome.seconds
    return BestView(
        record_id=record.id,
        job_id=record.job_id,
        workload_key=record.identity.workload_key,
        device_key=record.identity.device_key,
        device_name=row.device_name,
        toolchain_key=record.identity.toolchain_key,
        profile=record.identity.profile,
        schedule=record.trial.schedule,
        seconds=seconds,
        spread=outcome.spread,
        samples=outcome.final_samples or outcome.samples,
        gflops=gflops(row.flops, seconds),
        evidence=record.trial.evidence,
        created_at=record.created_at,
    )


def answer_view(answer: Answer) -> BestView:
    """Return what a look-up found as it is answered."""
    data = answer.parsed()
    data["schedule"] = Schedule.from_json(data["schedule"])
    data["samples"] = tuple(data["samples"])
    data["evidence"] = Evidence(**{name: value for name, value in data["evidence"].items() if name != "oracle"})
    return BestView(**data, match=answer.match, expected_loss=answer.expected_loss)


def trial_view(row: TrialRow) -> TrialView:
    """Return a trial as it is answered."""
    record = row.record
    return TrialView(
        record_id=record.id,
        job_id=record.job_id,
        task=record.task,
        sequence=record.sequence,
        schedule=record.trial.schedule,
        outcome=record.trial.outcome,
        clocks=record.trial.clocks,
        evidence=record.trial.evidence,
        elapsed_seconds=row.elapsed_seconds,
        created_at=record.created_at,
        workload_key=record.identity.workload_key,
        device_key=record.identity.device_key,
        profile=record.identity.profile,
    )


def series_view(job_id: str, task: int, points: tuple[PointRow, ...]) -> SeriesView:
    """Return trials as columns."""
    return SeriesView(
        job_id=job_id,
        task=task,
        record_id=tuple(point.record_id for point in points),
        sequence=tuple(point.sequence for point in points),
        elapsed_seconds=tuple(point.elapsed_seconds for point in points),
        seconds=tuple(point.seconds for point in points),
        failure=tuple(point.failure for point in points),
    )


def failure_view(row: FailureRow) -> FailureView:
    """Return a kind of failure as it is answered."""
    return FailureView(TrialStage(row.stage), Reason(row.reason), row.count, row.newest_detail, row.newest_record_id)


def event_view(row: EventRow) -> EventView:
    """Return an event as it is answered."""
    return EventView(row.id, row.job_id, row.kind, row.data, row.created_at)
