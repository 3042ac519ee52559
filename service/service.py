"""The service: every use case of Tilewright as one method, for the API, the command line and programs alike."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

import structlog

from ..core.errors import InvalidParameter, NotFound, UnsupportedTarget
from ..core.keys import JSON
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..db.store import Store
from ..te.json import workload_from_json
from ..te.workload import Workload
from . import best as best_lookup
from . import convert, listing, logs, targets, wiring
from .changes import Changes
from .explain import Subject, explain, export, subject
from .health import check_health
from .metrics import Metrics
from .runner import Runner
from .settings import Settings
from .states import CANCEL
from .submit import checked, checked_key, new_id
from .views import (
    BestView,
    DeviceView,
    EventView,
    Explanation,
    ExportView,
    FailureView,
    HealthView,
    JobSpec,
    JobState,
    JobView,
    OperatorView,
    Page,
    SeriesView,
    TaskSpec,
    TrialOrder,
    TrialView,
)

POLL_SECONDS = 0.3
"""How often to look for what other processes wrote, where there can be any."""
LARGEST_EVENTS = 1000
"""Events answered at once."""


class Service:
    """Thread-safe and synchronous. Every method raises StoreError when the database cannot serve."""

    def __init__(self, settings: Settings, store: Store) -> None:
        """Use ``open``."""
        self.settings = settings
        self.metrics_registry = Metrics()
        self._store = store
        poll_seconds = None if store.embedded else POLL_SECONDS
        self._changes = Changes(poll_seconds)
        self._runner: Runner | None = None
        if settings.run_jobs:
            self._runner = Runner(
                settings,
                store,
                poll_seconds=poll_seconds,
                told=self._changes.tell,
                counted=self.metrics_registry.trial,
            )

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Open the database (migrating an embedded one), go on with unfinished jobs, start the job thread.

        Raises StoreError, and InvalidParameter for a database URL that is none.
        """
        if not structlog.is_configured():
            logs.configure(settings)
        return cls(settings, Store(settings.database_url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop after the trial in hand and close the database; unfinished jobs go on when it is opened again."""
        self.interrupt()
        if self._runner is not None:
            self._runner.close()
        self._store.close()

    def interrupt(self) -> None:
        """Let nobody wait any longer: calls of ``events`` answer with what there is."""
        self._changes.close()

    # jobs

    def submit(self, spec: JobSpec, *, idempotency_key: str | None = None) -> tuple[JobView, bool]:
        """Keep a job to be run; (job, whether it is new). A key used before for the same body gives the earlier job.

        Raises InvalidParameter, InvalidWorkload, UnsupportedTarget for what cannot be run, and Conflict for a key
        used before with another body.
        """
        spec = checked(spec)
        if self.settings.run_jobs:  # else it runs where another process is, which has its own devices
            targets.measured_on(targets.place_named(spec.target))
        new = convert.new_job(new_id(), spec)
        key = None if idempotency_key is None else checked_key(idempotency_key)
        row, created = self._store.create_job(new, key=key, body_sha256=convert.body_sha256(spec))
        self._changed()
        return convert.job_view(row), created

    def job(self, job_id: str) -> JobView:
        """Raises NotFound."""
        return convert.job_view(self._store.job(listing.key(job_id, "job_id")))

    def jobs(self, *, page_size: int = 50, token: str = "", state: JobState | None = None) -> Page[JobView]:
        """Jobs, newest first. Raises InvalidParameter for a bad page size or token."""
        return listing.jobs(self._store, page_size, token, state)

    def cancel(self, job_id: str) -> JobView:
        """Ask for a job to stop; a running one does so after the candidate in hand. Asking twice is fine.

        Raises NotFound, and Conflict for a job that succeeded or failed.
        """
        row = self._store.move_job(listing.key(job_id, "job_id"), CANCEL)
        self._changed()
        return convert.job_view(row)

    # trials

    def trials(
        self,
        job_id: str,
        *,
        task: int = 0,
        page_size: int = 100,
        token: str = "",
        order: TrialOrder = TrialOrder.OLDEST,
    ) -> Page[TrialView]:
        """The trials of a task. Raises NotFound, InvalidParameter for a bad page size or token."""
        return listing.trials(self._store, listing.key(job_id, "job_id"), task, page_size, token, order)

    def trial(self, record_id: int) -> TrialView:
        """Raises NotFound."""
        return convert.trial_view(self._store.trial(listing.number(record_id, "record_id")))

    def series(self, job_id: str, *, task: int = 0, after: int = -1, limit: int = 20_000) -> SeriesView:
        """The trials of a task with ``sequence > after`` as columns. Raises NotFound, InvalidParameter."""
        if not 1 <= limit <= 1_000_000:
            raise InvalidParameter(f"limit {limit}; allowed: 1 to 1000000", field="limit")
        points = self._store.points(
            listing.key(job_id, "job_id"),
            listing.number(task, "task"),
            after=listing.number(after, "after", low=-1),
            limit=limit,
        )
        return convert.series_view(job_id, task, points)

    def failures(self, job_id: str, *, task: int = 0) -> tuple[FailureView, ...]:
        """The kinds of failure of a task, most frequent first. Raises NotFound."""
        rows = self._store.failures(listing.key(job_id, "job_id"), listing.number(task, "task"))
        return tuple(convert.failure_view(row) for row in rows)

    def events(self, job_id: str, *, after: int = 0, timeout_seconds: float = 0.0) -> tuple[EventView, ...]:
        """What happened to a job beyond event ``after``, in order, at most 1,000 at once; waits for the first of
        them, and is empty when the time is over. Raises NotFound."""
        beyond = listing.number(after, "after")
        look = functools.partial(self._store.events, listing.key(job_id, "job_id"), after=beyond, limit=LARGEST_EVENTS)
        return tuple(convert.event_view(row) for row in self._changes.wait_for(look, timeout_seconds))

    # results

    def best(
        self,
        workload_key: str,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        operator: str | None = None,
        parameters: Mapping[str, object] | None = None,
        target: str | None = None,
    ) -> BestView:
        """The fastest record of a workload: see ``service.best`` for what matches; ``target``: which device stands for
        this machine, by default its processor. Raises NotFound naming the nearest workloads known; ``operator`` and
        ``parameters`` help where the workload was never seen."""
        wanted = best_lookup.Wanted(
            listing.key(workload_key, "workload_key"),
            None if device_key is None else listing.key(device_key, "device_key"),
            None if toolchain_key is None else listing.key(toolchain_key, "toolchain_key"),
            None if profile is None else listing.key(profile, "profile"),
        )
        try:
            here = self._identity if target is None else best_lookup.Here.of(self._at(target))
            found = best_lookup.find(self._store, wanted, here)
        except NotFound:
            self.metrics_registry.lookup("miss")
            raise best_lookup.miss(self._store, wanted, operator, parameters) from None
        self.metrics_registry.lookup("exact" if found.match == ("exact",) else "relaxed")
        return found

    def explain(
        self,
        workload: Workload | None = None,
        schedule: Schedule | None = None,
        *,
        record_id: int | None = None,
        target: str | None = None,
    ) -> Explanation:
        """Every layer of a schedule's road: of a record's, of the one given, of the best known for the workload, or
        else of the first of its space. Code is made for ``target`` (see ``service.targets``), by default for this
        machine's processor, and for a record of another kind of device for that one. Raises NotFound,
        IllegalSchedule, CompileError, UnsupportedTarget."""
        return explain(self._store, self._subject(workload, schedule, record_id, target))

    def export(
        self,
        workload: Workload | None = None,
        schedule: Schedule | None = None,
        *,
        record_id: int | None = None,
        target: str | None = None,
        name: str = "kernel",
        library: bool = False,
    ) -> ExportView:
        """The schedule that ``explain`` would show, as files; with a shared library if asked for. ``name``: what its
        functions for other programs are called. Raises like ``explain``, and InvalidParameter."""
        return export(self._subject(workload, schedule, record_id, target), name, library)

    def _subject(
        self, workload: Workload | None, schedule: Schedule | None, record_id: int | None, target: str | None
    ) -> Subject:
        if record_id is not None:
            row = self._store.trial(listing.number(record_id, "record_id"))
            at_hand = self._kind_of(row.record.identity.device_key) if target is None else self._at(target)
            return subject(self._store, self.workload_of(row.record.identity.workload_key), at_hand, record=row)
        if workload is None:
            raise InvalidParameter("give a workload or a record", field="workload")
        return subject(self._store, workload, self._at(target), schedule=schedule)

    def workload_of(self, workload_key: str) -> Workload:
        """Raises NotFound."""
        data = self._store.workload(listing.key(workload_key, "workload_key"))
        if data is None:
            raise NotFound(f"no workload {workload_key[:80]!r} is known", field="workload_key")
        return workload_from_json(data)

    # what there is

    def operators(self) -> tuple[OperatorView, ...]:
        """The operator library."""
        return tuple(OperatorView(o.name, o.summary, o.schema()) for o in wiring.operators().values())

    def operator_workload(self, name: str, parameters: Mapping[str, JSON]) -> TaskSpec:
        """The task of an operator with these parameters. Raises InvalidParameter naming the one that is wrong."""
        return TaskSpec(wiring.operator_named(name).workload(parameters), name, dict(parameters))

    def devices(self) -> tuple[DeviceView, ...]:
        """Devices attached to this machine, then others that records came from."""
        known = {info.key: info for info in self._store.devices()}
        present = {info.key: known.get(info.key, info) for info in wiring.present_devices()}
        others = {key: info for key, info in known.items() if key not in present}
        return tuple(DeviceView(info, key, key in present) for key, info in {**present, **others}.items())

    def export_records(self) -> Iterator[str]:
        """Every record, with all it refers to, as lines of JSON (see ``db.lines``)."""
        return self._store.export_lines()

    def import_records(self, lines: Iterable[str]) -> tuple[int, int]:
        """Add the records of such lines; (added, already there). Raises InvalidParameter naming the line, and then
        nothing was added."""
        counts = self._store.import_lines(lines)
        self._changes.tell()
        return counts

    # the service itself

    def health(self) -> HealthView:
        """Whether jobs can run and be kept, and what is wrong. Never raises."""
        return check_health(self.settings, self._store, self._alive)

    def metrics(self) -> str:
        """Counters and gauges in Prometheus's text form."""
        return self.metrics_registry.text(self._store.count_by_state(), thread_alive=self._alive())

    def _alive(self) -> bool:
        """Whether jobs run, if they are to run in this process."""
        return self._runner is None or self._runner.alive

    def _changed(self) -> None:
        self._changes.tell()
        if self._runner is not None:
            self._runner.wake()

    @functools.cached_property
    def here(self) -> MeasuredOn | None:
        """What a job submitted with the defaults is measured on; None where this machine has no such device."""
        try:
            return targets.measured_on(targets.Place(targets.TARGETS[0]))
        except UnsupportedTarget:
            return None

    def _at(self, target: str | None) -> MeasuredOn | None:
        """What code for a target is made for. Raises UnsupportedTarget."""
        return self.here if target is None else targets.made_for(target, self._store.devices())

    def _kind_of(self, device_key: str) -> MeasuredOn | None:
        """What code for the kind of a device is made for: for this machine's where it is of that kind."""
        device = next((info for info in self._store.devices() if info.key == device_key), None)
        if device is None or (self.here is not None and self.here.device.target.kind == device.target.kind):
            return self.here
        return self._at(f"{device.target.kind}:{device.target.arch}")

    @functools.cached_property
    def _identity(self) -> best_lookup.Here:
        return best_lookup.Here.of(self.here)
