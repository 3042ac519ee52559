"""Explains and exports schedules on request. Children compile them; the threads that wait for these are apart from
those that serve other requests."""

import asyncio
import contextvars
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from fastapi import Response

from ..core.schedule import Schedule
from ..service.service import Service
from ..service.views import Explanation, ExportView
from ..te.workload import Workload
from .problem_handlers import RequestRefused
from .responses import ExplanationOut, ExportOut

WAITING_THREADS = 16
MOST_WAITING = 512
"""So many requests may wait for a compilation; others are asked to come again."""
_THREADS = ThreadPoolExecutor(WAITING_THREADS, thread_name_prefix="compilation-request")
_waiting = 0
P = ParamSpec("P")
T = TypeVar("T")


def compiles(endpoint: Callable[P, T]) -> Callable[P, Coroutine[None, None, T]]:
    """Return the endpoint of a route that waits for compilations, as one that does so in a thread of these. Raises
    RequestRefused (503) where too many wait."""

    @functools.wraps(endpoint)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        global _waiting
        if _waiting >= MOST_WAITING:
            raise RequestRefused(503, "BUSY", f"{_waiting} requests wait for schedules to be compiled; try again")
        _waiting += 1
        try:
            # the thread sees the rows of the present caller alone, as the request does
            call = functools.partial(contextvars.copy_context().run, endpoint, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
        finally:
            _waiting -= 1

    return answer


def explain_record(service: Service, record_id: int) -> Explanation:
    """Return every layer of the schedule of one record. Raises NotFound."""
    trial = service.trial(record_id)
    task = service.job(trial.job_id).tasks[trial.task]
    return service.explain(service.workload_of(task.workload_key), record_id=record_id)


def explain_workload(
    service: Service, workload: Workload, schedule: Schedule | None, target: str | None = None
) -> Explanation:
    """Return every layer of ``schedule``, or of the best one known, or of the sketch's first."""
    return service.explain(workload, schedule, target=target)


def export_record(service: Service, record_id: int, name: str, library: bool) -> ExportView:
    """Return the schedule of one record as files. Raises NotFound."""
    return service.export(record_id=record_id, name=name, library=library)


def export_workload(
    service: Service, workload: Workload, schedule: Schedule | None, target: str | None, name: str, library: bool
) -> ExportView:
    """Return ``schedule``, or the best one known, as files. Raises NotFound."""
    return service.export(workload, schedule, target=target, name=name, library=library)


def explanation_answer(explanation: Explanation) -> Response:
    """Return an explanation as it is sent. It may be large, so that it is encoded in the thread of its request."""
    return Response(ExplanationOut.model_validate(explanation).model_dump_json(), media_type="application/json")


def export_answer(export: ExportView) -> Response:
    """Return an export as it is sent, likewise."""
    return Response(ExportOut.model_validate(export).model_dump_json(), media_type="application/json")
