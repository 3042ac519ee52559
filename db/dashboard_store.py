"""The dashboard's part of the database: figures that are read and never written."""

from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, select

from ..core.record import RecordFilter
from . import job_figures, overview
from . import jobs as job_rows
from .dashboard_rows import (
    CauseRow,
    FoundRecords,
    HealthRow,
    PredictedRow,
    ProgressRow,
    RunningRow,
    SettingRow,
    SpentRow,
    WorkerRow,
)
from .device_totals import load_spent
from .engine import Database
from .record_search import search_records
from .tables import jobs, trials
from .visibility import visible_record

P = ParamSpec("P")
T = TypeVar("T")


class DashboardStore:
    """Thread-safe. Every method raises StoreError when the database cannot serve, and those of a task NotFound."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _of_task(
        self,
        load: Callable[Concatenate[Connection, int, int, P], T],
        job_id: str,
        task: int,
        *arguments: P.args,
        **keywords: P.kwargs,
    ) -> T:
        with self._database.reading() as connection:
            number = job_rows.number_of_job(connection, job_id)
            job_rows.load_task(connection, number, task)
            return load(connection, number, task, *arguments, **keywords)

    def progress(
        self, job_id: str, task: int, *, after: int, step: int, limit: int
    ) -> tuple[tuple[ProgressRow, ...], int]:
        """Return trials of a task (see ``job_figures.load_progress``), and the id of an event of the job after which
        nothing is told that these trials do not hold."""
        with self._database.reading() as connection:
            number = job_rows.number_of_job(connection, job_id)
            job_rows.load_task(connection, number, task)
            newest = job_rows.newest_event(connection, job_id)
            rows = job_figures.load_progress(connection, number, task, after=after, step=step, limit=limit)
            return rows, newest

    def samples(self, record_ids: Sequence[int]) -> Mapping[int, Sequence[float]]:
        """Return the samples of timed records: those that their ``seconds`` is the median of."""
        query = select(trials.c.id, trials.c.samples).join(jobs, jobs.c.number == trials.c.job)
        query = query.where(trials.c.id.in_(record_ids), visible_record(jobs.c.tenant))
        with self._database.reading() as connection:
            return {number: samples for number, samples in connection.execute(query)}

    def workers(self, job_id: str, task: int) -> tuple[WorkerRow, ...]:
        """Return on what the trials of a task spent time, by unit."""
        return self._of_task(job_figures.load_workers, job_id, task)

    def health(self, job_id: str, task: int, *, step: int) -> tuple[HealthRow, ...]:
        """Return what was seen of the device beside every ``step``-th trial."""
        return self._of_task(job_figures.load_health, job_id, task, step=step)

    def settings(self, job_id: str, task: int, *, fastest: int, step: int) -> tuple[SettingRow, ...]:
        """Return the settings of the fastest trials of a task and of every ``step``-th one."""
        return self._of_task(job_figures.load_settings, job_id, task, fastest=fastest, step=step)

    def predicted(self, job_id: str, task: int) -> tuple[PredictedRow, ...]:
        """Return the trials of a task that its cost model had predicted."""
        return self._of_task(job_figures.load_predicted, job_id, task)

    def search(self, wanted: RecordFilter, *, before: int | None, limit: int) -> FoundRecords:
        """Return records that a filter lets through with ids below ``before``, newest first, and from where to go on:
        one call looks at so many records (``record_search.WINDOW``)."""
        with self._database.reading() as connection:
            return search_records(connection, wanted, before=before, limit=limit)

    def running(self) -> tuple[RunningRow, ...]:
        """Return the tasks that are being searched."""
        with self._database.reading() as connection:
            return overview.load_running(connection)

    def spent(self, since: str) -> tuple[SpentRow, ...]:
        """Return what was done on each class of devices, by all jobs and by those that ran after a time."""
        with self._database.reading() as connection:
            return load_spent(connection, since)

    def causes(self, since: str) -> tuple[CauseRow, ...]:
        """Return why trials of all jobs failed after a time."""
        with self._database.reading() as connection:
            return overview.load_causes(connection, since)
