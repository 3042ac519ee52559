"""Answers with the events of a job as a stream (server-sent events) or by polling.

Streams of one job that know the same events share one thread and its queries, however many they are.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Look:
    """Holds what a look found: whether the job had ended before, and the events beyond the last one known."""

    final: bool
    events: tuple[EventView, ...]
    sent: tuple[bytes, ...] = ()
    """The events as streams send them."""


class EventStreams:
    """Counts the threads that wait for events. They are separate from the threads that serve requests."""

    def __init__(self, limit: int = MAX_EVENT_STREAMS) -> None:
        self.limit = limit
        self.open = 0
        self._of_user: Counter[tuple[str, str]] = Counter()
        self.limiter = anyio.CapacityLimiter(limit)
        self._looks: dict[tuple[str, bool, str, int, float], asyncio.Task[_Look]] = {}

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

    async def look(self, service: Service, job_id: str, after: int, seconds: float) -> _Look:
        """Look for events, and wait for so long."""
        call = functools.partial(_look, service, job_id, after, seconds)
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self.limiter)

    async def shared_look(self, service: Service, job_id: str, after: int, seconds: float) -> _Look:
        """Look for events to stream, together with all who wait for the same ones."""
        caller = present_caller()
        asked = (caller.tenant, caller.is_admin, job_id, after, seconds)
        task = self._looks.get(asked)
        if task is None:
            task = self._looks[asked] = asyncio.create_task(self._shared(service, *asked))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # all who asked may have gone
        return await asyncio.shield(task)

    async def _shared(
        self, service: Service, tenant: str, is_admin: bool, job_id: str, after: int, seconds: float
    ) -> _Look:
        try:
            call = functools.partial(_encoded_look, service, job_id, after, seconds)
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self.limiter)
        finally:  # before those who wait go on, and ask again
            del self._looks[tenant, is_admin, job_id, after, seconds]


def _look(service: Service, job_id: str, after: int, seconds: float) -> _Look:
    final = service.has_ended(job_id)
    return _Look(final, service.events(job_id, after=after, timeout_seconds=0.0 if final else seconds))


def _encoded_look(service: Service, job_id: str, after: int, seconds: float) -> _Look:
    found = _look(service, job_id, after, seconds)
    return _Look(found.final, found.events, tuple(map(_encoded, found.events)))


def _encoded(event: EventView) -> bytes:
    text = EventOut.model_validate(event).model_dump_json()
    return format_sse_event(data_str=text, event=event.kind, id=str(event.id))


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
        if wanted:
            first = await streams.shared_look(service, job_id, known, 0.0)
            if first.final and not first.events:
                return Response(status_code=204)
            stream = _stream(request, service, streams, job_id, known, first)
            return StreamingResponse(stream, headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        look = await streams.look(service, job_id, known, wait_seconds)
        if not look.events and not look.final:
            look = await streams.look(service, job_id, known, 0.0)
    found = look.events
    answer = EventList(
        events=tuple(EventOut.model_validate(event) for event in found),
        last_id=found[-1].id if found else known,
        final=look.final and not found,
    )
    return Response(answer.model_dump_json(), 200, media_type="application/json")


async def _stream(
    request: Request, service: Service, streams: EventStreams, job_id: str, known: int, first: _Look
) -> AsyncIterator[bytes]:
    """Yield events as they come, a comment when none has come for a while, and an ``end`` after a job's last one."""
    with streams.counted():
        quiet, look = 0.0, first
        yield b"retry: 2000\n\n"
        while not request.app.state.stopping():
            if look.sent:
                known, quiet = look.events[-1].id, 0.0
                yield b"".join(look.sent)
            elif look.final:
                yield format_sse_event(data_str="{}", event="end", id=str(known))
                return
            if quiet >= KEEP_ALIVE_SECONDS:
                quiet = 0.0
                yield KEEPALIVE_COMMENT
            quiet += _SLICE_SECONDS
            try:
                look = await streams.shared_look(service, job_id, known, _SLICE_SECONDS)
            except StoreError:  # the database is away: whoever listens waits for it too
                look = _Look(False, ())
                await anyio.sleep(_SLICE_SECONDS)
