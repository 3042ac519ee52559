"""Searches one task at a time, from wherever it stands in the database to its end, under leases."""

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import structlog

from ..core.budget import Budget, StopReason
from ..core.errors import Conflict, StoreError, TilewrightError
from ..core.fleet import AttemptEnd, TaskClaim, Unit, Wanted
from ..core.record import MeasuredOn
from ..core.streams import stream
from ..core.target import DeviceInfo
from ..core.trial import Trial
from ..cost_model.dataset import Experience
from ..db.rows import JobRow, NewTrial, StoredTrial, TaskRow, TrialRow
from ..search.pool import CandidatePool
from ..search.strategy import Strategy
from ..search.tuner import Finished
from ..te.json import workload_from_json
from ..te.workload import Workload
from ..workers.peaks_cache import best_peaks
from . import wiring
from .history import experiences
from .lease_keeper import LeaseKeeper
from .roofline import roofline
from .settings import Settings
from .task_store import TaskStore
from .tracing import span_of_job, span_of_trial
from .views import JobState

log = structlog.get_logger()

PAGE = 1000
RETRY_SECONDS = 0.2
"""How long to wait before a write is tried again that the database did not take."""
LEAST_SECONDS = 1e-3
"""What a task may take at least, of a budget in seconds that others have used up."""


@dataclass(frozen=True)
class PreparedTask:
    """This task can begin. ``done`` holds its trials so far, and ``on`` what its trials are measured on."""

    claim: TaskClaim
    job: JobRow
    task: TaskRow
    workload: Workload
    executor: wiring.JobExecutor
    on: MeasuredOn
    device: DeviceInfo
    pool: CandidatePool
    strategy: Strategy
    done: Sequence[TrialRow]


class TaskRunner:
    """Searches tasks on ``unit``. ``on_commit`` is called after each commit, and ``on_trial`` with each recorded trial.
    ``executor_for`` opens the executor of a claim, or returns the one that is open."""

    def __init__(
        self,
        settings: Settings,
        store: TaskStore,
        unit: Unit,
        keeper: LeaseKeeper,
        executor_for: Callable[[TaskClaim], wiring.JobExecutor],
        on_commit: Callable[[], None],
        on_trial: Callable[[Trial], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._unit = unit
        self._keeper = keeper
        self._executor_for = executor_for
        self._on_commit = on_commit
        self._on_trial = on_trial
        self._measured: tuple[tuple[str, str, str], wiring.JobExecutor, DeviceInfo] | None = None

    def measure_device(self, claim: TaskClaim) -> tuple[wiring.JobExecutor, DeviceInfo]:
        """Return the executor of a claim, and its device with its peaks. Peaks are measured again for every job, which
        takes a moment, since a busy machine may have hidden them before. Raises WorkerLost, StoreError, LeaseLost."""
        known = self.known_device(claim)
        if known is not None:
            return known
        executor = self._executor_for(claim)
        workload = self._workload(self._store.records.job(claim.job_id).tasks[claim.task])
        executor.prefetch(workload)  # meanwhile the peaks of the device are measured
        bare = replace(executor.measured_on.device, measured={})
        before = self._store.records.measured(bare.key)
        device = replace(bare, measured=best_peaks(before, executor.peaks()))
        if self._store.records.job(claim.job_id).device_key != bare.key or device.measured != before:
            self._store.records.set_device(claim.job_id, device, lease=claim.lease)
            self._on_commit()
        self._measured = (claim.job_id, claim.executor, claim.cache), executor, device
        return executor, device

    def known_device(self, claim: TaskClaim) -> tuple[wiring.JobExecutor, DeviceInfo] | None:
        """Return what ``measure_device`` returns, where the claim is of the same job as the one before."""
        if self._measured is None or self._measured[0] != (claim.job_id, claim.executor, claim.cache):
            return None
        return self._measured[1:]

    def forget_device(self) -> None:
        """The executor that was open is closed."""
        self._measured = None

    def prepare(self, claim: TaskClaim, executor: wiring.JobExecutor, device: DeviceInfo) -> PreparedTask:
        """Make what a task needs before anything is measured. Its first candidates are built in the background, where
        that disturbs no timing. This may run on a thread of its own. Raises StoreError, LeaseLost, UnsupportedTarget.
        """
        job = self._store.records.job(claim.job_id)
        task = job.tasks[claim.task]
        workload = self._workload(task)
        executor.prefetch(workload)
        seed = task_seed(job.seed, task.position)
        pool = wiring.pool_of(workload, device, seed, job.policy)
        self._store_limits(claim, job, task, workload, pool, device)
        on = replace(executor.measured_on, device=replace(device, measured={}))
        strategy = wiring.strategy_named(job.strategy, pool, seed, self._history(claim, job, device))
        if not task.trials and not job.fresh:
            self._adopt(claim, on, pool)
        done = self._trials(job.id, task.position)
        if not done:
            executor.prefetch(workload, wiring.first_schedules(pool, strategy, task_budget(job, task.position)))
        return PreparedTask(claim, job, task, workload, executor, on, device, pool, strategy, done)

    def run(self, prepared: PreparedTask, before_remeasurement: Callable[[], None]) -> bool:
        """Search a task to its end; return whether it is over, or was given back because the service wanted that.
        ``before_remeasurement`` is called when its last trial has been recorded. Raises TaskStopped, LeaseLost,
        WorkerLost, StoreError."""
        claim, job, executor = prepared.claim, prepared.job, prepared.executor
        began = time.monotonic()
        elapsed = prepared.done[-1].elapsed_seconds if prepared.done else 0.0
        self._store_baseline(prepared)
        steps = wiring.tuning(
            prepared.pool,
            prepared.strategy,
            executor,
            task_budget(job, claim.task),
            resumed=[row.record.trial for row in prepared.done],
            elapsed_seconds=elapsed,
            cancelled=lambda: self._keeper.wanted is not Wanted.GO,
        )
        reason = self._record(prepared, steps, elapsed)
        if reason is StopReason.CANCELLED:
            yielded = self._keeper.wanted is Wanted.YIELD
            if yielded:
                self._store.fleet.end_attempt(claim.lease, AttemptEnd.YIELDED)
            else:
                self._store.fleet.finish_task(claim.lease, reason.value, {})
            self._on_commit()
            return not yielded
        if executor.overlaps:
            before_remeasurement()
        trials = [row.record.trial for row in self._trials(job.id, claim.task)]
        timing_seconds = sum(trial.clocks.time for trial in trials) + self._remeasure(prepared, trials)
        span_of_job(
            "task", job.id, time.monotonic() - began, {"tilewright.task": claim.task, "tilewright.end": str(reason)}
        )
        facts = {"wall_seconds": elapsed + time.monotonic() - began, "timing_seconds": timing_seconds}
        ended = self._store.fleet.finish_task(claim.lease, reason.value, facts)
        self._on_commit()
        if ended.state == JobState.SUCCEEDED:
            self._try_to_train_model(ended)
        return True

    def fail(self, claim: TaskClaim, error: TilewrightError) -> None:
        """End a task that cannot be searched. Raises LeaseLost, StoreError."""
        self._store.fleet.finish_task(claim.lease, StopReason.ERROR.value, {}, detail=error.message)
        self._on_commit()

    def _try_to_train_model(self, job: JobRow) -> None:
        try:
            self.train_model(job)
        except Exception:  # the job has succeeded, and a model that could not be trained does not change that
            log.exception("no model was trained", job=job.id)

    def train_model(self, job: JobRow) -> None:
        """Train a cost model on every record known by now and store it, if the job's strategy learns. Raises
        StoreError."""
        if job.strategy not in wiring.LEARNS or self._measured is None:
            return
        records, last = self._store.records, job.tasks[-1]
        kind = self._measured[2].target.kind
        limit, until = self._settings.history_records, records.newest_record()
        earlier = records.history(target_kind=kind, until=until, but=(job.id, last.position), limit=limit)
        own = [row.record for row in self._trials(job.id, last.position)]
        (newest,) = experiences(records, own)
        trained = wiring.train(experiences(records, earlier), newest, job.seed % (1 << 31))
        if trained is not None:
            records.keep_model(
                trained.kind,
                trained.feature_version,
                trained.data,
                records=trained.records,
                metrics={**trained.metrics, "until_record": until},  # what is newer, the model has not seen
                device=newest.device,
            )

    def _remeasure(self, prepared: PreparedTask, trials: Sequence[Trial]) -> float:
        """Time the fastest trials again, interleaved, and store their samples and ranks; return the seconds it took. A
        task that was interrupted here repeats its re-measurement."""
        began = time.monotonic()
        changed = wiring.remeasure(prepared.workload, prepared.executor, trials)
        if changed:
            claim = prepared.claim
            self._store.records.add_remeasurement(claim.job_id, claim.task, changed, lease=claim.lease)
            self._on_commit()
        return time.monotonic() - began

    def _record(
        self, prepared: PreparedTask, steps: Generator[Finished, None, StopReason], elapsed_seconds: float
    ) -> StopReason:
        """Record each trial before the next one begins."""
        claim = prepared.claim
        started = time.monotonic() - elapsed_seconds
        with closing(steps):
            while True:
                try:
                    step = next(steps)
                except StopIteration as stop:
                    reason: StopReason = stop.value
                    return reason
                new = NewTrial(
                    claim.job_id,
                    claim.task,
                    step.sequence,
                    prepared.task.workload_key,
                    prepared.on,
                    step.trial,
                    time.monotonic() - started,
                    unit=self._unit.uuid,
                    host=self._unit.host,
                    prediction=step.prediction,
                )
                recorded = self._add_trial(claim, new)
                if recorded is not None:
                    self._keeper.learn(recorded.wanted)
                span_of_trial(claim.job_id, claim.task, step.sequence, step.trial)
                self._on_trial(step.trial)
                self._on_commit()

    def _add_trial(self, claim: TaskClaim, new: NewTrial) -> StoredTrial | None:
        """Store a trial, trying again while the database is away and the lease lasts. None: an earlier attempt was
        stored, whose answer was lost. Raises LeaseLost."""
        tried = False
        while True:
            try:
                return self._store.records.add_trial(new, lease=claim.lease)
            except StoreError:
                self._keeper.guard()
                tried = True
                time.sleep(RETRY_SECONDS)
            except Conflict:
                stored = self._store.records.trials(claim.job_id, claim.task, limit=1, newest_first=True)
                if not tried or not stored or stored[0].record.sequence != new.sequence:
                    raise
                return None

    def _adopt(self, claim: TaskClaim, on: MeasuredOn, pool: CandidatePool) -> None:
        """Let records that fit exactly be the first trials of a task that has none."""
        adopted = self._store.fleet.adopt_known(
            claim.lease,
            device_key=on.device.key,
            toolchain_key=on.toolchain.key,
            profile=str(on.profile),
            sketches={space.sketch: space.version for space in pool.spaces},
        )
        if adopted:
            self._on_commit()

    def _history(self, claim: TaskClaim, job: JobRow, device: DeviceInfo) -> tuple[Experience, ...]:
        """Return what the strategy learns from: records older than the task, the same ones each time it is resumed."""
        records = self._store.records
        until = records.begin_task(claim.job_id, claim.task, lease=claim.lease)
        if job.strategy not in wiring.LEARNS:
            return ()
        this, limit = (claim.job_id, claim.task), self._settings.history_records
        return experiences(records, records.history(target_kind=device.target.kind, until=until, but=this, limit=limit))

    def _workload(self, task: TaskRow) -> Workload:
        data = self._store.records.workload(task.workload_key)
        assert data is not None  # a foreign key guarantees it
        return workload_from_json(data)

    def _store_limits(
        self,
        claim: TaskClaim,
        job: JobRow,
        task: TaskRow,
        workload: Workload,
        pool: CandidatePool,
        device: DeviceInfo,
    ) -> None:
        if task.space_size is not None:
            return
        facts: dict[str, object] = {"space_size": pool.total}
        limit = roofline(workload, device, device.measured, job.cache)
        if limit is not None:
            facts.update(roofline_seconds=limit.seconds, roofline_by=limit.by)
        self._store.records.note_task(claim.job_id, claim.task, lease=claim.lease, **facts)
        self._on_commit()

    def _store_baseline(self, prepared: PreparedTask) -> None:
        """Time NumPy and store the result. NumPy is a baseline for the processor that it runs on only; no other device
        should wait for it."""
        task, claim = prepared.task, prepared.claim
        if prepared.executor.overlaps or task.operator is None or task.baseline_seconds is not None:
            return
        timed = prepared.executor.baseline(task.operator, task.parameters or {})
        if timed is not None:
            facts = {"baseline_seconds": timed.seconds, "baseline_name": f"NumPy {np.__version__}"}
            self._store.records.note_task(claim.job_id, claim.task, lease=claim.lease, **facts)
            self._on_commit()

    def _trials(self, job_id: str, position: int) -> list[TrialRow]:
        rows: list[TrialRow] = []
        while True:
            after = rows[-1].record.sequence if rows else None
            page = self._store.records.trials(job_id, position, after=after, limit=PAGE)
            rows += page
            if len(page) < PAGE:
                return rows


class TaskPreparer:
    """Prepares the next task on a thread of its own while the task before is measured again."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._started: Future[PreparedTask] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def start(self, prepare: Callable[[], PreparedTask]) -> None:
        """Begin to prepare a task."""
        self._started = self._thread.submit(prepare)

    def result(self, beat: Callable[[], None], seconds: float) -> PreparedTask:
        """Wait for the task that was begun last; ``beat`` is called every so many seconds. Raises what preparing it, or
        ``beat``, raised."""
        assert self._started is not None
        while True:
            try:
                return self._started.result(seconds)
            except TimeoutError:
                if self._started.done():
                    raise
                beat()


def task_budget(job: JobRow, position: int) -> Budget:
    """Return the budget of a task. Of a budget that the tasks of a model share it is what has been granted to the task,
    and the seconds that the others have left."""
    task, whole = job.tasks[position], job.budget
    if task.trial_limit is None:
        return whole
    seconds = whole.seconds
    if seconds is not None:
        used = sum(other.wall_seconds or 0.0 for other in job.tasks if other is not task)
        seconds = max(LEAST_SECONDS, seconds - used)
    return replace(whole, trials=task.trial_limit, seconds=seconds)


def task_seed(seed: int, position: int) -> int:
    """Return the seed of one task of a job."""
    return int(stream(seed, "task", position).integers(1 << 31))
