"""The use cases of the fleet: units, the queue, attempts, tenants, and changes to jobs that wait or run."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ..core.errors import InvalidParameter, StoreError
from ..core.fleet import TaskState, UnitState
from ..db.fleet_store import FleetStore
from ..db.rows import AttemptRow, FleetFigures, JobRow, QueueRow, TenantRow, UnitRow
from ..db.visibility import job_tenant
from .convert import job_view, moment
from .fleet_views import AttemptView, QueueView, TaskName, TenantView, UnitView
from .pagination import valid_key, valid_number
from .submit import checked_tenant
from .views import JobView, TaskView
from .waiting import expected_starts, waits_for, why_no_unit

MAX_QUEUE = 1000
"""How much of the queue is answered at most."""
PLACES = 500
"""Jobs whose tasks are so far behind in the queue do not say where they stand."""
MAX_REASON = 400
SILENT_SECONDS = 1800.0
"""A task that runs and has recorded no trial for so long is warned of. Its set-up may take minutes."""
BY_HAND = "by an administrator: "
"""So begins why a unit was quarantined by hand."""


class Fleet:
    """``changed`` is called after each change, so that workers look for tasks. Every method raises StoreError when the
    database cannot serve."""

    def __init__(self, store: FleetStore, changed: Callable[[], None]) -> None:
        self._store = store
        self._changed = changed

    # units

    def units(self) -> tuple[UnitView, ...]:
        """Return every unit of the fleet with its state, who holds it and what it does."""
        rows, now = self._store.units(), self._store.now()
        queue = self._store.queue(limit=2 * len(rows) + 2)
        running = [row for row in queue if row.state is TaskState.LEASED and _is_seen(row.tenant)]
        return tuple(_unit_view(row, running, now) for row in rows)

    def drain(self, uuid: str, reason: str) -> UnitView:
        """Take a unit out: its task is given back after the trial in hand, and no other begins. Raises NotFound,
        InvalidParameter."""
        return self._set_state(uuid, UnitState.DRAINING, reason)

    def release(self, uuid: str, reason: str) -> UnitView:
        """Let a unit take tasks again, whatever its state was. Raises NotFound, InvalidParameter."""
        return self._set_state(uuid, UnitState.READY, reason)

    def quarantine(self, uuid: str, reason: str) -> UnitView:
        """Use a unit no more until it is released: probes do not release what an administrator quarantined. Raises
        NotFound, InvalidParameter."""
        return self._set_state(uuid, UnitState.QUARANTINED, reason, BY_HAND)

    def _set_state(self, uuid: str, state: UnitState, reason: str, prefix: str = "") -> UnitView:
        if not 1 <= len(reason.strip()) <= MAX_REASON or "\x00" in reason:
            raise InvalidParameter(f"a reason of 1 to {MAX_REASON} characters is needed", field="reason")
        self._store.set_unit_state(valid_key(uuid, "uuid"), state, prefix + reason.strip())
        self._changed()
        return next(unit for unit in self.units() if unit.uuid == uuid)

    # the queue

    def queue(self, *, limit: int = 200) -> tuple[QueueView, ...]:
        """Return the tasks that run, those that are ready in the order in which they are to be claimed, and those that
        are blocked; at most ``limit`` in all. Raises InvalidParameter."""
        if not 1 <= limit <= MAX_QUEUE:
            raise InvalidParameter(f"limit {limit}; allowed: 1 to {MAX_QUEUE}", field="limit")
        most = limit if job_tenant() is None else MAX_QUEUE
        rows, units, now = self._store.queue(limit=most), self._store.units(), self._store.now()
        starts = expected_starts(rows, units, self._store.task_seconds(), now)
        ready = [row for row in rows if row.state is TaskState.READY]
        positions = {(row.job_id, row.task): number for number, row in enumerate(ready, 1)}
        views = (
            _queue_view(
                row,
                positions.get((row.job_id, row.task)),
                start,
                waits_for(row.state, row.target, row.executor, row.source, units, now),
            )
            for row, start in zip(rows, starts, strict=True)
            if _is_seen(row.tenant)
        )
        return tuple(itertools.islice(views, limit))

    def shown(self, rows: Sequence[JobRow]) -> tuple[JobView, ...]:
        """Return jobs as they are answered, with where their tasks stand in the queue and what they wait for."""
        waiting = {TaskState.READY, TaskState.BLOCKED}
        views = tuple(job_view(row) for row in rows)
        if waiting.isdisjoint(task.state for view in views if not view.state.is_final for task in view.tasks):
            return views
        units, now = self._store.units(), self._store.now()
        ready = [entry for entry in self._store.queue(limit=PLACES) if entry.state is TaskState.READY]
        places = {(entry.job_id, entry.task): number for number, entry in enumerate(ready, 1)}

        def placed(view: JobView, task: TaskView) -> TaskView:
            source = None if task.source_job is None or task.adopted else (task.source_job, task.source_task or 0)
            return replace(
                task,
                queue_position=places.get((view.id, task.index)),
                waits_for=waits_for(task.state, view.target, view.executor, source, units, now),
            )

        return tuple(
            view if view.state.is_final else replace(view, tasks=tuple(placed(view, task) for task in view.tasks))
            for view in views
        )

    def unserved(self) -> tuple[str, ...]:
        """Say for which targets tasks wait though no unit takes them. Says nothing when the database cannot serve."""
        with suppress(StoreError):
            waiting, units, now = self._store.waiting(), self._store.units(), self._store.now()
            whys = [(count, why_no_unit(*wanted, units, now)) for wanted, count in sorted(waiting.items())]
            return tuple(f"{count} {'task waits' if count == 1 else 'tasks wait'}: {why}" for count, why in whys if why)
        return ()

    def silent(self) -> tuple[str, ...]:
        """Say that a task runs and makes no progress. Its worker is alive: otherwise its lease would have ended."""
        with suppress(StoreError):
            seconds = self._store.silent_seconds()
            if seconds > SILENT_SECONDS:
                return (f"a task that runs has recorded no trial for {seconds / 60:.0f} minutes",)
        return ()

    def task_counts(self) -> tuple[dict[str, int], float | None]:
        """Return how many tasks there are in each state that has any, and for how long the oldest ready one waited."""
        return self._store.task_counts()

    def figures(self) -> FleetFigures:
        """Return counts for Prometheus."""
        return self._store.figures()

    def attempts(self, job_id: str, task: int) -> tuple[AttemptView, ...]:
        """Return the attempts at a task, oldest first. Raises NotFound."""
        rows = self._store.attempts(valid_key(job_id, "job_id"), valid_number(task, "task"))
        return tuple(_attempt_view(row) for row in rows)

    # jobs

    def pause(self, job_id: str) -> JobView:
        """Hold a job back: its tasks in hand are given back after the trial that runs. Raises NotFound, Conflict."""
        return self._after(self._store.pause_job(valid_key(job_id, "job_id")))

    def resume(self, job_id: str) -> JobView:
        """Let a paused job go on. Raises NotFound, Conflict."""
        return self._after(self._store.resume_job(valid_key(job_id, "job_id")))

    def retry(self, job_id: str) -> JobView:
        """Try the dead tasks of a job again. Raises NotFound, and Conflict where there are none."""
        return self._after(self._store.retry_job(valid_key(job_id, "job_id")))

    def set_priority(self, job_id: str, priority: int) -> JobView:
        """Change the priority of a job. Raises NotFound, InvalidParameter, Conflict."""
        return self._after(self._store.set_priority(valid_key(job_id, "job_id"), priority))

    def _after(self, row: JobRow) -> JobView:
        self._changed()
        return self.shown([row])[0]

    # tenants

    def tenants(self) -> tuple[TenantView, ...]:
        """Return every tenant with its weight and its quotas."""
        return tuple(_tenant_view(row) for row in self._store.tenants() if _is_seen(row.name))

    def set_tenant(
        self, name: str, *, weight: float = 1.0, most_units: int | None = None, most_queued: int | None = None
    ) -> TenantView:
        """Add a tenant or change it: its weight in the fair share, how many units its tasks may hold at once, and how
        many of its tasks may wait at once; None: no quota. Raises InvalidParameter."""
        row = self._store.set_tenant(
            checked_tenant(name, "tenant"), weight=weight, most_units=most_units, most_queued=most_queued
        )
        self._changed()
        return _tenant_view(row)


def _is_seen(tenant: str) -> bool:
    """Return whether the present request sees jobs of a tenant. The queue is read as a whole, because where a task
    stands in it depends on those of all tenants."""
    return job_tenant() in (None, tenant)


def _unit_view(row: UnitRow, running: Sequence[QueueRow], now: float) -> UnitView:
    unit = row.unit
    return UnitView(
        uuid=unit.uuid,
        state=row.state,
        reason=row.reason,
        since=moment(row.since),
        seen=row.seen_until > now,
        seen_until=moment(row.seen_until),
        host=unit.host,
        executor=unit.executor,
        ordinal=unit.ordinal,
        classes=unit.classes,
        device_key=unit.device.key,
        device_name=unit.device.name,
        health=row.health,
        anchor_seconds=row.anchor_seconds,
        probed_at=None if row.probed_at is None else moment(row.probed_at),
        owner=row.owner,
        held_until=None if row.held_until is None else moment(row.held_until),
        tasks=tuple(TaskName(task.job_id, task.task) for task in running if unit.uuid in task.units),
    )


def _queue_view(row: QueueRow, position: int | None, start: float | None, waits: str | None) -> QueueView:
    return QueueView(
        job_id=row.job_id,
        task=row.task,
        tenant=row.tenant,
        target=row.target,
        executor=row.executor,
        state=row.state,
        priority=row.priority,
        position=position,
        ready_since=moment(row.ready_since) if row.state is TaskState.READY else None,
        trials=row.trials,
        budget_trials=row.budget_trials,
        owner=row.owner,
        units=row.units,
        expected_start=None if start is None else moment(start),
        waits_for=waits,
    )


def _attempt_view(row: AttemptRow) -> AttemptView:
    return AttemptView(
        job_id=row.job_id,
        task=row.task,
        fence=row.fence,
        owner=row.owner,
        units=row.units,
        began_at=moment(row.began_at),
        ended_at=None if row.ended_at is None else moment(row.ended_at),
        how=row.how,
        detail=row.detail,
    )


def _tenant_view(row: TenantRow) -> TenantView:
    return TenantView(
        name=row.name,
        weight=row.weight,
        virtual_seconds=row.virtual_seconds,
        most_units=row.most_units,
        most_queued=row.most_queued,
        units=row.units,
        running=row.running,
        waiting=row.waiting,
    )
