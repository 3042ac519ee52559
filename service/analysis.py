"""The use cases that look at many jobs at once: estimates, workloads over time, comparisons, cost models."""

from collections.abc import Callable, Iterable, Sequence

from ..core.target import DeviceInfo
from ..db.store import RecordStore
from .analysis_views import BestTaskView, JobEstimate, ScheduleComparison, StoredModels, WorkloadHistory, WorkloadView
from .comparison import ComparedJob, ComparedRecord, compare
from .estimate import KnownBest, estimate
from .stored_models import stored_models
from .targets import kind_of
from .views import JobSpec, Page
from .workload_history import page_of_workloads, workload_history


class Analysis:
    """``checked`` fills the defaults of a job in, and ``known_devices`` gives the devices of the database. Every
    method raises StoreError when the database cannot serve."""

    def __init__(
        self,
        store: RecordStore,
        checked: Callable[[JobSpec], JobSpec],
        known_devices: Callable[[], Iterable[DeviceInfo]],
        known_best: KnownBest,
    ) -> None:
        self._store = store
        self._checked = checked
        self._known_devices = known_devices
        self._known_best = known_best

    def estimate(self, spec: JobSpec) -> JobEstimate:
        """Return what a job would cost. Raises what ``Service.checked`` raises."""
        spec = self._checked(spec)
        kind = kind_of(spec.target, self._known_devices, one_host=self._store.embedded)
        return estimate(self._store, spec, kind, self._known_best)

    def workloads(self, *, operator: str | None = None, page_size: int = 50, token: str = "") -> Page[WorkloadView]:
        """Return the workloads that were submitted, those of the newest jobs first. Raises InvalidParameter for a bad
        page size or token."""
        return page_of_workloads(self._store, operator, page_size, token)

    def newest_bests(self, limit: int, *, workload_keys: Sequence[str] | None = None) -> tuple[BestTaskView, ...]:
        """Return at most ``limit`` tasks that have a best record, those of the newest jobs first; of these workloads
        alone where they are given."""
        return self._store.analysis.newest_bests(limit=limit, workload_keys=workload_keys)

    def workload(self, workload_key: str) -> WorkloadHistory:
        """Return what was found for a workload over devices, toolchains and time. Raises NotFound."""
        return workload_history(self._store, workload_key)

    def compare(self, asked: Sequence[ComparedJob | ComparedRecord]) -> ScheduleComparison:
        """Compare two to eight schedules with the first of them. Raises InvalidParameter, NotFound."""
        return compare(self._store, asked)

    def models(self, model_id: int | None = None) -> StoredModels:
        """Return the stored cost models, and how good one of them is. Raises NotFound."""
        return stored_models(self._store, model_id)
