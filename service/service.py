"""The service: every use case of Tilewright is one method, for the API, the command line and programs alike."""

import functools
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

import structlog

from ..core.errors import Conflict, InvalidParameter, NotFound, StoreError, UnsupportedTarget
from ..core.keys import JSON
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.target import DeviceInfo
from ..db.rows import ArtefactRow
from ..db.store import RecordStore
from ..te.json import workload_from_json
from ..te.key import workload_key
from ..te.workload import Workload
from ..workers import sandbox
from . import convert, logs, pagination, targets, wiring
from .analysis import Analysis
from .artefacts import Artefacts
from .callers import present_caller
from .compilations import Compilations
from .dashboard import Dashboard
from .expected_loss import LossEstimates
from .explain import CompilationInput, compilation_input, explain, export
from .families import Families
from .fleet import Fleet
from .health import check_health
from .identity import LocalIdentity
from .lookup import CONDITIONS, Answer, Conditions, Lookups, Miss
from .metrics import Metrics
from .near_shapes import Origin
from .nearest import miss_error
from .notifier import CommitNotifier
from .pagination import valid_key, valid_number
from .reaper import LeaseReaper
from .relatives import RelativesView, relatives
from .releases import Releases
from .retention import RetentionThread
from .retunes import Retunes
from .settings import Settings
from .submit import check_annotations, checked, checked_key, continued, new_id
from .task_worker_pool import LOOKS_FOR_A_LEASE, TaskWorkerPool
from .tracing import span_of_job
from .tuned_models import TunedModels
from .users import Users
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
from .workload_cost import check_code

log = structlog.get_logger()

FENCE_SECONDS = 0.7
"""After so long a worker that has not stopped its cancelled task is fenced off."""
MAX_EVENTS = 1000
"""How many events are answered at once."""


class Service:
    """Has a method for each use case. It is thread-safe and synchronous. Every method raises StoreError when the
    database cannot serve."""

    def __init__(self, settings: Settings, store: RecordStore) -> None:
        """Callers use ``open``."""
        self.settings = settings
        self.instance = store.instance or secrets.token_hex(8)
        """A random name of this run of the service."""
        self.metrics_registry = Metrics()
        self._store = store
        sketches = wiring.sketch_versions()
        self._lookups = Lookups(store, sketches, LossEstimates(store, sketches).expected_loss)
        self.artefacts = Artefacts(store.artefacts, settings.artefact_bytes)
        """The binaries of the fastest records."""
        self.releases = Releases(store.releases, store.artefacts, sketches, settings, store.folder)
        """The use cases of releases and channels."""
        self._task_workers: TaskWorkerPool | None = None
        self._notifier = CommitNotifier(store, self._look_for_tasks)
        self.fleet = Fleet(store.fleet, self._changed)
        """The use cases of units, the queue and tenants."""
        self.models = TunedModels(store, self.conditions, self._lookups.find, self.submit)
        """The use cases of models that users run."""
        self.retunes = Retunes(store, self.submit)
        """The use case of measuring again what was the best before a change."""
        self.users = Users(store.keys)
        """The use cases of keys, sessions and the audit log."""
        self.families = Families(store, self.conditions)
        """The use cases of shape families."""
        self.analysis = Analysis(store, self.checked, self._known_devices, self._known_best)
        """The use cases that look at many jobs at once."""
        self.dashboard = Dashboard(store, self.fleet, self.jobs)
        """The figures of the dashboard."""
        self.compilations = Compilations(wiring.open_compilations(settings))
        """What is compiled for people."""
        if settings.run_jobs:
            self._task_workers = TaskWorkerPool(
                settings.model_copy(
                    update={"token": None, "release_key": None, "release_key_file": "", "oidc_client_secret": None}
                ),  # workers speak to the database, never to the API
                store,
                poll_seconds=self._notifier.poll_seconds,
                on_commit=self._notifier.notify,
                on_trial=self.metrics_registry.trial,
            )
        self._retention = RetentionThread(settings, store)
        self._reaper: LeaseReaper | None = None
        if not settings.run_jobs and not store.embedded:
            self._reaper = LeaseReaper(store.fleet, settings.lease_seconds / LOOKS_FOR_A_LEASE, self._notifier.notify)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Open the database and migrate an embedded one. With ``settings.run_jobs``, start task workers
        where there are tasks to search.

        Raises DatabaseInUse, StoreError, and InvalidParameter for a bad database URL.
        """
        if not structlog.is_configured():
            logs.configure(settings)
        return cls(settings, RecordStore(settings.database_url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop after the trial that is running and close the database. Unfinished jobs are resumed when it is opened
        again."""
        self.interrupt()
        self.compilations.pool.close()
        if self._task_workers is not None:
            self._task_workers.close()
        if self._reaper is not None:
            self._reaper.close()
        self._retention.close()
        self._notifier.stop()
        self._store.close()

    def interrupt(self) -> None:
        """Let nobody wait any longer: calls of ``events`` answer with what there is."""
        self._notifier.close()

    def announce(self, url: str, *, lasting: bool) -> None:
        """Say beside an embedded database that this service answers on ``url``, for ``announced_service``. ``lasting``
        says that it does so until somebody stops it."""
        self._store.announce(url, lasting=lasting)

    # jobs

    def submit(self, spec: JobSpec, *, idempotency_key: str | None = None) -> tuple[JobView, bool]:
        """Store a job to be run; return (job, whether it is new). A key that was used before for the same body gives
        the earlier job; so does the job of a model for a target for which one is under way.

        Raises InvalidParameter, InvalidWorkload, UnsupportedTarget for what cannot be run, and Conflict for a key that
        was used before with another body.
        """
        began = time.monotonic()
        spec = self.checked(spec)
        if self.settings.run_jobs and self._store.embedded:  # otherwise hosts of the fleet may have such a device
            targets.check_present(spec.target)
        shared, owner = self.settings.share_records, present_caller().name
        now, sketches = self._store.fleet.now(), wiring.sketch_versions()
        new = convert.new_job(new_id(), spec, sketches, now, owner, shared=shared)
        if spec.model_key is not None:
            row, created = self._store.create_model_job(new)
        else:
            key = None if idempotency_key is None else checked_key(idempotency_key)
            row, created = self._store.create_job(new, key=key, body_sha256=convert.body_sha256(spec))
        if created:
            log.info("job submitted", job=row.id, tasks=len(row.tasks))
            told: dict[str, str | float] = {"tilewright.tasks": len(row.tasks), "tilewright.target": row.target}
            span_of_job("submit", row.id, time.monotonic() - began, told)
        self._changed()
        return self.fleet.shown([row])[0], created

    def checked(self, spec: JobSpec) -> JobSpec:
        """Return ``spec`` with its defaults filled in. Raises InvalidParameter, InvalidWorkload or UnsupportedTarget
        where ``submit`` would."""
        return checked(spec, self._known_devices, self.settings, one_host=self._store.embedded)

    def _known_devices(self) -> Iterator[DeviceInfo]:
        yield from self._store.devices()
        yield from wiring.present_devices()

    def job(self, job_id: str) -> JobView:
        """Return a job with its tasks. Raises NotFound."""
        return self.fleet.shown([self._store.job(valid_key(job_id, "job_id"))])[0]

    def jobs(
        self,
        *,
        page_size: int = 50,
        token: str = "",
        state: JobState | None = None,
        owner: str | None = None,
        tag: str | None = None,
    ) -> Page[JobView]:
        """Return jobs, newest first, with this state, owner and tag where they are given, and the first three tasks of
        each. Raises InvalidParameter for a bad page size or token."""
        wanted = {"state": None if state is None else state.value, "owner": owner, "tag": tag}
        return pagination.page_of_jobs(self._store, self.fleet.shown, page_size, token, wanted)

    def annotate(self, job_id: str, tags: Sequence[str], notes: str) -> JobView:
        """Replace the tags and notes of a job in any state. Raises NotFound, InvalidParameter."""
        check_annotations(tags, notes)
        return self.fleet.shown([self._store.annotate_job(valid_key(job_id, "job_id"), tags, notes)])[0]

    def cancel(self, job_id: str) -> JobView:
        """Stop a job. Workers on its tasks stop at once; one that does not answer within a second is fenced off:
        it can write nothing more. Asking twice is allowed.

        Raises NotFound, and Conflict for a job that succeeded or failed.
        """
        row = self._store.fleet.cancel_job(valid_key(job_id, "job_id"))
        if row.state == JobState.CANCELLING:
            timer = threading.Timer(FENCE_SECONDS, self._fence, [job_id])
            timer.daemon = True
            timer.start()
        self._changed()
        return self.fleet.shown([row])[0]

    def tune_further(self, job_id: str) -> JobView:
        """Submit a job again with twice the trials; the new one adopts what was measured for it. Raises NotFound, and
        what ``submit`` raises."""
        return self.submit(continued(self.job(job_id), self.workload_of))[0]

    def _fence(self, job_id: str) -> None:
        """Commit the cancellation of a job whose workers have not answered."""
        with suppress(StoreError, Conflict):  # the leases will run out; it has just ended
            if self._store.job(job_id).state == JobState.CANCELLING:
                self._store.fleet.fence_job(job_id)
                self._changed()

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
        """Return trials of a task. Raises NotFound, and InvalidParameter for a bad page size or token."""
        return pagination.page_of_trials(self._store, valid_key(job_id, "job_id"), task, page_size, token, order)

    def trial(self, record_id: int) -> TrialView:
        """Return one recorded trial. Raises NotFound."""
        return convert.trial_view(self._store.trial(valid_number(record_id, "record_id")))

    def relatives(self, record_id: int) -> RelativesView:
        """Return what a record can be compared with, and who else has its schedule. Raises NotFound."""
        trial = self.trial(record_id)
        own = self.job(trial.job_id).tasks[trial.task]
        return relatives(self._store, record_id, own)

    def series(self, job_id: str, *, task: int = 0, after: int = -1, limit: int = 20_000) -> SeriesView:
        """Return the trials of a task with ``sequence > after`` as columns. Raises NotFound, InvalidParameter."""
        if not 1 <= limit <= 1_000_000:
            raise InvalidParameter(f"limit {limit}; allowed: 1 to 1000000", field="limit")
        points = self._store.points(
            valid_key(job_id, "job_id"),
            valid_number(task, "task"),
            after=valid_number(after, "after", low=-1),
            limit=limit,
        )
        return convert.series_view(job_id, task, points)

    def failures(self, job_id: str, *, task: int = 0) -> tuple[FailureView, ...]:
        """Return the kinds of failure of a task, most frequent first. Raises NotFound."""
        rows = self._store.failures(valid_key(job_id, "job_id"), valid_number(task, "task"))
        return tuple(convert.failure_view(row) for row in rows)

    def events(self, job_id: str, *, after: int = 0, timeout_seconds: float = 0.0) -> tuple[EventView, ...]:
        """Return what happened to a job beyond event ``after``, in order, at most 1,000 events at once. Wait for the
        first of them; return none when the time is over. Raises NotFound."""
        beyond = valid_number(after, "after")
        query = functools.partial(self._store.events, valid_key(job_id, "job_id"), after=beyond, limit=MAX_EVENTS)
        return tuple(convert.event_view(row) for row in self._notifier.wait_for(query, timeout_seconds))

    def has_ended(self, job_id: str) -> bool:
        """Return whether a job is in a final state. Raises NotFound."""
        return JobState(self._store.state_of_job(valid_key(job_id, "job_id"))).is_final

    # results

    def conditions(
        self,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        target: str | None = None,
        relax: Iterable[str] = (),
    ) -> Conditions:
        """Return the conditions of a look-up. ``target`` says which device of this machine supplies the parts that are
        left out; the default is its processor. ``relax`` names what may give way (``service.lookup``).

        Raises InvalidParameter and UnsupportedTarget.
        """
        if None not in (device_key, toolchain_key, profile):
            local = LocalIdentity(code=targets.named_code(target))
        elif target is not None:
            local = LocalIdentity.of(self._compiled_for(target))
        else:
            local = self._local_identity
            if device_key not in (None, local.device_key):
                local = replace(local, code=None)
        return Conditions.of(local, device_key, toolchain_key, profile, relax)

    def _known_best(self, workload_key: str) -> BestView | None:
        (found,) = self._lookups.find([workload_key], self.conditions(relax=CONDITIONS))
        return None if isinstance(found, Miss) else convert.answer_view(found)

    def look_up(
        self, workload_keys: Sequence[str], wanted: Conditions, origin: Origin | None = None
    ) -> list[Answer | Miss]:
        """Return the best record of each workload, or why there is none, in order. ``origin`` is that of the only
        workload, where it is known."""
        found = self._lookups.find(workload_keys, wanted, origin)
        self.metrics_registry.looked_up(found)
        return found

    @property
    def knows_itself(self) -> bool:
        """Whether it is known what this machine is, so that ``conditions`` without a target need not find out."""
        return "_local_identity" in self.__dict__

    @property
    def embedded(self) -> bool:
        """Whether this process alone has the database open, so that a look-up waits for nobody."""
        return self._store.embedded

    def best(
        self,
        workload_key: str,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        target: str | None = None,
        relax: Iterable[str] = (),
        operator: str | None = None,
        parameters: Mapping[str, object] | None = None,
    ) -> BestView:
        """Return the fastest record of a workload under ``conditions``. Raises NotFound that names the nearest
        workloads known. ``operator`` and ``parameters`` help where the workload was never seen."""
        given = {"device_key": device_key, "toolchain_key": toolchain_key, "profile": profile}
        parts = {name: None if value is None else valid_key(value, name) for name, value in given.items()}
        wanted = self.conditions(**parts, target=target, relax=relax)
        origin = None if operator is None else Origin(operator, parameters or {})
        (found,) = self.look_up([valid_key(workload_key, "workload_key")], wanted, origin)
        if isinstance(found, Miss):
            raise miss_error(self._store, workload_key, found, operator, parameters)
        return convert.answer_view(found)

    def explain(
        self,
        workload: Workload | None = None,
        schedule: Schedule | None = None,
        *,
        record_id: int | None = None,
        target: str | None = None,
    ) -> Explanation:
        """Return every layer of the lowering pipeline for a schedule: that of the record, the one given, the best known
        for the workload, or the first of its space.

        Code is made for ``target`` (see ``service.targets``). The default is this machine's processor, or for a record
        of another kind of device that device. Raises NotFound, IllegalSchedule, CompileError, UnsupportedTarget.
        """
        given = self._compilation_input(workload, schedule, record_id, target)
        return explain(self._store, self.compilations, given)

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
        """Return a schedule as files, with a shared library if ``library``: that of the record, the one given, or the
        best known. ``name`` is what its functions for other programs are called. Raises what ``explain`` raises,
        NotFound where no schedule was measured, and InvalidParameter."""
        given = self._compilation_input(workload, schedule, record_id, target, measured=True)
        return export(self.compilations, self.artefacts, given, name, library)

    def binary(self, record_id: int) -> ArtefactRow:
        """Return the very binary that a record measured. Raises NotFound where it is not kept."""
        row = self._store.trial(valid_number(record_id, "record_id"))
        return self.artefacts.measured_by(record_id, row.record.trial.evidence.binary_key)

    def _compilation_input(
        self,
        workload: Workload | None,
        schedule: Schedule | None,
        record_id: int | None,
        target: str | None,
        *,
        measured: bool = False,
    ) -> CompilationInput:
        first = self.compilations.first_schedule
        if record_id is not None:
            row = self._store.trial(valid_number(record_id, "record_id"))
            identity = row.record.identity
            chosen = self._like(identity.device_key) if target is None else self._compiled_for(target)
            return compilation_input(self.workload_of(identity.workload_key), chosen, record=row, first=first)
        if workload is None:
            raise InvalidParameter("give a workload or a record", field="workload")
        chosen, best = self._compiled_for(target), None
        if schedule is None and chosen is not None:
            wanted = Conditions.of(LocalIdentity.of(chosen), relax=CONDITIONS)
            (found,) = self._lookups.find([workload_key(workload)], wanted)
            best = convert.answer_view(found) if isinstance(found, Answer) else None
        return compilation_input(workload, chosen, schedule=schedule, best=best, measured=measured, first=first)

    def workload_of(self, workload_key: str) -> Workload:
        """Return a workload that the database knows. Raises NotFound."""
        data = self._store.workload(valid_key(workload_key, "workload_key"))
        if data is None:
            raise NotFound(f"no workload {workload_key[:80]!r} is known", field="workload_key")
        return workload_from_json(data)

    # operators, devices and records

    def operators(self) -> tuple[OperatorView, ...]:
        """Return the operator library."""
        return tuple(OperatorView(o.name, o.summary, o.schema()) for o in wiring.operators().values())

    def check_code(self, workload: Workload) -> None:
        """Raise CodeNotAccepted for a workload that is code, where this service takes none."""
        check_code(workload, self.settings, "/")

    def operator_workload(self, name: str, parameters: Mapping[str, JSON]) -> TaskSpec:
        """Return the task of an operator with these parameters. Raises InvalidParameter that names the wrong one."""
        return TaskSpec(wiring.operator_named(name).workload(parameters), name, dict(parameters))

    def devices(self) -> tuple[DeviceView, ...]:
        """Return the devices attached to this machine, then others that records came from."""
        known = {info.key: info for info in self._store.devices(imported=True)}
        present = {info.key: known.get(info.key, info) for info in wiring.present_devices()}
        others = {key: info for key, info in known.items() if key not in present}
        return tuple(DeviceView(info, key, key in present) for key, info in {**present, **others}.items())

    def export_records(self) -> Iterator[str]:
        """Yield every record, with all it refers to, as JSON lines (see ``db.json_lines``)."""
        return self._store.export_lines()

    def import_records(self, lines: Iterable[str]) -> tuple[int, int]:
        """Add the records of such lines; return how many were (added, there already). Raises InvalidParameter that
        names the line, and then nothing was added."""
        counts = self._store.import_lines(lines)
        self._notifier.notify()
        return counts

    # the service itself

    def health(self) -> HealthView:
        """Return whether jobs can be stored and run, and what is wrong. Never raises."""
        return check_health(self.settings, self._store, self._alive, self._warnings)

    def metrics(self) -> str:
        """Return counters and gauges in Prometheus's text form."""
        jobs, figures, units = self._store.count_by_state(), self.fleet.figures(), self.fleet.units()
        workers = (0, 0) if self._task_workers is None else (self._task_workers.starts, self._task_workers.deaths)
        connections = self._store.database.connections()
        return self.metrics_registry.text(
            jobs, figures, units, thread_alive=self._alive(), connections=connections, workers=workers
        )

    def _warnings(self) -> tuple[str, ...]:
        workers = () if self._task_workers is None else self._task_workers.warnings
        lacks = tuple(f"this kernel has no {name}: children are restricted less" for name in sandbox.missing())
        return (*self.fleet.unserved(), *self.fleet.silent(), *workers, *lacks)

    def _alive(self) -> bool:
        """Return whether the thread that keeps task workers is alive, if tasks are to be searched here."""
        return self._task_workers is None or self._task_workers.alive

    def _changed(self) -> None:
        self._notifier.notify(tasks=True)
        self._look_for_tasks()

    def _look_for_tasks(self) -> None:
        if self._task_workers is not None:
            self._task_workers.wake()

    @functools.cached_property
    def default_device(self) -> MeasuredOn | None:
        """What a job with the default target is measured on; None where this machine has no such device."""
        try:
            return targets.measured_on(targets.DeviceSelector(targets.TARGETS[0]))
        except UnsupportedTarget:
            return None

    def _compiled_for(self, target: str | None) -> MeasuredOn | None:
        """Return the device and toolchain that code for a target is made for. Raises UnsupportedTarget."""
        return self.default_device if target is None else targets.compiled_for(target, self._store.devices())

    def _like(self, device_key: str) -> MeasuredOn | None:
        """Return what code for a device of a record is made for: this machine's device where it has the same kind."""
        device, default = self._known_device(device_key), self.default_device
        if device is None or (default is not None and default.device.target.kind == device.target.kind):
            return default
        return self._compiled_for(f"{device.target.kind}:{device.target.arch}")

    def _known_device(self, device_key: str) -> DeviceInfo | None:
        return next((info for info in self._store.devices() if info.key == device_key), None)

    @functools.cached_property
    def _local_identity(self) -> LocalIdentity:
        return LocalIdentity.of(self.default_device)
