"""Searches one task at a time, from wherever it stands in the database to its end, under leases."""

import math
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import structlog

from ..core.budget import Budget, StopReason
from ..core.errors import Conflict, StoreError, TilewrightError
from ..core.fleet import AttemptEnd, TaskClaim, Unit, Wanted
from ..core.record import Identity, MeasuredOn
from ..core.retuning import Retuned
from ..core.streams import stream
from ..core.target import DeviceInfo
from ..core.trial import Timed, Trial
from ..cost_model.dataset import Experience
from ..cost_model.similarity import Situation
from ..db.rows import JobRow, NewTrial, StoredTrial, TaskRow, TrialRow
from ..search.pool import CandidatePool
from ..search.strategy import Strategy
from ..search.tuner import Finished
from ..te.json import workload_from_json
from ..te.workload import Workload
from ..workers.joint_executor import UnitExecutor
from ..workers.peaks_cache import best_peaks
from . import wiring
from .artefacts import Artefacts
from .history import experiences, related_groups
from .kept_models import kept_model
from .lease_keeper import LeaseKeeper
from .model_training import train_models
from .retuning import Earlier, earlier_of, retuning
from .roofline import roofline
from .settings import Settings
from .task_store import TaskStore
from .tracing import span_of_job, span_of_trial
from .views import JobState
from .workload_cost import check_code

log = structlog.get_logger()

PAGE = 1000
RELATED_RECORDS = 256
"""A strategy learns from so many records of earlier tasks, the most similar ones: it learns again and again while the
device waits. Models that are kept learn from more."""
RETRY_SECONDS = 0.2
"""How long to wait before a write is tried again that the database did not take."""
LEAST_SECONDS = 1e-3
"""What a task may take at least, of a budget in seconds that others have used up."""


@dataclass(frozen=True)
class PreparedTask:
    """This task can begin. ``done`` holds its trials so far, ``on`` says what its trials are measured on, and ``first``
    are the candidates that come before those of the strategy. ``earlier`` is there where a task is retuned whose winner
    has not been found to hold no more."""

    claim: TaskClaim
    job: JobRow
    task: TaskRow
    workload: Workload
    executor: UnitExecutor
    on: MeasuredOn
    device: DeviceInfo
    pool: CandidatePool
    strategy: Strategy
    done: Sequence[TrialRow]
    first: Sequence[int]
    earlier: Earlier | None = None


class TaskRunner:
    """Searches tasks on ``unit``. ``on_commit`` is called after each commit, and ``on_trial`` with each recorded trial.
    ``executor_for`` opens the executor of a claim, or returns the one that is open. ``host_of`` names the host of the
    unit that took a trial."""

    def __init__(
        self,
        settings: Settings,
        store: TaskStore,
        unit: Unit,
        keeper: LeaseKeeper,
        executor_for: Callable[[TaskClaim], UnitExecutor],
        on_commit: Callable[[], None],
        on_trial: Callable[[Trial], None],
        host_of: Callable[[str], str],
    ) -> None:
        self._settings = settings
        self._store = store
        self._unit = unit
        self._keeper = keeper
        self._executor_for = executor_for
        self._on_commit = on_commit
        self._on_trial = on_trial
        self._host_of = host_of
        self._artefacts = Artefacts(store.artefacts, settings.artefact_bytes)
        self._measured: tuple[tuple[str, str, str], UnitExecutor, DeviceInfo] | None = None

    def measure_device(self, claim: TaskClaim) -> tuple[UnitExecutor, DeviceInfo]:
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

    def known_device(self, claim: TaskClaim) -> tuple[UnitExecutor, DeviceInfo] | None:
        """Return what ``measure_device`` returns, where the claim is of the same job as the one before."""
        if self._measured is None or self._measured[0] != (claim.job_id, claim.executor, claim.cache):
            return None
        return self._measured[1:]

    def forget_device(self) -> None:
        """The executor that was open is closed."""
        self._measured = None

    def prepare(self, claim: TaskClaim, executor: UnitExecutor, device: DeviceInfo) -> PreparedTask:
        """Make what a task needs before anything is measured. Its first candidates are built in the background, where
        that disturbs no timing. This may run on a thread of its own. Raises StoreError, LeaseLost, UnsupportedTarget.
        """
        job = self._store.records.job(claim.job_id)
        task = job.tasks[claim.task]
        workload = self._workload(task)
        executor.prefetch(workload)
        seed = task_seed(job.seed, task.position)
        until = self._store.records.begin_task(claim.job_id, claim.task, lease=claim.lease)
        kept = kept_model(self._store.records, workload, device, until=until)
        log.info("cost model", used=kept.model is not None, why=kept.why)
        pool = wiring.pool_of(workload, device, seed, job.policy, kept.model)
        self._store_limits(claim, job, task, workload, pool, device)
        on = replace(executor.measured_on, device=replace(device, measured={}))
        history = () if kept.harmful else self._history(job, claim.task, workload, on, device, until)
        strategy = wiring.strategy_named(job.strategy, pool, seed, history)
        if not task.trials and not job.fresh:
            self._adopt(claim, on, pool)
        done = self._trials(job.id, task.position)
        first = wiring.winners_elsewhere(pool, job, task.position)
        earlier = earlier_of(self._store.records, job, task, workload, on, self._settings, until=until)
        if not done:
            budget = task_budget(job, task.position)
            begun = wiring.first_schedules(pool, strategy, budget, first) if earlier is None else earlier.schedules
            executor.prefetch(workload, begun)
        return PreparedTask(claim, job, task, workload, executor, on, device, pool, strategy, done, first, earlier)

    def run(self, prepared: PreparedTask, before_remeasurement: Callable[[], None]) -> bool:
        """Search a task to its end; return whether it is over, or was given back because the service wanted that.
        ``before_remeasurement`` is called when its last trial has been recorded. Raises TaskStopped, LeaseLost,
        WorkerLost, StoreError."""
        claim, job, executor = prepared.claim, prepared.job, prepared.executor
        began = time.monotonic()
        elapsed = prepared.done[-1].elapsed_seconds if prepared.done else 0.0
        self._store_baseline(prepared)
        steps = self._steps(prepared, elapsed)
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
        rows = self._trials(job.id, claim.task)
        timing_seconds = sum(row.record.trial.clocks.time for row in rows)
        if reason is not StopReason.KEPT:  # otherwise that was done when it was decided
            timing_seconds += self._remeasure(prepared, rows)
        span_of_job(
            "task", job.id, time.monotonic() - began, {"tilewright.task": claim.task, "tilewright.end": str(reason)}
        )
        facts = {"wall_seconds": elapsed + time.monotonic() - began, "timing_seconds": timing_seconds}
        if job.model_key is not None:
            facts |= wiring.expectation(prepared.strategy)
        state = self._store.fleet.finish_task(claim.lease, reason.value, facts)
        self._on_commit()
        if state == JobState.SUCCEEDED:
            self._try_to_train_models(job, prepared.on, prepared.device)
        return True

    def _steps(self, prepared: PreparedTask, elapsed: float) -> Generator[Finished, None, StopReason]:
        """Return the trials of a task that began ``elapsed`` seconds ago."""
        claim, executor = prepared.claim, prepared.executor
        began, budget = time.monotonic(), task_budget(prepared.job, claim.task)

        def cancelled() -> bool:
            return self._keeper.wanted is not Wanted.GO

        def search(rows: Sequence[TrialRow]) -> Generator[Finished, None, StopReason]:
            return wiring.tuning(
                prepared.pool,
                prepared.strategy,
                executor,
                budget,
                resumed=[row.record.trial for row in rows],
                elapsed_seconds=elapsed + time.monotonic() - began,
                cancelled=cancelled,
                first=prepared.first,
            )

        if prepared.earlier is None:
            return search(prepared.done)

        def rows() -> list[TrialRow]:
            return self._trials(claim.job_id, claim.task)

        def decide(retuned: Retuned) -> None:
            facts = {"retuned": retuned.to_json()}
            self._store.records.note_task(claim.job_id, claim.task, lease=claim.lease, **facts)
            self._on_commit()

        return retuning(
            prepared.earlier,
            lambda schedules: executor.measure(prepared.workload, schedules),
            budget,
            done=lambda: [row.record.trial for row in rows()],
            elapsed_seconds=elapsed,
            cancelled=cancelled,
            remeasure=lambda: self._remeasure(prepared, rows()),
            decide=decide,
            search=lambda: search(rows()),
        )

    def fail(self, claim: TaskClaim, error: TilewrightError) -> None:
        """End a task that cannot be searched. Raises LeaseLost, StoreError."""
        self._store.fleet.finish_task(claim.lease, StopReason.ERROR.value, {}, detail=error.message)
        self._on_commit()

    def _try_to_train_models(self, job: JobRow, on: MeasuredOn, device: DeviceInfo) -> None:
        if job.strategy not in wiring.LEARNS:
            return
        try:
            train_models(self._store.records, job, on, device, limit=self._settings.history_records)
        except Exception:  # the job has succeeded, and a model that could not be trained does not change that
            log.exception("no model was trained")

    def _remeasure(self, prepared: PreparedTask, rows: Sequence[TrialRow]) -> float:
        """Time the fastest trials again, interleaved, and store their samples and ranks; return the seconds it took. A
        task that was interrupted here repeats its re-measurement. Trials that an earlier attempt took with another
        toolchain or profile have no part in it: their times cannot be compared."""
        began, on = time.monotonic(), prepared.on
        here = (on.device.key, on.toolchain.key, str(on.profile))
        comparable = [row.record for row in rows if _measured_on(row.record.identity) == here]
        changed = wiring.remeasure(prepared.workload, prepared.executor, [record.trial for record in comparable])
        if changed:
            claim = prepared.claim
            outcomes = {comparable[position].sequence: outcome for position, outcome in changed.items()}
            self._store.records.add_remeasurement(claim.job_id, claim.task, outcomes, lease=claim.lease)
            self._on_commit()
            self._keep_best(prepared)
        return time.monotonic() - began

    def _record(
        self, prepared: PreparedTask, steps: Generator[Finished, None, StopReason], elapsed_seconds: float
    ) -> StopReason:
        """Record each trial before the next one begins."""
        claim = prepared.claim
        started = time.monotonic() - elapsed_seconds
        timed = [row.record.trial.outcome for row in prepared.done if isinstance(row.record.trial.outcome, Timed)]
        best = min((outcome.rank_seconds for outcome in timed), default=math.inf)
        with closing(steps):
            while True:
                try:
                    step = next(steps)
                except StopIteration as stop:
                    reason: StopReason = stop.value
                    return reason
                unit = step.trial.unit or self._unit.uuid
                new = NewTrial(
                    claim.job_id,
                    claim.task,
                    step.sequence,
                    prepared.task.workload_key,
                    prepared.on,
                    step.trial,
                    time.monotonic() - started,
                    unit=unit,
                    host=self._host_of(unit),
                    prediction=step.prediction,
                )
                recorded = self._add_trial(claim, new)
                if recorded is not None:
                    self._keeper.learn(recorded.wanted)
                    best = self._kept_if_best(prepared, recorded.record_id, step.trial, best)
                span_of_trial(claim.job_id, claim.task, step.sequence, step.trial)
                self._on_trial(step.trial)
                self._on_commit()

    def _kept_if_best(self, prepared: PreparedTask, record_id: int, trial: Trial, best: float) -> float:
        """Keep the binary of a trial that is faster than those before; return the best seconds by now."""
        if not isinstance(trial.outcome, Timed) or trial.outcome.rank_seconds >= best:
            return best
        self._keep(prepared, record_id, trial)
        return trial.outcome.rank_seconds

    def _keep_best(self, prepared: PreparedTask) -> None:
        """Keep the binary of the trial that a re-measurement found to be the best."""
        claim = prepared.claim
        for row in self._store.records.trials_by_seconds(claim.job_id, claim.task, limit=1):
            self._keep(prepared, row.record.id, row.record.trial)

    def _keep(self, prepared: PreparedTask, record_id: int, trial: Trial) -> None:
        binary = prepared.executor.binary(trial.schedule)
        if binary is not None:
            try:
                self._artefacts.keep(record_id, binary, trial.evidence.binary_key)
            except StoreError:  # the record is what counts, and can be built anew
                log.warning("a binary was not kept", record=record_id)

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
            shared=self._settings.share_records,
        )
        if adopted:
            self._on_commit()

    def _history(
        self, job: JobRow, task: int, workload: Workload, on: MeasuredOn, device: DeviceInfo, until: int
    ) -> tuple[Experience, ...]:
        """Return what the strategy learns from: records of relatives that are older than the task, the same ones each
        time it is resumed."""
        if job.strategy not in wiring.LEARNS:
            return ()
        records = self._store.records
        groups = related_groups(
            records,
            Situation(workload, device, on.toolchain.key, str(on.profile)),
            operator=job.tasks[task].operator,
            until=until,
            but=(job.id, task),
            limit=min(RELATED_RECORDS, self._settings.history_records),
        )
        return experiences(records, records.history(groups, until=until))

    def _workload(self, task: TaskRow) -> Workload:
        data = self._store.records.workload(task.workload_key)
        assert data is not None  # a foreign key guarantees it
        workload = workload_from_json(data)
        check_code(workload, self._settings, "workload")  # it may have been stored while this was accepted
        return workload

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
        self._started = self._thread.submit(copy_context().run, prepare)

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


def _measured_on(identity: Identity) -> tuple[str, str, str]:
    return identity.device_key, identity.toolchain_key, identity.profile


def task_seed(seed: int, position: int) -> int:
    """Return the seed of one task of a job."""
    return int(stream(seed, "task", position).integers(1 << 31))
