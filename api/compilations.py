"""Explains and exports schedules on request. Children compile them; the threads that wait for these are apart from
those that serve other requests."""

import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import Response

from ..service.service import Service
from ..service.views import Explanation, ExportView
from .problem_handlers import RequestRefused
from .responses import ExplanationOut, ExportOut

WAITING_THREADS = 6
"""Some more than there are children: what threads compute before and after they wait delays the event loop."""
MOST_WAITING = 512
"""So many requests may wait for such a thread; others are asked to come again."""
_LIMITER: RunVar[CapacityLimiter] = RunVar("compilation threads")
"""Each event loop has its own."""
P = ParamSpec("P")
T = TypeVar("T")


def compiles(endpoint: Callable[P, T]) -> Callable[P, Coroutine[None, None, T]]:
    """Return the endpoint of a route that waits for compilations, as one that does so in a thread of these, with the
    context of its request. Raises RequestRefused (503) where too many wait."""

    @functools.wraps(endpoint)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        limiter = _LIMITER.get(None)
        if limiter is None:
            limiter = CapacityLimiter(WAITING_THREADS)
            _LIMITER.set(limiter)
        waiting = limiter.statistics().tasks_waiting
        if waiting >= MOST_WAITING:
            raise RequestRefused(503, "BUSY", f"{waiting} requests wait for schedules to be compiled; try again")
        return await to_thread.run_sync(functools.partial(endpoint, *args, **kwargs), limiter=limiter)

    return answer


def explain_record(service: Service, record_id: int) -> Explanation:
    """Return every layer of the schedule of one record. Raises NotFound."""
    trial = service.trial(record_id)
    task = service.job(trial.job_id).tasks[trial.task]
    return service.explain(service.workload_of(task.workload_key), record_id=record_id)


def explanation_answer(explanation: Explanation) -> Response:
    """Return an explanation as it is sent. It may be large, so that it is encoded in the thread of its request."""
    return Response(ExplanationOut.model_validate(explanation).model_dump_json(), media_type="application/json")


def export_answer(export: ExportView) -> Response:
    """Return an export as it is sent, likewise."""
    return Response(ExportOut.model_validate(export).model_dump_json(), media_type="application/json")
