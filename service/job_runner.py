"""Runs one job, from wherever it stands in the database to its end."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from ..core.budget import StopReason
from ..core.errors import Conflict, TilewrightError
from ..core.record import MeasuredOn
from ..core.streams import stream
from ..core.target import DeviceInfo
from ..core.trial import Trial
from ..cost_model.dataset import Experience
from ..db.rows import JobRow, NewTrial, TaskRow, TrialRow
from ..db.store import RecordStore
from ..search.pool import CandidatePool
from ..search.strategy import Strategy
from ..search.tuner import Finished
from ..te.json import workload_from_json
from ..te.workload import Workload
from . import wiring
from .history import experiences
from .roofline import best_peaks, roofline
from .settings import Settings
from .states import to
from .targets import parse_device
from .views import JobState

PAGE = 1000


class Interrupted(Exception):
    """The service is closing. The job stays as it is, and goes on when the service is opened again."""


@dataclass
class JobRunner:
    """Runs jobs one at a time. ``on_commit`` is called after each commit, and ``on_trial`` with each recorded trial."""

    settings: Settings
    store: RecordStore
    executor_for: Callable[[JobRow], wiring.JobExecutor]
    interrupted: Callable[[], bool]
    on_commit: Callable[[], None]
    on_trial: Callable[[Trial], None]

    def run(self, job_id: str) -> None:
        """Take a job to its end. Raises StoreError (the caller tries again later), WorkerLost and Interrupted. The
        caller ends the job as failed (``fail``) after any other TilewrightError."""
        job = self.store.job(job_id)
        if job.state == JobState.CANCELLING:
            self._move(job, JobState.CANCELLED)
            return
        if job.state == JobState.QUEUED:
            try:
                job = self._move(job, JobState.RUNNING)
            except Conflict:  # somebody cancelled it in this moment
                return
        executor = self.executor_for(job)
        tasks = [task for task in job.tasks if task.stop_reason is None]
        if tasks:
            executor.prefetch(self._workload(tasks[0]))  # meanwhile the peaks of the device are measured
        on, device = self._measure_device(job, executor)
        with TaskPreparer(partial(self._prepare, job, executor, device)) as preparer:
            for task, following in zip(tasks, [*tasks[1:], None], strict=True):
                if not self._cancelled(job):
                    prepared = preparer.result(task)
                    if following is not None:
                        executor.prefetch(self._workload(following))  # its data take seconds, this task takes more
                    self._run_task(job, prepared, executor, on, partial(preparer.start, following))
        self._end(job)

    def train_model(self, job_id: str) -> None:
        """Train a cost model on every record known by now and store it, if the job's strategy learns. Raises
        StoreError."""
        job = self.store.job(job_id)
        if job.strategy not in wiring.LEARNS or job.state != JobState.SUCCEEDED:
            return
        last = job.tasks[-1]
        limit, until = self.settings.history_records, self.store.newest_record()
        this = (job.id, last.position)
        earlier = self.store.history(target_kind=parse_device(job.target).kind, until=until, but=this, limit=limit)
        own = [row.record for row in self._trials(job, last.position)]
        (newest,) = experiences(self.store, own)
        trained = wiring.train(experiences(self.store, earlier), newest, job.seed % (1 << 31))
        if trained is not None:
            self.store.keep_model(
                trained.kind,
                trained.feature_version,
                trained.data,
                records=trained.records,
                metrics=trained.metrics,
                device=newest.device,
            )

    def fail(self, job_id: str, error: TilewrightError) -> None:
        """End a job as failed, and with it the task that was running."""
        job = self.store.job(job_id)
        for task in job.tasks:
            if task.stop_reason is None:
                self.store.note_task(job_id, task.position, stop_reason=StopReason.ERROR.value)
                break
        try:
            self.store.move_job(job_id, to(JobState.FAILED), error=error.message)
        except Conflict:  # somebody asked for its cancellation meanwhile
            self.store.move_job(job_id, to(JobState.CANCELLED))
        self.on_commit()

    def _move(self, job: JobRow, state: JobState) -> JobRow:
        moved = self.store.move_job(job.id, to(state))
        self.on_commit()
        return moved

    def _cancelled(self, job: JobRow) -> bool:
        if self.interrupted():
            raise Interrupted
        return self.store.job(job.id).state == JobState.CANCELLING

    def _end(self, job: JobRow) -> None:
        job = self.store.job(job.id)
        untimed = [task.position for task in job.tasks if task.best is None]
        try:
            if untimed and job.state == JobState.RUNNING:
                error = f"no schedule of task {untimed[0]} could be timed: see its failures"
                self.store.move_job(job.id, to(JobState.FAILED), error=error)
            else:
                self.store.move_job(job.id, to(JobState.SUCCEEDED))
        except Conflict:
            self.store.move_job(job.id, to(JobState.CANCELLED))
        self.on_commit()

    def _measure_device(self, job: JobRow, executor: wiring.JobExecutor) -> tuple[MeasuredOn, DeviceInfo]:
        """Return what trials are measured on, and the device with its peaks. The peaks are measured again for every
        job, which takes a moment, since a busy machine may have hidden them before."""
        on = executor.measured_on
        bare = replace(on.device, measured={})
        known = self.store.measured(bare.key)
        device = replace(bare, measured=best_peaks(known, executor.peaks()))
        if job.device_key != bare.key or device.measured != known:
            self.store.set_device(job.id, device)
            self.on_commit()
        return replace(on, device=bare), device  # without the peaks, which no trial needs to write again

    def _prepare(self, job: JobRow, executor: wiring.JobExecutor, device: DeviceInfo, task: TaskRow) -> "PreparedTask":
        """Make what a task needs before anything is measured. Its first candidates are built in the background, where
        that disturbs no timing."""
        workload = self._workload(task)
        executor.prefetch(workload)
        seed = task_seed(job.seed, task.position)
        pool = wiring.pool_of(workload, device, seed, job.policy)
        self._store_limits(job, task, workload, pool, device)
        strategy = wiring.strategy_named(job.strategy, pool, seed, self._history(job, task, device))
        done = self._trials(job, task.position)
        if not done:
            executor.prefetch(workload, wiring.first_schedules(pool, strategy, job.budget))
        return PreparedTask(task, workload, pool, strategy, done)

    def _run_task(
        self,
        job: JobRow,
        prepared: "PreparedTask",
        executor: wiring.JobExecutor,
        on: MeasuredOn,
        prepare_next: Callable[[], None],
    ) -> None:
        task, done = prepared.task, prepared.done
        began = time.monotonic()
        self._store_baseline(job, task, executor)
        before = self._elapsed(job, task.position)
        elapsed = done[-1].elapsed_seconds if done else before
        cancelling = threading.Event()
        steps = wiring.tuning(
            prepared.pool,
            prepared.strategy,
            executor,
            job.budget,
            resumed=[row.record.trial for row in done],
            elapsed_seconds=elapsed - before,
            cancelled=lambda: cancelling.is_set() or self.interrupted(),
        )
        if self._cancelled(job):
            cancelling.set()
        reason = self._record(job, task, on, steps, elapsed, cancelling)
        if self.interrupted() and not cancelling.is_set():
            raise Interrupted
        if executor.overlaps:
            prepare_next()
        trials = [row.record.trial for row in self._trials(job, task.position)]
        timing_seconds = sum(trial.clocks.time for trial in trials)
        if reason is not StopReason.CANCELLED:
            timing_seconds += self._remeasure(job, prepared, executor, trials)
        wall_seconds = elapsed - before + time.monotonic() - began
        self.store.note_task(
            job.id, task.position, stop_reason=reason.value, wall_seconds=wall_seconds, timing_seconds=timing_seconds
        )
        self.on_commit()

    def _remeasure(
        self, job: JobRow, prepared: "PreparedTask", executor: wiring.JobExecutor, trials: Sequence[Trial]
    ) -> float:
        """Time the fastest trials again, interleaved, and store their samples and ranks; return the seconds it took. A
        job that was interrupted here repeats its re-measurement."""
        began = time.monotonic()
        changed = wiring.remeasure(prepared.workload, executor, trials)
        if changed:
            self.store.add_remeasurement(job.id, prepared.task.position, changed)
            self.on_commit()
        return time.monotonic() - began

    def _record(
        self,
        job: JobRow,
        task: TaskRow,
        on: MeasuredOn,
        steps: Generator[Finished, None, StopReason],
        elapsed_seconds: float,
        cancelling: threading.Event,
    ) -> StopReason:
        """Record each trial before the next one begins. Set ``cancelling`` as soon as the job is being cancelled."""
        started = time.monotonic() - elapsed_seconds
        with closing(steps):
            while True:
                try:
                    step = next(steps)
                except StopIteration as stop:
                    reason: StopReason = stop.value
                    return reason
                elapsed = time.monotonic() - started
                new = NewTrial(job.id, task.position, step.sequence, task.workload_key, on, step.trial, elapsed)
                if self.store.add_trial(new).state == JobState.CANCELLING:
                    cancelling.set()
                self.on_trial(step.trial)
                self.on_commit()

    def _history(self, job: JobRow, task: TaskRow, device: DeviceInfo) -> tuple[Experience, ...]:
        """Return what the strategy learns from: records older than the task, the same ones each time it is resumed."""
        until = self.store.begin_task(job.id, task.position)
        if job.strategy not in wiring.LEARNS:
            return ()
        this = (job.id, task.position)
        limit = self.settings.history_records
        records = self.store.history(target_kind=device.target.kind, until=until, but=this, limit=limit)
        return experiences(self.store, records)

    def _workload(self, task: TaskRow) -> Workload:
        data = self.store.workload(task.workload_key)
        assert data is not None  # a foreign key guarantees it
        return workload_from_json(data)

    def _store_limits(
        self, job: JobRow, task: TaskRow, workload: Workload, pool: CandidatePool, device: DeviceInfo
    ) -> None:
        if task.space_size is not None:
            return
        facts: dict[str, object] = {"space_size": pool.total}
        limit = roofline(workload, device, device.measured, job.cache)
        if limit is not None:
            facts.update(roofline_seconds=limit.seconds, roofline_by=limit.by)
        self.store.note_task(job.id, task.position, lease=None, **facts)
        self.on_commit()

    def _store_baseline(self, job: JobRow, task: TaskRow, executor: wiring.JobExecutor) -> None:
        """Time NumPy and store the result. NumPy is a baseline for the processor that it runs on only; no other device
        should wait for it."""
        if executor.overlaps or task.operator is None or task.baseline_seconds is not None or self._cancelled(job):
            return
        timed = executor.baseline(task.operator, task.parameters or {})
        if timed is not None:
            name = f"NumPy {np.__version__}"
            self.store.note_task(job.id, task.position, baseline_seconds=timed.seconds, baseline_name=name)
            self.on_commit()

    def _trials(self, job: JobRow, position: int) -> list[TrialRow]:
        rows: list[TrialRow] = []
        while True:
            after = rows[-1].record.sequence if rows else None
            page = self.store.trials(job.id, position, after=after, limit=PAGE)
            rows += page
            if len(page) < PAGE:
                return rows

    def _elapsed(self, job: JobRow, position: int) -> float:
        """Return for how many seconds the job had been running when its earlier tasks ended."""
        for earlier in range(position - 1, -1, -1):
            last = self.store.trials(job.id, earlier, limit=1, newest_first=True)
            if last:
                return last[0].elapsed_seconds
        return 0.0


@dataclass(frozen=True)
class PreparedTask:
    """This task can begin. ``done`` holds its trials so far."""

    task: TaskRow
    workload: Workload
    pool: CandidatePool
    strategy: Strategy
    done: Sequence[TrialRow]


class TaskPreparer:
    """Prepares the next task of a job on a thread of its own while the task before is measured again."""

    def __init__(self, prepare: Callable[[TaskRow], PreparedTask]) -> None:
        self._prepare = prepare
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._started: dict[int, Future[PreparedTask]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def start(self, task: TaskRow | None) -> None:
        """Start to prepare a task, if there is one and it was not started before."""
        if task is not None and task.position not in self._started:
            self._started[task.position] = self._thread.submit(self._prepare, task)

    def result(self, task: TaskRow) -> PreparedTask:
        """Wait for the prepared task. Raises what preparing it raised."""
        self.start(task)
        return self._started.pop(task.position).result()


def task_seed(seed: int, position: int) -> int:
    """Return the seed of one task of a job."""
    return int(stream(seed, "task", position).integers(1 << 31))
