"""Answers with the events of a job as a stream (server-sent events) or by polling."""

import functools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from ...core.errors import StoreError
from ...service.callers import Caller, present_caller
from ...service.service import Service
from ...service.views import EventView
from ..dependencies import JobId, ServiceDependency
from ..limits import (
    KEEP_ALIVE_SECONDS,
    MAX_EVENT_STREAMS,
    MAX_ID,
    MAX_STREAMS_OF_A_USER,
    MAX_WAIT_SECONDS,
    RETRY_AFTER_SECONDS,
)
from ..problem_handlers import RequestRefused
from ..problem_responses import FINDS
from ..responses import EventList, EventOut
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictRoute)
_SLICE_SECONDS = 1.0
"""How long one wait in a thread lasts. A stream notices within this time that the server stops."""
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events after the one asked for: JSON, or a stream for `Accept: text/event-stream`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The stream of a job that has ended, and nothing is newer: do not reconnect."},
    **FINDS,
}


def _user(caller: Caller) -> tuple[str, str]:
    return caller.tenant, caller.name


class EventStreams:
    """Counts the threads that wait for events. They are separate from the threads that serve requests."""

    def __init__(self, limit: int = MAX_EVENT_STREAMS) -> None:
        self.limit = limit
        self.open = 0
        self._of_user: Counter[tuple[str, str]] = Counter()
        self.limiter = anyio.CapacityLimiter(limit)

    def check(self) -> None:
        """Raise RequestRefused where the present caller may open no other stream: there are too many in all, or the
        user of a key has too many."""
        caller = present_caller()
        if self.open >= self.limit:
            raise RequestRefused(503, "TOO_MANY_STREAMS", f"{self.limit} event streams are open already")
        if caller.key_id is not None and self._of_user[_user(caller)] >= MAX_STREAMS_OF_A_USER:
            detail = f"{MAX_STREAMS_OF_A_USER} event streams of this user are open already"
            raise RequestRefused(429, "TOO_MANY_STREAMS", detail, retry_after=RETRY_AFTER_SECONDS)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a stream of the present caller during the block."""
        user = _user(present_caller())
        self.open += 1
        self._of_user[user] += 1
        try:
            yield
        finally:
            self.open -= 1
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]

    async def wait(self, service: Service, job_id: str, after: int, seconds: float) -> tuple[EventView, ...]:
        call = functools.partial(service.events, job_id, after=after, timeout_seconds=seconds)
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self.limiter)

    async def is_final(self, service: Service, job_id: str) -> bool:
        return (await anyio.to_thread.run_sync(service.job, job_id, limiter=self.limiter)).state.is_final


@router.get("/{job_id}/events", operation_id="listEvents", response_model=EventList, responses=_RESPONSES)
async def events(
    job_id: JobId,
    request: Request,
    service: ServiceDependency,
    after: Annotated[int, Query(ge=0, le=MAX_ID, description="The id of the last event already known.")] = 0,
    wait_seconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, description="How long to wait for one.")] = 0.0,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_ID, description="As `after`; sent on reconnecting.")
    ] = None,
) -> Response:
    """Answer with what happened to a job after a given event.

    `Accept: text/event-stream` gives a stream that ends when the job does; anything else gives JSON.
    """
    streams: EventStreams = request.app.state.streams
    known = after if last_event_id is None else max(after, last_event_id)
    wanted = "text/event-stream" in request.headers.get("accept", "")
    streams.check()
    with streams.counted():
        final = await streams.is_final(service, job_id)
        found = await streams.wait(service, job_id, known, 0.0 if final or wanted else wait_seconds)
        if not wanted:
            final = await streams.is_final(service, job_id) if not found else final
    if wanted:
        if final and not found:
            return Response(status_code=204)
        stream = _stream(request, service, streams, job_id, known)
        return StreamingResponse(stream, headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
    answer = EventList(
        events=tuple(EventOut.model_validate(event) for event in found),
        last_id=found[-1].id if found else known,
        final=final and not found,
    )
    return Response(answer.model_dump_json(), 200, media_type="application/json")


async def _stream(
    request: Request, service: Service, streams: EventStreams, job_id: str, known: int
) -> AsyncIterator[bytes]:
    """Yield events as they come, a comment when none has come for a while, and an ``end`` after a job's last one."""
    with streams.counted():
        quiet = 0.0
        yield b"retry: 2000\n\n"
        while not request.app.state.stopping():
            try:
                final = await streams.is_final(service, job_id)
                found = await streams.wait(service, job_id, known, 0.0 if final else _SLICE_SECONDS)
            except StoreError:  # the database is away: whoever listens waits for it too
                final, found = False, ()
                await anyio.sleep(_SLICE_SECONDS)
            for event in found:
                known, quiet = event.id, 0.0
                text = EventOut.model_validate(event).model_dump_json()
                yield format_sse_event(data_str=text, event=event.kind, id=str(event.id))
            if final and not found:
                yield format_sse_event(data_str="{}", event="end", id=str(known))
                return
            quiet += _SLICE_SECONDS
            if quiet >= KEEP_ALIVE_SECONDS:
                quiet = 0.0
                yield KEEPALIVE_COMMENT
