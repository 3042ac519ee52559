"""The database's answers about many jobs at once: costs of trials, results of workloads over time, cost models."""

from collections.abc import Sequence

from ..core.record import Record
from . import models as model_rows
from .costs import load_trial_cost
from .dashboard_rows import BestTaskRow
from .engine import Database
from .rows import ModelSummary, ResultRow, TrialCost, WorkloadSummary
from .workload_results import load_records_after, load_results, newest_bests, page_of_workloads


class AnalysisStore:
    """Thread-safe. Every method raises StoreError when the database cannot serve."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def trial_cost(self, target_kind: str, workload_key: str, operator: str | None) -> TrialCost | None:
        """Return how long trials of a workload take on devices of a kind (``costs.load_trial_cost``)."""
        with self._database.reading() as connection:
            return load_trial_cost(connection, target_kind, workload_key, operator)

    def workloads(
        self, *, before: tuple[int, int] | None = None, operator: str | None = None, limit: int
    ) -> tuple[tuple[WorkloadSummary, ...], tuple[int, int] | None]:
        """Return workloads that were submitted, those of the newest tasks first, and what ``before`` is for those that
        follow; None: there are no more."""
        with self._database.reading() as connection:
            return page_of_workloads(connection, before=before, operator=operator, limit=limit)

    def newest_bests(
        self, *, limit: int, device_key: str | None = None, workload_keys: Sequence[str] | None = None
    ) -> tuple[BestTaskRow, ...]:
        """Return tasks that have a best record, those of the newest jobs first (``workload_results.newest_bests``)."""
        with self._database.reading() as connection:
            return newest_bests(connection, limit=limit, device_key=device_key, workload_keys=workload_keys)

    def results(self, workload_key: str, *, limit: int) -> tuple[ResultRow, ...]:
        """Return the best record of each task of a workload, the newest ``limit`` of them, oldest first."""
        with self._database.reading() as connection:
            return load_results(connection, workload_key, limit=limit)

    def records_after(self, target_kind: str, record_id: int, *, limit: int) -> tuple[Record, ...]:
        """Return the first ``limit`` records with ids above ``record_id`` on targets of a kind, oldest first, but for
        adopted ones."""
        with self._database.reading() as connection:
            return load_records_after(connection, target_kind, record_id, limit)

    def models(self, *, limit: int) -> tuple[ModelSummary, ...]:
        """Return what is known of the newest models, newest first."""
        with self._database.reading() as connection:
            return model_rows.newest_models(connection, limit)

    def model_data(self, model_id: int) -> bytes | None:
        """Return a model's bytes; None where there is no such model."""
        with self._database.reading() as connection:
            return model_rows.load_model_data(connection, model_id)
