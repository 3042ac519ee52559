"""Explains and exports schedules on request. They are compiled in the server's process, a few at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.schedule import Schedule
from ..service.service import Service
from ..service.views import Explanation, ExportView
from ..te.workload import Workload
from .problem_handlers import RequestRefused

_SLOTS = threading.BoundedSemaphore(4)
"""Each request compiles a kernel. A hundred at once would starve all other requests."""
_WAIT_SECONDS = 20.0


@contextmanager
def _slot() -> Iterator[None]:
    if not _SLOTS.acquire(timeout=_WAIT_SECONDS):
        raise RequestRefused(503, "BUSY", "too many schedules are being compiled; try again")
    try:
        yield
    finally:
        _SLOTS.release()


def explain_record(service: Service, record_id: int) -> Explanation:
    """Return every layer of the schedule of one record. Raises NotFound."""
    trial = service.trial(record_id)
    task = service.job(trial.job_id).tasks[trial.task]
    with _slot():
        return service.explain(service.workload_of(task.workload_key), record_id=record_id)


def explain_workload(
    service: Service, workload: Workload, schedule: Schedule | None, target: str | None = None
) -> Explanation:
    """Return every layer of ``schedule``, or of the best one known, or of the sketch's first."""
    with _slot():
        return service.explain(workload, schedule, target=target)


def export_record(service: Service, record_id: int, name: str, library: bool) -> ExportView:
    """Return the schedule of one record as files. Raises NotFound."""
    with _slot():
        return service.export(record_id=record_id, name=name, library=library)


def export_workload(
    service: Service, workload: Workload, schedule: Schedule | None, target: str | None, name: str, library: bool
) -> ExportView:
    """Return ``schedule``, or the best one known, or the sketch's first, as files."""
    with _slot():
        return service.export(workload, schedule, target=target, name=name, library=library)
