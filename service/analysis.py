"""The use cases that look at many jobs at once: estimates, workloads over time, comparisons, cost models."""

from collections.abc import Callable, Iterable

from ..core.target import DeviceInfo
from ..db.store import RecordStore
from .analysis_views import JobEstimate
from .estimate import estimate
from .targets import kind_of
from .views import JobSpec


class Analysis:
    """``checked`` fills the defaults of a job in, and ``known_devices`` gives the devices of the database. Every
    method raises StoreError when the database cannot serve."""

    def __init__(
        self,
        store: RecordStore,
        checked: Callable[[JobSpec], JobSpec],
        known_devices: Callable[[], Iterable[DeviceInfo]],
    ) -> None:
        self._store = store
        self._checked = checked
        self._known_devices = known_devices

    def estimate(self, spec: JobSpec) -> JobEstimate:
        """Return what a job would cost. Raises what ``Service.checked`` raises."""
        spec = self._checked(spec)
        kind = kind_of(spec.target, self._known_devices, one_host=self._store.embedded)
        return estimate(self._store, spec, kind)
