"""The results database: every use is one method, and every method is one transaction."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sqlalchemy import insert, select

from ..core.errors import Conflict
from ..core.fleet import Lease
from ..core.record import MeasuredOn, Record
from ..core.retuning import EarlierTrials
from ..core.schedule import Schedule
from ..core.target import DeviceInfo
from ..core.trial import Timed
from . import families as family_rows
from . import jobs as job_rows
from . import migrate
from . import trials as trial_rows
from .admission import admit_job
from .analysis_store import AnalysisStore
from .artefact_store import ArtefactStore
from .best import find_any, find_exact
from .catalog import keep_device, load_devices, load_measured, load_workload, load_workloads, sees_workload
from .commit_listener import CommitListener
from .dashboard_store import DashboardStore
from .device_totals import count_ended
from .driver_errors import DuplicateKey
from .encode import now
from .ended_totals import JOB, count_states
from .engine import Database, embedded_path, parse_url
from .fleet_store import FleetStore
from .history import load_groups, load_records, load_tasks
from .history_rows import HistoryGroup, HistoryTask
from .json_lines import JsonLinesExporter, JsonLinesImporter
from .key_store import KeyStore
from .leases import guard_task
from .models import insert_model, newest_model
from .partitions import make_months
from .record_statement import RecordStatement
from .recording import record_remeasurement, record_trial
from .release_store import ReleaseStore
from .retention import Retention, delete_old
from .retuning import load_earlier, load_moved
from .rows import (
    AnswerRow,
    EventRow,
    FailureRow,
    FamilyRow,
    JobRow,
    ModelRow,
    ModelTimingRow,
    NearRow,
    NewJob,
    NewTrial,
    NewTunedModel,
    PointRow,
    StoredTrial,
    TransferRow,
    TrialRow,
    TunedModelRow,
)
from .tables import idempotency_keys, jobs
from .transfers import load_transfers
from .tuned_models import (
    add_timing,
    admit_model_job,
    keep_tuned_model,
    load_fastest,
    load_tuned_model,
    models_with,
    page_of_tuned_models,
)
from .visibility import record_tenant


def is_embedded(url: str) -> bool:
    """Return whether a URL names an embedded database. Raises InvalidParameter for a bad URL."""
    return embedded_path(parse_url(url)) is not None


class RecordStore:
    """Thread-safe. Every method raises StoreError when the database cannot serve, and StorageFull when it is full."""

    def __init__(self, url: str) -> None:
        """Open ``sqlite:///PATH`` (which is migrated) or ``postgresql://…`` (which must stand at our migration).

        Raises DatabaseInUse, StoreError (unreachable, unwritable, of another version), InvalidParameter for a bad URL.
        """
        self.database = Database(parse_url(url))
        self.fleet = FleetStore(self.database)
        self.releases = ReleaseStore(self.database)
        self.artefacts = ArtefactStore(self.database)
        self.analysis = AnalysisStore(self.database)
        self.dashboard = DashboardStore(self.database)
        self.keys = KeyStore(self.database)
        self._statement = None if self.database.embedded else RecordStatement(self.database)
        try:
            if self.database.embedded:
                migrate.upgrade(self.database)
            else:
                migrate.check(self.database)
        except BaseException:
            self.database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Another process may open an embedded database then."""
        if self._statement is not None:
            self._statement.close()
        self.database.close()

    @property
    def embedded(self) -> bool:
        """Whether this process is the only one that has the database open."""
        return self.database.embedded

    @property
    def folder(self) -> Path | None:
        """The folder of an embedded database; None for a server's database."""
        path = embedded_path(self.database.url)
        return None if path is None else path.absolute().parent

    @property
    def instance(self) -> str | None:
        """The random name of this opening of an embedded database; None for a server's database."""
        return None if self.database.lock is None else self.database.lock.holder.instance

    def announce(self, url: str, *, lasting: bool) -> None:
        """Say beside an embedded database under which address this process answers. ``lasting``: whether it does so
        until somebody stops it."""
        if self.database.lock is not None:
            self.database.lock.announce(url, lasting=lasting)

    def listener(self, heard: Callable[[bool], None]) -> CommitListener:
        """Begin to listen to the commits of other processes, of a server's database."""
        return CommitListener(self.database, heard)

    def delete_old(self, keep: Retention) -> dict[str, int]:
        """Delete what is older than ``keep`` says (``retention``); return how many rows of each table."""
        return delete_old(self.database, keep)

    def make_months(self) -> list[str]:
        """Make partitions for the months that come (``partitions``); return their names."""
        return make_months(self.database, datetime.now(UTC))

    def count_ended(self) -> int:
        """Add jobs that have ended to the totals of their devices (``device_totals``); return how many."""
        return count_ended(self.database)

    def ping(self) -> None:
        """Raises StoreError unless the database answers and stands at our migration."""
        migrate.check(self.database)

    # jobs

    def create_job(self, new: NewJob, *, key: str | None = None, body_sha256: str = "") -> tuple[JobRow, bool]:
        """Add a job with its first event; return (job, whether it is new).

        With an idempotency ``key`` that was used before for the same body, return the earlier job as it is now. A task
        whose ``flight_key`` a task of another job in flight has is blocked on that one.

        Raises Conflict when the body was another one, and QuotaExceeded when the tenant has too many tasks waiting.
        """
        try:
            with self.database.writing() as connection:
                if key is not None:
                    found = connection.execute(
                        select(idempotency_keys.c.body_sha256, jobs.c.id)
                        .join(jobs, jobs.c.number == idempotency_keys.c.job)
                        .where(idempotency_keys.c.key == key, idempotency_keys.c.tenant == new.tenant)
                    ).first()
                    if found is not None:
                        if found[0] != body_sha256:
                            raise Conflict(
                                f"the idempotency key {key!r} was used for another body (job {found[1]})",
                                field="Idempotency-Key",
                            )
                        return job_rows.load_job(connection, found[1]), False
                number = admit_job(connection, new)
                if key is not None:
                    row = {"tenant": new.tenant, "key": key, "body_sha256": body_sha256, "job": number}
                    connection.execute(insert(idempotency_keys).values(**row, created_at=now()))
                return job_rows.load_job(connection, new.id), True
        except DuplicateKey:
            if key is None:
                raise
        # another process used the key between our query and our insert: its job is the answer
        return self.create_job(new, key=key, body_sha256=body_sha256)

    def job(self, job_id: str) -> JobRow:
        """Return a job with its tasks. Raises NotFound."""
        with self.database.reading() as connection:
            return job_rows.load_job(connection, job_id)

    def state_of_job(self, job_id: str) -> str:
        """Return the state of a job. Raises NotFound."""
        with self.database.reading() as connection:
            return job_rows.load_state(connection, job_id)

    def device_of_job(self, job_id: str) -> str | None:
        """Return the key of the device that a job is measured on; None where that is not known yet."""
        with self.database.reading() as connection:
            return job_rows.load_device_key(connection, job_id)

    def jobs(
        self,
        *,
        before: int | None = None,
        limit: int,
        state: str | None = None,
        owner: str | None = None,
        tag: str | None = None,
    ) -> tuple[JobRow, ...]:
        """Return jobs with numbers below ``before``, newest first, with the first tasks of each
        (``db.jobs.LISTED_TASKS``)."""
        with self.database.reading() as connection:
            return job_rows.page_of_jobs(connection, before=before, limit=limit, state=state, owner=owner, tag=tag)

    def annotate_job(self, job_id: str, tags: Sequence[str], notes: str) -> JobRow:
        """Replace the tags and notes of a job; return it. Raises NotFound."""
        with self.database.writing() as connection:
            job_rows.annotate_job(connection, job_id, tags, notes)
            return job_rows.load_job(connection, job_id)

    def set_device(self, job_id: str, info: DeviceInfo, *, lease: Lease | None = None) -> None:
        """Store on which device a job is measured, and what was measured on that device. With the ``lease`` of a task
        of the job, raises LeaseLost when it is lost."""
        with self.database.writing() as connection:
            guard_task(connection, lease, job_id)
            device = keep_device(connection, info)
            row = job_rows.lock_job(connection, job_id)
            job_rows.update_job(connection, row["number"], device=device)

    def begin_task(self, job_id: str, task: int, *, lease: Lease | None = None) -> int:
        """Store which records there are before a task's first trial; return the id of the newest of them. A second
        call returns the same id. With the ``lease`` of the task, raises LeaseLost when it is lost."""
        with self.database.writing() as connection:
            guard_task(connection, lease, job_id, task)
            number = job_rows.number_of_job(connection, job_id)
            known: int | None = job_rows.load_task(connection, number, task, lock=True)["history_until"]
            if known is None:
                known = trial_rows.newest_record(connection)
                job_rows.update_task(connection, number, task, history_until=known)
            return known

    def note_task(self, job_id: str, task: int, *, lease: Lease | None = None, **facts: object) -> None:
        """Store facts about a task (columns of TaskRow), with a ``task`` event that holds them. A task with a
        ``stop_reason`` is done. With the ``lease`` of the task, raises LeaseLost when it is lost."""
        with self.database.writing() as connection:
            guard_task(connection, lease, job_id, task)
            job_rows.store_facts(connection, job_id, task, facts)

    def task_trials(self, job_id: str, task: int) -> int:
        """Return how many trials a task has. Raises NotFound."""
        with self.database.reading() as connection:
            number = job_rows.number_of_job(connection, job_id)
            return int(job_rows.load_task(connection, number, task)["trials"])

    def count_by_state(self) -> dict[str, int]:
        """Return how many jobs there are in each state that has any."""
        with self.database.reading() as connection:
            return count_states(connection, JOB)

    # models that users run

    def add_tuned_model(self, new: NewTunedModel) -> tuple[TunedModelRow, bool]:
        """Store a model unless it is there; return (model, whether it is new)."""
        with self.database.writing() as connection:
            created = keep_tuned_model(connection, new)
            return load_tuned_model(connection, new.key), created

    def tuned_model(self, key: str) -> TunedModelRow:
        """Return a model. Raises NotFound."""
        with self.database.reading() as connection:
            return load_tuned_model(connection, key)

    def models_with(self, workload_key: str, *, limit: int) -> tuple[tuple[str, str, int], ...]:
        """Return (key, name, how many of its kernels compute it) of the newest models that have a workload."""
        with self.database.reading() as connection:
            return models_with(connection, workload_key, limit)

    def tuned_models(
        self, *, before: int | None = None, limit: int, most_workloads: int = 1 << 30
    ) -> tuple[TunedModelRow, ...]:
        """Return models with numbers below ``before``, newest first: no more of them than have ``most_workloads``
        workloads together, and one."""
        with self.database.reading() as connection:
            return page_of_tuned_models(connection, before=before, limit=limit, most_workloads=most_workloads)

    def fastest(
        self, workload_keys: Sequence[str], device_key: str, profile: str, most: int
    ) -> dict[str, tuple[int, tuple[float, ...]]]:
        """Return how many trials of a workload were timed on a device under a profile, and the ``most`` fastest times,
        ascending, for every workload that has any."""
        with self.database.reading() as connection:
            return load_fastest(connection, workload_keys, device_key, profile, most)

    def create_model_job(self, new: NewJob) -> tuple[JobRow, bool]:
        """Add the job of the model ``new.model_key``; return (job, whether it is new). A job of that model for the same
        target that is under way is the answer instead. Raises NotFound, QuotaExceeded."""
        with self.database.writing() as connection:
            job_id, created = admit_model_job(connection, new)
            return job_rows.load_job(connection, job_id), created

    def add_model_timing(self, key: str, timing: ModelTimingRow) -> TunedModelRow:
        """Store the time of whole runs of a model; return the model. Raises NotFound."""
        with self.database.writing() as connection:
            add_timing(connection, key, timing)
            return load_tuned_model(connection, key)

    # trials

    def add_trial(self, new: NewTrial, *, lease: Lease | None = None) -> StoredTrial:
        """Store a trial, the task's counters, its best trial and the events in one transaction. With the ``lease`` of
        the task, its tenant is charged for the seconds of the trial, and attempts that were lost are forgotten.

        Raises Conflict when the trial is there already or leaves a gap in the sequence, and LeaseLost.
        """
        if self._statement is not None and lease is not None:
            recorded = self._statement.record(new, lease)
            if recorded is not None:
                return recorded
        with self.database.writing() as connection:
            return record_trial(connection, new, lease=lease)

    def add_remeasurement(
        self, job_id: str, task: int, outcomes: Mapping[int, Timed], *, lease: Lease | None = None
    ) -> None:
        """Store what the re-measurement of a task changed (by sequence), its new best trial and the event in one
        transaction. With the ``lease`` of the task, raises LeaseLost when it is lost."""
        with self.database.writing() as connection:
            record_remeasurement(connection, job_id, task, outcomes, lease=lease)

    def trial(self, record_id: int) -> TrialRow:
        """Return one record. Raises NotFound."""
        with self.database.reading() as connection:
            return trial_rows.load_trial(connection, record_id)

    def trials(
        self, job_id: str, task: int, *, after: int | None = None, limit: int, newest_first: bool = False
    ) -> tuple[TrialRow, ...]:
        """Return trials of a task by sequence, beyond sequence ``after``. Raises NotFound."""
        with self.database.reading() as connection:
            number = job_rows.number_of_job(connection, job_id)
            job_rows.load_task(connection, number, task)
            return trial_rows.page_by_sequence(
                connection, number, task, after=after, limit=limit, newest_first=newest_first
            )

    def trials_by_seconds(
        self, job_id: str, task: int, *, after: tuple[float, str, int] | None = None, limit: int
    ) -> tuple[TrialRow, ...]:
        """Return timed trials of a task, fastest first, beyond (rank seconds, schedule key, record id). Raises
        NotFound."""
        with self.database.reading() as connection:
            number = job_rows.number_of_job(connection, job_id)
            job_rows.load_task(connection, number, task)
            return trial_rows.page_by_seconds(connection, number, task, after=after, limit=limit)

    def same_schedule(self, record_id: int, *, limit: int) -> tuple[TrialRow, ...]:
        """Return timed trials of a record's workload and schedule in any job, newest first. Raises NotFound."""
        with self.database.reading() as connection:
            return trial_rows.load_same_schedule(connection, record_id, limit=limit)

    def failed_trials(self, job_id: str, task: int, *, before: int | None = None, limit: int) -> tuple[TrialRow, ...]:
        """Return failed trials of a task with record ids below ``before``, newest first. Raises NotFound."""
        with self.database.reading() as connection:
            number = job_rows.number_of_job(connection, job_id)
            job_rows.load_task(connection, number, task)
            return trial_rows.page_of_failed(connection, number, task, before=before, limit=limit)

    def points(self, job_id: str, task: int, *, after: int, limit: int) -> tuple[PointRow, ...]:
        """Return what a chart needs of the trials of a task beyond sequence ``after``. Raises NotFound."""
        with self.database.reading() as connection:
            number = job_rows.number_of_job(connection, job_id)
            job_rows.load_task(connection, number, task)
            return trial_rows.load_points(connection, number, task, after=after, limit=limit)

    def failures(self, job_id: str, task: int) -> tuple[FailureRow, ...]:
        """Return the kinds of failure of a task, most frequent first. Raises NotFound."""
        with self.database.reading() as connection:
            number = job_rows.number_of_job(connection, job_id)
            job_rows.load_task(connection, number, task)
            return trial_rows.load_failures(connection, number, task)

    def answers(
        self,
        workload_keys: Sequence[str],
        *,
        device_key: str,
        toolchain_key: str,
        profile: str,
        tenant: str | None = None,
    ) -> list[AnswerRow]:
        """Return the fastest records of workloads under exactly these conditions, one for each tenant, sketch and
        version, in no order; with a ``tenant`` those of its jobs alone. This is one statement, whatever the number of
        keys."""
        with self.database.autocommit() as connection:
            return find_exact(connection, workload_keys, device_key, toolchain_key, profile, tenant)

    def answers_anywhere(self, workload_keys: Sequence[str], *, tenant: str | None = None) -> list[AnswerRow]:
        """Return the fastest records of workloads, one for each identity and tenant, in no order."""
        with self.database.autocommit() as connection:
            return find_any(connection, workload_keys, tenant)

    def moved(
        self, device_key: str, profile: str, toolchain_key: str | None, sketches: Mapping[str, int],
        before: str | None, *, limit: int,
    ) -> tuple[str, ...]:  # fmt: skip
        """Return the workloads with best records of other toolchains, or of sketches in other versions, alone
        (``retuning``)."""
        with self.database.reading() as connection:
            return load_moved(connection, device_key, profile, toolchain_key, sketches, before, limit)

    def earlier_trials(
        self, workload_key: str, on: MeasuredOn, sketches: Mapping[str, int], before: str | None,
        *, tenant: str | None, until: int, limit: int,
    ) -> EarlierTrials | None:  # fmt: skip
        """Return the fastest records of a workload from before a change (``retuning``); None where there are none."""
        with self.database.reading() as connection:
            return load_earlier(connection, workload_key, on, sketches, before, tenant, until, limit)

    def transfers(self, sketches: Mapping[str, int], *, limit: int) -> list[TransferRow]:
        """Return what schedules lose under other conditions than those where they are the fastest (``transfers``)."""
        with self.database.reading() as connection:
            return load_transfers(connection, sketches, limit)

    def keep_family(self, tenant: str, name: str, document: Mapping[str, object]) -> FamilyRow:
        """Store a shape family of a tenant under its name, in place of one that had it."""
        with self.database.writing() as connection:
            return family_rows.keep_family(connection, tenant, name, document)

    def family(self, name: str) -> FamilyRow:
        """Return a shape family. Raises NotFound."""
        with self.database.reading() as connection:
            return family_rows.load_family(connection, name)

    def families(self, *, before: int | None = None, limit: int) -> tuple[FamilyRow, ...]:
        """Return shape families with numbers below ``before``, newest first."""
        with self.database.reading() as connection:
            return family_rows.page_of_families(connection, before, limit)

    def times_of(
        self, operator: str, device_key: str, toolchain_key: str, profile: str, sketches: Mapping[str, int]
    ) -> list[tuple[Mapping[str, object], Schedule, float]]:
        """Return (parameters, schedule, seconds) of every timed record of an operator under these conditions, of
        ``sketches`` in these versions."""
        with self.database.reading() as connection:
            conditions = (operator, device_key, toolchain_key, profile, sketches)
            return list(family_rows.times_of(connection, *conditions))

    def near(self, operator: str, *, limit: int) -> tuple[NearRow, ...]:
        """Return workloads of the newest ``limit`` tasks of an operator that have a timed record, newest first."""
        with self.database.reading() as connection:
            return trial_rows.find_near(connection, operator, limit)

    def origin(self, workload_key: str) -> tuple[str, Mapping[str, object]] | None:
        """Return the (operator, parameters) that a workload was last submitted with; None when it came from no
        operator."""
        with self.database.reading() as connection:
            return trial_rows.find_origin(connection, workload_key)

    def history_tasks(
        self, *, target_kind: str, until: int, but: tuple[str, int] | None, limit: int
    ) -> tuple[HistoryTask, ...]:
        """Return the newest ``limit`` tasks with records up to the id ``until`` on targets of a kind, newest first. The
        (job, task) ``but`` is left out."""
        with self.database.reading() as connection:
            task = None if but is None else (job_rows.number_of_job(connection, but[0]), but[1])
            return load_tasks(connection, target_kind=target_kind, until=until, but=task, limit=limit)

    def history_groups(self, tasks: Sequence[HistoryTask], *, until: int) -> tuple[HistoryGroup, ...]:
        """Return the groups of comparable records of tasks with ids up to ``until``, newest first."""
        with self.database.reading() as connection:
            return load_groups(connection, tasks, until)

    def history(self, groups: Sequence[HistoryGroup], *, until: int) -> tuple[Record, ...]:
        """Return the records of groups with ids up to ``until``, those of one task in their order."""
        with self.database.reading() as connection:
            return load_records(connection, groups, until)

    def newest_record(self) -> int:
        """Return the id of the newest record, or 0 when there is none."""
        with self.database.reading() as connection:
            return trial_rows.newest_record(connection)

    # JSON lines

    def export_lines(self) -> Iterator[str]:
        """Yield every record as JSON lines (see ``json_lines``). No transaction stays open between pages."""
        exporter = JsonLinesExporter()
        while True:
            with self.database.reading() as connection:
                page = exporter.page(connection)
            if not page:
                return
            yield from page

    def import_lines(self, lines: Iterable[str]) -> tuple[int, int]:
        """Add the records of such lines; return how many were (added, there already). Raises InvalidParameter, and
        then nothing was added."""
        with self.database.writing() as connection:
            importer = JsonLinesImporter(connection)
            importer.read(lines)
            return importer.added, importer.known

    # events

    def events(self, job_id: str, *, after: int, limit: int) -> tuple[EventRow, ...]:
        """Return the events of a job with ids above ``after``, in order. Raises NotFound."""
        with self.database.reading() as connection:
            return job_rows.load_events(connection, job_id, after=after, limit=limit)

    # workloads and devices

    def workload(self, key: str) -> Mapping[str, object] | None:
        """Return the JSON of a workload; None when it is unknown, or of tenants that are not seen."""
        with self.database.reading() as connection:
            seen = record_tenant() is None or sees_workload(connection, key)
            return load_workload(connection, key) if seen else None

    def workloads(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Return the JSON of workloads as texts by their keys, without those unknown, or of tenants not seen."""
        with self.database.reading() as connection:
            seen = [key for key in keys if record_tenant() is None or sees_workload(connection, key)]
            return load_workloads(connection, seen)

    def devices(self, *, imported: bool = False) -> tuple[DeviceInfo, ...]:
        """Return every device ever seen; with ``imported`` those, too, that stand for another program's clock."""
        with self.database.reading() as connection:
            return tuple(info for info in load_devices(connection) if imported or not info.imported)

    def measured(self, device_key: str) -> Mapping[str, float]:
        """Return what was measured on a device; the mapping is empty when nothing was."""
        with self.database.reading() as connection:
            return load_measured(connection, device_key) or {}

    def keep_device(self, info: DeviceInfo) -> None:
        """Add a device, or replace what was measured on it."""
        with self.database.writing() as connection:
            keep_device(connection, info)

    # models

    def keep_model(
        self,
        kind: str,
        feature_version: int,
        data: bytes,
        *,
        records: int,
        metrics: Mapping[str, float],
        device: DeviceInfo | None = None,
    ) -> ModelRow:
        """Store a trained cost model."""
        with self.database.writing() as connection:
            number = None if device is None else keep_device(connection, device)
            return insert_model(connection, kind, feature_version, data, records, metrics, number)

    def newest_model(self, kind: str, feature_version: int, *, until: int | None = None) -> ModelRow | None:
        """Return the model of a kind that was trained last on features of a version, from records with ids up to
        ``until``; None when there is none."""
        with self.database.reading() as connection:
            return newest_model(connection, kind, feature_version, until)
